#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "models/model.h"

namespace longspan {

/// The documents of a batch as sentences of tokens, one after another without padding.
struct PackedDocuments {
  std::vector<int32_t> tokens;     ///< of all sentences; each ends with its end token
  std::vector<int64_t> sentences;  ///< tokens of each sentence, 1 or more
  std::vector<int64_t> documents;  ///< sentences of each document, 1 or more

  /// Adds a document, as a list of sentences of tokens with their end tokens.
  void add(const std::vector<std::vector<int32_t>>& document);
};

/// The tokens with a meaning of their own.
struct DocumentTokens {
  int32_t begin = 0;         ///< the first input of the decoder
  int32_t end = 0;           ///< the last target of the decoder
  int32_t sentence_end = 0;  ///< the last token of a sentence in a document
  int32_t mask = 0;          ///< replaces the tokens of a masked sentence, except the last one
};

/// Sentences of a batch that a decoder writes, packed in the same way. All inputs of a sentence but
/// the first are its tokens; targets are the tokens that follow, or ignored_target.
struct SentenceTargets {
  std::vector<int64_t> slots;    ///< the index of each in PackedDocuments::sentences
  std::vector<int64_t> lengths;  ///< tokens of each, with its end token
  std::vector<int32_t> inputs, targets;

  /// Adds a sentence of tokens with its end token, to be written in place of sentence `slot`.
  void add(int64_t slot, const std::vector<int32_t>& sentence, const DocumentTokens& special);
};

/// A model that reads documents as sentences. It writes masked sentences again, or labels every
/// sentence; a program chooses by labels().
///
/// As a LanguageModel it reads each row of tokens [B, L] as a document: a sentence ends after each
/// sentence_end, and after max_sentence() - 1 tokens without one, where a sentence_end is added, as
/// it is at the end of the row. Rows with different numbers of tokens need PackedDocuments.
/// loss() writes the sentences that have a target, from the targets and, elsewhere, the tokens;
/// added tokens are not written, and the end of a sentence is its target as it is given. With
/// labels(), the target at the last given token of a sentence is its label, and other targets are
/// not read. logits() are those of every token, written after the tokens before it in its sentence,
/// or the labels [B, L, labels()] of its sentence.
class DocumentModel : public LanguageModel {
 public:
  const DocumentModel* as_document_model() const final { return this; }
  Objective objective() const final { return Objective::masked_token; }
  int64_t mask_token() const final { return special().mask; }

  virtual DocumentTokens special() const = 0;
  /// The largest number of tokens of a sentence, with its end token.
  virtual int64_t max_sentence() const = 0;
  /// Classes of a sentence; 0: the model writes masked sentences.
  virtual int64_t labels() const = 0;

  /// Returns the mean loss of the targets that count, in nats, if labels() = 0. Throws
  /// NotImplemented otherwise, ShapeError on lengths that do not add up, ValueError on an id out of
  /// range or a sentence longer than max_sentence().
  virtual Losses sentence_loss(const PackedDocuments& in, const SentenceTargets& written,
                               Pass pass) const = 0;
  /// Returns the logits of the tokens that the targets name, [inputs, V]. Throws as
  /// sentence_loss().
  virtual Tensor sentence_logits(const PackedDocuments& in, const SentenceTargets& written,
                                 Pass pass) const = 0;
  /// Returns the logits of the labels of all sentences, [sentences, labels()], if labels() > 0.
  /// Throws NotImplemented otherwise, and as sentence_loss().
  virtual Tensor label_logits(const PackedDocuments& in, Pass pass) const = 0;
  /// Returns the mean loss of the labels that count, one for each sentence.
  Losses label_loss(const PackedDocuments& in, const std::vector<int32_t>& labels, Pass pass) const;
  /// Returns the state of a decoder that has read documents and writes `slots` of their sentences,
  /// a row for each. Decode from the token special().begin on.
  virtual std::unique_ptr<DecodeState> start_writing(const PackedDocuments& in,
                                                     const std::vector<int64_t>& slots) const = 0;

  Losses loss(const Tensor& tokens, const Tensor& targets, const SegmentMemory& memory,
              Pass pass) const final;
  Tensor logits(const Tensor& tokens, Pass pass) const final;
  /// Reads a document in each row and writes its first masked sentence. Throws ValueError if a row
  /// has none.
  std::unique_ptr<DecodeState> start_after(const SourceTokens& source) const final;

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
