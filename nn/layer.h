#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/generator.h"
#include "core/tensor.h"
#include "nn/after_step.h"
#include "nn/auxiliary_loss.h"
#include "nn/edge_rows.h"
#include "nn/global.h"
#include "nn/module.h"
#include "nn/segment.h"
#include "ops/patterns/pattern.h"

namespace longspan {

struct Normalization;

/// The inputs of a layer besides x.
struct LayerContext {
  AttentionPattern pattern;                      ///< which of its keys a row sees
  std::vector<AttentionPattern> layer_patterns;  ///< one per layer of a stack, in place of
                                                 ///< `pattern`; empty: all layers use `pattern`
  std::vector<AttentionPattern> also;  ///< more patterns for the same softmax, with no pair in
                                       ///< common
  Tensor encoder_output;               ///< [B, S, D] differentiable: input of cross-attention
  AttentionPattern encoder_pattern;    ///< which rows of encoder_output a row sees
  Tensor encoder_rows;                 ///< i64 [L]: the row of encoder_output that belongs to each
                                       ///< row of x, for layers that add one (HIBERT)
  LayerMemory memory;                  ///< earlier states of this layer; no gradient
  Tensor block_input, block_states;    ///< x and memory.states before the block's norm, for layers
                                       ///< that make their own memory (Output::kept)
  const Normalization* block_norm = nullptr;  ///< that norm; null if there is none
  std::vector<Tensor> choices;  ///< in a recomputation: the first run's buckets or clusters;
                                ///< when decoding: those of earlier tokens
  Tensor lengths;       ///< i64 [B]: number of valid rows of x, for layers that make their own
                        ///< patterns
  GlobalTokens global;  ///< rows that see and are seen by all, for the same layers

  /// Of layers with edge attention, in place of `pattern`: the rows and their keys, those of a
  /// stack's last layer if they are others, and the rows of `encoder_output` that rows attend to.
  std::shared_ptr<const EdgeRows> edges, last_edges, encoder_edges;

  /// Sinusoids of distances n - 1 to 0, [n, D], for layers with Transformer-XL's positions.
  Tensor distances;
  Tensor span_limit;      ///< [1], no gradient: spans of memories count as no longer than this
  double layer_drop = 0;  ///< probability with which a stack leaves out a block in training
  int64_t mem_len = 0;    ///< rows of each layer's input that a stack keeps for the next segment
  int64_t position = 0;   ///< position of the first row of x in its stream
  bool decoding = false;  ///< keys and values are kept in memory, and `pattern` covers them too
  int64_t keep_from = 0;  ///< decoding: rows from now on see no key before this position
};

/// The result of a layer; converts from a tensor, so that most layers simply `return y`.
struct Output {
  Output() = default;
  Output(Tensor value) : y(std::move(value)) {}  // NOLINT(google-explicit-constructor)

  Tensor y;
  /// Losses besides the task's. Those of a position-wise layer are means over its rows.
  std::vector<AuxiliaryLoss> losses;
  std::vector<Statistics> statistics;  ///< in training, for Module::after_step()
  std::vector<Tensor> choices;         ///< integer decisions, saved by wrappers
  LayerMemory memory;                  ///< what decoding keeps
  /// The memory for the next segment, of a layer that makes it itself, from
  /// LayerContext::block_states and block_input; without it, a stack keeps the newest inputs.
  std::optional<LayerMemory> kept;
};

/// Thrown where attention probabilities are asked of a layer or model that has none.
class NoAttentionMap : public NotImplemented {
  using NotImplemented::NotImplemented;
};

/// [B, L, D] -> [B, L, D].
struct Layer : Module {
  virtual Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const = 0;
  /// Returns what of forward() remains where the block of the layer is left out
  /// (LayerContext::layer_drop): losses and the memory that the layer makes itself. Has no y.
  virtual Output left_out(const Tensor& /*x*/, const LayerContext& /*ctx*/, Pass /*pass*/) const {
    return {};
  }
  /// Whether row i of the output depends only on row i of x, and not on LayerContext.
  virtual bool position_wise() const { return false; }
  /// Returns the attention weights [B, H, L, T] of the rows of x, for plots and tests. Throws
  /// NoAttentionMap if the layer has none.
  virtual Tensor probabilities(const Tensor& /*x*/, const LayerContext& /*ctx*/) const {
    fail<NoAttentionMap>("attention map", "the layers of this model have none");
  }
};

}  // namespace longspan
