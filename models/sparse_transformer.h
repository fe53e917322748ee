#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/model.h"
#include "models/model_spec.h"
#include "models/parts.h"
#include "nn/attention.h"
#include "nn/fields.h"
#include "nn/layers.h"
#include "nn/position.h"
#include "nn/stack.h"

namespace longspan {

/// Which earlier positions j <= i query i sees, with stride (or block) l and c columns
/// \cite child2019 (sec. 4.2, 4.3):
///   local    i - j < l
///   strided  (i - j) mod l = 0
///   block    floor(j / l) = floor(i / l)
///   summary  l - (s + 1) c <= j mod l < l - s c in sub-block s
///   dense    all
enum class IndexSet : uint8_t { local, strided, block, summary, dense };
template <>
inline constexpr std::array<std::string_view, 5> value_names<IndexSet>{"local", "strided", "block",
                                                                       "summary", "dense"};

/// How several index sets become one model (sec. 5.1): layer by layer in turn; their union in every
/// head; or head by head in turn.
enum class Integration : uint8_t { interleave, merged, multihead };
template <>
inline constexpr std::array<std::string_view, 3> value_names<Integration>{"interleave", "merged",
                                                                          "multihead"};

/// Deviation of the weights: sqrt(0.125 / fan-in) of the authors' code, or the 0.125 / sqrt(fan-in)
/// of the paper (sec. 6) read as a deviation, about 2.8 times smaller.
enum class SparseInit : uint8_t { code, paper_literal };
template <>
inline constexpr std::array<std::string_view, 2> value_names<SparseInit>{"code", "paper_literal"};

/// Generating Long Sequences with Sparse Transformers. \cite child2019
struct SparseTransformerConfig {
  int64_t vocab = 256, n_layer = 4, n_head = 4, d_model = 128, d_ff = 512;
  double qk_ratio = 1;   ///< width of all queries of a token, as a share of d_model; so of keys
  int64_t n_max = 1024;  ///< L, the longest sequence

  /// One or more index sets, separated by commas. Merged, they are "local,strided",
  /// "block,summary" or a single one; an index set may occur twice in turns.
  std::string index_sets = "block,summary";
  Integration integration = Integration::merged;
  int64_t stride = 32;        ///< l: the period of the data, e.g. the bytes of a row of an image
  int64_t columns = 8;        ///< c
  int64_t sub_blocks = 0;     ///< s of head h is h mod it; 0: the lesser of n_head and l div c
  bool paper_window = false;  ///< local sets of l + 1 keys, as the paper's formula has them

  /// Axes of the position tables, e.g. 32,32,3 for rows, columns and colours; empty: ceil(n_max /
  /// l) and l.
  std::vector<int64_t> position_shape;
  bool pos_before_shift = false;  ///< a slot has the position of the token in it, not of its target
  /// A learned vector stands where the first token of a sequence would be read, which is then not:
  /// for sequences with nothing before them, such as images.
  bool begin_vector = false;
  double norm_eps = 1e-5, final_norm_eps = 1e-5;
  bool tie_embedding = false;
  float dropout = 0;  ///< of the two residual branches, and nowhere else
  SparseInit init = SparseInit::code;
  double embed_std = 0;  ///< of tokens and positions; 0: as init says
  Precision precision = Precision::f32;
  HeadOptions token_head = {};
  MemoryPolicy memory = {};

  void visit(auto& v) {
    v("vocab", vocab)("n_layer", n_layer)("n_head", n_head)("d_model", d_model)("d_ff", d_ff)(
        "qk_ratio", qk_ratio)("n_max", n_max)("index_sets", index_sets)("integration", integration)(
        "stride", stride)("columns", columns)("sub_blocks", sub_blocks)("paper_window",
                                                                        paper_window);
    v("position_shape", position_shape)("pos_before_shift", pos_before_shift)(
        "begin_vector", begin_vector)("norm_eps", norm_eps)("final_norm_eps", final_norm_eps)(
        "tie_embedding", tie_embedding)("dropout", dropout)("init", init)("embed_std", embed_std)(
        "precision", precision)("memory", memory)("chunks", memory.chunks);
    token_head.visit(v);
  }

  /// As ModelSpec's.
  std::string_view extend_positions(int64_t length);
  /// index_sets as a list. Throws ValueError on an empty one or an unknown name.
  std::vector<IndexSet> sets() const;
  /// s of head h.
  int64_t sub_block(int64_t head) const;
};

/// Pairs that all heads of a layer attend to in `length` tokens, by closed formulas: what the cost
/// of a layer is proportional to.
int64_t attended_pairs(const SparseTransformerConfig& config, int64_t layer, int64_t length);

/// A causal language model whose attention is factorised into sparse index sets, so that any token
/// reaches any later one in two layers at O(L sqrt(L)) cost.
class SparseTransformer final : public LanguageModel {
 public:
  /// Throws ValueError, naming the fields, where they do not fit together.
  SparseTransformer(const SparseTransformerConfig& config, const Init& init);

  const SparseTransformerConfig& config() const { return config_; }

  /// tokens [B, L] -> [B, L, D], after the final norm.
  Tensor forward(const Tensor& tokens, Pass pass) const;
  /// Mean over counted targets [B, L], in nats.
  Tensor loss(const Tensor& hidden, const Tensor& targets, Pass pass = {}) const;
  /// What each layer's rows see where `queries` are the last of `keys` tokens.
  LayerContext layer_context(int64_t queries, int64_t keys) const;

  Objective objective() const override { return Objective::next_token; }
  int64_t vocab() const override { return config_.vocab; }
  int64_t max_length() const override { return config_.n_max; }
  Device device() const override { return token_.weight.device(); }
  int64_t layers() const override { return config_.n_layer; }
  Losses loss(const Tensor& tokens, const Tensor& targets, const SegmentMemory& memory,
              Pass pass) const override;
  Tensor logits(const Tensor& tokens, Pass pass) const override;
  std::unique_ptr<DecodeState> start_decoding(int64_t batch) const override;
  Tensor decode(const Tensor& tokens, DecodeState& state) const override;
  Tensor attention_map(const Tensor& tokens, int64_t layer) const override;
  AttentionOutline attention_outline(int64_t layer, int64_t length) const override;
  int64_t macs(int64_t length) const override;
  void visit(Visitor& v) override;

 private:
  Tensor embed(const Tensor& tokens, int64_t first) const;
  /// One index set for every head, each with its own sub-block.
  AttentionPattern every_head(IndexSet set, int64_t queries, int64_t keys) const;
  AttentionPattern pattern(IndexSet set, int64_t sub_block) const;

  SparseTransformerConfig config_;
  std::vector<IndexSet> sets_;
  DType compute_;
  Embedding token_;               // W_e [V, D]
  Tensor begin_;                  // [1, 1, D]
  FactorisedPositions position_;  // P_j
  Stack stack_;
  Linear head_;  // W_out [V, D], W_e where tied
};

/// The model by the name that programs use.
const ModelEntry& sparse_transformer_entry();

/// Configurations of the paper; models/sparse_transformer_presets.cc. Throws ValueError on an
/// unknown name.
SparseTransformerConfig sparse_transformer_preset(std::string_view name);

}  // namespace longspan
