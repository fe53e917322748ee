#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/task_data.h"
#include "data/documents.h"
#include "data/extracts.h"
#include "models/document_model.h"

namespace longspan {

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
  explicit DocumentData(const TrainingRun& run);

  const std::vector<std::string>& warnings() const override { return warnings_; }
  /// Pieces of documents.
  int64_t size(const std::string& part) const override;
  std::string items() const override { return task_ ? "documents" : "pieces of documents"; }
  std::string unit() const override { return writes() ? "hidden token" : "sentence"; }
  /// Throws ValueError if there is no training document, or no label or summary to learn from.
  void prepare() override;
  Forward forward(int64_t i, const SegmentMemory& memory, Pass pass) const override;
  /// Bits of every target token of the masked sentences, with masks drawn from the seed, the split
  /// and the index of the document; or of every label.
  double bits(const std::string& part) const override;
  bool may_lack_targets() const override { return true; }
  /// Reports the share of the masked tokens that the model finds most likely; for labels, the share
  /// that is right and F1, and for documents with summaries ROUGE of the extracts, of the oracles
  /// and of the first sentences.
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
  const ReadsDocuments& model_;
  std::unique_ptr<const Tokenizer> tokenizer_;  // null: generated
  std::unique_ptr<const SampleTask> task_;      // of generated documents
  std::vector<Document> texts_[3];              // with labels, if the model learns them
  std::vector<TokenDocument> whole_[3], pieces_[3];
  std::vector<std::string> warnings_;
};

}  // namespace longspan
