#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace longspan {

/// Names of an enumeration's values, in their order. Specialise it for each enumeration that is a
/// field of a configuration.
template <class E>
inline constexpr std::array<std::string_view, 0> value_names{};

/// The name of a value.
template <class E>
requires std::is_enum_v<E>
constexpr std::string_view name_of_value(E value) {
  return value_names<E>[static_cast<size_t>(value)];
}

/// Visits the fields of a configuration one by one, to set them from options and files and to write
/// them to files. A configuration has one function for it,
///   void visit(auto& v) { v("n_layer", n_layer)("dropout", dropout, "probability of a zero"); }
/// The meaning of a field, one line, may follow it: programs print it.
class Fields {
 public:
  Fields() = default;
  virtual ~Fields() = default;
  Fields(const Fields&) = delete;
  Fields& operator=(const Fields&) = delete;

  virtual void field(std::string_view name, bool& value) = 0;
  virtual void field(std::string_view name, int64_t& value) = 0;
  virtual void field(std::string_view name, uint64_t& value) = 0;
  virtual void field(std::string_view name, float& value) = 0;
  virtual void field(std::string_view name, double& value) = 0;
  virtual void field(std::string_view name, std::string& value) = 0;
  virtual void field(std::string_view name, std::vector<int64_t>& value) = 0;
  virtual void field(std::string_view name, std::vector<std::string>& value) = 0;
  /// One of several names; `index` is its index among them.
  virtual void choice(std::string_view name, int& index,
                      std::span<const std::string_view> names) = 0;
  /// A value that has its own text form; `valid` tells whether a text is one, `expected` describes
  /// the valid ones for error messages.
  virtual void written(std::string_view name, std::string& text, bool (*valid)(std::string_view),
                       std::string_view expected) = 0;
  /// Called before a field whose meaning is given.
  virtual void means(std::string_view /*name*/, std::string_view /*meaning*/) {}
  /// Called before and after the fields of a nested configuration.
  virtual void enter(std::string_view name) = 0;
  virtual void leave() = 0;

  template <class T>
  Fields& operator()(std::string_view name, T& value, std::string_view meaning = {}) {
    if (!meaning.empty()) means(name, meaning);
    if constexpr (std::is_enum_v<T>) {
      static_assert(!value_names<T>.empty(), "specialise value_names for this enumeration");
      int index = static_cast<int>(value);
      choice(name, index, value_names<T>);
      value = static_cast<T>(index);
    } else if constexpr (requires { value.set(value.text()); }) {
      std::string text = value.text();
      written(name, text, T::valid, T::expected);
      value.set(text);
    } else if constexpr (requires { value.visit(*this); }) {
      enter(name);
      value.visit(*this);
      leave();
    } else {
      field(name, value);
    }
    return *this;
  }
};

}  // namespace longspan
