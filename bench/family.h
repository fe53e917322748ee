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

/// A family of position-based sparse attention, and the expected growth of its cost.
struct Family {
  std::string_view name;
  bool causal = false;
  double time_exponent = 1;  ///< exponent of time in the length; memory is linear
};

/// Returns two dense families, then the sparse ones.
std::span<const Family> families();
/// Throws ValueError on an unknown name.
const Family& family_of(std::string_view name);

/// The attention of one layer of a family at one length.
struct FamilyLayer {
  std::string options;           ///< the options that it was built with
  AttentionOutline outline;      ///< its calls of attention
  int64_t pairs = 0;             ///< pairs of all heads, by the closed formula
  std::array<int64_t, 2> ids{};  ///< rows of the relation tables of each call; 0: no tables
  int64_t max_distance = 0;      ///< maximum distance of these labels
};

/// Returns a family, or a pattern with one parameter, given as "name" or "name:number":
///   dense, causal        all pairs, all earlier keys
///   fixed, strided       Sparse Transformer, both index sets in every head, stride (or block)
///                        `number`, default the multiple of 16 nearest to sqrt(length); summaries
///                        of 16 columns
///   blockbert            `number` blocks, default 3: 6 of 8 heads attend to their own block, the
///                        others to the next and the one after
///   bigbird              blocks of `number` tokens, default 64, 3 random ones a row
///   longformer           `number` keys a side, default 256
///   longformer_globals   the same with the first 64 tokens global
///   led                  `number` keys a side, default 512, and the first token global, as in LED
///   etc                  84 a side, 230 globals, labels of distances up to 12 and of links
///   band, causal_band    `number` keys a side; `number` earlier keys and the query itself; default
///                        256
/// Throws ValueError on any other name, and when a closed formula does not hold at the length.
FamilyLayer family_layer(std::string_view name, int64_t length, int64_t heads);

/// Counts the pairs of all heads that the layouts attend to, and those that their runs cover, one
/// by one.
OutlineCount counted_pairs(const FamilyLayer& layer);

/// Attention of a layer without projections, forward and backward, on queries, keys and values of
/// its own, uniform in [-1, 1).
class AttentionRun {
 public:
  AttentionRun(const FamilyLayer& layer, int64_t width);

  /// Returns one output for all calls that share a softmax.
  std::vector<Tensor> forward() const;
  /// Runs forward, and returns the gradients of queries, keys, values and tables.
  std::vector<Tensor> both() const;

 private:
  struct BoundCall {
    std::vector<AttentionPattern> parts;  // patterns that share one softmax
    Tensor q;
    std::vector<Keys> keys;
    ScoreTerms terms;
  };

  std::vector<BoundCall> calls_;
  std::vector<Tensor> leaves_, dy_;
};

/// The same with the projections of queries, keys, values and outputs, D = heads * width. x and the
/// weights have the fixed values of bench/peers/sparse.py. Supports bigbird, longformer,
/// longformer_globals and led, whose layers transformers has; throws ValueError for others.
class LayerRun {
 public:
  LayerRun(std::string_view family, int64_t length, int64_t heads, int64_t width);

  /// Runs forward, and returns the gradients of x [1, L, D] and of all weights.
  std::vector<Tensor> both() const;

 private:
  std::unique_ptr<Layer> layer_;
  LayerContext ctx_;
  Tensor x_;
  std::vector<Tensor> leaves_, dy_;
};

}  // namespace longspan::bench
