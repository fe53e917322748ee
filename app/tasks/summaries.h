#pragma once

#include <cstdint>
#include <string>

#include "app/tasks/pairs.h"
#include "app/tasks/tables.h"

namespace longspan {

/// Summaries of documents, read from tables: summaries. An encoder-decoder of the package
/// transformers reads and writes with the template of its tokenizer.
class SummaryTask final : public TableTask<WritesSequences> {
 public:
  using TableTask::TableTask;

  void visit(Fields& v) override;
  std::string models() const override { return "encoder-decoders"; }
  void require_suited(const RunConfig& config, const LanguageModel& model) const override;
  TaskSizes sizes(const RunConfig& config, const LanguageModel& model) const override;
  std::optional<HubTask> hub_task() const override;
  bool scores_texts() const override { return true; }
  void require_search(const BeamSearch& search, const TrainingRun& run) const override;
  std::vector<std::string> read_inputs(const std::string& table) const override;
  std::unique_ptr<TaskData> open(const TrainingRun& run, bool reads) const override;
  bool splits_sequences() const override { return true; }
  LanguageModel::Losses synthetic_loss(const SyntheticStep& step) const override;

 private:
  void visit_options(Fields& v) override;
  PairOptions options(const LanguageModel& model) const;

  int64_t target_length_ = 0;
  PairForm form_{.templated = true, .leads = false};
};

}  // namespace longspan
