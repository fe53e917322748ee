#pragma once

#include <any>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/generator.h"
#include "core/tensor.h"
#include "nn/after_step.h"
#include "nn/auxiliary_loss.h"
#include "nn/layer_memory.h"
#include "nn/module.h"
#include "ops/elementwise.h"
#include "ops/patterns/pattern.h"

namespace longspan {

struct Normalization;

/// What the layers of a model read and no others do: at most one value of each type, each defined
/// beside the layer that reads it.
class OwnContext {
 public:
  /// Returns the value of this type; null if there is none.
  template <class T>
  const T* find() const {
    for (const auto& any : values_) {
      if (const T* value = std::any_cast<T>(any.get())) return value;
    }
    return nullptr;
  }
  /// Sets the value of this type.
  template <class T>
  void set(T value) {
    std::erase_if(values_, [](const auto& any) { return any->type() == typeid(T); });
    values_.push_back(std::make_shared<const std::any>(std::move(value)));
  }

 private:
  std::vector<std::shared_ptr<const std::any>> values_;
};

/// What the block around a layer reads, before its norm: for layers that make their own memory
/// (Output::kept).
struct BlockInputs {
  Tensor x, states;                     ///< the block's input, and InputRows::states
  const Normalization* norm = nullptr;  ///< the norm; null if there is none before the layer
};

/// The inputs of a layer besides x.
struct LayerContext {
  AttentionPattern pattern;                      ///< which of its keys a row sees
  std::vector<AttentionPattern> layer_patterns;  ///< one per layer of a stack, in place of
                                                 ///< `pattern`; empty: all layers use `pattern`
  std::vector<AttentionPattern> also;  ///< more patterns for the same softmax, with no pair in
                                       ///< common
  Tensor lengths;                      ///< i64 [B]: number of valid rows of x, for layers that make
                                       ///< their own patterns
  Tensor encoder_output;               ///< [B, S, D] differentiable: input of cross-attention
  AttentionPattern encoder_pattern;    ///< which rows of encoder_output a row sees
  LayerMemory memory;                  ///< what this layer kept of earlier tokens; no gradient
  int64_t mem_len = 0;    ///< rows of each layer's input that a stack keeps for the next segment
  int64_t position = 0;   ///< position of the first row of x in its stream
  bool decoding = false;  ///< keys and values are kept in memory, and `pattern` covers them too
  int64_t keep_from = 0;  ///< decoding: rows from now on see no key before this position
  std::vector<Tensor> choices;  ///< in a recomputation: the first run's buckets or clusters;
                                ///< when decoding: the buckets or clusters of earlier tokens
  BlockInputs block;            ///< set by the block around the layer
  OwnContext own;               ///< what only the layers of this model read
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
  /// The memory for the next segment, of a layer that makes it itself, from LayerContext::block;
  /// without it, a stack keeps the newest inputs.
  std::optional<LayerMemory> kept;
};

/// Returns the output with y added to `onto`, if that is defined.
inline Output added(const Tensor& onto, Output out) {
  if (onto) out.y = add(onto, out.y);
  return out;
}

/// Thrown where attention probabilities are asked of a layer or model that has none.
class NoAttentionMap : public NotImplemented {
  using NotImplemented::NotImplemented;
};

/// [B, L, D] -> [B, L, D].
struct Layer : Module {
  virtual Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const = 0;
  /// forward() with `onto` [B, L, D] added to y, for layers that add it while they store y.
  virtual Output forward_onto(const Tensor& onto, const Tensor& x, const LayerContext& ctx,
                              Pass pass) const {
    return added(onto, forward(x, ctx, pass));
  }
  /// Returns what of forward() remains where the block of the layer is left out
  /// (Stack::set_layer_drop): losses and the memory that the layer makes itself. Has no y.
  virtual Output left_out(const Tensor& /*x*/, const LayerContext& /*ctx*/, Pass /*pass*/) const {
    return {};
  }
  /// Whether row i of the output depends only on row i of x, and not on LayerContext.
  virtual bool position_wise() const { return false; }
  /// Whether forward() can compute only this process's rows, where Pass::split divides the rows
  /// among processes. Stacks refuse such a pass for layers that do not.
  virtual bool splits() const { return position_wise(); }
  /// Returns the attention weights [B, H, L, T] of the rows of x, for plots and tests. Throws
  /// NoAttentionMap if the layer has none.
  virtual Tensor probabilities(const Tensor& /*x*/, const LayerContext& /*ctx*/) const {
    fail<NoAttentionMap>("attention map", "the layers of this model have none");
  }
};

/// Throws NotImplemented if processes split sequences and the layer does not.
inline void require_splits(const Layer& layer, const Pass& pass) {
  require<NotImplemented>(pass.split == nullptr || layer.splits(), "ranks",
                          "a layer of this model computes whole sequences, which processes do not "
                          "split; leave out Pass::split (set ranks.sequence to 1)");
}

}  // namespace longspan
