#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/run.h"
#include "data/metrics.h"
#include "data/sample_task.h"
#include "data/sequence_pairs.h"
#include "data/streams.h"
#include "models/capabilities.h"
#include "models/encoder.h"
#include "models/evaluate.h"
#include "models/generate.h"
#include "train/roc_areas.h"

namespace longspan {

/// Returns the index of a split: 0 to 2 for train, valid, test. Throws ValueError on another name.
size_t part_index(const std::string& part);

/// Returns the losses of a batch after the segments in `memory`, which is empty if the model keeps
/// none.
LanguageModel::Losses losses_of(const TrainingRun& run, const Batch& batch,
                                const SegmentMemory& memory, Pass pass);

/// Returns the inputs for samples, padded at their ends to the longest: with lengths if they
/// differ, and with the samples' global tokens if there are any and the model `takes_global` ones.
EncoderInputs inputs_of(std::span<const Sample> samples, bool takes_global, Device device);

/// Calls visit(items) for `count` items that get(i) makes, some neighbours at a time: at most
/// `most`, and of one length(item). Padding may change which blocks or buckets a model makes of a
/// sequence, and a score must not depend on what its samples are read beside.
void visit_alike(int64_t count, int64_t most, const auto& get, const auto& length,
                 const auto& visit) {
  std::vector<std::remove_cvref_t<decltype(get(int64_t{0}))>> some;
  for (int64_t i = 0; i < count; ++i) {
    auto next = get(i);
    if (!some.empty() && (std::ssize(some) == most || length(next) != length(some[0]))) {
      visit(some);
      some.clear();
    }
    some.push_back(std::move(next));
  }
  if (!some.empty()) visit(some);
}

/// The data of a run: training and evaluation of a model with its objective.
class TaskData {
 public:
  virtual ~TaskData() = default;

  /// Warnings to print before training: sizes that differ from the expected ones.
  virtual const std::vector<std::string>& warnings() const = 0;
  /// Number of items of a split, and their name: "bytes", "tokens", "pairs".
  virtual int64_t size(const std::string& part) const = 0;
  virtual std::string items() const = 0;
  /// Unit that bits are counted per: "byte", "hidden byte", "answer".
  virtual std::string unit() const = 0;
  /// The unit of training losses, with the bytes per token as measured on the training split.
  virtual LossUnit loss_unit() const { return {unit(), 1}; }

  /// Result of a training forward pass: its losses, the number of tokens it reads, and the number
  /// of targets, answers or questions that the loss is averaged over.
  struct Forward {
    LanguageModel::Losses losses;
    int64_t tokens = 0, counted = 0;
  };
  /// Must be called before the first forward(). Throws ValueError if there is too little training
  /// data.
  virtual void prepare() = 0;
  /// Runs the forward pass of batch `i` of the run. If streams(), it follows `memory`, which holds
  /// the segments of batch i - accumulate, but nothing of the streams that reset() names.
  virtual Forward forward(int64_t i, const SegmentMemory& memory, Pass pass) const = 0;
  /// Whether batches are segments of streams, so that the model's memory passes from one to the
  /// next. Batch k of each step then continues batch k of the step before.
  virtual bool streams() const { return false; }
  /// Returns which streams begin with batch i (StreamBatch::reset); undefined: none does.
  virtual Tensor reset(int64_t /*i*/) const { return {}; }
  /// Whether there may be a batch in which nothing is a target.
  virtual bool batches_may_lack_targets() const { return false; }
  /// Returns batch `i` if forward() reads only tokens and targets, of one shape, with the same
  /// number of counted targets in every batch; else nothing.
  virtual std::optional<Batch> batch(int64_t /*i*/) const { return std::nullopt; }
  /// Returns the tokens [B, L] of the first batch; undefined if batches are not of tokens alone.
  virtual Tensor first_batch() const { return {}; }
  /// Returns the bits of a split per unit(); NaN if it is empty.
  virtual double bits(const std::string& part) const = 0;
  /// Whether bits() of a split that is not empty may be NaN, because nothing in it is a target.
  virtual bool may_lack_targets() const { return false; }
  /// Says how bits() of a split reads it, if a model's memory makes that matter; else empty.
  virtual std::string protocol(const std::string& /*part*/) const { return {}; }
  /// Returns bits() with windows of the run's length that move by `stride`, so that every token but
  /// the first ones has a context of at least length - stride; nothing unless the data are one
  /// text. Throws NotImplemented unless the model predicts its next tokens.
  virtual std::optional<double> sliding_bits(const std::string& /*part*/,
                                             int64_t /*stride*/) const {
    return std::nullopt;
  }

  /// What `longspan eval` reports about a split besides bits.
  struct Report {
    std::vector<std::string> lines;  ///< for people
    Members figures;                 ///< for evals.jsonl, by name without the split
  };
  struct Evaluation {
    double bits = 0;
    Report report;
  };
  /// Returns bits() of a split, and what there is to report when the model has read it once.
  virtual Evaluation evaluate(const std::string& part) const { return {bits(part), {}}; }
  /// Returns the report on what an encoder-decoder writes. `search`: how it writes; with 0 beams it
  /// does not.
  virtual Report written(const std::string& /*part*/, const BeamSearch& /*search*/) const {
    return {};
  }
  /// Returns up to `count` of the first tokens of the validation split, for pictures; may be empty.
  virtual std::vector<int32_t> first_tokens(int64_t count) const = 0;
};

/// Data of a run that predicts the tokens of one text.
class TextData final : public TaskData {
 public:
  /// Throws ValueError if the model's vocabulary is too small for the data.
  explicit TextData(const TrainingRun& run);

  const std::vector<std::string>& warnings() const override { return corpus_.warnings; }
  int64_t size(const std::string& part) const override { return corpus_.part(part).size(); }
  std::string items() const override;
  std::string unit() const override;
  LossUnit loss_unit() const override;
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

 private:
  BatchOptions options() const;
  bool alike() const;  // whether every batch counts the same number of targets
  Batch batch_of(int64_t i) const;
  /// Windows that evaluation reads at a time at most.
  int64_t most_together() const { return std::max<int64_t>(1, 4096 / run_.config.length); }
  /// Windows that it reads at a time.
  int64_t together() const {
    const RunConfig& c = run_.config;
    return c.sparing_evaluation() ? std::min(most_together(), c.batch) : most_together();
  }
  /// Their number belongs to the figure: it follows from the length and the split alone, never from
  /// the batch or from memory.
  EvaluationStreams evaluation_streams(const CorpusPart& part) const;
  Score score_streams(const CorpusPart& part) const;
  /// Whether every token of a split is a target, so that bits are per symbol.
  bool all_are_targets() const { return run_.model->objective() == Objective::next_token; }

  const TrainingRun& run_;
  Corpus corpus_;
  std::unique_ptr<SegmentBatches> batches_;  // set by prepare(), unless batches are of streams
  std::unique_ptr<TextStreams> streams_;     // else this
};

/// Returns the most tokens, with the end, that an encoder-decoder of a run writes.
int64_t target_limit(const TrainingRun& run);

/// ROUGE of the summaries of a split, and of the first sentences of its articles.
struct SummaryScores {
  RougeScores summaries, lead3, lead10;
};

/// Data of a sequence-to-sequence run: documents and their summaries or, with `gap_sentences`,
/// documents and the sentences removed from them.
class PairData final : public TaskData {
 public:
  /// Throws ValueError if the model's vocabulary is too small for the data. `reads`: false to
  /// summarise only texts that are given; the parts are empty then.
  explicit PairData(const TrainingRun& run, bool reads = true);

  const std::vector<std::string>& warnings() const override { return warnings_; }
  int64_t size(const std::string& part) const override;
  std::string items() const override { return "pairs"; }
  std::string unit() const override { return "byte"; }
  /// Per token if no target has a byte. Before prepare(), it builds all pairs to measure them.
  LossUnit loss_unit() const override;
  void prepare() override;
  Forward forward(int64_t i, const SegmentMemory& memory, Pass pass) const override;
  /// Bits of every target, including its end token, per byte of the target texts.
  double bits(const std::string& part) const override;
  bool may_lack_targets() const override { return true; }
  /// ROUGE of the summaries, and of the first sentences.
  Report written(const std::string& part, const BeamSearch& search) const override;
  std::vector<int32_t> first_tokens(int64_t count) const override;

  /// Returns the documents of a split; for training, those that the run uses.
  const std::vector<Document>& documents(const std::string& part) const;
  /// Returns the sentences that beam search generates for each of these texts; sets `search.end`.
  std::vector<std::vector<std::string>> summaries(const std::vector<std::string>& texts,
                                                  BeamSearch search) const;
  /// Returns the scores of these summaries on a split.
  SummaryScores scores(const std::string& part, const BeamSearch& search) const;

 private:
  std::vector<SequencePair> pairs(const std::string& part) const;

  const TrainingRun& run_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  SequenceIds ids_;
  std::vector<Document> documents_[3];
  std::vector<std::string> warnings_;
  SequenceLimits limits_;
  LossUnit loss_unit_;                        // set by prepare()
  std::unique_ptr<SequenceBatches> batches_;  // set by prepare()
};

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
  explicit LabelData(const TrainingRun& run);

  const std::vector<std::string>& warnings() const override { return warnings_; }
  int64_t size(const std::string& part) const override { return source_->size(part_index(part)); }
  std::string items() const override { return "samples"; }
  std::string unit() const override { return "answer"; }
  /// Throws ValueError if motifs of these sizes are impossible.
  void prepare() override;
  Forward forward(int64_t i, const SegmentMemory& memory, Pass pass) const override;
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

/// Data of a run of a generated task with targets that are tokens, or the positions of an answer.
class SampleData final : public TaskData {
 public:
  /// Throws ValueError if the model does not predict next tokens, or has no head that finds
  /// answers, and if the task's samples do not fit the length or the vocabulary.
  explicit SampleData(const TrainingRun& run);

  const std::vector<std::string>& warnings() const override { return warnings_; }
  int64_t size(const std::string& part) const override;
  std::string items() const override { return "samples"; }
  std::string unit() const override;
  void prepare() override {}
  Forward forward(int64_t i, const SegmentMemory& memory, Pass pass) const override;
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

/// Creates the data for the run's task and model. Throws ValueError if they do not match.
std::unique_ptr<TaskData> open_task_data(const TrainingRun& run);

}  // namespace longspan
