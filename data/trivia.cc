#include "data/trivia.h"

#include <algorithm>
#include <unordered_set>

#include "core/error.h"
#include "data/io/json.h"
#include "data/questions.h"

namespace longspan {
namespace {

constexpr const char* kTriviaqa = "triviaqa";

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) { return lower(c); });
  return out;
}

/// Whether c is a letter, a digit, or a byte of a non-ASCII character.
bool in_word(char c) {
  return (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'z') ||
         static_cast<uint8_t>(c) >= 0x80;
}

/// Collects non-empty texts without duplicates, in order.
class Distinct {
 public:
  void add(const std::string& one) {
    if (!one.empty() && seen_.insert(one).second) all_.push_back(one);
  }
  std::vector<std::string> take() { return std::move(all_); }

 private:
  std::vector<std::string> all_;
  std::unordered_set<std::string> seen_;
};

/// Whether a path stays below its folder. Names such as "Apple_Inc..txt" are valid.
bool stays_below(std::string_view file) {
  for (size_t at = 0; at <= file.size();) {
    const size_t end = std::min(file.find('/', at), file.size());
    if (file.substr(at, end - at) == "..") return false;
    at = end + 1;
  }
  return !file.empty() && file[0] != '/';
}

TriviaQuestion read_trivia(const Json& row, const std::string& path) {
  TriviaQuestion q;
  q.id = row["QuestionId"].string();
  q.text = row["Question"].string();
  Distinct documents, aliases;
  for (const Json& page : row["EntityPages"].array()) {
    const std::string& file = page["Filename"].string();
    require<IoError>(stays_below(file), kTriviaqa,
                     "{}: question {}: \"{}\" is no file of the evidence", path, q.id, file);
    documents.add(file);
  }
  if (const Json* answer = row.find("Answer")) {
    aliases.add((*answer)["Value"].string());
    for (const Json& alias : (*answer)["Aliases"].array()) aliases.add(alias.string());
  }
  q.documents = documents.take();
  q.aliases = aliases.take();
  return q;
}

}  // namespace

std::vector<TriviaQuestion> read_triviaqa(std::string_view json, const std::string& path) {
  return read_rows<TriviaQuestion>(kTriviaqa, json, path, "Data", "QuestionId", read_trivia);
}

std::vector<Answer> find_aliases(std::string_view text, std::span<const std::string> aliases,
                                 size_t read) {
  const size_t stop = std::min(read, text.size());
  // One byte more than `stop`, to see whether a word ends there.
  const std::string where = lower(text.substr(0, stop + 1));
  const SharedText read_text{std::string(text.substr(0, stop))};
  std::vector<Answer> found;
  for (const std::string& alias : aliases) {
    const std::string what = lower(alias);
    if (what.empty()) continue;
    for (size_t at = where.find(what); at != std::string::npos; at = where.find(what, at + 1)) {
      const size_t end = at + what.size();
      if (end > stop) break;
      const bool begins = at == 0 || !in_word(where[at - 1]) || !in_word(what.front());
      const bool ends = end == where.size() || !in_word(where[end]) || !in_word(what.back());
      if (!begins || !ends) continue;
      found.push_back({read_text.part(at, what.size()), static_cast<int64_t>(at)});
    }
  }
  std::sort(found.begin(), found.end(), [](const Answer& a, const Answer& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.text.size() < b.text.size();
  });
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

std::vector<Piece> first_pieces(std::string_view text, const Tokenizer& tokenizer, int64_t count) {
  // The end of a text affects the pieces before it, but not those of earlier words.
  constexpr size_t beyond = 64;
  const size_t wanted = static_cast<size_t>(std::max<int64_t>(count, 0));
  for (size_t bytes = 8 * wanted + 64;; bytes *= 2) {
    std::vector<Piece> pieces = tokenizer.pieces(text.substr(0, bytes));
    if (bytes < text.size() && pieces.size() < wanted + beyond) continue;
    pieces.resize(std::min(pieces.size(), wanted));
    return pieces;
  }
}

}  // namespace longspan
