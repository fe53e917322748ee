#include "data/labelled/labels.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"

namespace longspan {
namespace {

constexpr const char* kLabels = "labels";
constexpr int64_t kMost = 65'536;

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Whether a value says that there is no label.
bool is_unlabelled(const Json& value, bool is_text) {
  if (value.is_null() || (value.is_string() && value.string().empty())) return true;
  const std::optional<int64_t> integer = label_integer(value, is_text);
  return integer && (*integer == -1 || *integer == -100);
}

std::string shown(const Json& value) {
  return value.is_string() ? "\"" + value.string().substr(0, 80) + "\"" : std::string(value.kind());
}

}  // namespace

std::optional<int64_t> label_integer(const Json& value, bool is_text) {
  if (value.is_integer()) return value.integer();
  std::optional<double> number;
  if (value.is_number()) number = value.number();
  if (is_text && value.is_string()) number = parse_number(value.string());
  if (!number || *number != std::trunc(*number) || std::abs(*number) > 1e15) return std::nullopt;
  return static_cast<int64_t>(*number);
}

std::optional<double> label_number(const Json& value, bool is_text, const std::string& place) {
  if (value.is_null() || (value.is_string() && value.string().empty())) return std::nullopt;
  std::optional<double> number;
  if (value.is_number()) number = value.number();
  if (value.is_bool()) number = value.boolean() ? 1 : 0;
  if (is_text && value.is_string()) number = parse_number(value.string());
  require<IoError>(number && std::isfinite(*number), kLabels,
                   "{}: got {}; expected a finite number", place, shown(value));
  return number;
}

Labels::Labels(std::vector<std::string> names) : names_(std::move(names)) {
  require(size() <= kMost, kLabels, "got {} names; expected {} at most", size(), kMost);
  for (size_t i = 0; i < names_.size(); ++i) {
    require(!names_[i].empty(), kLabels, "the name of label {} is empty; expected text", i);
    require(ids_.emplace(names_[i], static_cast<int32_t>(i)).second, kLabels,
            "the name \"{}\" is there twice; expected different names", names_[i]);
    numbered_ = numbered_ || label_integer(Json(names_[i]), true).has_value();
  }
}

const std::string& Labels::name(int64_t id) const {
  require(id >= 0 && id < size(), kLabels, "got label {}; expected 0 to {}", id, size() - 1);
  return names_[static_cast<size_t>(id)];
}

std::optional<int32_t> Labels::find(std::string_view name) const {
  const auto found = ids_.find(std::string(name));
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

int32_t Labels::id_of(const Json& value, bool is_text, const std::string& place) const {
  if (value.is_string()) {
    if (const std::optional<int32_t> id = find(value.string())) return *id;
  }
  if (is_unlabelled(value, is_text)) return -1;
  if (value.is_bool()) return id_of_integer(value.boolean() ? 1 : 0, place);
  if (const std::optional<int64_t> integer = label_integer(value, is_text)) {
    return id_of_integer(*integer, place);
  }
  refuse(shown(value), place);
}

int32_t Labels::id_of_integer(int64_t value, const std::string& place) const {
  if (const std::optional<int32_t> id = find(std::to_string(value))) return *id;
  if (numbered_ || value < 0 || value >= size()) refuse(std::to_string(value), place);
  return static_cast<int32_t>(value);
}

void Labels::refuse(const std::string& value, const std::string& place) const {
  std::string known;
  for (int64_t i = 0; i < std::min<int64_t>(size(), 20); ++i) {
    known += (i == 0 ? "" : ", ") + name(i).substr(0, 40);
  }
  if (size() > 20) known += fmt::format(" and {} more", size() - 20);
  fail<IoError>(kLabels,
                "{}: got {}; expected one of the {} labels of this model: {} (train "
                "--from FOLDER --new-head draws a head for those of the data)",
                place, value, size(), known);
}

void LabelCollector::add(const Json& value, bool is_text, const std::string& place) {
  if (is_unlabelled(value, is_text)) return;
  const std::optional<int64_t> integer = label_integer(value, is_text);
  if (value.is_string() && integer) {
    written_.emplace(value.string(), place);
    require<IoError>(std::ssize(written_) <= kMost, kLabels,
                     "{}: more than {} different labels; expected classes (numbers are for "
                     "regression)",
                     place, kMost);
  } else if (value.is_string()) {
    add_name(value.string(), place);
  } else if (value.is_bool() || integer) {
    add_integer(value.is_bool() ? (value.boolean() ? 1 : 0) : *integer, place);
  } else {
    fail<IoError>(kLabels,
                  "{}: got {}; expected an integer, a name or a bool (other numbers are for "
                  "regression)",
                  place, value.kind());
  }
}

void LabelCollector::add_integer(int64_t value, const std::string& place) {
  require<IoError>(value >= 0 && value < kMost, kLabels,
                   "{}: got {}; expected 0 to {}, or -1 for a row without a label: give larger "
                   "numbers as strings, which are names",
                   place, value, kMost - 1);
  require<IoError>(names_.empty(), kLabels,
                   "{}: got the integer {}, and \"{}\" in {}; expected only integers or only names",
                   place, value, names_.empty() ? "" : names_.begin()->first,
                   names_.empty() ? "" : names_.begin()->second);
  if (highest_ < 0) integer_place_ = place;
  highest_ = std::max(highest_, value);
}

void LabelCollector::add_name(const std::string& name, const std::string& place) {
  require<IoError>(highest_ < 0, kLabels,
                   "{}: got \"{}\", and an integer in {}; expected only integers or only names",
                   place, name, integer_place_);
  names_.emplace(name, place);
  require<IoError>(std::ssize(names_) <= kMost, kLabels,
                   "{}: more than {} different labels; expected classes (numbers are for "
                   "regression)",
                   place, kMost);
}

Labels LabelCollector::labels() const {
  LabelCollector all = *this;
  for (const auto& [text, place] : written_) {
    if (names_.empty()) {
      all.add_integer(*label_integer(Json(text), true), place);
    } else {
      all.add_name(text, place);
    }
  }
  std::vector<std::string> names;
  for (const auto& [name, place] : all.names_) names.push_back(name);
  for (int64_t i = 0; i <= all.highest_; ++i) names.push_back(std::to_string(i));
  require(!names.empty(), kLabels, "no row has a label; expected one or more");
  return Labels(std::move(names));
}

}  // namespace longspan
