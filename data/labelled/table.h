#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/io/json.h"

namespace longspan {

/// How a file holds a table.
enum class TableFormat : uint8_t {
  json_lines,  ///< one JSON object a line: .jsonl, .ndjson
  json,        ///< that, or one array of objects, alone or as the member "data": .json
  csv,         ///< fields separated by commas, quoted as in RFC 4180, after a header: .csv
  tsv          ///< the same with tabs: .tsv, .tab
};

/// Returns the format that the name of a file says, before a further ending .gz; nothing if it says
/// none.
std::optional<TableFormat> table_format(std::string_view path);

/// A row of a table: a value for each of its columns. Rows of csv and tsv have strings.
class TableRow {
 public:
  /// Returns the value of a column, or null if the row has none.
  const Json* find(std::string_view column) const;
  /// Returns the names of the columns.
  std::vector<std::string> columns() const;
  /// Whether the values are text that nobody marked as number or list, as in csv and tsv.
  bool is_text() const { return header_ != nullptr; }
  /// Returns where the row stands, for messages: "reviews.csv: row 3 (line 5)". Rows are counted
  /// from 1, after the header.
  std::string place() const;

 private:
  friend class TableReader;
  std::shared_ptr<const std::string> path_;
  std::shared_ptr<const std::vector<std::string>> header_;
  std::vector<Json> fields_;  // of the columns of the header
  Json object_;               // if there is no header
  int64_t number_ = 0, line_ = 0;
};

/// Reads the rows of a file one after another. A file that is not packed is mapped, and one row of
/// it is in memory, except of a JSON file that is one array. Files of SQuAD \cite rajpurkar2016
/// (data, paragraphs, qas) are tables with the columns id, title, question, context and answers.
///
/// A byte order mark, lines without text, either kind of line end, and a last line without one are
/// read as expected. Every error is an IoError that names the file, and the row and the line if it
/// has any: a file that is missing, empty or damaged, a name with another ending, text that is not
/// UTF-8, a quote that is never closed, a row with more or fewer fields than the header, a column
/// that is there twice, a line that is no JSON object.
class TableReader {
 public:
  explicit TableReader(const std::string& path);
  ~TableReader();
  TableReader(TableReader&&) noexcept;
  TableReader& operator=(TableReader&&) noexcept;

  /// Reads the next row into `row`. Returns false at the end.
  bool next(TableRow& row);
  /// Returns the names of the columns of the header; empty if the file has none.
  const std::vector<std::string>& header() const;

 private:
  class Source;
  class JsonLines;
  class JsonArray;
  class Separated;
  std::unique_ptr<Source> open(const std::string& path);

  std::shared_ptr<const std::string> path_;
  std::shared_ptr<const std::vector<std::string>> header_;
  std::unique_ptr<Source> source_;
  int64_t rows_ = 0;
};

/// The files of a data set by split, in the order in which they are read.
struct TableFiles {
  std::vector<std::string> train, valid, test;
};

/// Sorts files into splits. A path is a file, or a folder whose files with a format are taken. A
/// name says its split by how it begins, with anything but a letter after it: train, valid,
/// validation, val, dev, eval, test ("train.csv", "dev-v2.0.json", "test_00001.jsonl.gz"). Files
/// whose names say nothing are for training if they are named themselves, and left out of a folder.
/// Throws IoError if a path is missing, a named file has no format, or a folder has no file for a
/// split.
TableFiles find_tables(const std::vector<std::string>& paths);

}  // namespace longspan
