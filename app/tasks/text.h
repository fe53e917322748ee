#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/tasks/task_data.h"
#include "data/corpus.h"
#include "data/streams.h"
#include "models/scoring.h"

namespace longspan {

/// Predicts the tokens of one text: the next token, or masked tokens.
class TextTask final : public Task {
 public:
  using Task::Task;

  void visit(Fields& v) override;
  std::string models() const override {
    return "decoders predict the next token, encoders hidden ones";
  }
  bool suits(const LanguageModel& model) const override;
  void require_suited(const RunConfig& config, const LanguageModel& model) const override;
  TaskSizes sizes(const RunConfig& config, const LanguageModel& model) const override;
  std::string symbols(std::string_view tokenizer) const override;
  bool symbols_follow_data() const override { return set().kind == DataKind::words; }
  bool takes_tokenizer() const override { return set().kind == DataKind::bytes; }
  std::string tokenizer(std::string_view given) const override;
  std::unique_ptr<const Tokenizer> text_tokenizer(std::string_view given) const override;
  bool is_one_text() const override { return true; }
  bool cuts_files(bool apart) const override { return !apart || set().kind == DataKind::wav; }
  std::vector<std::string> function_keys() const override { return {"whole_words"}; }
  std::unique_ptr<TaskData> open(const TrainingRun& run, bool reads) const override;
  bool splits_sequences() const override { return true; }
  LanguageModel::Losses synthetic_loss(const SyntheticStep& step) const override;

 private:
  bool whole_words_ = false;
};

/// Prints how much of each split has been tokenized to standard error, each twentieth once, where
/// that takes more than some seconds.
class TextProgress {
 public:
  explicit TextProgress(double seconds) : patience_(seconds) {}
  void operator()(const char* split, int64_t done, int64_t total);

 private:
  double patience_;
  const char* split_ = nullptr;
  int64_t last_ = -1;
  std::chrono::steady_clock::time_point begin_ = {};
};

/// Data of a run that predicts the tokens of one text.
class TextData final : public TaskData {
 public:
  /// Throws ValueError if the model's vocabulary is too small for the data.
  TextData(const TrainingRun& run, bool whole_words);

  const std::vector<std::string>& warnings() const override { return corpus_.warnings; }
  int64_t size(const std::string& part) const override { return corpus_.part(part).size(); }
  std::string items() const override;
  std::string unit() const override;
  LossUnit loss_unit() const override;
  std::optional<double> units_per_target(const std::string& part) const override;
  void prepare() override;
  Forward forward(int64_t i, const SegmentMemory& memory, Pass pass) const override;
  std::optional<Batch> batch(int64_t i) const override;
  Tensor first_batch() const override { return batch_of(0).tokens; }
  /// If the model keeps a memory.
  bool streams() const override { return memory_length(*run_.model) > 0; }
  Tensor reset(int64_t i) const override;
  /// Scores every token once (causal), or at least one per window (masked, bits per masked token).
  double bits(const std::string& part) const override;
  /// Reports the number of streams, and the accuracy for residues, which proteins are customarily
  /// scored by.
  Evaluation evaluate(const std::string& part) const override;
  std::string protocol(const std::string& part) const override;
  std::optional<double> sliding_bits(const std::string& part, int64_t stride) const override;
  std::vector<int32_t> first_tokens(int64_t count) const override;
  std::string decoded(std::span<const int32_t> ids) const override;
  int32_t mask_token() const override { return options().mask_token; }

 private:
  BatchOptions options() const;
  bool alike() const;  // whether every batch counts the same number of targets
  Batch batch_of(int64_t i) const;
  /// Windows that evaluation reads at a time at most.
  int64_t most_together() const { return std::max<int64_t>(1, 4096 / run_.config.length); }
  /// Windows that it reads at a time.
  int64_t together() const {
    const RunConfig& c = run_.config;
    if (DividedScoring::split() != nullptr) return 1;  // processes split one at a time
    return c.sparing_evaluation() ? std::min(most_together(), c.batch) : most_together();
  }
  /// Their number belongs to the figure: it follows from the length and the split alone, never from
  /// the batch or from memory.
  EvaluationStreams evaluation_streams(const CorpusPart& part) const;
  /// The segments of a split that are evaluated, or those of a sample (Evaluating).
  EvaluationSegments segments_of(const CorpusPart& part) const;
  Score score_streams(const CorpusPart& part) const;
  Score score_segments(const CorpusPart& part) const;
  /// Whether every token of a split is a target, so that bits are per symbol.
  bool all_are_targets() const { return run_.model->objective() == Objective::next_token; }

  const TrainingRun& run_;
  bool whole_words_;
  Corpus corpus_;
  std::unique_ptr<SegmentBatches> batches_;  // set by prepare(), unless batches are of streams
  std::unique_ptr<TextStreams> streams_;     // else this
};

}  // namespace longspan
