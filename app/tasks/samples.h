#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/tasks/documents.h"
#include "app/tasks/task_data.h"
#include "data/sample_task.h"
#include "data/streams.h"

namespace longspan {

/// A task whose samples are generated: a SampleTask, with a section of its own for its options.
class GeneratedTask final : public Task {
 public:
  GeneratedTask(const DataSet& set, const SampleTaskEntry& entry)
      : Task(set), section_(entry.section), samples_(entry.make()) {}

  const SampleTask& samples() const { return *samples_; }
  SampleTask& samples() { return *samples_; }

  void visit(Fields& v) override;
  std::string models() const override;
  bool suits(const LanguageModel& model) const override;
  void require_suited(const RunConfig& config, const LanguageModel& model) const override;
  TaskSizes sizes(const RunConfig& config, const LanguageModel& model) const override;
  std::string symbols(std::string_view tokenizer) const override;
  bool decides_samples(std::string_view key) const override;
  std::vector<std::string> order_keys() const override;
  std::unique_ptr<TaskData> open(const TrainingRun& run, bool reads) const override;
  bool splits_sequences() const override { return samples_->targets() == TargetKind::tokens; }
  LanguageModel::Losses synthetic_loss(const SyntheticStep& step) const override;

 private:
  std::string section_;
  std::unique_ptr<SampleTask> samples_;
  DocumentOptions documents_;  // of documents of sentences
};

/// Returns what makes the samples of a configuration's task. Throws ValueError if they are not
/// generated.
const SampleTask& samples_of(const RunConfig& config);

/// Data of a run of a generated task with targets that are tokens, or the positions of an answer.
class SampleData final : public TaskData {
 public:
  /// Throws ValueError if the task's samples do not fit the length or the vocabulary.
  SampleData(const TrainingRun& run, const SampleTask& task);

  const std::vector<std::string>& warnings() const override { return warnings_; }
  int64_t size(const std::string& part) const override;
  std::string items() const override { return "samples"; }
  std::string unit() const override;
  void prepare() override {}
  Forward forward(int64_t i, const SegmentMemory& memory, Pass pass) const override;
  int64_t targets_of_batch(const RunConfig& c) const override {
    if (finds_answers()) return c.batch;
    return c.batch * (task_->shape().scored >= 0 ? task_->shape().scored : c.length);
  }
  std::optional<Batch> batch(int64_t i) const override;
  Tensor first_batch() const override { return finds_answers() ? Tensor{} : batch_of(0).tokens; }
  /// If the model keeps a memory: each sample is a stream, of several segments if it is longer than
  /// one.
  bool streams() const override { return !finds_answers() && memory_length(*run_.model) > 0; }
  Tensor reset(int64_t i) const override;
  bool batches_may_lack_targets() const override { return may_lack_targets() || segments() > 1; }
  double bits(const std::string& part) const override;
  bool may_lack_targets() const override { return task_->shape().scored < 0; }
  /// Reports the share of the scored tokens that the model finds most likely, or of the answers of
  /// which both ends are.
  Evaluation evaluate(const std::string& part) const override;
  std::vector<int32_t> first_tokens(int64_t count) const override;

 private:
  bool finds_answers() const { return task_->targets() == TargetKind::span; }
  std::vector<Sample> samples(const std::string& part, int64_t first, int64_t count) const;
  /// Calls visit(samples) for all samples of a split, some at a time (visit_alike()).
  void each(const std::string& part,
            const std::function<void(const std::vector<Sample>&)>& visit) const;
  SpanLogits spans(const std::vector<Sample>& rows, Pass pass) const;
  /// Returns the mean loss of the answers.
  Tensor answer_loss(const std::vector<Sample>& rows, const SpanLogits& found) const;
  struct Scores {
    Score score;
    Answers answers;  // or scored tokens; none unless asked for
  };
  Scores scores(const std::string& part, bool ask_right) const;
  int64_t segments() const;  // that a sample is cut into
  Batch batch_of(int64_t i) const;
  /// Calls visit(tokens and targets of a segment, memory before it) for the segments in turn; visit
  /// replaces the memory.
  void each_segment(const std::vector<Sample>& rows,
                    const std::function<void(const Batch&, SegmentMemory&)>& visit) const;

  const TrainingRun& run_;
  const FindsSpans* encoder_;  // of tasks with answers
  std::unique_ptr<const SampleTask> task_;
  std::optional<SampleStreams> streams_;  // of training; samples are streams of one segment where
                                          // the model has no memory
  std::vector<std::string> warnings_;     // always empty
};

}  // namespace longspan
