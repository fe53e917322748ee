#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/tensor.h"
#include "data/io/json.h"
#include "data/tokenizers/tokenizer.h"

namespace longspan {

/// The special ids around questions and texts: the tokenizer's own, and new ids behind its
/// vocabulary for those it lacks.
struct QuestionIds {
  explicit QuestionIds(const Tokenizer& tokenizer);

  SpecialIds special;      ///< begin and separator are always set
  int64_t vocabulary = 0;  ///< all ids are smaller
};

/// A text, or a part of one, whose copies share its bytes.
class SharedText : public std::string_view {
 public:
  SharedText() = default;
  SharedText(std::string text) : SharedText(std::make_shared<const std::string>(std::move(text))) {}
  SharedText(const char* text) : SharedText(std::string(text)) {}

  /// Returns `count` bytes from `begin` on.
  SharedText part(size_t begin, size_t count) const { return {owner_, substr(begin, count)}; }

 private:
  explicit SharedText(const std::shared_ptr<const std::string>& owner)
      : SharedText(owner, *owner) {}
  SharedText(std::shared_ptr<const std::string> owner, std::string_view text)
      : std::string_view(text), owner_(std::move(owner)) {}

  std::shared_ptr<const std::string> owner_;
};

/// An answer that occurs in a text.
struct Answer {
  SharedText text;
  int64_t begin = 0;  ///< byte offset in the context
  friend bool operator==(const Answer&, const Answer&) = default;
};

/// A question about a text, which it shares with the other questions about it.
struct Question {
  std::string id, text;
  SharedText context;
  std::vector<Answer> answers;  ///< empty: the context does not answer the question
};

/// Reads the questions of a SQuAD 1.1 or 2.0 file \cite rajpurkar2016 (data, paragraphs, qas,
/// answers). Throws IoError that names `path` and the question if a field is missing or an answer
/// is not at its stated offset.
std::vector<Question> read_squad(std::string_view json, const std::string& path);

/// Reads the questions of an MRQA file, with one JSON object per line after a header: context, qas,
/// detected_answers. Throws as read_squad() does.
std::vector<Question> read_mrqa(std::string_view lines, const std::string& path);

/// Options of cutting a question and a long text into windows.
struct WindowOptions {
  int64_t length = 512;         ///< N: maximum number of tokens of a window
  int64_t stride = 128;         ///< tokens of the text between the starts of adjacent windows
  int64_t most_question = 64;   ///< maximum tokens of a question; the rest is cut off
  bool two_separators = false;  ///< between question and text, as in RoBERTa
};

/// A window: [CLS] question [SEP] text segment [SEP].
struct SpanWindow {
  std::vector<int32_t> tokens;
  std::vector<int32_t> types;    ///< 0 up to the first [SEP], then 1
  int64_t question_end = 0;      ///< tokens before it are [CLS] and the question
  int64_t text_begin = 0;        ///< position of the first token of the text
  int64_t first = 0, count = 0;  ///< the range of text tokens that it holds
  int32_t start = 0, end = 0;    ///< positions of the answer's first and last token; 0 if it is not
                                 ///< completely inside
};

/// Cuts a question and its text into windows. `answer` may be null. All tokens come from one
/// tokenizer, which must have ids of begin and separator. The windows cover the text; adjacent ones
/// overlap if the stride allows it. Throws ValueError if a window has no space for text, or stride
/// is below 1.
std::vector<SpanWindow> span_windows(std::span<const Piece> question, std::span<const Piece> text,
                                     const Answer* answer, const SpecialIds& special,
                                     const WindowOptions& options = {});

/// Windows as one batch, padded with 0 to the longest.
struct SpanBatch {
  Tensor tokens, types;  ///< i64 [B, L]
  Tensor lengths;        ///< i64 [B]
  Tensor global;         ///< u8 [B, L]: [CLS] and the question
  Tensor starts, ends;   ///< i64 [B]: of the answer, or of [CLS] if the window has none
};
/// Throws ShapeError if there are no windows.
SpanBatch span_batch(std::span<const SpanWindow> windows);

/// Calls read(row, path) for each row of a JSON file, which is an array or has one in its field
/// `list`, and returns the results. Throws IoError that names `path` and the row, by its field
/// `id`, if a field is missing or has the wrong type.
template <class T, class Read>
std::vector<T> read_rows(const char* op, std::string_view json, const std::string& path,
                         const std::string& list, const std::string& id, Read read) {
  std::vector<T> all;
  try {
    const Json file = parse_json(json);
    for (const Json& row : (list.empty() ? file : file[list]).array()) {
      try {
        all.push_back(read(row, path));
      } catch (const ValueError& error) {
        const Json* name = row.find(id);
        const bool named = name != nullptr && name->is_string();
        fail<IoError>(op, "{}: question {}: {}", path,
                      named ? name->string() : fmt::format("{} of the file", all.size()),
                      error.what());
      }
    }
  } catch (const ValueError& error) {
    fail<IoError>(op, "{}: {}", path, error.what());
  }
  return all;
}

/// Returns the rows of scores [B, L].
std::vector<std::vector<float>> score_rows(const Tensor& scores);

/// Positions of an answer's first and last token in a window.
struct SpanPlace {
  int32_t start = 0, end = 0;
  friend bool operator==(const SpanPlace&, const SpanPlace&) = default;
};

/// Returns the positions of every answer that is completely inside the window, in order and without
/// duplicates; for training with several correct spans. `text` is the text that the window was cut
/// from.
std::vector<SpanPlace> answers_in(const SpanWindow& window, std::span<const Piece> text,
                                  std::span<const Answer> answers);

/// The predicted answer: a span of the text.
struct BestSpan {
  double score = 0;            ///< start score + end score
  double none = 0;             ///< minimum over all windows of the score of [CLS] as start and end
  int64_t window = -1;         ///< -1: no window has text
  int64_t begin = 0, end = 0;  ///< bytes of the text
};

/// Returns the best of all spans of at most `longest` tokens inside the text of a window.
/// `starts[w]` and `ends[w]` have a score for each token of window w, optionally with padding; ties
/// go to the first span. Throws ShapeError if they have fewer scores than tokens.
BestSpan best_span(std::span<const SpanWindow> windows, std::span<const Piece> text,
                   std::span<const std::vector<float>> starts,
                   std::span<const std::vector<float>> ends, int64_t longest = 30);

}  // namespace longspan
