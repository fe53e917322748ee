#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/run.h"
#include "data/metrics.h"
#include "data/sequence_pairs.h"
#include "data/tasks.h"
#include "models/encoder.h"
#include "models/generate.h"
#include "train/roc_areas.h"

namespace longspan {

/// The number of a part: 0 to 2 of train, valid, test. Throws ValueError on another name.
size_t part_index(const std::string& part);

/// The losses of a batch of a run whose model starts each with nothing behind it.
LanguageModel::Losses losses_of(const TrainingRun& run, const Batch& batch, Pass pass);

/// The data of a run, as a model of its objective is trained on it and scored.
class TaskData {
 public:
  virtual ~TaskData() = default;

  /// What to say before training: counts that are not those of the data set.
  virtual const std::vector<std::string>& warnings() const = 0;
  /// How many items a part has, and what they are: "bytes", "tokens", "pairs".
  virtual int64_t size(const std::string& part) const = 0;
  virtual std::string items() const = 0;
  /// What bits are counted per: "byte", "hidden byte", "answer".
  virtual std::string unit() const = 0;
  /// The same of training losses, with the bytes of a token as measured on the training part.
  virtual LossUnit loss_unit() const { return {unit(), 1}; }

  /// A forward pass in training, the tokens that it reads, and how many targets, answers or
  /// questions its loss is the mean over.
  struct Forward {
    LanguageModel::Losses losses;
    int64_t tokens = 0, counted = 0;
  };
  /// Before the first forward(). Throws ValueError where there is too little to train on.
  virtual void prepare() = 0;
  /// Of batch `i` of the run.
  virtual Forward forward(int64_t i, Pass pass) const = 0;
  /// Batch `i`, where tokens and targets of one shape are all that forward() reads of it, and as
  /// many count in each.
  virtual std::optional<Batch> batch(int64_t /*i*/) const { return std::nullopt; }
  /// The bits of a part per unit(); NaN where it is empty.
  virtual double bits(const std::string& part) const = 0;
  /// Up to `count` of the first tokens of the validation part, for pictures; may be none.
  virtual std::vector<int32_t> first_tokens(int64_t count) const = 0;
};

/// The data of a run whose model predicts the tokens of one text.
class TextData final : public TaskData {
 public:
  /// Throws ValueError where the model has too few tokens for the data.
  explicit TextData(const TrainingRun& run);

  const Corpus& corpus() const { return corpus_; }

  const std::vector<std::string>& warnings() const override { return corpus_.warnings; }
  int64_t size(const std::string& part) const override { return corpus_.part(part).size(); }
  std::string items() const override;
  std::string unit() const override;
  LossUnit loss_unit() const override;
  void prepare() override;
  Forward forward(int64_t i, Pass pass) const override;
  std::optional<Batch> batch(int64_t i) const override;
  /// Every token is scored once (causal), or at least one of each window (masked, bits per hidden
  /// token).
  double bits(const std::string& part) const override;
  std::vector<int32_t> first_tokens(int64_t count) const override;

 private:
  BatchOptions options() const;
  bool alike() const;  // whether as many targets count in each batch
  /// Whether every token of a part is a target, so that bits are per symbol.
  bool all_are_targets() const { return run_.model->objective() == Objective::next_token; }

  const TrainingRun& run_;
  Corpus corpus_;
  std::unique_ptr<SegmentBatches> batches_;  // once it is trained on
};

/// ROUGE of the summaries of a part, and of the first sentences of its articles.
struct SummaryScores {
  RougeScores summaries, lead3, lead10;
};

/// The data of a run whose model writes a sequence after reading another: documents and their
/// summaries, or with `gap_sentences` documents and sentences left out of them.
class PairData final : public TaskData {
 public:
  /// Throws ValueError where the model has too few tokens for the data.
  explicit PairData(const TrainingRun& run);

  const std::vector<std::string>& warnings() const override { return warnings_; }
  int64_t size(const std::string& part) const override;
  std::string items() const override { return "pairs"; }
  std::string unit() const override { return "byte"; }
  /// Per token where no target has a byte. Before prepare(), makes all pairs to measure them.
  LossUnit loss_unit() const override;
  void prepare() override;
  Forward forward(int64_t i, Pass pass) const override;
  /// Bits of every target, its end too, per byte of their texts.
  double bits(const std::string& part) const override;
  std::vector<int32_t> first_tokens(int64_t count) const override;

  /// The documents of a part; of training those that the run has.
  const std::vector<Document>& documents(const std::string& part) const;
  /// The sentences that beam search writes after each of these texts; `search.end` is set here.
  std::vector<std::vector<std::string>> summaries(const std::vector<std::string>& texts,
                                                  BeamSearch search) const;
  /// Of a part with those summaries.
  SummaryScores scores(const std::string& part, const BeamSearch& search) const;

 private:
  std::vector<SequencePair> pairs(const std::string& part) const;

  const TrainingRun& run_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  SequenceIds ids_;
  std::vector<Document> documents_[3];
  std::vector<std::string> warnings_;
  SequenceLimits limits_;
  LossUnit loss_unit_;                        // once it is trained on
  std::unique_ptr<SequenceBatches> batches_;  // once it is trained on
};

/// How well yes-or-no answers are given.
struct LabelScores {
  double nats = 0;      ///< mean cross-entropy of an answer
  double accuracy = 0;  ///< of all answers together
  double f1 = 0;        ///< of the positive ones
  MedianAuc auc;
  /// The same of answers of a kind, where these are the 919 of \cite zhou2015 .
  std::vector<std::pair<std::string, MedianAuc>> kinds;
};

/// Where samples with yes-or-no answers come from, as tokens.
class LabelSource {
 public:
  virtual ~LabelSource() = default;
  virtual int64_t size(size_t part) const = 0;
  virtual LabelledSample sample(size_t part, int64_t i) const = 0;
  /// Row `row` of training.
  virtual LabelledSample training(int64_t row) const = 0;
  virtual int64_t answers() const = 0;
  virtual int64_t vocabulary() const = 0;
  /// What decides how many answers there are, and tokens, for messages.
  virtual std::string answers_text() const = 0;
  virtual std::string vocabulary_text() const = 0;
};

/// The data of a run whose model answers yes or no about whole sequences: motif-dna, whose samples
/// are made as they are asked for, promoter and chromatin.
class LabelData final : public TaskData {
 public:
  /// Throws ValueError where the model has no head for the answers or too few tokens, and where
  /// samples are longer than the run's.
  explicit LabelData(const TrainingRun& run);

  const std::vector<std::string>& warnings() const override { return warnings_; }
  int64_t size(const std::string& part) const override { return source_->size(part_index(part)); }
  std::string items() const override { return "samples"; }
  std::string unit() const override { return "answer"; }
  /// Throws ValueError where motifs of these sizes cannot be made.
  void prepare() override;
  Forward forward(int64_t i, Pass pass) const override;
  double bits(const std::string& part) const override;
  std::vector<int32_t> first_tokens(int64_t count) const override;

  LabelScores scores(const std::string& part) const;

 private:
  struct Labelled {
    Tensor tokens, lengths, labels;  // [B, L], [B] or undefined: all of L, [B, answers]
  };
  Labelled stacked(const std::vector<LabelledSample>& samples) const;
  Tensor logits(const Labelled& rows, Pass pass) const;

  const TrainingRun& run_;
  std::unique_ptr<const LabelSource> source_;
  const Encoder& encoder_;
  double positive_weight_;
  std::vector<std::string> warnings_;
};

/// The data of a run whose model reads a word and says it again: duplicate, whose samples are made
/// as they are asked for. Only the second word counts.
class DuplicateData final : public TaskData {
 public:
  /// Throws ValueError where the model does not predict next tokens, or the length holds no two
  /// words.
  explicit DuplicateData(const TrainingRun& run);

  const std::vector<std::string>& warnings() const override { return warnings_; }
  int64_t size(const std::string& part) const override;
  std::string items() const override { return "samples"; }
  std::string unit() const override { return "symbol"; }
  void prepare() override {}
  Forward forward(int64_t i, Pass pass) const override;
  std::optional<Batch> batch(int64_t i) const override;
  double bits(const std::string& part) const override;
  std::vector<int32_t> first_tokens(int64_t count) const override;

  /// Share of the symbols of second words that the model finds likeliest.
  double accuracy(const std::string& part) const;

 private:
  Batch samples(const std::string& part, int64_t first, int64_t count) const;
  /// Calls visit(batch) for all samples of a part.
  void each(const std::string& part, const std::function<void(const Batch&)>& visit) const;

  const TrainingRun& run_;
  DuplicateTask task_;
  std::vector<std::string> warnings_;  // there are none
};

/// The one for the run's task and model. Throws ValueError where they do not go together.
std::unique_ptr<TaskData> open_task_data(const TrainingRun& run);

}  // namespace longspan
