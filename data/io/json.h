#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace longspan {

struct JsonMember;

/// A JSON value: null, bool, integer, number, string, array or object. Objects keep the order in
/// which members were given.
class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<JsonMember>;

  Json() = default;
  Json(bool value) : value_(value) {}
  template <std::integral T>
  Json(T value) : value_(static_cast<int64_t>(value)) {}
  template <std::floating_point T>
  Json(T value) : value_(static_cast<double>(value)) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(Array value);
  Json(Object value);

  bool is_null() const { return holds<std::monostate>(); }
  bool is_bool() const { return holds<bool>(); }
  bool is_integer() const { return holds<int64_t>(); }
  bool is_number() const { return is_integer() || holds<double>(); }
  bool is_string() const { return holds<std::string>(); }
  bool is_array() const { return holds<Shared<Array>>(); }
  bool is_object() const { return holds<Shared<Object>>(); }
  /// Returns "null", "a bool", "an integer", "a number", "a string", "an array" or "an object".
  std::string_view kind() const;

  /// Return the value; throw ValueError if it is of another kind. number() also accepts integers.
  bool boolean() const;
  int64_t integer() const;
  double number() const;
  const std::string& string() const;
  const Array& array() const&;
  const Object& object() const&;
  /// Of a temporary the value itself, which a loop may go through.
  Array array() const&&;
  Object object() const&&;

  /// Returns the member of that name, or null if there is none or this is not an object.
  const Json* find(std::string_view name) const&;
  const Json* find(std::string_view name) const&& = delete;  // it would be gone
  /// Returns the member of that name. Throws ValueError if there is none.
  const Json& operator[](std::string_view name) const;

  friend bool operator==(const Json& a, const Json& b) { return a.same(b); }

 private:
  // Shared, because values are immutable.
  template <class T>
  using Shared = std::shared_ptr<const T>;

  bool same(const Json& other) const;
  template <class T>
  bool holds() const {
    return std::holds_alternative<T>(value_);
  }
  template <class T>
  const T& get(std::string_view expected) const;

  std::variant<std::monostate, bool, int64_t, double, std::string, Shared<Array>, Shared<Object>>
      value_;
};

/// A name and its value.
struct JsonMember {
  std::string name;
  Json value;
  friend bool operator==(const JsonMember&, const JsonMember&) = default;
};

/// Names and values in order: {{"loss", 1.5}, {"tokens", 4096}}.
using Members = Json::Object;

/// Writes JSON on one line, without spaces. Reading a number back gives the same bits and kind; NaN
/// and Inf, which JSON lacks, become null. Throws ValueError if a string is not UTF-8.
std::string to_string(const Json& value);

/// Parses exactly one JSON value, after a byte order mark if there is one. A repeated member name,
/// invalid UTF-8, a NUL byte or nesting deeper than `max_depth` throws ValueError that gives the
/// position. Never recurses.
Json parse_json(std::string_view text, int max_depth = 16);

}  // namespace longspan
