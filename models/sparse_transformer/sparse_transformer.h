#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/causal_decoder.h"
#include "models/model_spec.h"
#include "nn/attention/multi_head.h"
#include "nn/fields.h"
#include "nn/layers.h"
#include "nn/position.h"
#include "nn/stack.h"

namespace longspan {

/// Which earlier positions j <= i query i attends to, with stride (or block length) l and c columns
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

/// How several index sets become one model (sec. 5.1): alternating between layers; their union in
/// every head; or alternating between heads.
enum class Integration : uint8_t { interleave, merged, multihead };
template <>
inline constexpr std::array<std::string_view, 3> value_names<Integration>{"interleave", "merged",
                                                                          "multihead"};

/// Standard deviation of the weights: sqrt(0.125 / fan-in) as in the authors' code, or the paper's
/// 0.125 / sqrt(fan-in) (sec. 6) read as a standard deviation, about 2.8 times smaller.
enum class SparseInit : uint8_t { code, paper_literal };
template <>
inline constexpr std::array<std::string_view, 2> value_names<SparseInit>{"code", "paper_literal"};

/// Generating Long Sequences with Sparse Transformers. \cite child2019
struct SparseTransformerConfig {
  int64_t vocab = 256, n_layer = 4, n_head = 4, d_model = 128, d_ff = 512;
  double qk_ratio = 1;   ///< total query width of a token over d_model; the same for keys
  int64_t n_max = 1024;  ///< L, the longest sequence

  /// One or more index sets, separated by commas. With `merged` they are "local,strided",
  /// "block,summary" or a single one; with `interleave` and `multihead` a set may occur twice.
  std::string index_sets = "block,summary";
  Integration integration = Integration::merged;
  int64_t stride = 32;        ///< l: the period of the data, e.g. the bytes of a row of an image
  int64_t columns = 8;        ///< c
  int64_t sub_blocks = 0;     ///< head h uses sub-block s = h mod this; 0: min(n_head, l div c)
  bool paper_window = false;  ///< local sets have l + 1 keys, as in the paper's formula

  /// Axes of the position tables, e.g. 32,32,3 for rows, columns and colours; empty: ceil(n_max /
  /// l) and l.
  std::vector<int64_t> position_shape;
  bool pos_before_shift = false;  ///< a slot has the position of its input token, not of its target
  /// Shifts the input right by one: a learned vector replaces the embedding of the first token. For
  /// sequences without a preceding token, such as images.
  bool begin_vector = false;
  double norm_eps = 1e-5, final_norm_eps = 1e-5;
  bool tie_embedding = false;
  float dropout = 0;  ///< on the two residual branches only
  SparseInit init = SparseInit::code;
  double embed_std = 0;  ///< std of tokens, and of the sum of all axes' positions; 0: as init says
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

  /// See ModelSpec.
  std::string_view extend_positions(int64_t length);
  /// Parses index_sets. Throws ValueError on an empty list or an unknown name.
  std::vector<IndexSet> sets() const;
  /// Returns s of head h, 0 without summary columns.
  int64_t sub_block(int64_t head) const;
};

/// A causal language model whose attention is factorized into sparse index sets, so that any token
/// reaches any later one within two layers at O(L sqrt(L)) cost.
class SparseTransformer final : public CausalDecoder {
 public:
  /// Throws ValueError that names the fields when they do not fit together.
  SparseTransformer(const SparseTransformerConfig& config, const Init& init);

  const SparseTransformerConfig& config() const { return config_; }

  LayerContext layer_context(int64_t queries, int64_t keys, int64_t first_key) const override;

 private:
  Tensor embed(const Tensor& tokens, int64_t first, Pass pass) const override;
  void visit_more(Visitor& v) override;
  /// One index set for every head, each with its own sub-block.
  AttentionPattern every_head(IndexSet set, int64_t queries, int64_t keys) const;
  AttentionPattern pattern(IndexSet set, int64_t sub_block) const;

  SparseTransformerConfig config_;
  std::vector<IndexSet> sets_;
  Tensor begin_;                  // [1, 1, D]
  FactorisedPositions position_;  // P_j
};

/// Entry of the model under the name that programs use.
const ModelEntry& sparse_transformer_entry();

/// Configurations of the paper; models/sparse_transformer/sparse_transformer_presets.cc. Throws
/// ValueError on an unknown name.
SparseTransformerConfig sparse_transformer_preset(std::string_view name);

}  // namespace longspan
