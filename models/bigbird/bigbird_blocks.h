#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "models/preset.h"
#include "nn/fields.h"
#include "ops/patterns/blocks.h"

namespace longspan {

/// How random blocks are drawn. uniform: from all blocks that the row does not attend to otherwise;
/// first_1024: only from such blocks in the first 1,024 tokens, as in the paper's experiments (in
/// the first r + 5 blocks if those are longer and attention is bidirectional); given:
/// set_random_blocks() supplies them; package: as the package transformers, where every row counts
/// the first block r times more in evaluation, training draws as first_1024 does, and attention is
/// full up to 5 + 2 r blocks.
enum class RandomPlan : uint8_t { uniform, first_1024, given, package };
template <>
inline constexpr std::array<std::string_view, 4> value_names<RandomPlan>{"uniform", "first_1024",
                                                                         "given", "package"};

/// Which block is the last, global one. real: the last block that holds a valid token of the
/// sample; padded: the last block of the batch, as in the reference implementations, so that the
/// result depends on the padding.
enum class GlobalLast : uint8_t { real, padded };
template <>
inline constexpr std::array<std::string_view, 2> value_names<GlobalLast>{"real", "padded"};

/// The block options of a model with BigBird's attention \cite zaheer2020 .
struct BigBirdBlocks {
  int64_t block = 64, n_random = 3;
  RandomPlan random = RandomPlan::uniform;
  uint64_t random_seed = 0;
  GlobalLast global_last = GlobalLast::real;
  /// true: a given block that the row attends to already counts twice, as in the reference
  /// implementations; false: it is an error.
  bool count_repeats = false;

  void visit(auto& v) {
    v("block", block, range::positive, "b, tokens of a block");
    v("n_random", n_random, "r, random blocks that a block of queries sees");
    v("random", random, "how random blocks are drawn");
    v("random_seed", random_seed, "seed of the random blocks, which never change");
    v("global_last", global_last, "the last global block: of real tokens, or of the padded length");
    v("count_repeats", count_repeats, "random = given: a block that is seen already counts twice");
  }
};

/// How the paper trains BigBird and BigBird-ETC (appendix E): Adam, warm-up of 10,000 steps, linear
/// decay.
constexpr TrainingDefaults bigbird_training(int64_t batch) {
  return {.length = 4096,
          .batch = batch,
          .steps = 500'000,
          .lr = 1e-4,
          .warmup = 10'000,
          .lr_floor = 0,
          .clip = 1,
          .weight_decay = 0.01};
}

/// Blocks begin to end - 1; empty if end <= begin.
struct BlockRange {
  int64_t begin = 0, end = 0;
};
/// Draws `count` blocks from these ranges, or all if there are fewer, in ascending order. The
/// result depends only on the arguments. Time grows with count, not with the ranges.
std::vector<int64_t> draw_blocks(std::span<const BlockRange> from, int64_t count, uint64_t seed,
                                 int64_t layer, int64_t head, int64_t n, int64_t row);

/// Returns R(i) of rows 1 .. n - 2 of a head: r distinct blocks each, ascending, outside the row's
/// window and the global blocks. They depend only on (random_seed, layer, head, row, n). Throws
/// ValueError if n < 5 + r, which requires full attention.
std::vector<std::vector<int64_t>> random_blocks(const BigBirdBlocks& blocks, int64_t layer,
                                                int64_t head, int64_t n);

/// Returns R(i) of row i of a causal head: r distinct blocks of 1 .. i - 2, ascending, or all of
/// them if there are fewer. They do not depend on the number of later blocks.
std::vector<int64_t> past_random_blocks(const BigBirdBlocks& blocks, int64_t layer, int64_t head,
                                        int64_t row);

/// Returns for each layer the random blocks of every head for `length` tokens, restricted by
/// `mask`: query block i attends to r blocks k with |k - i| > near, or to all of these if there are
/// fewer. Costs as many steps on the host for each layer and head as there are pairs of blocks.
std::vector<AttentionPattern> far_random_blocks(const BigBirdBlocks& blocks, int64_t near,
                                                int64_t n_layer, int64_t n_head, int64_t length,
                                                const PairMask& mask);

/// Returns the pairs that a head attends to for n blocks of b tokens, n >= 5 + r:
///   b^2 (2 n + 2 (4 + r) + (n - 4) (5 + r))
int64_t bigbird_pairs(int64_t n, int64_t block, int64_t n_random);

/// Builds the attention patterns of all layers and heads from the block options.
class BigBirdPatterns {
 public:
  ///   model   name of the model, for messages
  ///   n_max   largest number of tokens of an input
  ///   causal  the lower triangle: row i attends to {0, i - 1, i} and past_random_blocks(), and to
  ///           no later token within its own block. The last block is not global, so that a row
  ///           does not depend on later tokens.
  /// Throws ValueError that names the fields when they do not fit together.
  BigBirdPatterns(std::string model, const BigBirdBlocks& blocks, int64_t n_layer, int64_t n_head,
                  int64_t n_max, bool causal = false);

  /// Sets the random blocks for random = given and inputs of n blocks: i64 [layers, H, n - 2, r].
  /// Throws ShapeError. Afterwards inputs of other lengths throw ValueError. Without count_repeats
  /// all inputs do if a random block is one that its row attends to already.
  void set_random_blocks(const Tensor& blocks);

  /// Returns the blocks that a head of a layer attends to, for a sample of `length` tokens.
  BlockTable table(int64_t layer, int64_t head, int64_t length, bool training = false) const;
  /// Returns the patterns of all layers for [B, length] with valid `lengths` (i64 [B]; undefined:
  /// all).
  std::vector<AttentionPattern> of(int64_t length, const Tensor& lengths,
                                   bool training = false) const;
  /// Returns the patterns of all layers for queries `first` to length - 1 and all `length` keys;
  /// causal only.
  std::vector<AttentionPattern> rows(int64_t first, int64_t length) const;

 private:
  BlockTable causal_table(int64_t layer, int64_t head, int64_t first, int64_t length) const;
  std::vector<AttentionPattern> make(int64_t length, const std::vector<int64_t>& valid,
                                     int64_t first, bool training) const;

  std::string model_;
  BigBirdBlocks blocks_;
  int64_t n_layer_, n_head_;
  bool causal_;
  Tensor random_blocks_;  // of random = given
};

}  // namespace longspan
