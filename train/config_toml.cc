#include <toml++/toml.h>

#include <algorithm>

#include "core/error.h"
#include "data/io/files.h"
#include "train/config.h"

namespace longspan {
namespace {

constexpr int64_t max_bytes = 1 << 20;
constexpr int max_depth = 16;  // of tables, and of nested arrays

/// Returns the end of the string that begins at `at`, or of its line if that comes first.
size_t string_end(std::string_view text, size_t at) {
  const char quote = text[at];
  const std::string three(3, quote);
  const bool lines = text.substr(at, 3) == three;
  for (at += lines ? 3 : 1; at < text.size(); ++at) {
    if (quote == '"' && text[at] == '\\') {
      ++at;
    } else if (lines ? text.substr(at, 3) == three : text[at] == quote) {
      at += lines ? 3 : 1;
      // Up to two more quotes belong to a multi-line string.
      for (int more = 0; lines && more < 2 && at < text.size() && text[at] == quote; ++more) ++at;
      return at;
    } else if (!lines && text[at] == '\n') {
      return at;
    }
  }
  return text.size();
}

/// Throws ValueError if keys or values are nested so deeply that the parser, or the handling of its
/// result, would overflow the stack: both recurse.
void require_shallow(std::string_view text, const std::string& source) {
  int dots = 0, brackets = 0;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      at = string_end(text, at);
      continue;
    }
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    ++at;
    if (c == '.') {
      ++dots;
    } else if (c == '[' || c == '{' || c == ']' || c == '}') {
      brackets += c == '[' || c == '{' ? 1 : -1;
      dots = 0;
    } else if (c == '\n' || c == '=' || c == ',') {
      dots = 0;
    }
    if (dots < max_depth && brackets <= max_depth) continue;
    fail("config", "{}:{}: {} nested deeper than {}; no field lies so deep", source,
         1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'),
         brackets > max_depth ? "values are" : "a key is", max_depth);
  }
}

class Flattener {
 public:
  explicit Flattener(std::string source) : source_(std::move(source)) {}

  void table(const toml::table& table, const std::string& prefix) {
    for (const auto& [name, node] : table) {
      const std::string key = prefix + std::string(name.str());
      if (const toml::table* inner = node.as_table()) {
        if (inner->empty()) add(key, Members{}, node);
        this->table(*inner, key + ".");
      } else {
        add(key, value(key, node), node);
      }
    }
  }
  Settings take() { return std::move(settings_); }

 private:
  std::string origin(const toml::node& node) const {
    return fmt::format("{}:{}", source_, node.source().begin.line);
  }
  void add(const std::string& key, Json value, const toml::node& node) {
    settings_.push_back({key, std::move(value), origin(node), false});
  }
  Json value(const std::string& key, const toml::node& node) const {
    if (const auto* text = node.as_string()) return text->get();
    if (const auto* integer = node.as_integer()) return integer->get();
    if (const auto* number = node.as_floating_point()) return number->get();
    if (const auto* boolean = node.as_boolean()) return boolean->get();
    if (const toml::array* array = node.as_array()) {
      Json::Array items;
      for (const toml::node& item : *array) {
        if (item.is_table()) {
          fail("config", "{} ({}) is an array of tables: no field is one", key, origin(item));
        }
        items.push_back(value(key, item));
      }
      return items;
    }
    fail("config", "{} ({}) is a date or a time: no field is one", key, origin(node));
  }

  std::string source_;
  Settings settings_;
};

}  // namespace

Settings parse_toml(std::string_view text, const std::string& source) {
  require_shallow(text, source);
  try {
    Flattener flattener(source);
    flattener.table(toml::parse(text, source), {});
    return flattener.take();
  } catch (const toml::parse_error& error) {
    fail("config", "{}:{}:{}: {}", source, error.source().begin.line, error.source().begin.column,
         error.description());
  }
}

Settings read_toml(const std::string& path) {
  return parse_toml(read_file(path, "config", max_bytes), path);
}

}  // namespace longspan
