#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/generator.h"
#include "data/io/formats.h"
#include "data/tokenizers/tokenizer.h"

namespace longspan {

/// A document as sentences of tokens, each of which ends with an end token.
struct TokenDocument {
  std::vector<std::vector<int32_t>> sentences;
  std::vector<int32_t> labels = {};  ///< of each sentence; empty: none
  int64_t cut = 0;                   ///< sentences of which tokens were left out
  friend bool operator==(const TokenDocument&, const TokenDocument&) = default;
};

/// Tokenizes sentences. A sentence of more than `longest` - 1 tokens is cut after them, and its end
/// token follows all the same; an empty one has its end token alone. The labels of the document, if
/// there are any, stay. Throws ValueError if longest < 2, or on labels of another number than
/// sentences.
TokenDocument token_document(const Document& document, const Tokenizer& tokenizer, int32_t end,
                             int64_t longest);

/// Returns the document in consecutive pieces of `most` sentences, the last one shorter; none for a
/// document without sentences. Throws ValueError if most < 1.
std::vector<TokenDocument> pieces_of(const TokenDocument& document, int64_t most);

/// How sentences are masked \cite zhang2019hibert .
struct SentenceMasking {
  double share = 0.15;  ///< of a document's sentences, rounded down
  int64_t most = 5;     ///< sentences of a document
  double masked = 0.8;  ///< fraction of the chosen sentences whose tokens become `token`
  double kept = 0.5;    ///< fraction of the other chosen sentences that stay; the rest are replaced
  int32_t token = 0;    ///< replaces every token of a sentence but the last one
};

/// Returns how many of a document's sentences are masked: min(max(1, share * sentences), most).
int64_t masked_count(int64_t sentences, const SentenceMasking& masking);

/// A sentence of a batch that is to be written again.
struct MaskedSentence {
  int64_t document = 0, sentence = 0;
  int64_t slot = 0;               ///< its index among the sentences of all documents
  std::vector<int32_t> original;  ///< with its end token
};

/// Documents with masked sentences.
struct MaskedDocuments {
  std::vector<std::vector<std::vector<int32_t>>> documents;  ///< tokens of each sentence
  std::vector<MaskedSentence> masked;                        ///< in order
};

/// Masks sentences of a batch: in each document, masked_count() different ones, each set of as many
/// equally likely. Of each, all tokens but the last are replaced by masking.token; or it stays; or
/// it becomes a random sentence of a random other document of the batch (of the same one if there
/// is no other). Throws ValueError on a document without sentences.
MaskedDocuments mask_sentences(std::span<const TokenDocument* const> batch,
                               const SentenceMasking& masking, Generator gen);
/// Masks sentences of one document independently of a batch: sentences to be replaced become
/// sentences of `other`.
MaskedDocuments mask_sentences(const TokenDocument& document, const TokenDocument& other,
                               const SentenceMasking& masking, Generator gen);

}  // namespace longspan
