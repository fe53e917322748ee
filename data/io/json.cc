#include "data/io/json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "core/error.h"
#include "data/io/files.h"
#include "data/io/json_members.h"

namespace longspan {
namespace {

/// Returns the length of the UTF-8 sequence at the start of `text`, 0 if it is invalid.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (first == 0xE0 && byte(1) < 0xA0) return 0;  // overlong
  if (first == 0xED && byte(1) > 0x9F) return 0;  // surrogates
  if (first == 0xF0 && byte(1) < 0x90) return 0;  // overlong
  if (first == 0xF4 && byte(1) > 0x8F) return 0;  // beyond U+10FFFF
  return length;
}

void write_string(const std::string& value, std::string& out) {
  out += '"';
  for (std::string_view rest = value; !rest.empty();) {
    const size_t n = utf8_length(rest);
    require(n > 0, "json", "a string is not UTF-8 after {} of its {} bytes",
            value.size() - rest.size(), value.size());
    const char c = rest[0];
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<uint8_t>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += rest.substr(0, n);
    }
    rest.remove_prefix(n);
  }
  out += '"';
}

void write(const Json& value, std::string& out) {
  if (value.is_null()) {
    out += "null";
  } else if (value.is_bool()) {
    out += value.boolean() ? "true" : "false";
  } else if (value.is_integer()) {
    out += fmt::format("{}", value.integer());
  } else if (value.is_number()) {
    const double x = value.number();
    if (!std::isfinite(x)) {
      out += "null";
      return;
    }
    const std::string text = fmt::format("{}", x);
    out += text;
    if (text.find_first_of(".e") == std::string::npos) out += ".0";  // else read as an integer
  } else if (value.is_string()) {
    write_string(value.string(), out);
  } else if (value.is_array()) {
    out += '[';
    bool first = true;
    for (const Json& item : value.array()) {
      if (!first) out += ',';
      first = false;
      write(item, out);
    }
    out += ']';
  } else {
    out += '{';
    bool first = true;
    for (const JsonMember& member : value.object()) {
      if (!first) out += ',';
      first = false;
      write_string(member.name, out);
      out += ':';
      write(member.value, out);
    }
    out += '}';
  }
}

/// Builds a value from the parser's events, with a stack of the open arrays and objects.
class Builder {
 public:
  explicit Builder(int max_depth) : max_depth_(max_depth) {}
  /// Passes members on as parse_members() does.
  Builder(int max_depth, const TakeMember& take, std::string_view inner,
          const TakeMember& take_inner)
      : max_depth_(max_depth), inner_(inner), takes_{&take, &take_inner} {}

  Json take() { return std::move(root_); }
  const std::string& problem() const { return problem_; }

  bool null() { return add(Json()); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(int64_t value) { return add(value); }
  bool number_unsigned(uint64_t value) {
    // An integer that does not fit becomes a number, which fails where an integer is expected.
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return add(static_cast<double>(value));
    }
    return add(static_cast<int64_t>(value));
  }
  bool number_float(double value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(nlohmann::json::binary_t&) { return stop("binary data"); }
  bool start_object(size_t) { return open(true); }
  bool start_array(size_t) { return open(false); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    Open& top = stack_.back();
    const bool again = taker() == nullptr ? !top.is_new(name)
                                          : stack_.size() == 1 && name == inner_ &&
                                                std::exchange(inner_seen_, true);
    if (again) {
      return stop(fmt::format("\"{}\" is given twice", name));
    }
    top.name = std::move(name);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& error) {
    std::string text = error.what();  // "[json.exception.parse_error.101] parse error at ...: ..."
    const size_t colon = text.find(": ");
    if (colon != std::string::npos) text.erase(0, colon + 2);
    return stop(fmt::format("byte {}: {}", position, text));
  }

 private:
  struct Open {
    bool object;
    std::string name;
    std::unordered_set<std::string> names;  // of all members, once they are many
    Json::Array array;
    Json::Object members;

    bool is_new(const std::string& member) {
      constexpr size_t few = 16;
      if (members.size() < few) {
        return std::none_of(members.begin(), members.end(),
                            [&](const JsonMember& m) { return m.name == member; });
      }
      if (names.empty()) {
        for (const JsonMember& m : members) names.insert(m.name);
      }
      return names.insert(member).second;
    }
  };

  /// Returns what takes the members of the innermost open value; null: they are kept.
  const TakeMember* taker() const {
    const size_t depth = stack_.size();
    if (depth == 0 || depth > 2 || takes_[0] == nullptr || !stack_.back().object) return nullptr;
    if (depth == 2 && stack_[0].name != inner_) return nullptr;
    return takes_[depth - 1];
  }

  bool stop(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }
  bool open(bool object) {
    if (static_cast<int>(stack_.size()) >= max_depth_) {
      return stop(fmt::format("nested deeper than {}", max_depth_));
    }
    stack_.push_back({object, {}, {}, {}, {}});
    return true;
  }
  bool close() {
    const bool passed_on = taker() != nullptr;
    Open top = std::move(stack_.back());
    stack_.pop_back();
    if (passed_on) return stack_.empty() ? add(Json::Object{}) : true;
    return top.object ? add(std::move(top.members)) : add(std::move(top.array));
  }
  bool add(Json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
    } else if (const TakeMember* take = taker()) {
      (*take)(std::move(stack_.back().name), std::move(value));
    } else if (Open& top = stack_.back(); top.object) {
      top.members.push_back({std::move(top.name), std::move(value)});
    } else {
      top.array.push_back(std::move(value));
    }
    return true;
  }

  int max_depth_;
  std::string_view inner_;
  bool inner_seen_ = false;
  const TakeMember* takes_[2] = {};  // of the members of the object, and of those of inner_
  std::vector<Open> stack_;
  Json root_;
  std::string problem_;
};

}  // namespace

template <class T>
const T& Json::get(std::string_view expected) const {
  const T* value = std::get_if<T>(&value_);
  require(value != nullptr, "json", "expected {}, got {}", expected, kind());
  return *value;
}

std::string_view Json::kind() const {
  constexpr std::string_view names[] = {"null",     "a bool",   "an integer", "a number",
                                        "a string", "an array", "an object"};
  return names[value_.index()];
}

bool Json::boolean() const { return get<bool>("a bool"); }
int64_t Json::integer() const { return get<int64_t>("an integer"); }
double Json::number() const {
  return is_integer() ? static_cast<double>(integer()) : get<double>("a number");
}
const std::string& Json::string() const { return get<std::string>("a string"); }
const Json::Array& Json::array() const& { return *get<Shared<Array>>("an array"); }
const Json::Object& Json::object() const& { return *get<Shared<Object>>("an object"); }
Json::Array Json::array() const&& { return array(); }  // `*this` is no temporary here
Json::Object Json::object() const&& { return object(); }

Json::Json(Array value) : value_(std::make_shared<const Array>(std::move(value))) {}
Json::Json(Object value) : value_(std::make_shared<const Object>(std::move(value))) {}

bool Json::same(const Json& other) const {
  if (is_array() && other.is_array()) return array() == other.array();
  if (is_object() && other.is_object()) return object() == other.object();
  return value_ == other.value_;
}

const Json* Json::find(std::string_view name) const& {
  if (!is_object()) return nullptr;
  for (const JsonMember& member : object()) {
    if (member.name == name) return &member.value;
  }
  return nullptr;
}

const Json& Json::operator[](std::string_view name) const {
  const Json* value = find(name);
  require(value != nullptr, "json", "no member \"{}\" in {}", name, kind());
  return *value;
}

std::string to_string(const Json& value) {
  std::string out;
  write(value, out);
  return out;
}

Json parse_json(std::string_view text, int max_depth) {
  // The parser takes a NUL byte for the end of the text.
  const size_t nul = text.find('\0');
  require(nul == std::string_view::npos, "json", "byte {}: a NUL byte, which JSON never has",
          nul + 1);
  Builder builder(max_depth);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    fail("json", "{}", builder.problem());
  }
  return builder.take();
}

Json read_json_object(const std::string& path, std::string_view op, int64_t limit) {
  try {
    Json json = parse_json(read_file(path, op, limit));
    require(json.is_object(), op, "it is {}; expected an object", json.kind());
    return json;
  } catch (const ValueError& error) {
    fail<IoError>(op, "{}: {}", path, error.what());
  }
}

void parse_members(std::string_view text, int max_depth, const TakeMember& take,
                   std::string_view inner, const TakeMember& take_inner) {
  Builder builder(max_depth, take, inner, take_inner);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    fail("json", "{}", builder.problem());
  }
  const Json root = builder.take();
  require(root.is_object(), "json", "expected an object, got {}", root.kind());
}

}  // namespace longspan
