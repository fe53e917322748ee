#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "models/capabilities.h"
#include "nn/edge_rows.h"

namespace longspan {

/// The sentences of the sources of a batch, which stand side by side without padding.
struct SourceSentences {
  struct Keys {
    int64_t first = 0, count = 0;
  };
  std::vector<std::vector<Keys>> of_sample;  ///< each sample's sentences, as rows of all sources
  int64_t rows = 0;                          ///< of all sources
};

/// Returns the sentences of sources [B, S]: a sentence ends with the token `end`, which belongs to
/// it; tokens after the last such token are one more. With end -1, and on the meta device, which
/// holds no values, a source is one sentence. Throws ValueError on a length that is not in [1, S].
SourceSentences sentences_of(std::string_view model, const SourceTokens& in, int64_t end);

/// Returns the sentences of a decoder's inputs [B, L], by row, after the `before` sentences that
/// each sample has begun: the one of the token that a position predicts. So an input `end` belongs
/// to the next sentence, except for the first input of a sequence (`begins`), which belongs to
/// sentence 0. With end -1, and on the meta device, all are in sentence 0.
std::vector<int64_t> sentences_of_targets(std::string_view model, const Tensor& tokens, int64_t end,
                                          const std::vector<int64_t>& before, bool begins);

/// Returns which keys the rows of targets attend to, those of the same sentence: `sentence` has
/// the sentences of L rows of each sample, and `sample` says whose source each reads. Rows of a
/// sentence that the source does not have read its last one. It comes from a small cache.
std::shared_ptr<const EdgeRows> sentence_rows(const SourceSentences& source,
                                              const std::vector<int64_t>& sample,
                                              const std::vector<int64_t>& sentence);

}  // namespace longspan
