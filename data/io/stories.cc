#include "data/io/stories.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "data/io/files.h"

namespace longspan {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}
bool is_capital(char c) { return c >= 'A' && c <= 'Z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool closes(char c) { return c == '"' || c == '\'' || c == ')' || c == ']'; }
bool opens(char c) { return c == '"' || c == '\'' || c == '(' || c == '['; }

/// Whether the word before a full stop is one that a full stop does not end.
bool is_abbreviation(std::string_view word) {
  constexpr std::string_view known[] = {"Mr",  "Mrs",  "Ms",   "Dr",  "Prof", "St",  "Jr",  "Sr",
                                        "vs",  "etc",  "No",   "Gen", "Sen",  "Rep", "Gov", "Lt",
                                        "Col", "Capt", "Jan",  "Feb", "Mar",  "Apr", "Jun", "Jul",
                                        "Aug", "Sep",  "Sept", "Oct", "Nov",  "Dec", "Mt",  "cf"};
  while (!word.empty() && opens(word.front())) word.remove_prefix(1);
  if (word.size() == 1 && is_capital(word[0])) return true;
  const bool inner = word.find('.') != std::string_view::npos;  // "U.S", "e.g", "i.e"
  return inner || std::find(std::begin(known), std::end(known), word) != std::end(known);
}

/// Whether a sentence of `line` ends with its byte `at`, and where: behind closing quotes.
size_t end_of_sentence(std::string_view line, size_t at) {
  if (line[at] != '.' && line[at] != '!' && line[at] != '?') return 0;
  size_t end = at + 1;
  while (end < line.size() && closes(line[end])) ++end;
  size_t next = end;
  while (next < line.size() && is_space(line[next])) ++next;
  if (next == end || next == line.size()) return 0;
  if (!is_capital(line[next]) && !is_digit(line[next]) && !opens(line[next])) return 0;
  if (line[at] != '.') return end;
  size_t begin = at;
  while (begin > 0 && !is_space(line[begin - 1])) --begin;
  return is_abbreviation(line.substr(begin, at - begin)) ? 0 : end;
}

/// Returns a text with single spaces, and none at its ends.
std::string with_single_spaces(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (!is_space(c)) {
      out += c;
    } else if (!out.empty() && out.back() != ' ') {
      out += ' ';
    }
  }
  if (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

void add_sentence(std::string_view text, std::vector<std::string>& all) {
  std::string sentence = with_single_spaces(text);
  if (!sentence.empty()) all.push_back(std::move(sentence));
}

void split_line(std::string_view line, std::vector<std::string>& all) {
  size_t begin = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const size_t end = end_of_sentence(line, i);
    if (end == 0) continue;
    add_sentence(line.substr(begin, end - begin), all);
    begin = end;
    i = end - 1;
  }
  add_sentence(line.substr(begin), all);
}

/// Returns the next line of a text from `begin` on, which moves behind it.
std::string_view next_line(std::string_view text, size_t& begin) {
  const size_t end = std::min(text.find('\n', begin), text.size());
  const std::string_view line = text.substr(begin, end - begin);
  begin = end + 1;
  return line;
}

}  // namespace

std::vector<std::string> split_sentences(std::string_view text) {
  text = without_byte_order_mark(text);
  std::vector<std::string> all;
  for (size_t begin = 0; begin < text.size();) split_line(next_line(text, begin), all);
  return all;
}

Document read_story(std::string_view text, const std::string& path) {
  text = without_byte_order_mark(text);
  Document document;
  bool marked = false, highlight = false;
  for (size_t begin = 0; begin < text.size();) {
    const std::string line = with_single_spaces(next_line(text, begin));
    if (line == "@highlight") {
      require<IoError>(!highlight, "story",
                       "{}: a mark @highlight follows another; expected a line", path);
      marked = highlight = true;
    } else if (!marked) {
      split_line(line, document.article);
    } else if (!line.empty()) {
      document.summary.push_back(line);
      highlight = false;
    }
  }
  require<IoError>(!highlight, "story", "{}: nothing follows the last mark @highlight", path);
  return document;
}

std::vector<std::string> list_stories(const std::string& folder) {
  std::vector<std::string> all;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::filesystem::path& path = entry->path();
    if (path.extension() == ".story") all.push_back(path.string());
  }
  require<IoError>(!error, "story", "cannot list {}: {}", folder, error.message());
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace longspan
