#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "models/encoder.h"
#include "models/registry.h"
#include "ops/pattern_blocks.h"

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

/// Big Bird: Transformers for Longer Sequences \cite zaheer2020 , with internal global blocks
/// (ITC).
struct BigBirdConfig : EncoderConfig {
  int64_t block = 64, n_random = 3;  ///< b and r of sec. 2: tokens of a block, random blocks a row
  RandomPlan random = RandomPlan::uniform;
  uint64_t random_seed = 0;  ///< of the random blocks, which stay for good
  GlobalLast global_last = GlobalLast::real;
  /// A given block that the row sees already counts once more, as in the reference implementations;
  /// else it is refused.
  bool count_repeats = false;

  void visit(auto& v) {
    EncoderConfig::visit(v);
    v("block", block)("n_random", n_random)("random", random)("random_seed", random_seed)(
        "global_last", global_last)("count_repeats", count_repeats);
  }
};

/// R(i) of rows 1 .. n - 2 of a head: r distinct blocks each, ascending, none of which the row's
/// window and the global blocks hold. They depend on (random_seed, layer, head, row, n) alone.
/// Throws ValueError where n < 5 + r, which is for dense attention.
std::vector<std::vector<int64_t>> random_blocks(const BigBirdConfig& config, int64_t layer,
                                                int64_t head, int64_t n);

/// Pairs that a head attends for n blocks of b tokens, n >= 5 + r:
///   b^2 (2 n + 2 (4 + r) + (n - 4) (5 + r))
int64_t bigbird_pairs(int64_t n, int64_t block, int64_t n_random);

/// An encoder in BERT's shape whose rows of blocks see (sec. 2)
///   row 0, row n - 1    all blocks
///   row i between       {0, i - 1, i, i + 1, n - 1} and R(i), r random blocks for each head
/// of n = ceil(L / b) blocks, the last one short where b does not divide L. With fewer than 5 + r
/// blocks everybody sees everything. Cost is linear in L.
class BigBird final : public Encoder {
 public:
  /// Throws ValueError, naming the fields, where they do not fit together.
  BigBird(const BigBirdConfig& config, const Init& init);

  const BigBirdConfig& config() const { return config_; }

  /// The random blocks of random = given, for inputs of n blocks: i64 [layers, H, n - 2, r]. Throws
  /// ShapeError. Inputs of other lengths then throw ValueError, and so do all, unless
  /// count_repeats, where a row sees one of its blocks already.
  void set_random_blocks(const Tensor& blocks);

  /// What each head of a layer sees of a sample of `length` tokens.
  BlockTable table(int64_t layer, int64_t head, int64_t length) const;

 protected:
  Given given(const EncoderInputs& in) const override;

 private:
  struct Layouts;

  /// The patterns of all layers for samples of these lengths, padded to `length`.
  std::vector<AttentionPattern> make_patterns(int64_t length,
                                              const std::vector<int64_t>& valid) const;

  BigBirdConfig config_;
  Tensor random_blocks_;              // of random = given
  std::shared_ptr<Layouts> layouts_;  // the latest, since building them is not free
};

/// The model by the name that programs use.
const ModelEntry& bigbird_entry();

/// Configurations of the paper. Throws ValueError on an unknown name.
BigBirdConfig bigbird_preset(std::string_view name);

}  // namespace longspan
