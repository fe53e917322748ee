#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/io/json.h"

namespace longspan {

/// The names of classes by id, as in `id2label` of a configuration.
class Labels {
 public:
  Labels() = default;
  /// Throws ValueError if a name is empty or there twice, or there are more than 65,536.
  explicit Labels(std::vector<std::string> names);

  int64_t size() const { return std::ssize(names_); }
  const std::vector<std::string>& names() const { return names_; }
  /// Throws ValueError unless there is such an id.
  const std::string& name(int64_t id) const;
  /// Returns the id of a name, if there is such a name.
  std::optional<int32_t> find(std::string_view name) const;

  /// Returns the id that a value of a table means, or -1 if it says that the row has no label:
  /// null, an empty string, -1, and -100, with which tags are left out. An integer is the id
  /// itself, unless the names are integers, of which it is then one; a bool is 0 or 1; a string is
  /// a name, or, where `is_text`, perhaps an integer. Throws IoError that begins with `place`, with
  /// the names that there are, for other values.
  int32_t id_of(const Json& value, bool is_text, const std::string& place) const;

 private:
  int32_t id_of_integer(int64_t value, const std::string& place) const;
  [[noreturn]] void refuse(const std::string& value, const std::string& place) const;

  std::vector<std::string> names_;
  std::unordered_map<std::string, int32_t> ids_;
  bool numbered_ = false;  // a name is an integer
};

/// Finds the labels of a data set from all of its values: integers stay, with themselves as names;
/// names are sorted by their bytes. Rows without a label count for nothing.
class LabelCollector {
 public:
  /// Adds a value as Labels::id_of() reads it. Throws IoError that begins with `place` for other
  /// kinds of values, integers below -1 or above 65,535, more than 65,536 names, and if there are
  /// both names and integers.
  void add(const Json& value, bool is_text, const std::string& place);
  /// Returns the labels. Throws ValueError if there was no value with a label.
  Labels labels() const;

 private:
  void add_integer(int64_t value, const std::string& place);
  void add_name(const std::string& name, const std::string& place);

  std::map<std::string, std::string> names_;    // and the place of the first
  std::map<std::string, std::string> written_;  // integers as text, which may become names
  int64_t highest_ = -1;
  std::string integer_place_;  // of the first integer that is no text
};

/// Returns the integer that a value is: an integer, a number without a fraction, or, where
/// `is_text`, a string of one.
std::optional<int64_t> label_integer(const Json& value, bool is_text);

/// Returns a finite number, of a string only where `is_text`; nothing for null and empty strings.
/// Throws IoError that begins with `place` for other values.
std::optional<double> label_number(const Json& value, bool is_text, const std::string& place);

}  // namespace longspan
