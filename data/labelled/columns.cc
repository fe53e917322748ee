#include "data/labelled/columns.h"

#include <algorithm>

#include "core/error.h"

namespace longspan {
namespace {

constexpr const char* kColumns = "columns";

/// Returns names for a message: "a, b or c", of many the first.
std::string listed(std::span<const std::string> names) {
  constexpr size_t most = 30;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), most); ++i) {
    text += (i == 0 ? "" : ", ") + (names[i].empty() ? "\"\"" : names[i].substr(0, 60));
  }
  if (names.size() > most) text += fmt::format(" and {} more", names.size() - most);
  return text;
}

}  // namespace

ColumnNames::ColumnNames(std::string_view text) {
  while (!text.empty()) {
    const size_t end = std::min(text.find(','), text.size());
    const std::string_view part = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t equal = part.find('=');
    require(equal != std::string_view::npos && equal > 0 && equal + 1 < part.size(), kColumns,
            "got \"{}\"; expected such as text=review,label=stars", part);
    const std::string use(part.substr(0, equal));
    require(!find(use).has_value(), kColumns, "{} is given twice; expected one column for it", use);
    all_.emplace_back(use, part.substr(equal + 1));
  }
}

std::optional<std::string> ColumnNames::find(std::string_view use) const {
  for (const auto& [name, column] : all_) {
    if (name == use) return column;
  }
  return std::nullopt;
}

ExampleRows::ExampleRows(const TableSource& source, std::vector<ColumnUse> uses,
                         std::vector<std::vector<std::string>> together)
    : paths_(source.paths),
      names_(source.columns),
      uses_(std::move(uses)),
      together_(std::move(together)),
      columns_(uses_.size()) {
  std::vector<std::string> known, unknown;
  for (const ColumnUse& use : uses_) known.push_back(use.name);
  for (const auto& [use, column] : names_.all()) {
    if (std::find(known.begin(), known.end(), use) == known.end()) unknown.push_back(use);
  }
  require(unknown.empty(), kColumns, "this task has no use for {}; expected columns for {}",
          listed(unknown), listed(known));
}

bool ExampleRows::next() {
  while (file_ < paths_.size()) {
    if (!reader_) {
      reader_.emplace(paths_[file_]);
      found_.clear();
    }
    if (reader_->next(row_)) {
      find_columns();
      return true;
    }
    reader_.reset();
    ++file_;
  }
  return false;
}

void ExampleRows::find_columns() {
  if (row_.is_text() && !found_.empty()) return;  // one header
  std::vector<std::string> columns = row_.columns();
  if (!found_.empty() && columns == found_) return;
  found_ = std::move(columns);
  const auto is_there = [&](const std::string& name) { return row_.find(name) != nullptr; };
  const std::vector<std::string>* group = nullptr;
  const bool given =
      !together_.empty() &&
      std::any_of(uses_.begin(), uses_.begin() + std::ssize(together_.front()),
                  [&](const ColumnUse& u) { return names_.find(u.name).has_value(); });
  for (const std::vector<std::string>& names : together_) {
    if (group == nullptr && !given && std::all_of(names.begin(), names.end(), is_there)) {
      group = &names;
    }
  }
  for (size_t i = 0; i < uses_.size(); ++i) {
    columns_[i] = group != nullptr && i < group->size() ? (*group)[i] : pick(uses_[i]);
  }
}

std::string ExampleRows::pick(const ColumnUse& use) const {
  if (const std::optional<std::string> name = names_.find(use.name)) {
    if (row_.find(*name) != nullptr) return *name;
    if (use.needed) fail_missing(use);
    return {};
  }
  for (const std::string& name : use.usual) {
    if (row_.find(name) != nullptr) return name;
  }
  if (use.needed) fail_missing(use);
  return {};
}

void ExampleRows::fail_missing(const ColumnUse& use) const {
  std::string expected;
  if (const std::optional<std::string> name = names_.find(use.name)) {
    expected = "no column " + *name;
  } else {
    expected = "none of the columns " + listed(use.usual);
    for (const std::vector<std::string>& group : together_) {
      expected +=
          (&group == &together_.front() ? "; no pair " : ", ") + group[0] + " and " + group[1];
    }
  }
  fail<IoError>(kColumns,
                "{} has {}, for {}; it has {}: say which one is meant with --columns {}=NAME",
                row_.place(), expected, use.name, listed(found_), use.name);
}

const Json* ExampleRows::find(size_t i) const {
  if (columns_[i].empty()) return nullptr;
  const Json* value = row_.find(columns_[i]);
  return value == nullptr || value->is_null() ? nullptr : value;
}

const std::string& ExampleRows::text(size_t i) const {
  const Json* value = find(i);
  if (value == nullptr || !value->is_string()) {
    fail<IoError>(kColumns, "{}: got {}; expected a string", place(i),
                  value == nullptr ? "null" : value->kind());
  }
  return value->string();
}

std::string ExampleRows::place(size_t i) const {
  return fmt::format("{}, column {}", row_.place(), columns_[i]);
}

}  // namespace longspan
