#include "train/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <optional>

#include "core/error.h"
#include "nn/nearest.h"

namespace longspan {
namespace {

/// Cuts a long text for error messages, and makes it one line.
std::string shorten(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

std::string got(const Setting& setting) {
  if (setting.value.is_string()) return shorten(fmt::format("\"{}\"", setting.value.string()));
  return shorten(to_string(setting.value));
}

[[noreturn]] void refuse(const Setting& setting, std::string_view expected) {
  fail("config", "{} is {} ({}): expected {}", setting.key, got(setting), setting.origin, expected);
}

/// Parses all of `text` as a number; nullopt if it is not one.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  T value{};
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<int64_t> integer_of(const Setting& setting) {
  if (setting.text) return parse_number<int64_t>(setting.value.string());
  if (setting.value.is_integer()) return setting.value.integer();
  return std::nullopt;
}

std::optional<double> number_of(const Setting& setting) {
  if (setting.text) return parse_number<double>(setting.value.string());
  if (setting.value.is_number()) return setting.value.number();
  return std::nullopt;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

/// Splits a list at its commas, with or without brackets; "[]" is empty.
std::vector<std::string_view> words_of(std::string_view text) {
  std::string_view rest = trimmed(text);
  if (rest.size() >= 2 && rest.front() == '[' && rest.back() == ']') {
    rest = trimmed(rest.substr(1, rest.size() - 2));
    if (rest.empty()) return {};
  }
  std::vector<std::string_view> words;
  for (bool more = true; more;) {
    const size_t comma = rest.find(',');
    more = comma != std::string_view::npos;
    words.push_back(trimmed(rest.substr(0, comma)));
    if (more) rest.remove_prefix(comma + 1);
  }
  return words;
}

bool is_bare_key(std::string_view key) {
  return !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

/// JSON's escapes are also TOML's, except that TOML requires DEL to be escaped.
std::string toml_string(const std::string& text) {
  std::string out;
  for (const char c : to_string(Json(text))) {
    if (c == '\x7F') {
      out += "\\u007f";
    } else {
      out += c;
    }
  }
  return out;
}

std::string toml_key(const std::string& key) { return is_bare_key(key) ? key : toml_string(key); }

std::string toml_value(const Json& value) {
  require(!value.is_null(), "config", "TOML has no null");
  if (value.is_string()) return toml_string(value.string());
  if (value.is_array()) {
    std::string out = "[";
    for (const Json& item : value.array()) {
      if (out.size() > 1) out += ", ";
      out += toml_value(item);
    }
    return out + "]";
  }
  if (value.is_number() && !value.is_integer()) {
    std::string out = fmt::format("{}", value.number());
    if (out.find_first_of(".en") == std::string::npos) out += ".0";  // 1 would be an integer
    return out;
  }
  return to_string(value);
}

/// Returns the line of a field; `meaning` is its comment, if it has any.
std::string toml_line(const JsonMember& member, const std::string& path, std::string_view meaning) {
  constexpr size_t comment_column = 32;
  const std::string key = toml_key(member.name);
  try {
    const std::string line = fmt::format("{} = {}", key, toml_value(member.value));
    if (meaning.empty()) return line + "\n";
    return fmt::format("{:<{}} # {}\n", line, comment_column, meaning);
  } catch (const ValueError& error) {
    fail("config",
         "{}{}{} cannot be written to a file of TOML ({}); where it names a file, rename that or "
         "give a symbolic link to it",
         path, path.empty() ? "" : ".", key, error.what());
  }
}

std::string_view meaning_of(const std::string& name, std::span<const Key> keys) {
  const auto found =
      std::find_if(keys.begin(), keys.end(), [&](const Key& key) { return key.name == name; });
  return found == keys.end() ? std::string_view() : found->meaning;
}

void write_table(const Json& table, const std::string& path, std::span<const Key> keys,
                 std::string& out) {
  for (const JsonMember& member : table.object()) {
    if (member.value.is_object()) continue;
    const std::string name = path.empty() ? member.name : path + "." + member.name;
    out += toml_line(member, path, meaning_of(name, keys));
  }
  for (const JsonMember& member : table.object()) {
    if (!member.value.is_object()) continue;
    const std::string name =
        path.empty() ? toml_key(member.name) : path + "." + toml_key(member.name);
    out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", name);
    write_table(member.value, name, keys, out);
  }
}

void add_flags(const Json& values, const std::string& prefix, std::vector<Flag>& flags) {
  for (const JsonMember& member : values.object()) {
    const std::string key = prefix + member.name;
    if (member.value.is_object()) {
      add_flags(member.value, key + ".", flags);
    } else {
      flags.push_back({"--" + key, key, fmt::format("default {}", shorten(to_string(member.value))),
                       member.value.is_bool()});
    }
  }
}

}  // namespace

const Setting* last_setting(const Settings& settings, std::string_view key) {
  const Setting* found = nullptr;
  for (const Setting& setting : settings) {
    if (setting.key == key) found = &setting;
  }
  return found;
}

bool is_on(const Settings& settings, std::string_view key) {
  const Setting* s = last_setting(settings, key);
  return s != nullptr && (s->text ? s->value == Json("true") : s->value == Json(true));
}

Setting parse_setting(std::string_view text, const std::string& origin) {
  const size_t equals = text.find('=');
  require(equals != std::string_view::npos && equals > 0, "config",
          "{} got \"{}\": expected key=value, e.g. model.dropout=0.1", origin, text);
  return {std::string(trimmed(text.substr(0, equals))), text.substr(equals + 1), origin, true};
}

const std::string* CommandLine::value(std::string_view flag) const {
  const Setting* setting = last_setting(values, flag);
  return setting == nullptr ? nullptr : &setting->value.string();
}

void require_no_others(const CommandLine& line) {
  require(line.others.empty(), "command line", "\"{}\" belongs to no option; see --help",
          line.others.empty() ? "" : line.others[0]);
}

const Setting* FieldSetter::setting(std::string_view name) {
  keys_.push_back(fmt::format("{}{}", prefix_, name));
  return last_setting(settings_, keys_.back());
}

void FieldSetter::enter(std::string_view name) {
  tables_.push_back(fmt::format("{}{}", prefix_, name));
  prefix_ += fmt::format("{}.", name);
}

void FieldSetter::leave() {
  const size_t dot = prefix_.rfind('.', prefix_.size() - 2);
  prefix_.resize(dot == std::string::npos ? 0 : dot + 1);
}

void FieldSetter::require_all_used() const {
  for (const Setting& setting : settings_) {
    if (std::find(keys_.begin(), keys_.end(), setting.key) != keys_.end()) continue;
    if (std::find(tables_.begin(), tables_.end(), setting.key) != tables_.end()) {
      if (setting.value.is_object()) continue;
      fail("config", "{} is a table ({}): expected {}.NAME = VALUE", setting.key, setting.origin,
           setting.key);
    }
    const std::string near = nearest(setting.key, keys_);
    fail("config", "unknown key \"{}\" ({}){}", shorten(setting.key), setting.origin,
         near.empty() ? "" : fmt::format(": did you mean \"{}\"?", near));
  }
}

void FieldSetter::field(std::string_view name, bool& value) {
  const Setting* s = setting(name);
  if (s == nullptr) return;
  if (!s->text) {
    if (!s->value.is_bool()) refuse(*s, "true or false");
    value = s->value.boolean();
    return;
  }
  const std::string& text = s->value.string();
  if (text != "true" && text != "false") refuse(*s, "true or false");
  value = text == "true";
}

void FieldSetter::field(std::string_view name, int64_t& value) {
  const Setting* s = setting(name);
  if (s == nullptr) return;
  const std::optional<int64_t> given = integer_of(*s);
  if (!given) refuse(*s, "an integer");
  value = *given;
}

void FieldSetter::field(std::string_view name, uint64_t& value) {
  const Setting* s = setting(name);
  if (s == nullptr) return;
  const std::optional<int64_t> given = integer_of(*s);
  if (!given || *given < 0) refuse(*s, "an integer from 0 to 9223372036854775807");
  value = static_cast<uint64_t>(*given);
}

void FieldSetter::field(std::string_view name, float& value) {
  const Setting* s = setting(name);
  if (s == nullptr) return;
  const std::optional<double> given = number_of(*s);
  if (!given || !std::isfinite(*given)) refuse(*s, "a number");
  // Values at least half a step above the largest f32 round to infinity.
  if (std::abs(*given) >= 0x1.ffffffp127) refuse(*s, "a number below 3.4028236e38");
  value = static_cast<float>(*given);
}

void FieldSetter::field(std::string_view name, double& value) {
  const Setting* s = setting(name);
  if (s == nullptr) return;
  const std::optional<double> given = number_of(*s);
  if (!given || !std::isfinite(*given)) refuse(*s, "a number");
  value = *given;
}

void FieldSetter::field(std::string_view name, std::string& value) {
  const Setting* s = setting(name);
  if (s == nullptr) return;
  if (!s->value.is_string()) refuse(*s, "a text in quotes");
  value = s->value.string();
}

void FieldSetter::field(std::string_view name, std::vector<int64_t>& value) {
  const Setting* s = setting(name);
  if (s == nullptr) return;
  std::vector<int64_t> items;
  if (s->text) {
    for (const std::string_view word : words_of(s->value.string())) {
      const std::optional<int64_t> item = parse_number<int64_t>(word);
      if (!item) refuse(*s, "integers with commas between them");
      items.push_back(*item);
    }
  } else {
    if (!s->value.is_array()) refuse(*s, "an array of integers");
    for (const Json& item : s->value.array()) {
      if (!item.is_integer()) refuse(*s, "an array of integers");
      items.push_back(item.integer());
    }
  }
  value = std::move(items);
}

void FieldSetter::field(std::string_view name, std::vector<std::string>& value) {
  const Setting* s = setting(name);
  if (s == nullptr) return;
  std::vector<std::string> items;
  if (s->text && s->value.string().starts_with('[')) {  // as config.toml writes it
    try {
      const Json list = parse_json(s->value.string());
      for (const Json& item : list.array()) items.push_back(item.string());
    } catch (const ValueError&) {
      refuse(*s, "texts with commas between them, or an array of texts in quotes");
    }
  } else if (s->text) {
    for (const std::string_view word : words_of(s->value.string())) items.emplace_back(word);
  } else {
    if (!s->value.is_array()) refuse(*s, "an array of texts in quotes");
    for (const Json& item : s->value.array()) {
      if (!item.is_string()) refuse(*s, "an array of texts in quotes");
      items.push_back(item.string());
    }
  }
  value = std::move(items);
}

void FieldSetter::choice(std::string_view name, int& index,
                         std::span<const std::string_view> names) {
  const Setting* s = setting(name);
  if (s == nullptr) return;
  std::string all;
  for (size_t i = 0; i < names.size(); ++i) {
    if (s->value.is_string() && s->value.string() == names[i]) {
      index = static_cast<int>(i);
      return;
    }
    all += fmt::format("{}{}", i == 0 ? "" : i + 1 < names.size() ? ", " : " or ", names[i]);
  }
  refuse(*s, all);
}

void FieldSetter::written(std::string_view name, std::string& text, bool (*valid)(std::string_view),
                          std::string_view expected) {
  const Setting* s = setting(name);
  if (s == nullptr) return;
  // The text form of a number is the number.
  const std::string given = s->value.is_integer()  ? to_string(s->value)
                            : s->value.is_string() ? s->value.string()
                                                   : "";
  if (!valid(given)) refuse(*s, expected);
  text = given;
}

void FieldReader::field(std::string_view name, float& value) {
  // Goes through the shortest text, so that 0.1f is 0.1 and not 0.10000000149.
  add(name, std::isfinite(value) ? *parse_number<double>(fmt::format("{}", value)) : value);
}

void FieldReader::field(std::string_view name, std::vector<int64_t>& value) {
  add(name, Json::Array(value.begin(), value.end()));
}

void FieldReader::field(std::string_view name, std::vector<std::string>& value) {
  add(name, Json::Array(value.begin(), value.end()));
}

void FieldReader::choice(std::string_view name, int& index,
                         std::span<const std::string_view> names) {
  add(name, names[static_cast<size_t>(index)]);
}

void FieldReader::add(std::string_view name, Json value) {
  keys_.push_back({fmt::format("{}{}{}", fmt::join(names_, "."), names_.empty() ? "" : ".", name),
                   value.is_string() ? value.string() : to_string(value),
                   std::exchange(meaning_, {})});
  open_.back().push_back({std::string(name), std::move(value)});
}

void FieldReader::enter(std::string_view name) {
  names_.emplace_back(name);
  open_.emplace_back();
}

void FieldReader::leave() {
  Members inner = std::move(open_.back());
  open_.pop_back();
  open_.back().push_back({std::move(names_.back()), std::move(inner)});
  names_.pop_back();
}

std::string to_toml(const Json& values, std::span<const Key> keys) {
  std::string out;
  write_table(values, {}, keys, out);
  return out;
}

void RangeChecker::number(const Number& n, const Range& range) {
  if (range.contains(n.value)) return;
  if (!sections().empty() && sections().front() == except_) return;
  std::string key;
  for (const std::string& section : sections()) key += section + ".";
  key += n.name;
  const Setting* const from = last_setting(settings_, key);
  fail("config", "{} is {}{}: expected {}", key, n.whole ? n.text : to_string(Json(n.value)),
       from == nullptr || from->text ? "" : fmt::format(" ({})", from->origin),
       range.expected(n.value));
}

std::vector<Flag> flags_of(const Json& values) {
  std::vector<Flag> flags;
  add_flags(values, {}, flags);
  return flags;
}

void flush_lines() { std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ); }

void print_help(const std::string& help) {
  const bool written = std::fputs(help.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  std::exit(written ? 0 : 1);
}

}  // namespace longspan
