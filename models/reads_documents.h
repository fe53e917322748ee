#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
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

/// Reads documents as sentences: writes masked sentences again, or labels every sentence; a program
/// chooses by labels().
class ReadsDocuments {
 public:
  static constexpr std::string_view capability = "reading documents of sentences";
  virtual ~ReadsDocuments() = default;
  virtual DocumentTokens special() const = 0;
  /// The largest number of tokens of a sentence, with its end token.
  virtual int64_t max_sentence() const = 0;
  /// Classes of a sentence; 0: the model writes masked sentences.
  virtual int64_t labels() const = 0;

  /// Returns the mean loss of the targets that count, in nats, if labels() = 0. Throws
  /// NotImplemented otherwise, ShapeError on lengths that do not add up, ValueError on an id out of
  /// range or a sentence longer than max_sentence().
  virtual LanguageModel::Losses sentence_loss(const PackedDocuments& in,
                                              const SentenceTargets& written, Pass pass) const = 0;
  /// Returns the logits of the tokens that the targets name, [inputs, V]. Throws as
  /// sentence_loss().
  virtual Tensor sentence_logits(const PackedDocuments& in, const SentenceTargets& written,
                                 Pass pass) const = 0;
  /// Returns the logits of the labels of all sentences, [sentences, labels()], if labels() > 0.
  /// Throws NotImplemented otherwise, and as sentence_loss().
  virtual Tensor label_logits(const PackedDocuments& in, Pass pass) const = 0;
  /// Returns the mean loss of the labels that count, one for each sentence.
  virtual LanguageModel::Losses label_loss(const PackedDocuments& in,
                                           const std::vector<int32_t>& labels, Pass pass) const = 0;
  /// Returns the state of a decoder that has read documents and writes `slots` of their sentences,
  /// a row for each. Decode from the token special().begin on.
  virtual std::unique_ptr<DecodeState> start_writing(const PackedDocuments& in,
                                                     const std::vector<int64_t>& slots) const = 0;
  bool available() const { return true; }
};

}  // namespace longspan
