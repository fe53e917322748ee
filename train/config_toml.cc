#include <toml++/toml.h>

#include "core/error.h"
#include "train/config.h"
#include "train/files.h"

namespace longspan {
namespace {

constexpr int64_t max_bytes = 1 << 20;

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
