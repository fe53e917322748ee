#include "data/questions.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "data/code_points.h"
#include "data/io/json.h"

namespace longspan {
namespace {

/// A text and the byte offsets of its characters.
class Context {
 public:
  explicit Context(std::string text) : text_(std::move(text)), index_(text_) {}

  const SharedText& text() const { return text_; }
  int64_t byte_of_character(int64_t character) const { return index_.byte_of(character); }

 private:
  SharedText text_;
  CodePointIndex index_;
};

/// Adds an answer that begins at a character of the context.
void add_answer(Question& question, const Context& context, const std::string& text,
                int64_t character, const std::string& path) {
  const int64_t begin = context.byte_of_character(character);
  const bool there =
      begin >= 0 && question.context.compare(static_cast<size_t>(begin), text.size(), text) == 0;
  require<IoError>(there && !text.empty(), "questions",
                   "{}: question {}: the answer \"{}\" does not stand at character {}", path,
                   question.id, text, character);
  question.answers.push_back(
      {question.context.part(static_cast<size_t>(begin), text.size()), begin});
}

/// Runs `read`, and adds the path to errors about unexpected JSON.
template <class F>
void read_json(const std::string& path, F&& read) {
  try {
    read();
  } catch (const ValueError& error) {
    fail<IoError>("questions", "{}: {}", path, error.what());
  }
}

/// Returns the indices of the first and last token that overlap the answer, or {-1, -1}.
std::pair<int64_t, int64_t> answer_pieces(std::span<const Piece> text, const Answer& answer) {
  const int64_t end = answer.begin + static_cast<int64_t>(answer.text.size());
  int64_t first = -1, last = -1;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i].end <= answer.begin || text[i].begin >= end || text[i].begin == text[i].end)
      continue;
    if (first < 0) first = static_cast<int64_t>(i);
    last = static_cast<int64_t>(i);
  }
  return {first, last};
}

}  // namespace

QuestionIds::QuestionIds(const Tokenizer& tokenizer)
    : special(tokenizer.special()), vocabulary(tokenizer.vocabulary()) {
  for (int32_t* id : {&special.begin, &special.separator}) {
    if (*id < 0) *id = static_cast<int32_t>(vocabulary++);
  }
}

std::vector<Question> read_squad(std::string_view json, const std::string& path) {
  std::vector<Question> all;
  read_json(path, [&] {
    const Json file = parse_json(json);
    for (const Json& article : file["data"].array()) {
      for (const Json& paragraph : article["paragraphs"].array()) {
        const Context context(paragraph["context"].string());
        for (const Json& qa : paragraph["qas"].array()) {
          Question q{qa["id"].string(), qa["question"].string(), context.text(), {}};
          for (const Json& answer : qa["answers"].array()) {
            add_answer(q, context, answer["text"].string(), answer["answer_start"].integer(), path);
          }
          all.push_back(std::move(q));
        }
      }
    }
  });
  return all;
}

std::vector<Question> read_mrqa(std::string_view lines, const std::string& path) {
  std::vector<Question> all;
  read_json(path, [&] {
    for (size_t begin = 0; begin < lines.size();) {
      const size_t end = std::min(lines.find('\n', begin), lines.size());
      const std::string_view line = lines.substr(begin, end - begin);
      begin = end + 1;
      if (line.empty()) continue;
      const Json row = parse_json(line);
      if (row.find("header") != nullptr) continue;
      const Context context(row["context"].string());
      for (const Json& qa : row["qas"].array()) {
        Question q{qa["qid"].string(), qa["question"].string(), context.text(), {}};
        for (const Json& answer : qa["detected_answers"].array()) {
          for (const Json& span : answer["char_spans"].array()) {
            // The span includes its last character. The text is taken from the context, because the
            // case of the given text may differ.
            require<ValueError>(span.array().size() == 2, "char_spans", "expected two numbers");
            const int64_t from = context.byte_of_character(span.array()[0].integer());
            const int64_t last = span.array()[1].integer();
            const bool within = last >= 0 && last < static_cast<int64_t>(q.context.size());
            const int64_t to = within ? context.byte_of_character(last + 1) : -1;
            require<IoError>(from >= 0 && to > from, "questions",
                             "{}: question {}: an answer lies outside its context", path, q.id);
            q.answers.push_back(
                {q.context.part(static_cast<size_t>(from), static_cast<size_t>(to - from)), from});
          }
        }
        all.push_back(std::move(q));
      }
    }
  });
  return all;
}

std::vector<SpanWindow> span_windows(std::span<const Piece> question, std::span<const Piece> text,
                                     const Answer* answer, const SpecialIds& special,
                                     const WindowOptions& options) {
  require(special.begin >= 0 && special.separator >= 0, "windows",
          "the vocabulary has no token to begin with or to separate; expected [CLS] and [SEP], or "
          "<s> and </s>");
  require(options.stride >= 1, "windows", "got stride {}; expected 1 or more", options.stride);
  const auto asked = std::min(static_cast<int64_t>(question.size()), options.most_question);
  const int64_t separators = options.two_separators ? 2 : 1;
  const int64_t room = options.length - asked - separators - 2;
  require(room >= 1, "windows",
          "a window of {} has no room for text beside a question of {} tokens; expected {} or more",
          options.length, asked, options.length - room + 1);
  const auto total = static_cast<int64_t>(text.size());
  std::pair<int64_t, int64_t> span{-1, -1};
  if (answer != nullptr) span = answer_pieces(text, *answer);

  std::vector<SpanWindow> windows;
  for (int64_t first = 0;; first += std::min(options.stride, room)) {
    SpanWindow w;
    w.tokens.push_back(special.begin);
    for (int64_t i = 0; i < asked; ++i) w.tokens.push_back(question[static_cast<size_t>(i)].id);
    w.question_end = 1 + asked;
    w.tokens.push_back(special.separator);
    w.types.assign(w.tokens.size(), 0);
    if (options.two_separators) w.tokens.push_back(special.separator);
    w.text_begin = static_cast<int64_t>(w.tokens.size());
    w.first = first;
    w.count = std::min(room, total - first);
    for (int64_t i = first; i < first + w.count; ++i) {
      w.tokens.push_back(text[static_cast<size_t>(i)].id);
    }
    w.tokens.push_back(special.separator);
    w.types.resize(w.tokens.size(), 1);
    if (span.first >= first && span.second >= 0 && span.second < first + w.count) {
      w.start = static_cast<int32_t>(w.text_begin + span.first - first);
      w.end = static_cast<int32_t>(w.text_begin + span.second - first);
    }
    windows.push_back(std::move(w));
    if (first + windows.back().count >= total) return windows;
  }
}

SpanBatch span_batch(std::span<const SpanWindow> windows) {
  require<ShapeError>(!windows.empty(), "span_batch", "got no windows; expected one or more");
  size_t longest = 0;
  for (const SpanWindow& w : windows) longest = std::max(longest, w.tokens.size());
  std::vector<int64_t> tokens, types, lengths, starts, ends;
  std::vector<uint8_t> global;
  for (const SpanWindow& w : windows) {
    const size_t padding = longest - w.tokens.size();
    tokens.insert(tokens.end(), w.tokens.begin(), w.tokens.end());
    tokens.resize(tokens.size() + padding);
    types.insert(types.end(), w.types.begin(), w.types.end());
    types.resize(tokens.size());
    global.resize(global.size() + static_cast<size_t>(w.question_end), 1);
    global.resize(tokens.size());
    lengths.push_back(static_cast<int64_t>(w.tokens.size()));
    starts.push_back(w.start);
    ends.push_back(w.end);
  }
  const auto b = static_cast<int64_t>(windows.size());
  const Shape shape{b, static_cast<int64_t>(longest)};
  return {.tokens = Tensor::from(tokens, shape),
          .types = Tensor::from(types, shape),
          .lengths = Tensor::from(lengths, {b}),
          .global = Tensor::from(global, shape),
          .starts = Tensor::from(starts, {b}),
          .ends = Tensor::from(ends, {b})};
}

std::vector<std::vector<float>> score_rows(const Tensor& scores) {
  const std::vector<float> all = scores.to_vector<float>();
  std::vector<std::vector<float>> rows;
  for (auto at = all.begin(); at != all.end(); at += scores.dim(1)) {
    rows.emplace_back(at, at + scores.dim(1));
  }
  return rows;
}

std::vector<SpanPlace> answers_in(const SpanWindow& w, std::span<const Piece> text,
                                  std::span<const Answer> answers) {
  std::vector<SpanPlace> places;
  for (const Answer& answer : answers) {
    const auto [first, last] = answer_pieces(text, answer);
    if (first < w.first || last >= w.first + w.count) continue;
    const int64_t shift = w.text_begin - w.first;
    const SpanPlace place{static_cast<int32_t>(first + shift), static_cast<int32_t>(last + shift)};
    if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
  }
  return places;
}

BestSpan best_span(std::span<const SpanWindow> windows, std::span<const Piece> text,
                   std::span<const std::vector<float>> starts,
                   std::span<const std::vector<float>> ends, int64_t longest) {
  require<ShapeError>(starts.size() == windows.size() && ends.size() == windows.size(), "best_span",
                      "got {} windows, scores of {} starts and {} ends; expected as many",
                      windows.size(), starts.size(), ends.size());
  require(longest >= 1, "best_span", "got longest {}; expected 1 or more", longest);
  BestSpan best;
  best.score = -std::numeric_limits<double>::infinity();
  best.none = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < windows.size(); ++i) {
    const SpanWindow& w = windows[i];
    require<ShapeError>(starts[i].size() >= w.tokens.size() && ends[i].size() >= w.tokens.size(),
                        "best_span", "window {} has {} tokens, {} starts and {} ends", i,
                        w.tokens.size(), starts[i].size(), ends[i].size());
    best.none = std::min(best.none, double{starts[i][0]} + double{ends[i][0]});
    for (int64_t a = 0; a < w.count; ++a) {
      for (int64_t b = a; b < std::min(w.count, a + longest); ++b) {
        const double score = double{starts[i][static_cast<size_t>(w.text_begin + a)]} +
                             double{ends[i][static_cast<size_t>(w.text_begin + b)]};
        if (score <= best.score) continue;
        best.score = score;
        best.window = static_cast<int64_t>(i);
        best.begin = text[static_cast<size_t>(w.first + a)].begin;
        best.end = text[static_cast<size_t>(w.first + b)].end;
      }
    }
  }
  return best;
}

}  // namespace longspan
