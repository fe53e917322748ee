#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/tasks/tables.h"

namespace longspan {

/// Texts of which only what follows a prompt is trained on, read from tables: completions. The loss
/// of a batch is the mean over its tokens that are trained on.
class CompletionTask final : public TableTask<ContinuesSequences> {
 public:
  using TableTask::TableTask;

  std::string models() const override { return "decoders"; }
  void require_suited(const RunConfig& config, const LanguageModel& model) const override;
  TaskSizes sizes(const RunConfig& config, const LanguageModel& model) const override;
  std::unique_ptr<const Tokenizer> text_tokenizer(std::string_view given) const override;
  int64_t end_token(const RunConfig& config) const override;
  std::optional<HubTask> hub_task() const override;
  std::unique_ptr<TaskData> open(const TrainingRun& run, bool reads) const override;
  bool splits_sequences() const override { return true; }
  LanguageModel::Losses synthetic_loss(const SyntheticStep& step) const override;
};

/// Data of a run of CompletionTask.
class CompletionData final : public TableData<ContinuesSequences, CompletionExample> {
 public:
  /// Throws IoError and ValueError about the files, and if the vocabulary is too small.
  CompletionData(const TrainingRun& run, const CompletionTask& task, bool reads);

  std::string items() const override { return "texts"; }
  std::string unit() const override { return "token"; }
  void prepare() override;
  Forward forward(int64_t i, const SegmentMemory& memory, Pass pass) const override;
  bool may_lack_targets() const override { return true; }
  /// Reports the perplexity of what is trained on, and the texts that were furthest off.
  Evaluation evaluate(const std::string& part) const override;
  std::string decoded(std::span<const int32_t> ids) const override;

 private:
  /// The tokens of a text and its end; those from `begin` on are trained on.
  struct Row {
    std::vector<int32_t> tokens;
    size_t begin = 0;
    bool cut = false;

    int64_t targets() const { return std::ssize(tokens) - static_cast<int64_t>(begin); }
  };
  std::vector<int32_t> tokens_of(const CompletionExample& text) const override {
    return row_of(text).tokens;
  }
  Row row_of(const CompletionExample& text) const;
  Batch batch_of_rows(std::span<const Row> rows) const;

  int32_t end_;
};

}  // namespace longspan
