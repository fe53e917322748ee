#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "models/encoder.h"
#include "models/model_spec.h"

namespace longspan {

/// fused: does not store probabilities; materialized: stores them, as implementations without fused
/// kernels do, for comparisons of memory.
enum class AttentionImpl : uint8_t { fused, materialized };
template <>
inline constexpr std::array<std::string_view, 2> value_names<AttentionImpl>{"fused",
                                                                            "materialized"};

/// blocks: BlockBERT's; fixed: the sparse attention that the paper compares with, fixed factorized
/// attention \cite child2019 in both directions ("SparseBERT").
enum class BlockBertPattern : uint8_t { blocks, fixed };
template <>
inline constexpr std::array<std::string_view, 2> value_names<BlockBertPattern>{"blocks", "fixed"};

/// Blockwise Self-Attention for Long Document Understanding \cite qiu2020 .
struct BlockBertConfig : EncoderConfig {
  int64_t n_block = 2;
  /// Number of heads for each cyclic shift of the blocks, e.g. 10, 2: the first ten attend to their
  /// own block, the other two to the next one (sec. 3.2). Empty: all heads attend to their own.
  std::vector<int64_t> heads_per_shift = {3, 1};
  /// Custom permutations, n_block entries for each head: query block k of head a attends to key
  /// block permutations[a n_block + k]. Empty: permutations by heads_per_shift.
  std::vector<int64_t> permutations;
  /// Block bounds are computed from the length, rounded up to a multiple of this many tokens; 0:
  /// not rounded.
  int64_t pad_to_multiple = 0;
  AttentionImpl attention_impl = AttentionImpl::fused;
  /// With `fixed` the block options above have no effect: a row attends to its own segment of
  /// `stride` tokens and to the last `columns` tokens of every such segment.
  BlockBertPattern pattern = BlockBertPattern::blocks;
  int64_t stride = 128, columns = 32;

  void visit(auto& v) {
    EncoderConfig::visit(v);
    v("n_block", n_block, "n, blocks of a sequence");
    v("heads_per_shift", heads_per_shift, range::not_negative,
      "heads for each cyclic shift of the blocks, as 10,2; empty: none is shifted");
    v("permutations", permutations,
      "key block of each head's query blocks; empty: by heads_per_shift");
    v("pad_to_multiple", pad_to_multiple, range::not_negative,
      "blocks divide the length rounded up to this; 0: the length itself");
    v("attention_impl", attention_impl, "how attention is computed");
    v("pattern", pattern, "blocks, or the fixed pattern of the Sparse Transformer");
    v("stride", stride, "pattern = fixed: tokens of a segment");
    v("columns", columns, range::positive,
      "pattern = fixed: last tokens of a segment that all rows see");
  }
};

/// Returns pi_a of each head. Throws ValueError that names the field unless every head gets one.
std::vector<std::vector<int64_t>> block_permutations(const BlockBertConfig& config);

/// An encoder in BERT's shape. Each head attends from each block of queries to one block of keys:
///   blk(i) = floor(i n / L),  M_a[i, j] = 1 iff pi_a(blk(i)) = blk(j)                 (sec. 3.1)
///   head_a = softmax(Q_a K_a^T / sqrt(d), where M_a) V_a
/// Attention costs L^2 / n pairs for each head. A row whose key block is all padding gets 0 from
/// that head.
class BlockBert final : public Encoder {
 public:
  /// Throws ValueError that names the fields when they do not fit together.
  BlockBert(const BlockBertConfig& config, const Init& init);

  const BlockBertConfig& config() const { return config_; }
  /// None with attention_impl = materialized.
  std::vector<int64_t> divided_heads() const override {
    return config_.attention_impl == AttentionImpl::materialized ? std::vector<int64_t>{}
                                                                 : Encoder::divided_heads();
  }

 protected:
  LayerContext layer_context(const EncoderInputs& in, Pass pass) const override;

 private:
  BlockBertConfig config_;
  std::vector<std::vector<int64_t>> permutations_;
};

/// Entry of the model under the name that programs use.
const ModelEntry& blockbert_entry();

/// Configurations of the paper. Throws ValueError on an unknown name.
BlockBertConfig blockbert_preset(std::string_view name);

}  // namespace longspan
