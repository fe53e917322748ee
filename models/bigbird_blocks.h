#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "nn/fields.h"
#include "ops/patterns/blocks.h"

namespace longspan {

/// Where random blocks come from. uniform: any block that the row does not see yet; first_1024:
/// such blocks of the first 1,024 tokens, as in the paper's experiments; given:
/// set_random_blocks().
enum class RandomPlan : uint8_t { uniform, first_1024, given };
template <>
inline constexpr std::array<std::string_view, 3> value_names<RandomPlan>{"uniform", "first_1024",
                                                                         "given"};

/// Which block is the last one, that everybody sees. real: the last that holds a valid token of the
/// sample; padded: the last of the batch, as in the reference implementations, where the result
/// depends on the padding.
enum class GlobalLast : uint8_t { real, padded };
template <>
inline constexpr std::array<std::string_view, 2> value_names<GlobalLast>{"real", "padded"};

/// What a model with BigBird's attention says of its blocks \cite zaheer2020 .
struct BigBirdBlocks {
  int64_t block = 64, n_random = 3;  ///< b and r of sec. 2: tokens of a block, random blocks a row
  RandomPlan random = RandomPlan::uniform;
  uint64_t random_seed = 0;  ///< of the random blocks, which stay for good
  GlobalLast global_last = GlobalLast::real;
  /// A given block that the row sees already counts once more, as in the reference implementations;
  /// else it is refused.
  bool count_repeats = false;

  void visit(auto& v) {
    v("block", block)("n_random", n_random)("random", random)("random_seed", random_seed)(
        "global_last", global_last)("count_repeats", count_repeats);
  }
};

/// Blocks begin to end - 1; none where end <= begin.
struct BlockRange {
  int64_t begin = 0, end = 0;
};
/// `count` blocks of these ranges, or all where there are fewer, ascending; they depend on the rest
/// alone. Takes time that grows with count, not with the ranges.
std::vector<int64_t> draw_blocks(std::span<const BlockRange> from, int64_t count, uint64_t seed,
                                 int64_t layer, int64_t head, int64_t n, int64_t row);

/// R(i) of rows 1 .. n - 2 of a head: r distinct blocks each, ascending, none of which the row's
/// window and the global blocks hold. They depend on (random_seed, layer, head, row, n) alone.
/// Throws ValueError where n < 5 + r, which is for dense attention.
std::vector<std::vector<int64_t>> random_blocks(const BigBirdBlocks& blocks, int64_t layer,
                                                int64_t head, int64_t n);

/// R(i) of row i of a head that sees no later blocks: r distinct blocks of 1 .. i - 2, ascending,
/// or all where there are fewer. They do not depend on how many blocks follow.
std::vector<int64_t> past_random_blocks(const BigBirdBlocks& blocks, int64_t layer, int64_t head,
                                        int64_t row);

/// Pairs that a head attends for n blocks of b tokens, n >= 5 + r:
///   b^2 (2 n + 2 (4 + r) + (n - 4) (5 + r))
int64_t bigbird_pairs(int64_t n, int64_t block, int64_t n_random);

/// What every layer and head of a model sees, by its blocks.
class BigBirdPatterns {
 public:
  /// model   its name, for messages
  /// n_max   most tokens of an input
  /// causal  the lower triangle: row i sees {0, i - 1, i} and past_random_blocks(), of its own
  ///         block no later token. The last block is as any other, so that a row does not depend
  ///         on what follows.
  /// Throws ValueError, naming the fields, where they do not fit together.
  BigBirdPatterns(std::string model, const BigBirdBlocks& blocks, int64_t n_layer, int64_t n_head,
                  int64_t n_max, bool causal = false);

  /// The random blocks of random = given, for inputs of n blocks: i64 [layers, H, n - 2, r]. Throws
  /// ShapeError. Inputs of other lengths then throw ValueError, and so do all, unless
  /// count_repeats, where a row sees one of its blocks already.
  void set_random_blocks(const Tensor& blocks);

  /// What each head of a layer sees of a sample of `length` tokens.
  BlockTable table(int64_t layer, int64_t head, int64_t length) const;
  /// Of all layers, for [B, length] of which each sample has `lengths` (i64 [B]; undefined: all).
  std::vector<AttentionPattern> of(int64_t length, const Tensor& lengths) const;
  /// Of all layers, for queries `first` to length - 1 over all `length` keys; only where causal.
  std::vector<AttentionPattern> rows(int64_t first, int64_t length) const;

 private:
  BlockTable causal_table(int64_t layer, int64_t head, int64_t first, int64_t length) const;
  std::vector<AttentionPattern> make(int64_t length, const std::vector<int64_t>& valid,
                                     int64_t first) const;

  std::string model_;
  BigBirdBlocks blocks_;
  int64_t n_layer_, n_head_;
  bool causal_;
  Tensor random_blocks_;  // of random = given
};

}  // namespace longspan
