#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/tensor.h"
#include "data/io/json.h"
#include "data/tokenizers/tokenizer.h"

namespace longspan {

/// The ids around questions and texts: those of the tokenizer, and behind its vocabulary those that
/// it lacks.
struct QuestionIds {
  explicit QuestionIds(const Tokenizer& tokenizer);

  SpecialIds special;      ///< of which begin and separator are there
  int64_t vocabulary = 0;  ///< all ids are below
};

/// An answer that stands in a text.
struct Answer {
  std::string text;
  int64_t begin = 0;  ///< byte of the context
  friend bool operator==(const Answer&, const Answer&) = default;
};

/// A question about a text.
struct Question {
  std::string id, text, context;
  std::vector<Answer> answers;  ///< none: the context does not answer it
};

/// The questions of a file of SQuAD 1.1 or 2.0 \cite rajpurkar2016 (data, paragraphs, qas,
/// answers). Throws IoError that names `path` and the question where something is missing or an
/// answer does not stand where the file says.
std::vector<Question> read_squad(std::string_view json, const std::string& path);

/// The questions of a file of MRQA, a JSON object a line behind a header: context, qas,
/// detected_answers. Throws as read_squad().
std::vector<Question> read_mrqa(std::string_view lines, const std::string& path);

/// How a question and a long text are cut into windows.
struct WindowOptions {
  int64_t length = 512;         ///< N: most tokens of a window
  int64_t stride = 128;         ///< tokens of the text from one window to the next
  int64_t most_question = 64;   ///< tokens of a question; what is beyond is left out
  bool two_separators = false;  ///< between question and text, as of RoBERTa
};

/// A window: [CLS] question [SEP] part of the text [SEP].
struct SpanWindow {
  std::vector<int32_t> tokens;
  std::vector<int32_t> types;    ///< 0 up to the first [SEP], then 1
  int64_t question_end = 0;      ///< tokens before it are [CLS] and the question
  int64_t text_begin = 0;        ///< place of the first token of the text
  int64_t first = 0, count = 0;  ///< pieces of the text that it has
  int32_t start = 0, end = 0;    ///< places of the answer's first and last token; 0: not all of it
};

/// The windows of a question. `answer` may be null. Tokens come from one tokenizer, which needs ids
/// of begin and separator. The windows cover the text, and neighbours overlap where stride allows.
/// Throws ValueError where a window has no room for any text, or stride is below 1.
std::vector<SpanWindow> span_windows(std::span<const Piece> question, std::span<const Piece> text,
                                     const Answer* answer, const SpecialIds& special,
                                     const WindowOptions& options = {});

/// Windows side by side, padded with 0 to the longest.
struct SpanBatch {
  Tensor tokens, types;  ///< i64 [B, L]
  Tensor lengths;        ///< i64 [B]
  Tensor global;         ///< u8 [B, L]: [CLS] and the question
  Tensor starts, ends;   ///< i64 [B]: of the answer, or of [CLS] where the window has none
};
/// Throws ShapeError where there are no windows.
SpanBatch span_batch(std::span<const SpanWindow> windows);

/// What read(row, path) makes of each row of a JSON file, which is an array or has it in its field
/// `list`. Throws IoError that names `path` and the row, by its field `id`, where something is
/// missing or of another kind.
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

/// The rows of scores [B, L].
std::vector<std::vector<float>> score_rows(const Tensor& scores);

/// Places in a window of the first and last token of an answer.
struct SpanPlace {
  int32_t start = 0, end = 0;
  friend bool operator==(const SpanPlace&, const SpanPlace&) = default;
};

/// Those of every answer that the window has whole, in their order, equal ones once: where any of
/// several spans is right. `text` is what the window was cut from.
std::vector<SpanPlace> answers_in(const SpanWindow& window, std::span<const Piece> text,
                                  std::span<const Answer> answers);

/// A part of the text that is thought to be the answer.
struct BestSpan {
  double score = 0;            ///< start score + end score
  double none = 0;             ///< least score of [CLS] as start and end, of all windows
  int64_t window = -1;         ///< -1: no window has text
  int64_t begin = 0, end = 0;  ///< bytes of the text
};

/// The best of all spans of at most `longest` tokens that lie within the text of a window.
/// `starts[w]` and `ends[w]` have a score for each token of window w, and maybe padding; the first
/// of equal spans wins. Throws ShapeError where they have fewer.
BestSpan best_span(std::span<const SpanWindow> windows, std::span<const Piece> text,
                   std::span<const std::vector<float>> starts,
                   std::span<const std::vector<float>> ends, int64_t longest = 30);

}  // namespace longspan
