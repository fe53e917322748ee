#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"

namespace longspan {

/// Sentences that say most of a document, \cite zhang2020 (Ind-Orig): the `share` of them whose
/// ROUGE-1 F1 against all others is highest, at least one and never all, the first of equal ones.
/// In order. Fewer than two sentences have none. Throws ValueError unless 0 < share < 1.
std::vector<int64_t> gap_sentences(std::span<const std::string> sentences, double share = 0.3);

/// What gap-sentence pre-training is given and should say.
struct GapPair {
  std::vector<int32_t> source;  ///< the document, each chosen sentence as one mask
  std::vector<int32_t> target;  ///< the chosen sentences, one after the other
};

/// The pair of a document: sentences with a space between, no special tokens but the mask.
/// `chosen` is in order, as from gap_sentences(). Throws ValueError on places that are not.
GapPair gap_pair(std::span<const std::string> sentences, std::span<const int64_t> chosen,
                 const Tokenizer& tokenizer, int32_t mask_token);

}  // namespace longspan
