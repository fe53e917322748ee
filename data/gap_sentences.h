#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"

namespace longspan {

/// Returns the most informative sentences of a document, \cite zhang2020 (Ind-Orig): the `share` of
/// the sentences whose ROUGE-1 F1 against all others is highest, at least one and never all; ties
/// go to the earlier sentence. Indices are ascending. A document of fewer than two sentences has
/// none. Throws ValueError unless 0 < share < 1.
std::vector<int64_t> gap_sentences(std::span<const std::string> sentences, double share = 0.3);

/// Input and target of gap-sentence pre-training.
struct GapPair {
  std::vector<int32_t> source;  ///< the document, with each chosen sentence replaced by one mask
  std::vector<int32_t> target;  ///< the chosen sentences, one after the other
};

/// Builds the pair of a document: sentences joined by spaces, no special tokens except the mask.
/// `chosen` is ascending, as from gap_sentences(). Throws ValueError if it is not.
GapPair gap_pair(std::span<const std::string> sentences, std::span<const int64_t> chosen,
                 const Tokenizer& tokenizer, int32_t mask_token);

}  // namespace longspan
