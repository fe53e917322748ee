#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/labelled/table.h"

namespace longspan {

/// Names of columns that the user gives: which column has what.
class ColumnNames {
 public:
  ColumnNames() = default;
  /// Reads "text=review,label=stars". Throws ValueError for a part without "=" or without text on
  /// either side of it, and for a name that is given twice.
  explicit ColumnNames(std::string_view text);

  /// Returns the column for a use ("text"), if one is given.
  std::optional<std::string> find(std::string_view use) const;
  /// Returns the uses and their columns, in the order given.
  const std::vector<std::pair<std::string, std::string>>& all() const { return all_; }

 private:
  std::vector<std::pair<std::string, std::string>> all_;
};

/// What an example takes from a row, and the columns that usually have it, in the order in which
/// they are tried.
struct ColumnUse {
  std::string name;
  std::vector<std::string> usual;
  bool needed = true;
};

/// Tables of one layout, and how to read them.
struct TableSource {
  std::vector<std::string> paths;
  ColumnNames columns = {};
  bool labelled = true;  ///< a missing column of labels is an error; a row without one never is
};

/// Reads rows of several files, and finds the columns of each.
class ExampleRows {
 public:
  /// `together` lists uses that the usual columns have in groups, such as {"premise",
  /// "hypothesis"}: the first group all of whose columns are there counts, for the first uses.
  /// Throws ValueError if the source names columns for other uses, with those that there are.
  ExampleRows(const TableSource& source, std::vector<ColumnUse> uses,
              std::vector<std::vector<std::string>> together = {});

  /// Goes to the next row of all files. Returns false at the end. Throws IoError as TableReader
  /// does, and if a needed column is missing, with the columns that are there.
  bool next();
  const TableRow& row() const { return row_; }
  /// Returns the value for use number i, or null if the row has none or it is JSON's null.
  const Json* find(size_t i) const;
  /// Returns the text of a needed column. Throws IoError that names row and column if it is no
  /// string.
  const std::string& text(size_t i) const;
  /// Returns the column that use number i has in this row; empty if none.
  const std::string& column(size_t i) const { return columns_[i]; }
  /// Returns where a value stands, for messages: "a.csv: row 3 (line 5), column stars".
  std::string place(size_t i) const;

 private:
  void find_columns();
  std::string pick(const ColumnUse& use) const;
  [[noreturn]] void fail_missing(const ColumnUse& use) const;

  std::vector<std::string> paths_;
  ColumnNames names_;
  std::vector<ColumnUse> uses_;
  std::vector<std::vector<std::string>> together_;
  std::optional<TableReader> reader_;
  size_t file_ = 0;
  TableRow row_;
  std::vector<std::string> found_;    // columns of the row for which columns_ holds
  std::vector<std::string> columns_;  // of each use
};

}  // namespace longspan
