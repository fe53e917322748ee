#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "models/encoder.h"
#include "models/model_spec.h"

namespace longspan {

/// fused: nothing of block by block is kept; materialized: probabilities are, as in implementations
/// without fused kernels, for comparisons of memory.
enum class AttentionImpl : uint8_t { fused, materialized };
template <>
inline constexpr std::array<std::string_view, 2> value_names<AttentionImpl>{"fused",
                                                                            "materialized"};

/// blocks: BlockBERT's; fixed: the sparse attention that the paper compares with, fixed factorised
/// attention \cite child2019 in both directions ("SparseBERT").
enum class BlockBertPattern : uint8_t { blocks, fixed };
template <>
inline constexpr std::array<std::string_view, 2> value_names<BlockBertPattern>{"blocks", "fixed"};

/// Blockwise Self-Attention for Long Document Understanding \cite qiu2020 .
struct BlockBertConfig : EncoderConfig {
  int64_t n_block = 2;  ///< n: blocks of a sequence
  /// Heads for each cyclic shift of the blocks, e.g. 10, 2: the first ten look at their own block,
  /// the other two at the next one (sec. 3.2). Empty: all heads at their own.
  std::vector<int64_t> heads_per_shift = {3, 1};
  /// Permutations of one's own, n_block numbers for each head: query block k of head a sees key
  /// block permutations[a n_block + k]. Empty: those of heads_per_shift.
  std::vector<int64_t> permutations;
  /// Blocks as if inputs were padded to a multiple of this many tokens; 0: of the input itself.
  int64_t pad_to_multiple = 0;
  AttentionImpl attention_impl = AttentionImpl::fused;
  /// With fixed the blocks above mean nothing: a row sees its own `stride` tokens and the last
  /// `columns` of every block of so many.
  BlockBertPattern pattern = BlockBertPattern::blocks;
  int64_t stride = 128, columns = 32;

  void visit(auto& v) {
    EncoderConfig::visit(v);
    v("n_block", n_block)("heads_per_shift", heads_per_shift)("permutations", permutations)(
        "pad_to_multiple", pad_to_multiple)("attention_impl", attention_impl)("pattern", pattern)(
        "stride", stride)("columns", columns);
  }
};

/// pi_a of each head. Throws ValueError, naming the field, where the heads are not all served.
std::vector<std::vector<int64_t>> block_permutations(const BlockBertConfig& config);

/// An encoder in BERT's shape, each head of which sees one block of keys from each block of
/// queries:
///   blk(i) = floor(i n / L),  M_a[i, j] = 1 iff pi_a(blk(i)) = blk(j)                 (sec. 3.1)
///   head_a = softmax(Q_a K_a^T / sqrt(d), where M_a) V_a
/// so that attention costs L^2 / n pairs a head. A row whose key block is all padding gets 0 from
/// that head.
class BlockBert final : public Encoder {
 public:
  /// Throws ValueError, naming the fields, where they do not fit together.
  BlockBert(const BlockBertConfig& config, const Init& init);

  const BlockBertConfig& config() const { return config_; }

 protected:
  LayerContext layer_context(const EncoderInputs& in) const override;

 private:
  BlockBertConfig config_;
  std::vector<std::vector<int64_t>> permutations_;
};

/// The model by the name that programs use.
const ModelEntry& blockbert_entry();

/// Configurations of the paper. Throws ValueError on an unknown name.
BlockBertConfig blockbert_preset(std::string_view name);

}  // namespace longspan
