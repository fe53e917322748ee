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
  std::string columns;              ///< ColumnNames
  std::vector<std::string> labels;  ///< names of the classes; empty: those of the data
  bool several = false;             ///< a text has any number of labels
  ClassWeights weights = ClassWeights::none;
  double threshold = 0.5;  ///< several: the probability from which on a label is predicted

  void visit(auto& v) {
    v("columns", columns, columns_meaning);
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

  void visit(Fields& v) override;
  std::string models() const override { return "models that classify whole sequences"; }
  void require_suited(const RunConfig& config, const LanguageModel& model) const override;
  TaskSizes sizes(const RunConfig& config, const LanguageModel& model) const override;
  void settle(const RunConfig& config) override;
  std::vector<std::string> label_names() const override { return options_.labels; }
  std::string problem_type() const override;
  std::optional<HubTask> hub_task() const override;
  std::vector<std::string> read_inputs(const std::string& table) const override;
  std::unique_ptr<TaskData> open(const TrainingRun& run, bool reads) const override;
  LanguageModel::Losses synthetic_loss(const SyntheticStep& step) const override;

  const TextLabelOptions& options() const { return options_; }
  bool is_pair() const { return set().id == "pairs"; }
  bool is_number() const { return set().id == "regression"; }

 private:
  const std::string& columns() const override { return options_.columns; }

  TextLabelOptions options_;
};

/// Data of a run of TextLabelTask.
class TextLabelData final : public TaskData {
 public:
  /// Throws IoError and ValueError about the files, and if the model has another number of classes.
  TextLabelData(const TrainingRun& run, const TextLabelTask& task, bool reads);

  const std::vector<std::string>& warnings() const override { return warnings_; }
  int64_t size(const std::string& part) const override {
    return std::ssize(rows_[part_index(part)]);
  }
  std::string items() const override { return "texts"; }
  std::string unit() const override { return "text"; }
  void prepare() override;
  Forward forward(int64_t i, const SegmentMemory& memory, Pass pass) const override;
  int64_t targets_of_batch(const RunConfig& c) const override { return c.batch; }
  double bits(const std::string& part) const override { return evaluate(part).bits; }
  /// Reports accuracy, F1 and Matthews correlation, of several labels and of numbers what fits
  /// them, a table of confusions and the texts that were furthest off.
  Evaluation evaluate(const std::string& part) const override;
  std::vector<Prediction> predict(std::span<const std::string> lines) const override;
  std::vector<int32_t> first_tokens(int64_t count) const override;

 private:
  TextRow row_of(const LabelledText& text) const;
  std::vector<TextRow> rows_of(std::span<const LabelledText> texts) const;
  Tensor logits(std::span<const TextRow> rows, Pass pass) const;
  Tensor loss(const Tensor& logits, std::span<const LabelledText> texts, bool training) const;
  Prediction prediction(std::span<const float> logits) const;

  const TrainingRun& run_;
  const TextLabelTask& task_;
  const ClassifiesSequences& model_;
  RowMaker maker_;
  Splits<LabelledText> rows_;
  std::vector<float> weights_;  // of classes; empty: all 1
  std::vector<std::string> warnings_;
};

}  // namespace longspan
