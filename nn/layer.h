#pragma once

#include <cstdint>
#include <vector>

#include "core/error.h"
#include "core/generator.h"
#include "core/tensor.h"
#include "nn/global.h"
#include "nn/module.h"
#include "nn/segment.h"
#include "ops/patterns/pattern.h"

namespace longspan {

/// What a layer sees besides its input.
struct LayerContext {
  AttentionPattern pattern;                      ///< which of its keys a row sees
  std::vector<AttentionPattern> layer_patterns;  ///< the same for each layer of a stack, in place
                                                 ///< of `pattern`; empty: all share that
  std::vector<AttentionPattern> also;  ///< more keys for the same softmax, none of them twice
  Tensor encoder_output;               ///< [B, S, D] differentiable: what cross-attention reads
  AttentionPattern encoder_pattern;    ///< which rows of encoder_output a row sees
  LayerMemory memory;                  ///< earlier states of this layer; no gradient
  std::vector<Tensor> choices;         ///< in a replay: the first run's buckets or clusters
  Tensor lengths;       ///< i64 [B]: rows of x that exist, for layers that make their own patterns
  GlobalTokens global;  ///< rows that see and are seen by all, likewise

  int64_t mem_len = 0;    ///< rows of each layer's input that a stack keeps for the next segment
  int64_t position = 0;   ///< of the first row of x in its stream
  bool decoding = false;  ///< keys and values are kept in memory, and `pattern` covers them too
  int64_t keep_from = 0;  ///< decoding: no row from here on sees a key before this position
};

/// What a layer returns; implicit from a tensor, so that most say `return y`.
struct Output {
  Output() = default;
  Output(Tensor value) : y(std::move(value)) {}  // NOLINT(google-explicit-constructor)

  Tensor y;
  Tensor loss;                  ///< auxiliary, differentiable
  Tensor state;                 ///< statistics for absorb()
  std::vector<Tensor> choices;  ///< integer decisions, kept by wrappers
  LayerMemory memory;           ///< for the next segment
};

/// [B, L, D] -> [B, L, D].
struct Layer : Module {
  virtual Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const = 0;
  /// Whether row i of the output depends on row i of x alone, and on nothing of LayerContext.
  virtual bool position_wise() const { return false; }
  /// [B, H, L, T]: the weights with which rows of x attend, for pictures and tests. Throws
  /// NotImplemented where the layer has none.
  virtual Tensor probabilities(const Tensor& /*x*/, const LayerContext& /*ctx*/) const {
    fail<NotImplemented>("attention map", "the attention of this model has none");
  }
};

}  // namespace longspan
