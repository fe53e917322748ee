#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "app/tasks/task_data.h"
#include "data/metrics.h"
#include "data/profiles.h"
#include "train/roc_areas.h"

namespace longspan {

/// Answers yes or no about whole sequences: promoter and chromatin.
class ProfileTask final : public TaskFor<ClassifiesSequences> {
 public:
  using TaskFor::TaskFor;

  void visit(Fields& v) override;
  std::string models() const override { return "encoders that answer yes or no about a sequence"; }
  void require_suited(const RunConfig& config, const LanguageModel& model) const override;
  TaskSizes sizes(const RunConfig& config, const LanguageModel& model) const override;
  std::string symbols(std::string_view tokenizer) const override;
  bool takes_tokenizer() const override { return true; }
  bool cuts_files(bool /*apart*/) const override { return true; }
  std::vector<std::string> function_keys() const override;
  std::unique_ptr<TaskData> open(const TrainingRun& run, bool reads) const override;
  LanguageModel::Losses synthetic_loss(const SyntheticStep& step) const override;

 private:
  KmerTokens tokens_;  // of bases, if there is no tokenizer
  double positive_weight_ = 1;
};

/// Throws ValueError unless the class of a model answers about whole sequences.
void require_classifier(const RunConfig& config, const LanguageModel& model);
/// The forward pass of a step on synthetic labels.
LanguageModel::Losses synthetic_label_loss(const SyntheticStep& step, double positive_weight);

/// Metrics of binary classification.
struct LabelScores {
  double nats = 0;      ///< mean cross-entropy per label
  double accuracy = 0;  ///< over all labels together
  double f1 = 0;        ///< of the positive class
  MedianAuc auc;
  /// The same for each kind of label, if these are the 919 of \cite zhou2015 .
  std::vector<std::pair<std::string, MedianAuc>> kinds;
};

/// Source of labelled samples, as tokens.
class LabelSource {
 public:
  virtual ~LabelSource() = default;
  virtual int64_t size(size_t part) const = 0;
  virtual Sample sample(size_t part, int64_t i) const = 0;
  /// Returns row `row` of training.
  virtual Sample training(int64_t row) const = 0;
  virtual int64_t answers() const = 0;
  virtual int64_t vocabulary() const = 0;
  /// Describe what determines the number of labels and the tokens, for messages.
  virtual std::string answers_text() const = 0;
  virtual std::string vocabulary_text() const = 0;
};

/// Data of a run that answers yes or no about whole sequences: promoter, chromatin, and generated
/// tasks with labels.
class LabelData final : public TaskData {
 public:
  /// Throws ValueError if the model has no head for the labels or too small a vocabulary, or if
  /// samples are longer than the run's length.
  LabelData(const TrainingRun& run, std::unique_ptr<const LabelSource> source,
            double positive_weight);

  const std::vector<std::string>& warnings() const override { return warnings_; }
  int64_t size(const std::string& part) const override { return source_->size(part_index(part)); }
  std::string items() const override { return "samples"; }
  std::string unit() const override { return "answer"; }
  /// Throws ValueError if motifs of these sizes are impossible.
  void prepare() override;
  Forward forward(int64_t i, const SegmentMemory& memory, Pass pass) const override;
  int64_t targets_of_batch(const RunConfig& c) const override { return c.batch; }
  double bits(const std::string& part) const override;
  /// Reports accuracy, F1 (with a single label), and the median areas under the curve, in percent.
  Evaluation evaluate(const std::string& part) const override;
  std::vector<int32_t> first_tokens(int64_t count) const override;

  LabelScores scores(const std::string& part) const;

 private:
  Tensor logits(const std::vector<Sample>& samples, Pass pass) const;  // [B, answers]
  /// Returns bits() of these scores of a split.
  double bits_of(const std::string& part, const LabelScores& scores) const;

  const TrainingRun& run_;
  std::unique_ptr<const LabelSource> source_;
  double positive_weight_;
  std::vector<std::string> warnings_;
};

/// Returns the samples of a generated task of labels.
std::unique_ptr<const LabelSource> generated_labels(const TrainingRun& run, const SampleTask& task);

}  // namespace longspan
