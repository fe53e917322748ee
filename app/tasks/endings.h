#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/tasks/tables.h"

namespace longspan {

/// The right one of several endings of a text, read from tables: choice. Each candidate is a row of
/// its own, of the beginning and the ending, and its score is the model's one class, as in the
/// package transformers.
class EndingTask final : public TableTask<ClassifiesSequences> {
 public:
  using TableTask::TableTask;

  std::string models() const override { return "models that classify whole sequences"; }
  TaskSizes sizes(const RunConfig& config, const LanguageModel& model) const override;
  std::optional<HubTask> hub_task() const override;
  bool predicts() const override { return true; }
  std::vector<std::string> read_inputs(const std::string& table) const override;
  std::unique_ptr<TaskData> open(const TrainingRun& run, bool reads) const override;
  LanguageModel::Losses synthetic_loss(const SyntheticStep& step) const override;

 private:
  std::string_view wanted() const override { return "a score of each candidate"; }
};

/// Data of a run of EndingTask.
class EndingData final : public TableData<ClassifiesSequences, ChoiceExample> {
 public:
  /// Throws IoError and ValueError about the files, and unless the model has one class.
  EndingData(const TrainingRun& run, const EndingTask& task, bool reads);

  std::string items() const override { return "questions"; }
  std::string unit() const override { return "question"; }
  void prepare() override;
  Forward forward(int64_t i, const SegmentMemory& memory, Pass pass) const override;
  int64_t targets_of_batch(const RunConfig& c) const override { return c.batch; }
  /// Reports accuracy, and the questions that were furthest off.
  Evaluation evaluate(const std::string& part) const override;
  /// A line has a beginning and endings with tabs between them.
  std::vector<Prediction> predict(std::span<const std::string> lines) const override;

 private:
  std::vector<int32_t> tokens_of(const ChoiceExample& example) const override {
    return rows_of(example)[0].tokens.ids;
  }
  std::vector<TextRow> rows_of(const ChoiceExample& example) const;
  /// The scores [Q, C] of the candidates of Q questions; -inf where one has fewer than others.
  Tensor scores(std::span<const ChoiceExample> examples, Pass pass) const;
  /// The same for one question, whose candidates do not depend on each other's padding.
  std::vector<float> scores_of(const ChoiceExample& example) const;
};

}  // namespace longspan
