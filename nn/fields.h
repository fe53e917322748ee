#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
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

/// The values that a numeric field can have, each of a list's: low to high, and finite.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool above = false;       ///< low itself is outside
  bool below = false;       ///< high itself is outside
  bool one_end = false;     ///< messages name the end that a value is beyond, not both
  std::string_view text{};  ///< what messages expect; empty: the ends
  double also = std::numeric_limits<double>::quiet_NaN();  ///< a value with a meaning of its own

  bool contains(double value) const;
  /// Returns what is expected in place of a value: "1 or more", "0 to 1".
  std::string expected(double value) const;
};

namespace range {
/// Those that fields usually have.
inline constexpr Range positive{.low = 1};
inline constexpr Range not_negative{.low = 0};
inline constexpr Range above_zero{.low = 0, .above = true};
/// Of objects each of which takes host memory, even when its parameters do not.
inline constexpr Range count{.low = 1, .high = 10'000, .one_end = true};
inline constexpr Range none_or_count{.low = 0, .high = 10'000, .one_end = true};
inline constexpr Range fraction{.low = 0, .high = 1};
inline constexpr Range probability{.low = 0, .high = 1, .below = true, .text = "0 <= p < 1"};
inline constexpr Range as_dropout{
    .low = 0, .high = 1, .below = true, .text = "0 <= p < 1, or -1: as dropout", .also = -1};
constexpr Range at_least(double low) { return {.low = low}; }
constexpr Range between(double low, double high) { return {.low = low, .high = high}; }

}  // namespace range

/// Visits the fields of a configuration one by one, to set them from options and files and to write
/// them to files. A configuration has one function for it,
///   void visit(auto& v) { v("dropout", dropout, range::probability, "of a token"); }
/// The range of a field and its meaning, one line, may follow it: check_fields() checks the range,
/// programs print the meaning.
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
  /// Called before a field whose range is given.
  virtual void within(const Range& /*range*/) {}
  /// Called before and after the fields of a nested configuration.
  virtual void enter(std::string_view name) = 0;
  virtual void leave() = 0;

  template <class T>
  Fields& operator()(std::string_view name, T& value, std::string_view meaning = {}) {
    if (!meaning.empty()) means(name, meaning);
    return visited(name, value);
  }
  template <class T>
  Fields& operator()(std::string_view name, T& value, const Range& range,
                     std::string_view meaning = {}) {
    within(range);
    return (*this)(name, value, meaning);
  }

 private:
  template <class T>
  Fields& visited(std::string_view name, T& value) {
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

/// Visits the numbers whose range is declared, each of a list's.
class RangedFields : public Fields {
 public:
  void within(const Range& range) final { range_ = range; }
  void field(std::string_view, bool&) final {}
  void field(std::string_view name, int64_t& value) final { take(name, value); }
  void field(std::string_view name, uint64_t& value) final { take(name, value); }
  void field(std::string_view name, float& value) final { take(name, value); }
  void field(std::string_view name, double& value) final { take(name, value); }
  void field(std::string_view, std::string&) final {}
  void field(std::string_view name, std::vector<int64_t>& values) final;
  void field(std::string_view, std::vector<std::string>&) final {}
  void choice(std::string_view, int&, std::span<const std::string_view>) final {}
  void written(std::string_view, std::string&, bool (*)(std::string_view), std::string_view) final {
  }
  void enter(std::string_view name) final { sections_.emplace_back(name); }
  void leave() final { sections_.pop_back(); }

 protected:
  struct Number {
    std::string_view name;
    double value;
    std::string text;  ///< the value in the fewest digits
    bool whole;        ///< whether its type is one of integers
  };
  virtual void number(const Number& number, const Range& range) = 0;
  /// The nested configurations around the number, from the outermost on.
  const std::vector<std::string>& sections() const { return sections_; }

 private:
  template <class T>
  void take(std::string_view name, T value);

  std::optional<Range> range_;  // of the next field
  std::vector<std::string> sections_;
};

/// Checks fields against their ranges; used by check_fields().
class FieldChecker final : public RangedFields {
 public:
  explicit FieldChecker(std::string_view owner) : owner_(owner) {}

 private:
  void number(const Number& number, const Range& range) override;

  std::string_view owner_;
};

/// Throws ValueError that names the owner and the field if one is outside its range.
template <class Config>
void check_fields(std::string_view owner, const Config& config) {
  Config copy = config;
  FieldChecker checker(owner);
  Fields& fields = checker;
  copy.visit(fields);
}

}  // namespace longspan
