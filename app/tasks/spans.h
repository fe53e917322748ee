#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/tasks/tables.h"
#include "data/scores/squad.h"

namespace longspan {

/// The options of spans.
struct AnswerOptions {
  bool no_answer = false;      ///< there are questions without an answer
  int64_t stride = 128;        ///< tokens of the text that adjacent windows share
  int64_t most_question = 64;  ///< tokens of a question
  int64_t longest = 30;        ///< tokens of a predicted answer
  double threshold = 0;        ///< AnswerSearch::threshold
};

/// Answers to questions, as the places where they stand in a text, read from tables and from files
/// of SQuAD \cite rajpurkar2016 : spans.
class AnswerTask final : public TableTask<FindsSpans> {
 public:
  using TableTask::TableTask;

  std::string models() const override { return "encoders that find the positions of an answer"; }
  TaskSizes sizes(const RunConfig& config, const LanguageModel& model) const override;
  void settle(const RunConfig& config) override;
  std::optional<HubTask> hub_task() const override;
  std::unique_ptr<TaskData> open(const TrainingRun& run, bool reads) const override;
  LanguageModel::Losses synthetic_loss(const SyntheticStep& step) const override;

  const AnswerOptions& options() const { return options_; }

 private:
  void visit_options(Fields& v) override;
  std::string_view wanted() const override { return "answers within texts"; }

  AnswerOptions options_;
};

/// Data of a run of AnswerTask. What is trained on are windows: the target of one is the first
/// answer if it is completely inside, else the first token \cite devlin2019 .
class AnswerData final : public TableData<FindsSpans, LabelledQuestion> {
 public:
  /// Throws IoError and ValueError about the files, and if the model has no head.
  AnswerData(const TrainingRun& run, const AnswerTask& task, bool reads);

  std::string items() const override { return "questions"; }
  std::string unit() const override { return "place"; }
  void prepare() override;
  Forward forward(int64_t i, const SegmentMemory& memory, Pass pass) const override;
  int64_t targets_of_batch(const RunConfig& c) const override { return c.batch; }
  /// Reports exact matches and F1 as SQuAD does, with questions without an answer as SQuAD 2 does,
  /// and the questions that were furthest off.
  Evaluation evaluate(const std::string& part) const override;
  std::vector<Prediction> find_answers(const std::string& text,
                                       std::span<const std::string> questions) const override;

 private:
  /// A window to train on: of which question, and which of its windows.
  struct Item {
    size_t question, window;
  };
  /// The scores of the starts and ends of a question's windows.
  struct WindowScores {
    std::vector<std::vector<float>> starts, ends;
  };
  std::vector<int32_t> tokens_of(const LabelledQuestion& question) const override {
    return row_of(question.question).windows[0].tokens;
  }
  QuestionRow row_of(const Question& question) const;
  SpanLogits logits(std::span<const TextRow> rows, Pass pass) const;
  std::vector<WindowScores> scores_of(std::span<const QuestionRow> rows) const;
  /// The place of the first answer in a window; the first token if it is not inside.
  static SpanPlace target(const Question& question, const QuestionRow& row, size_t window);
  FoundAnswer found(const Question& question, const QuestionRow& row,
                    const WindowScores& scores) const;

  const AnswerTask& task_;
  bool no_answer_;
  std::vector<Item> items_;  // set by prepare()
};

}  // namespace longspan
