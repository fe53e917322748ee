#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/tasks/pairs.h"
#include "app/tasks/task_data.h"
#include "data/documents.h"
#include "data/extracts.h"
#include "data/sample_task.h"
#include "models/reads_documents.h"

namespace longspan {

/// The number of ids beside those of the text that mark sentences (DocumentTokens).
inline constexpr int64_t sentence_marks = 4;

/// Options of models over documents of sentences.
struct DocumentOptions {
  int64_t documents = 0;     ///< train on the first ones only; 0: all
  int64_t chunk = 30;        ///< sentences of a document that are read together
  ExtractOptions take;       ///< how a summary is made of scores
  int64_t oracle = 3;        ///< maximum sentences of an oracle, which labels sentences
  double mask_share = 0.15;  ///< SentenceMasking::share
  int64_t mask_most = 5;     ///< SentenceMasking::most

  void visit(Fields& v);
};

/// Summarises documents: an encoder-decoder writes their summaries, or the sentences that are left
/// out of them; a model of sentences chooses the sentences of an extract, or writes masked ones.
class DocumentTask final : public Task {
 public:
  using Task::Task;

  const DocumentOptions& sentences() const { return sentences_; }

  void visit(Fields& v) override;
  std::string models() const override { return "encoder-decoders, and hibert"; }
  bool suits(const LanguageModel& model) const override;
  void require_suited(const RunConfig& config, const LanguageModel& model) const override;
  TaskSizes sizes(const RunConfig& config, const LanguageModel& model) const override;
  bool takes_tokenizer() const override { return true; }
  bool cuts_files(bool /*apart*/) const override { return true; }
  int64_t longest_sample(int64_t length, const LanguageModel& model) const override;
  std::vector<std::string> order_keys() const override;
  std::vector<std::string> function_keys() const override;
  std::unique_ptr<TaskData> open(const TrainingRun& run, bool reads) const override;
  bool splits_sequences() const override { return true; }
  LanguageModel::Losses synthetic_loss(const SyntheticStep& step) const override;
  bool scores_texts() const override { return pairs_.gap_sentences == 0; }
  void require_search(const BeamSearch& search, const TrainingRun& run) const override;

 private:
  PairOptions pair_options() const;

  DocumentOptions sentences_;
  PairOptions pairs_;  // but for the number of documents, which both have
};

/// Returns the tokenizer of a run over documents. Throws ValueError if the model's vocabulary has
/// no space for its ids beside the four special ones.
std::unique_ptr<const Tokenizer> document_tokenizer(const TrainingRun& run);

/// Returns the probability of label 1 for each sentence of a document, read in pieces of
/// `sentences`. Throws NotImplemented unless the model has two labels.
std::vector<double> sentence_scores(const ReadsDocuments& model, const TokenDocument& document,
                                    int64_t sentences);

/// ROUGE of the extracts of a split, of the oracles, and of the first sentences.
struct ExtractScores {
  RougeScores extracts, oracle, lead;
  int64_t behind = 0;  ///< documents whose oracle has less oracle_overlap() than their first
                       ///< sentences, as a greedy choice may
};

/// Data of a run over documents: a model without labels writes masked sentences, one with labels
/// finds the sentences of an extract. Documents are read in pieces of extracts.chunk sentences.
class DocumentData final : public TaskData {
 public:
  /// Throws ValueError if the model's vocabulary is too small for the data.
  /// `task` makes the documents; null: they are read from files.
  DocumentData(const TrainingRun& run, const DocumentOptions& options, const SampleTask* task);

  const std::vector<std::string>& warnings() const override { return warnings_; }
  /// Pieces of documents.
  int64_t size(const std::string& part) const override;
  std::string items() const override { return task_ ? "documents" : "pieces of documents"; }
  std::string unit() const override { return writes() ? "hidden token" : "sentence"; }
  /// Throws ValueError if there is no training document, or no label or summary to learn from.
  void prepare() override;
  Forward forward(int64_t i, const SegmentMemory& memory, Pass pass) const override;
  int64_t targets_of_batch(const RunConfig& c) const override { return c.batch; }
  /// Bits of every target token of the masked sentences, with masks drawn from the seed, the split
  /// and the index of the document; or of every label.
  double bits(const std::string& part) const override;
  bool may_lack_targets() const override { return true; }
  /// Reports the fraction of masked tokens that get the highest probability; for labels, accuracy
  /// and F1, and for documents with summaries ROUGE of the extracts, of the oracles and of the
  /// first sentences.
  Evaluation evaluate(const std::string& part) const override;
  std::vector<int32_t> first_tokens(int64_t count) const override;

  /// Returns the scores of the extracts of a split that has summaries.
  ExtractScores extract_scores(const std::string& part) const;

 private:
  bool writes() const { return model_.labels() == 0; }
  SentenceMasking masking() const;
  TokenDocument item(const std::string& part, int64_t i) const;
  TokenDocument training_item(int64_t row) const;
  TokenDocument generated(const std::string& part, int64_t i) const;
  /// Reads the texts of a split, and labels them by their oracles where no labels are given.
  void read(size_t part);
  /// Calls visit(masked document) for all of a split, one at a time: the bits of packed rows may
  /// depend on those before them.
  void each_masked(const std::string& part,
                   const std::function<void(const MaskedDocuments&)>& visit) const;
  /// The loss of some documents, and the number of targets that count.
  struct Loss {
    LanguageModel::Losses losses;
    int64_t tokens = 0, counted = 0;
  };
  Loss loss_of(const std::vector<TokenDocument>& batch, Generator masks, Pass pass) const;
  Loss loss_of(const MaskedDocuments& masked, Pass pass) const;
  MaskedDocuments masked(const std::vector<TokenDocument>& batch, Generator masks) const;
  Answers right(const std::string& part) const;
  void report_extracts(const std::string& part, Report& r) const;
  struct Labelled {
    double nats = 0;
    BinaryCounts counts;
    int64_t sentences = 0;
  };
  Labelled label(const std::string& part) const;

  const TrainingRun& run_;
  DocumentOptions options_;
  const ReadsDocuments& model_;
  std::unique_ptr<const Tokenizer> tokenizer_;  // null: generated
  std::unique_ptr<const SampleTask> task_;      // of generated documents
  std::vector<Document> texts_[3];              // with labels, if the model learns them
  std::vector<TokenDocument> whole_[3], pieces_[3];
  std::vector<std::string> warnings_;
};

}  // namespace longspan
