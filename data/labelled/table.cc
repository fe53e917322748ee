#include "data/labelled/table.h"

#include <algorithm>
#include <unordered_set>

#include "core/error.h"
#include "data/io/bytes.h"
#include "data/io/files.h"
#include "data/io/listed_files.h"
#include "data/unicode/unicode.h"

namespace longspan {
namespace {

constexpr const char* kTable = "table";
constexpr const char* kFormats = ".jsonl, .json, .csv or .tsv, each perhaps with .gz after it";

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

/// Takes the next line off a text, without its end.
std::string_view take_line(std::string_view& text) {
  const size_t end = std::min(text.find('\n'), text.size());
  std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

std::string place_of(const std::string& path, int64_t number, int64_t line) {
  std::string place = fmt::format("{}: row {}", path, number);
  if (line > 0) place += fmt::format(" (line {})", line);
  return place;
}

/// Returns the object that a text is. Throws IoError that says where it stands.
Json parse_object(std::string_view text, const std::string& path, int64_t number, int64_t line) {
  Json value;
  try {
    value = parse_json(text);
  } catch (const ValueError& error) {
    fail<IoError>(kTable, "{}: {}", place_of(path, number, line), error.what());
  }
  if (!value.is_object()) {
    fail<IoError>(kTable, "{}: expected an object with a member for each column, got {}",
                  place_of(path, number, line), value.kind());
  }
  return value;
}

/// Returns the list of a split that a name says, or null.
std::vector<std::string>* split_of(const std::string& path, TableFiles& files) {
  const std::optional<int> split = split_in_name(path);
  if (!split) return nullptr;
  return *split == 0 ? &files.train : *split == 1 ? &files.valid : &files.test;
}

void add_folder(const std::string& folder, TableFiles& files) {
  bool any = false;
  for (const std::string& path : list_folder(folder)) {
    std::vector<std::string>* split = split_of(path, files);
    if (split == nullptr || !table_format(path)) continue;
    if (kind_of_path(path, kTable) != PathKind::file) continue;
    split->push_back(path);
    any = true;
  }
  require<IoError>(any, kTable,
                   "{} has no file for training, validation or testing; expected names such as "
                   "train.jsonl, valid.jsonl and test.jsonl, that end in {}",
                   folder, kFormats);
}

}  // namespace

/// Where rows come from.
class TableReader::Source {
 public:
  virtual ~Source() = default;
  virtual bool next(TableRow& row) = 0;
};

/// One object a line.
class TableReader::JsonLines : public Source {
 public:
  JsonLines(FileBytes bytes, const std::string& path)
      : bytes_(std::move(bytes)), path_(path), left_(without_byte_order_mark(bytes_.text())) {}

  bool next(TableRow& row) override {
    while (!left_.empty()) {
      ++line_;
      const std::string_view line = take_line(left_);
      if (is_blank(line)) continue;
      row.line_ = line_;
      row.object_ = parse_object(line, path_, ++rows_, line_);
      return true;
    }
    return false;
  }

 private:
  FileBytes bytes_;
  std::string path_;
  std::string_view left_;
  int64_t line_ = 0, rows_ = 0;
};

/// An array of objects, or of the articles of SQuAD.
class TableReader::JsonArray : public Source {
 public:
  JsonArray(const Json& file, const std::string& path) : path_(path) {
    const Json* rows = file.is_array() ? &file : file.find("data");
    require<IoError>(rows != nullptr && rows->is_array(), kTable,
                     "{}: expected an array of objects, alone or as the member \"data\", or one "
                     "object a line; got {}",
                     path, file.is_object() ? "an object without an array \"data\"" : file.kind());
    rows_ = *rows;
  }

  bool next(TableRow& row) override {
    row.line_ = 0;
    if (!questions_.empty()) return take_question(row);
    while (at_ < rows_.array().size()) {
      const Json& value = rows_.array()[at_++];
      require<IoError>(value.is_object(), kTable,
                       "{}: entry {} is {}; expected an object with a member for each column",
                       path_, at_, value.kind());
      if (value.find("paragraphs") == nullptr) {
        row.object_ = value;
        return true;
      }
      add_article(value);
      if (!questions_.empty()) return take_question(row);
    }
    return false;
  }

 private:
  bool take_question(TableRow& row) {
    row.object_ = std::move(questions_[question_++]);
    if (question_ == questions_.size()) {
      questions_.clear();
      question_ = 0;
    }
    return true;
  }

  /// Makes a row of each question of an article.
  void add_article(const Json& article) {
    size_t paragraph = 0;
    try {
      const Json* title = article.find("title");
      for (const Json& p : article["paragraphs"].array()) {
        ++paragraph;
        for (const Json& qa : p["qas"].array()) {
          Members row = qa.object();
          std::erase_if(
              row, [](const JsonMember& m) { return m.name == "context" || m.name == "title"; });
          row.push_back({"context", p["context"]});
          if (title != nullptr) row.push_back({"title", *title});
          questions_.emplace_back(std::move(row));
        }
      }
    } catch (const ValueError& error) {
      fail<IoError>(kTable, "{}: article {}, paragraph {}: {}", path_, at_, paragraph,
                    error.what());
    }
  }

  std::string path_;
  Json rows_;
  size_t at_ = 0, question_ = 0;
  std::vector<Json> questions_;  // of the current article
};

/// Fields between separators.
class TableReader::Separated : public Source {
 public:
  Separated(FileBytes bytes, const std::string& path, char separator)
      : bytes_(std::move(bytes)),
        path_(path),
        text_(without_byte_order_mark(bytes_.text())),
        separator_(separator) {
    require<IoError>(record(header_), kTable,
                     "{} is empty; expected a header with names of columns", path);
    std::unordered_set<std::string_view> seen;
    for (const std::string& name : header_) {
      require<IoError>(name.find('\r') == std::string::npos, kTable,
                       "{}: the header has a carriage return in it; end lines with a line feed",
                       path);
      require<IoError>(name.empty() || seen.insert(name).second, kTable,
                       "{}: the header has the column \"{}\" twice; expected different names", path,
                       name);
    }
  }

  const std::vector<std::string>& header() const { return header_; }

  bool next(TableRow& row) override {
    std::vector<std::string> fields;
    ++rows_;
    if (!record(fields)) return false;
    if (fields.size() != header_.size()) {
      fail<IoError>(kTable,
                    "{} has {} fields, and the header {} columns; put a field that has {} in it "
                    "between quotes",
                    place(), fields.size(), header_.size(),
                    separator_ == ',' ? "a comma" : "a tab");
    }
    row.line_ = begin_;
    row.fields_.assign(std::make_move_iterator(fields.begin()),
                       std::make_move_iterator(fields.end()));
    return true;
  }

 private:
  std::string place() const {
    return rows_ == 0 ? path_ + ": header" : place_of(path_, rows_, begin_);
  }

  /// Throws with the place, which is written only then.
  [[noreturn]] void refuse(const char* what) const { fail<IoError>(kTable, "{}{}", place(), what); }

  /// Reads the fields of the next record. Returns false at the end.
  bool record(std::vector<std::string>& fields) {
    while (at_ < text_.size()) {
      std::string_view rest = text_.substr(at_);
      const std::string_view line = take_line(rest);
      begin_ = ++line_;
      if (!line.empty()) break;
      at_ = text_.size() - rest.size();
    }
    if (at_ >= text_.size()) return false;
    const size_t from = at_;
    do {
      fields.push_back(field());
    } while (!at_end_of_record());
    const std::string_view all = text_.substr(from, at_ - from);
    if (!is_utf8(all)) {
      refuse(" is not UTF-8; convert the file, for example with iconv -f LATIN1 -t UTF-8");
    }
    if (all.find('\0') != std::string_view::npos) refuse(" has a NUL byte; expected text");
    return true;
  }

  std::string field() {
    std::string value;
    if (at_ < text_.size() && text_[at_] == '"') {
      quoted(value);
      return value;
    }
    const char stops[] = {separator_, '\n', '\0'};
    size_t end = std::min(text_.find_first_of(stops, at_), text_.size());
    const bool last = end == text_.size() || text_[end] == '\n';
    if (last && end > at_ && text_[end - 1] == '\r') --end;
    value = text_.substr(at_, end - at_);
    at_ = end;
    return value;
  }

  /// Reads a field between quotes; two quotes stand for one.
  void quoted(std::string& value) {
    for (size_t from = at_ + 1;;) {
      const size_t quote = text_.find('"', from);
      if (quote == std::string_view::npos) {
        refuse(
            ": a quote that opens a field is never closed; close it, or put the field between "
            "quotes and write each quote in it twice");
      }
      const std::string_view part = text_.substr(from, quote - from);
      line_ += std::count(part.begin(), part.end(), '\n');
      value += part;
      at_ = from = quote + 1;
      if (at_ >= text_.size() || text_[at_] != '"') break;
      value += '"';
      ++from;
    }
    const std::string_view next = text_.substr(std::min(at_, text_.size()), 2);
    const bool closed =
        next.empty() || next[0] == separator_ || next[0] == '\n' || next == "\r\n" || next == "\r";
    if (!closed) {
      refuse(
          ": text follows the quote that closes a field; write a quote inside a field twice, and "
          "the field between quotes");
    }
  }

  /// Goes on after a field: past a separator, or past the end of the line.
  bool at_end_of_record() {
    if (at_ < text_.size() && text_[at_] == separator_) {
      ++at_;
      return false;
    }
    if (at_ < text_.size() && text_[at_] == '\r') ++at_;
    if (at_ < text_.size() && text_[at_] == '\n') ++at_;
    return true;
  }

  FileBytes bytes_;
  std::string path_;
  std::string_view text_;
  char separator_;
  size_t at_ = 0;
  int64_t line_ = 0, begin_ = 0, rows_ = 0;
  std::vector<std::string> header_;
};

std::optional<TableFormat> table_format(std::string_view path) {
  if (path.ends_with(".gz")) path.remove_suffix(3);
  if (path.ends_with(".jsonl") || path.ends_with(".ndjson")) return TableFormat::json_lines;
  if (path.ends_with(".json")) return TableFormat::json;
  if (path.ends_with(".csv")) return TableFormat::csv;
  if (path.ends_with(".tsv") || path.ends_with(".tab")) return TableFormat::tsv;
  return std::nullopt;
}

const Json* TableRow::find(std::string_view column) const {
  if (header_ == nullptr) return object_.find(column);
  const auto at = std::find(header_->begin(), header_->end(), column);
  return at == header_->end() ? nullptr : &fields_[static_cast<size_t>(at - header_->begin())];
}

std::vector<std::string> TableRow::columns() const {
  if (header_ != nullptr) return *header_;
  std::vector<std::string> names;
  if (!object_.is_object()) return names;
  for (const JsonMember& m : object_.object()) names.push_back(m.name);
  return names;
}

std::string TableRow::place() const {
  return path_ == nullptr ? "no row" : place_of(*path_, number_, line_);
}

TableReader::TableReader(const std::string& path)
    : path_(std::make_shared<const std::string>(path)), source_(open(path)) {}
TableReader::~TableReader() = default;
TableReader::TableReader(TableReader&&) noexcept = default;
TableReader& TableReader::operator=(TableReader&&) noexcept = default;

std::unique_ptr<TableReader::Source> TableReader::open(const std::string& path) {
  const std::optional<TableFormat> format = table_format(path);
  require<IoError>(format.has_value(), kTable,
                   "{} has no ending that says what it holds; expected {}", path, kFormats);
  FileBytes bytes = open_bytes(path, kTable);
  if (*format == TableFormat::csv || *format == TableFormat::tsv) {
    auto source = std::make_unique<Separated>(std::move(bytes), path,
                                              *format == TableFormat::csv ? ',' : '\t');
    header_ = std::make_shared<const std::vector<std::string>>(source->header());
    return source;
  }
  const std::string_view text = without_byte_order_mark(bytes.text());
  require<IoError>(text.find_first_not_of(" \t\r\n") != std::string_view::npos, kTable,
                   "{} is empty; expected rows", path);
  if (*format == TableFormat::json_lines) {
    return std::make_unique<JsonLines>(std::move(bytes), path);
  }
  // The text has one object per line, unless its first line with text is no object, or holds all
  // objects.
  std::string_view rest = text, first;
  while (is_blank(first)) first = take_line(rest);
  Json value;
  try {
    value = parse_json(first);
  } catch (const ValueError&) {
    first = {};
  }
  const bool one = rest.find_first_not_of(" \t\r\n") == std::string_view::npos;
  const Json* data = value.find("data");
  const bool whole = value.is_array() || (one && data != nullptr && data->is_array());
  if (!first.empty() && !whole) return std::make_unique<JsonLines>(std::move(bytes), path);
  if (!whole || !one) {
    try {
      value = parse_json(text);
    } catch (const ValueError& error) {
      fail<IoError>(kTable, "{}: {}", path, error.what());
    }
  }
  return std::make_unique<JsonArray>(value, path);
}

bool TableReader::next(TableRow& row) {
  row.path_ = path_;
  row.header_ = header_;
  row.number_ = ++rows_;
  return source_->next(row);
}

const std::vector<std::string>& TableReader::header() const {
  static const std::vector<std::string> none;
  return header_ == nullptr ? none : *header_;
}

TableFiles find_tables(const std::vector<std::string>& paths) {
  TableFiles files;
  for (const std::string& path : paths) {
    const PathKind kind = kind_of_path(path, kTable);
    require<IoError>(kind != PathKind::nothing, kTable, "{} does not exist", path);
    if (kind == PathKind::folder) {
      add_folder(path, files);
      continue;
    }
    require<IoError>(table_format(path).has_value(), kTable,
                     "{} has no ending that says what it holds; expected {}", path, kFormats);
    std::vector<std::string>* split = split_of(path, files);
    (split != nullptr ? *split : files.train).push_back(path);
  }
  return files;
}

}  // namespace longspan
