#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "app/tasks/task_data.h"
#include "data/labelled/rows.h"
#include "data/metrics.h"
#include "data/sequence_pairs.h"

namespace longspan {

/// Options of documents that an encoder-decoder reads.
struct PairOptions {
  int64_t documents = 0;      ///< train on the first ones only; 0: all
  int64_t target_length = 0;  ///< maximum tokens of a target; 0: min(512, model's maximum)
  double gap_sentences = 0;   ///< fraction of sentences to mask and predict; 0: predict summaries
};

/// How an encoder-decoder of the package transformers reads and writes.
struct PairForm {
  bool templated = false;   ///< sources and targets have the template of the tokenizer
  int64_t start = -1;       ///< the decoder's first input; -1: the token that ends a target
  int64_t forced = -1;      ///< BeamSearch::force_begin
  bool force_end = false;   ///< BeamSearch::force_end
  bool last_first = false;  ///< SequenceIds::last_first
  bool leads = true;        ///< documents have sentences, of which the first ones are an extract
};

/// Returns the maximum number of tokens, with the end, that an encoder-decoder writes, of which
/// `wanted` are asked for; 0: the usual number.
int64_t target_limit(const RunConfig& config, const LanguageModel& model, int64_t wanted);

/// The forward pass of a step on synthetic pairs.
LanguageModel::Losses synthetic_pair_loss(const SyntheticStep& step, const PairOptions& options);

/// ROUGE of the summaries of a split, and of the first sentences of its articles.
struct SummaryScores {
  RougeScores summaries, stemmed, lead3, lead10;
};

/// Data of a sequence-to-sequence run: documents and their summaries or, with `gap_sentences`,
/// documents and the sentences removed from them.
class PairData final : public TaskData {
 public:
  /// Throws ValueError if the model's vocabulary is too small for the data. `documents` has each
  /// split's; none if only given texts are to be summarised.
  PairData(const TrainingRun& run, const PairOptions& options,
           std::array<std::vector<Document>, 3> documents, const PairForm& form = {});

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
  std::string input(const std::string& part, int64_t index) const override;
  std::vector<std::string> answer(const std::string& text, const BeamSearch& search) const override;
  std::vector<int32_t> first_tokens(int64_t count) const override;
  /// The beginning, then the summary of the first document.
  std::vector<int32_t> first_decoded(int64_t count) const override;

  /// Returns the documents of a split; for training, those that the run uses.
  const std::vector<Document>& documents(const std::string& part) const;
  /// Returns the sentences that beam search generates for each of these texts; sets `search.end`.
  std::vector<std::vector<std::string>> summaries(const std::vector<std::string>& texts,
                                                  BeamSearch search) const;
  /// Returns the scores of these summaries on a split.
  /// `texts`, if set, receives what was written.
  SummaryScores scores(const std::string& part, const BeamSearch& search,
                       std::vector<std::vector<std::string>>* texts = nullptr) const;

 private:
  std::vector<SequencePair> pairs(const std::string& part) const;
  std::vector<int32_t> source(const std::string& text) const;
  /// The first inputs [rows, 1] of a decoder that writes.
  Tensor beginning(int64_t rows) const;
  std::string text_of(std::span<const int64_t> ids) const;
  void warn_of_cuts();

  const TrainingRun& run_;
  PairOptions options_;
  PairForm form_;
  RowMaker maker_, target_maker_;  // the second one is of another language, if there is one
  SequenceIds ids_;
  std::array<std::vector<Document>, 3> documents_;
  std::vector<std::string> warnings_;
  SequenceLimits limits_;
  LossUnit loss_unit_;                        // set by prepare()
  std::unique_ptr<SequenceBatches> batches_;  // set by prepare()
};

}  // namespace longspan
