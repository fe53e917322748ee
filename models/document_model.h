#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "models/capabilities.h"
#include "models/model.h"
#include "models/reads_documents.h"

namespace longspan {

/// A model of documents. As a LanguageModel it reads each row of tokens [B, L] as a document: a
/// sentence ends after each sentence_end, and after max_sentence() - 1 tokens without one, where a
/// sentence_end is added, as it is at the end of the row. Rows with different numbers of tokens
/// need PackedDocuments. loss() writes the sentences that have a target, from the targets and,
/// elsewhere, the tokens; added tokens are not written, and the end of a sentence is its target as
/// it is given. With labels(), the target at the last given token of a sentence is its label, and
/// other targets are not read. logits() are those of every token, written after the tokens before
/// it in its sentence, or the labels [B, L, labels()] of its sentence.
class DocumentModel : public LanguageModel,
                      public ReadsDocuments,
                      public FillsMasks,
                      public ShowsAttention,
                      public virtual Decodes {
 public:
  Objective objective() const final { return Objective::masked_token; }
  int64_t mask_token() const final { return special().mask; }

  Losses label_loss(const PackedDocuments& in, const std::vector<int32_t>& labels,
                    Pass pass) const final;
  Losses loss(const Tensor& tokens, const Tensor& targets, const SegmentMemory& memory,
              Pass pass) const final;
  Tensor logits(const Tensor& tokens, Pass pass) const final;
  /// Reads a document in each row and writes its first masked sentence. Throws ValueError if a row
  /// has none.
  std::unique_ptr<DecodeState> start_after(const SourceTokens& source) const;

 protected:
  /// Rows of tokens as documents, and for each of their tokens its index in the rows, -1 where it
  /// was added.
  struct CutRows {
    PackedDocuments documents;
    std::vector<int64_t> from;
  };
  /// Cuts rows of tokens [B, L]; row b has lengths[b] tokens. Waits for the device.
  CutRows cut(const Tensor& tokens, const std::vector<int64_t>& lengths) const;
  /// The same for rows without padding.
  CutRows cut(const Tensor& tokens) const;

 private:
  SentenceTargets written_of(const CutRows& rows, const std::vector<int32_t>& counted) const;
};

}  // namespace longspan
