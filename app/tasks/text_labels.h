#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "app/tasks/tables.h"

namespace longspan {

/// How much the classes of a data set weigh in the training loss: all samples the same, or all
/// classes (balanced_weights()).
enum class ClassWeights : uint8_t { none, balanced };
template <>
inline constexpr std::array<std::string_view, 2> value_names<ClassWeights>{"none", "balanced"};

/// The options of a task of labelled texts.
struct TextLabelOptions {
  std::vector<std::string> labels;  ///< names of the classes; empty: those of the data
  bool several = false;             ///< a text has any number of labels
  ClassWeights weights = ClassWeights::none;
  double threshold = 0.5;  ///< several: the probability from which on a label is predicted

  void visit(auto& v) {
    v("labels", labels, "names of the classes; empty: those of the data");
    v("several", several, "a text has any number of labels, each of which is answered yes or no");
    v("weights", weights,
      "classes weigh in the training loss as often as they occur, or all the same");
    v("threshold", threshold, range::fraction,
      "several: the probability above which a label is predicted");
  }
};

/// Classes, one or several, or a number, of texts or of pairs of texts, read from tables
/// (data/labelled/examples.h): the tasks classes, pairs and regression.
class TextLabelTask final : public TableTask<ClassifiesSequences> {
 public:
  using TableTask::TableTask;

  std::string models() const override { return "models that classify whole sequences"; }
  TaskSizes sizes(const RunConfig& config, const LanguageModel& model) const override;
  void settle(const RunConfig& config) override;
  std::vector<std::string> label_names() const override { return options_.labels; }
  std::string problem_type() const override;
  std::optional<HubTask> hub_task() const override;
  bool predicts() const override { return true; }
  std::vector<std::string> read_inputs(const std::string& table) const override;
  std::unique_ptr<TaskData> open(const TrainingRun& run, bool reads) const override;
  LanguageModel::Losses synthetic_loss(const SyntheticStep& step) const override;

  const TextLabelOptions& options() const { return options_; }
  bool is_pair() const { return set().id == "pairs"; }
  bool is_number() const { return set().id == "regression"; }

 private:
  void visit_options(Fields& v) override { options_.visit(v); }
  std::string_view wanted() const override { return "classes of a whole text"; }

  TextLabelOptions options_;
};

/// Data of a run of TextLabelTask.
class TextLabelData final : public TableData<ClassifiesSequences, LabelledText> {
 public:
  /// Throws IoError and ValueError about the files, and if the model has another number of classes.
  TextLabelData(const TrainingRun& run, const TextLabelTask& task, bool reads);

  std::string items() const override { return "texts"; }
  std::string unit() const override { return "text"; }
  void prepare() override;
  Forward forward(int64_t i, const SegmentMemory& memory, Pass pass) const override;
  int64_t targets_of_batch(const RunConfig& c) const override { return c.batch; }
  /// Reports accuracy, F1 and Matthews correlation, of several labels and of numbers what fits
  /// them, a table of confusions and the texts that were furthest off.
  Evaluation evaluate(const std::string& part) const override;
  std::vector<Prediction> predict(std::span<const std::string> lines) const override;

 private:
  std::vector<int32_t> tokens_of(const LabelledText& text) const override {
    return row_of(text).tokens.ids;
  }
  TextRow row_of(const LabelledText& text) const;
  std::vector<TextRow> rows_of(std::span<const LabelledText> texts) const;
  Tensor logits(std::span<const TextRow> rows, Pass pass) const;
  Tensor loss(const Tensor& logits, std::span<const LabelledText> texts, bool training) const;
  Prediction prediction(std::span<const float> logits) const;

  const TextLabelTask& task_;
  std::vector<float> weights_;  // of classes; empty: all 1
};

}  // namespace longspan
