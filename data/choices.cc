#include "data/choices.h"

#include <algorithm>
#include <unordered_set>

#include "core/error.h"
#include "data/io/json.h"
#include "data/questions.h"

namespace longspan {
namespace {

constexpr const char* kWikihop = "wikihop";

std::vector<std::string> strings(const Json& array) {
  std::vector<std::string> all;
  for (const Json& s : array.array()) all.push_back(s.string());
  return all;
}

ChoiceQuestion read_question(const Json& row, const std::string& path) {
  ChoiceQuestion q;
  q.id = row["id"].string();
  q.query = row["query"].string();
  q.candidates = strings(row["candidates"]);
  q.supports = strings(row["supports"]);
  require<IoError>(!q.candidates.empty(), kWikihop, "{}: question {} has no candidates", path,
                   q.id);
  std::unordered_set<std::string_view> seen;
  for (const std::string& c : q.candidates) {
    require<IoError>(seen.insert(c).second, kWikihop,
                     "{}: question {}: the candidate \"{}\" is repeated", path, q.id, c);
  }
  const Json* answer = row.find("answer");
  if (answer == nullptr) return q;
  const auto at = std::find(q.candidates.begin(), q.candidates.end(), answer->string());
  require<IoError>(at != q.candidates.end(), kWikihop,
                   "{}: question {}: the answer \"{}\" is none of the {} candidates", path, q.id,
                   answer->string(), q.candidates.size());
  q.answer = at - q.candidates.begin();
  return q;
}

void append(std::vector<int32_t>& tokens, std::span<const Piece> pieces) {
  for (const Piece& p : pieces) tokens.push_back(p.id);
}

/// Returns the tokens that begin every window of a question.
ChoiceWindow head_of(const ChoicePieces& question, const ChoiceTokens& special) {
  ChoiceWindow w;
  w.tokens = {special.begin, special.question};
  append(w.tokens, question.query);
  w.tokens.push_back(special.question_end);
  for (const std::vector<Piece>& c : question.candidates) {
    w.marks.push_back(static_cast<int64_t>(w.tokens.size()));
    w.tokens.push_back(special.candidate);
    append(w.tokens, c);
    w.tokens.push_back(special.candidate_end);
  }
  w.question_end = static_cast<int64_t>(w.tokens.size());
  w.tokens.push_back(special.separator);
  return w;
}

}  // namespace

ChoiceIds::ChoiceIds(const Tokenizer& tokenizer) {
  const QuestionIds ids(tokenizer);
  tokens.begin = ids.special.begin;
  tokens.separator = ids.special.separator;
  vocabulary = ids.vocabulary;
  for (int32_t* id :
       {&tokens.question, &tokens.question_end, &tokens.candidate, &tokens.candidate_end}) {
    *id = static_cast<int32_t>(vocabulary++);
  }
}

int64_t choice_overhead(const ChoicePieces& question) {
  size_t n = question.query.size() + 5;  // begin, the two marks of the query, two separators
  for (const std::vector<Piece>& c : question.candidates) n += c.size() + 2;
  return static_cast<int64_t>(n);
}

std::vector<ChoiceQuestion> read_wikihop(std::string_view json, const std::string& path) {
  return read_rows<ChoiceQuestion>(kWikihop, json, path, "", "id", read_question);
}

std::vector<ChoiceWindow> choice_windows(const ChoicePieces& question, const ChoiceTokens& special,
                                         int64_t length) {
  for (const auto& [name, id] : {std::pair{"begin", special.begin},
                                 {"separator", special.separator},
                                 {"question", special.question},
                                 {"question_end", special.question_end},
                                 {"candidate", special.candidate},
                                 {"candidate_end", special.candidate_end}}) {
    require(id >= 0, "windows", "the token {} is {}; expected an id of the vocabulary", name, id);
  }
  require(!question.candidates.empty(), "windows", "the question has no candidates");
  std::vector<int32_t> text;
  for (const std::vector<Piece>& s : question.supports) {
    if (!text.empty()) text.push_back(special.separator);
    append(text, s);
  }
  const ChoiceWindow head = head_of(question, special);
  const int64_t taken = choice_overhead(question);
  const int64_t room = length - taken, total = static_cast<int64_t>(text.size());
  require(room >= 1, "windows",
          "a window of {} has no room for text beside a query and {} candidates of {} tokens; "
          "expected {} or more",
          length, head.marks.size(), taken, taken + 1);
  std::vector<ChoiceWindow> windows;
  for (int64_t first = 0; first == 0 || first < total; first += room) {
    ChoiceWindow w = head;
    const int64_t count = std::min(room, total - first);
    w.tokens.insert(w.tokens.end(), text.begin() + first, text.begin() + first + count);
    w.tokens.push_back(special.separator);
    windows.push_back(std::move(w));
  }
  return windows;
}

ChoiceBatch choice_batch(std::span<const std::vector<ChoiceWindow>> questions) {
  int64_t batch = 0, longest = 0, most = 0, windows = 0;
  for (const std::vector<ChoiceWindow>& q : questions) {
    batch += static_cast<int64_t>(q.size());
    windows = std::max(windows, static_cast<int64_t>(q.size()));
    for (const ChoiceWindow& w : q) {
      longest = std::max(longest, static_cast<int64_t>(w.tokens.size()));
      most = std::max(most, static_cast<int64_t>(w.marks.size()));
    }
  }
  require(batch > 0, "choice_batch", "got no windows; expected one or more");
  const auto count = static_cast<int64_t>(questions.size());
  std::vector<int64_t> tokens(static_cast<size_t>(batch * longest)), lengths;
  std::vector<uint8_t> global(tokens.size());
  std::vector<int64_t> places(static_cast<size_t>(count * most * windows), -1);
  for (int64_t q = 0, b = 0; q < count; ++q) {
    const std::vector<ChoiceWindow>& own = questions[static_cast<size_t>(q)];
    for (size_t k = 0; k < own.size(); ++k, ++b) {
      const ChoiceWindow& w = own[k];
      std::copy(w.tokens.begin(), w.tokens.end(), tokens.begin() + b * longest);
      std::fill_n(global.begin() + b * longest, w.question_end, uint8_t{1});
      lengths.push_back(static_cast<int64_t>(w.tokens.size()));
      for (size_t c = 0; c < w.marks.size(); ++c) {
        const int64_t row = q * most + static_cast<int64_t>(c);
        places[static_cast<size_t>(row * windows) + k] = b * longest + w.marks[c];
      }
    }
  }
  return {.tokens = Tensor::from(tokens, {batch, longest}),
          .lengths = Tensor::from(lengths, {batch}),
          .global = Tensor::from(global, {batch, longest}),
          .places = Tensor::from(places, {count, most, windows})};
}

}  // namespace longspan
