#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/tasks/tables.h"

namespace longspan {

/// A tag for each word of a text, read from tables: tags.
class TagTask final : public TableTask<TagsTokens> {
 public:
  using TableTask::TableTask;

  std::string models() const override { return "models that tag tokens"; }
  TaskSizes sizes(const RunConfig& config, const LanguageModel& model) const override;
  void settle(const RunConfig& config) override;
  std::vector<std::string> label_names() const override { return labels_; }
  std::optional<HubTask> hub_task() const override;
  bool predicts() const override { return true; }
  std::vector<std::string> read_inputs(const std::string& table) const override;
  std::unique_ptr<TaskData> open(const TrainingRun& run, bool reads) const override;
  LanguageModel::Losses synthetic_loss(const SyntheticStep& step) const override;

  const std::vector<std::string>& labels() const { return labels_; }

 private:
  void visit_options(Fields& v) override {
    v("labels", labels_, "names of the tags; empty: those of the data");
  }
  std::string_view wanted() const override { return "a tag of each word"; }

  std::vector<std::string> labels_;  // empty: those of the data
};

/// Data of a run of TagTask. The first token of each word is tagged, as in the examples of the
/// package transformers; words without a tag, and those behind the end of a row, count nowhere.
class TagData final : public TableData<TagsTokens, TaggedWords> {
 public:
  /// Throws IoError and ValueError about the files, and if the model has another number of tags.
  TagData(const TrainingRun& run, const TagTask& task, bool reads);

  std::string items() const override { return "sentences"; }
  std::string unit() const override { return "word"; }
  void prepare() override;
  bool may_lack_targets() const override { return true; }
  Forward forward(int64_t i, const SegmentMemory& memory, Pass pass) const override;
  /// Reports the share of right tags; precision, recall and F1 of entities if tags name some
  /// (B-PER, I-PER), of all and of each type, else F1 of the tags; and the sentences that were
  /// furthest off.
  Evaluation evaluate(const std::string& part) const override;
  /// A line has words between spaces.
  std::vector<Prediction> predict(std::span<const std::string> lines) const override;

 private:
  std::vector<int32_t> tokens_of(const TaggedWords& sentence) const override {
    return row_of(sentence).tokens.ids;
  }
  TextRow row_of(const TaggedWords& sentence) const;
  std::vector<TextRow> rows_of(std::span<const TaggedWords> sentences) const;
  Tensor logits(std::span<const TextRow> rows, Pass pass) const;
  /// The tags of tokens, i32 [B, L].
  Tensor targets(std::span<const TextRow> rows, std::span<const TaggedWords> sentences) const;
  Prediction prediction(const std::vector<std::string>& words, const TextRow& row,
                        std::span<const float> logits) const;

  const TagTask& task_;
};

}  // namespace longspan
