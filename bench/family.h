#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "nn/outline.h"
#include "ops/attention/block_attention.h"

namespace longspan::bench {

/// A family of position-based sparse attention, and what its cost is said to grow like.
struct Family {
  std::string_view name;
  bool causal = false;
  double time_exponent = 1;  ///< of the length; that of memory is 1
};

/// Two dense ones, then the sparse ones.
std::span<const Family> families();
/// Throws ValueError on a name that is none.
const Family& family_of(std::string_view name);

/// The attention of one layer of a family at one length.
struct FamilyLayer {
  std::string options;           ///< what it was built with
  AttentionOutline outline;      ///< its calls of attention
  int64_t pairs = 0;             ///< of all heads, by the closed formula
  std::array<int64_t, 2> ids{};  ///< relation labels of each call's tables; 0: no tables
  int64_t max_distance = 0;      ///< of those labels
};

/// A family, or a pattern of one parameter, as "name" or "name:number":
///   dense, causal        all pairs, all earlier ones
///   fixed, strided       Sparse Transformer, both index sets in every head, stride (or block)
///                        `number`, without it the multiple of 16 next to sqrt(length); summaries
///                        of 16 columns
///   blockbert            `number` blocks, 3 without it: 6 heads of 8 see their own, the others the
///                        next and the one after
///   bigbird              blocks of `number`, 64 without it, 3 random ones a row
///   longformer           `number` keys a side, 256 without it
///   longformer_globals   the same with the first 64 tokens global
///   led                  512 a side and the first token global, as in LED's encoder
///   etc                  84 a side, 230 globals, labels of distances up to 12 and of links
///   band, causal_band    `number` keys a side, `number` earlier keys besides itself: bare windows
/// Throws ValueError on anything else, and where a closed formula does not hold at the length.
FamilyLayer family_layer(std::string_view name, int64_t length, int64_t heads);

/// Pairs of all heads that the layouts attend to and that their runs cover, counted one by one.
OutlineCount counted_pairs(const FamilyLayer& layer);

/// Attention of a layer, forward and backward, on queries, keys and values of its own, uniform in
/// [-1, 1): without projections.
class AttentionRun {
 public:
  AttentionRun(const FamilyLayer& layer, int64_t width);

  /// Outputs, one for all calls that share a softmax.
  std::vector<Tensor> forward() const;
  /// Forward, and gradients of queries, keys, values and tables.
  std::vector<Tensor> both() const;

 private:
  struct BoundCall {
    std::vector<AttentionPattern> parts;  // of one softmax
    Tensor q;
    std::vector<Keys> keys;
    ScoreTerms terms;
  };

  std::vector<BoundCall> calls_;
  std::vector<Tensor> leaves_, dy_;
};

/// The same with the projections of queries, keys, values and outputs, D = heads * width; x and the
/// weights have fixed values, those of bench/peers/sparse.py. For bigbird, longformer,
/// longformer_globals and led, whose layers transformers has; ValueError otherwise.
class LayerRun {
 public:
  LayerRun(std::string_view family, int64_t length, int64_t heads, int64_t width);

  /// Forward, and gradients of x [1, L, D] and of all weights.
  std::vector<Tensor> both() const;

 private:
  std::unique_ptr<Layer> layer_;
  LayerContext ctx_;
  Tensor x_;
  std::vector<Tensor> leaves_, dy_;
};

}  // namespace longspan::bench
