#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "app/tasks/task_data.h"
#include "data/choices.h"
#include "data/trivia.h"

namespace longspan {

/// Chooses one of several candidates by what several texts say: wikihop.
class ChoiceTask final : public TaskFor<ChoosesCandidates> {
 public:
  using TaskFor::TaskFor;

  std::string models() const override { return "encoders that choose among candidates"; }
  void require_suited(const RunConfig& config, const LanguageModel& model) const override;
  TaskSizes sizes(const RunConfig& config, const LanguageModel& model) const override;
  bool takes_tokenizer() const override { return true; }
  bool cuts_files(bool /*apart*/) const override { return false; }
  std::unique_ptr<TaskData> open(const TrainingRun& run, bool reads) const override;
  LanguageModel::Losses synthetic_loss(const SyntheticStep& step) const override;
};

/// Options of triviaqa.
struct SpanOptions {
  int64_t most = 64;            ///< maximum tokens of a question; the rest is cut off
  int64_t longest = 30;         ///< maximum tokens of a predicted answer
  bool two_separators = false;  ///< between question and text, as in RoBERTa
};

/// Finds the answers to questions in documents: triviaqa.
class SpanTask final : public TaskFor<FindsSpans> {
 public:
  using TaskFor::TaskFor;

  void visit(Fields& v) override;
  std::string models() const override { return "encoders that find the positions of an answer"; }
  void require_suited(const RunConfig& config, const LanguageModel& model) const override;
  TaskSizes sizes(const RunConfig& config, const LanguageModel& model) const override;
  bool takes_tokenizer() const override { return true; }
  bool cuts_files(bool /*apart*/) const override { return false; }
  std::vector<std::string> function_keys() const override { return {"questions."}; }
  std::unique_ptr<TaskData> open(const TrainingRun& run, bool reads) const override;
  LanguageModel::Losses synthetic_loss(const SyntheticStep& step) const override;

 private:
  SpanOptions options_;
};

/// Data of a multiple-choice run over several texts: wikihop. An input longer than the model takes
/// is divided into windows, each with the question and the candidates; a candidate's score is its
/// mean over the windows \cite beltagy2020 .
class ChoiceData final : public TaskData {
 public:
  /// Throws ValueError if the model has no choice head or too small a vocabulary.
  explicit ChoiceData(const TrainingRun& run);

  const std::vector<std::string>& warnings() const override { return warnings_; }
  int64_t size(const std::string& part) const override;
  std::string items() const override { return "questions"; }
  std::string unit() const override { return "question"; }
  /// Throws ValueError if a question and its candidates alone fill a window.
  void prepare() override;
  Forward forward(int64_t i, const SegmentMemory& memory, Pass pass) const override;
  int64_t targets_of_batch(const RunConfig& c) const override { return c.batch; }
  double bits(const std::string& part) const override { return scores(part).bits; }
  Evaluation evaluate(const std::string& part) const override;
  std::vector<int32_t> first_tokens(int64_t count) const override;

  struct Scores {
    double bits = 0;      ///< per question; NaN if there are no questions
    double accuracy = 0;  ///< share of questions whose most likely candidate is correct
  };
  Scores scores(const std::string& part) const;

 private:
  std::vector<ChoiceWindow> windows(const ChoiceQuestion& question) const;
  /// Returns the candidates' scores [Q, C].
  Tensor choose(const ChoiceBatch& batch, Pass pass) const;

  const TrainingRun& run_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  ChoiceIds ids_;
  const ChoosesCandidates& encoder_;
  std::vector<ChoiceQuestion> questions_[3];
  std::vector<std::string> warnings_;
};

/// Data of a run that finds answer spans in documents: triviaqa. Each document of a question is
/// read separately, truncated to the tokens that the model takes \cite beltagy2020 . All
/// occurrences of an alias of the answer are correct; documents without any are not trained on.
class SpanData final : public TaskData {
 public:
  /// Throws ValueError if the model has no span head or too small a vocabulary.
  SpanData(const TrainingRun& run, const SpanOptions& options);

  const std::vector<std::string>& warnings() const override { return warnings_; }
  /// Number of (question, document) pairs.
  int64_t size(const std::string& part) const override;
  std::string items() const override { return "documents of questions"; }
  std::string unit() const override { return "place"; }
  /// Throws IoError if a document is missing.
  void prepare() override;
  Forward forward(int64_t i, const SegmentMemory& memory, Pass pass) const override;
  int64_t targets_of_batch(const RunConfig& c) const override { return c.batch; }
  /// Bits of the correct starts plus bits of the correct ends, over windows that contain an answer.
  double bits(const std::string& part) const override;
  bool may_lack_targets() const override { return true; }
  Evaluation evaluate(const std::string& part) const override;
  std::vector<int32_t> first_tokens(int64_t count) const override;

  struct Scores {
    double bits = 0;           ///< as bits()
    double exact = 0, f1 = 0;  ///< means over the questions, with the best alias of each
    int64_t questions = 0;
  };
  Scores scores(const std::string& part) const;

 private:
  struct Item {
    size_t question = 0, document = 0;
  };
  struct Window {
    SpanWindow window;
    std::string text;
    std::vector<Piece> pieces;  ///< of the text in the window
    std::vector<SpanPlace> places;
  };
  struct Rows {
    EncoderInputs in;
    Tensor starts, ends;   // [B, n]
    int64_t tokens = 0;    // without padding
    int64_t answered = 0;  // rows with an answer
  };
  std::string path_of(const Item& item, size_t part) const;
  Window window(const Item& item, size_t part) const;
  Rows stacked(const std::vector<Window>& windows) const;
  SpanLogits spans(const Rows& rows, Pass pass) const;
  static Score score_of(const Rows& rows, const SpanLogits& z);  // of one row with an answer

  const TrainingRun& run_;
  SpanOptions options_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  QuestionIds ids_;
  const FindsSpans& encoder_;
  std::string evidence_;
  std::vector<TriviaQuestion> questions_[3];
  std::vector<Item> items_[3];
  std::vector<std::string> warnings_;
};

}  // namespace longspan
