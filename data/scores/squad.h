#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/questions.h"

namespace longspan {

// Figures of SQuAD and SQuAD 2 \cite rajpurkar2016 as transformers.data.metrics.squad_metrics
// computes them.

/// Percent of questions whose answer is right, and mean F1 of its words in percent.
struct AnswerFigures {
  double exact = 0, f1 = 0;
  int64_t total = 0;  ///< questions
};

/// Figures of all questions, and of those with and without an answer as far as there are any
/// (HasAns, NoAns).
struct SquadFigures {
  AnswerFigures all;
  std::optional<AnswerFigures> has_answer, no_answer;
  double best_exact = 0, best_exact_threshold = 0;  ///< with the best threshold for no answer
  double best_f1 = 0, best_f1_threshold = 0;
};

/// Collects predicted answers.
class SquadScores {
 public:
  /// Adds a question. `answer` is the predicted answer, empty for no answer; `references` has the
  /// right answers, and is empty if there is none. `no_answer` rises with the likelihood of no
  /// answer, on one scale for all questions, such as FoundAnswer::null_difference. Throws
  /// ValueError if it is NaN.
  void add(std::string_view answer, std::span<const std::string> references, double no_answer = 0);

  int64_t questions() const { return std::ssize(rows_); }
  /// Returns the figures, where a question whose `no_answer` is above `threshold` counts as
  /// answered by none. Best figures do not depend on it. Throws ValueError if there are no
  /// questions.
  SquadFigures figures(double threshold = 1) const;

 private:
  struct Row {
    double exact, f1, no_answer;
    bool has_answer, answered;
  };
  AnswerFigures mean(double threshold, std::optional<bool> has_answer) const;
  void best(double Row::*score, double& percent, double& threshold) const;

  std::vector<Row> rows_;
};

/// How the answer is chosen from scores of its first and last token.
struct AnswerSearch {
  int64_t candidates = 20;   ///< answers to keep, and firsts and lasts of a window to try
  int64_t longest = 30;      ///< tokens of an answer
  bool no_answer = false;    ///< SQuAD 2: there may be no answer, whose score is that of token 0
  double threshold = 0;      ///< no answer if its score exceeds the best answer's by more than this
  bool most_context = true;  ///< an answer begins in the window with most context around its token
};

/// An answer that was considered.
struct AnswerCandidate {
  std::string text;           ///< empty: no answer
  double start = 0, end = 0;  ///< scores of its first and last token
  double probability = 0;     ///< softmax over the candidates
  int64_t begin = -1;         ///< byte of the context; -1: no answer
};

/// What was chosen.
struct FoundAnswer {
  std::string text;            ///< empty: no answer
  double null_difference = 0;  ///< score of no answer - score of the best answer; with `no_answer`
  std::vector<AnswerCandidate> candidates;  ///< best first, each text once
};

/// Returns what compute_predictions_logits chooses: of the `candidates` best firsts and lasts of
/// each window all pairs inside its text of at most `longest` tokens, by the sum of their scores.
/// `starts[w]` and `ends[w]` have a score for each token of window w, and perhaps for padding,
/// which takes places among the best too. Of equal scores the first token counts; NaN is the lowest
/// score. Where no pair is possible there is no answer (the original says "empty"). Throws
/// ShapeError if there are fewer scores than tokens or there is no window, ValueError for numbers
/// below 1.
FoundAnswer find_answer(std::string_view context, std::span<const SpanWindow> windows,
                        std::span<const Piece> text, std::span<const std::vector<float>> starts,
                        std::span<const std::vector<float>> ends, const AnswerSearch& search = {});

}  // namespace longspan
