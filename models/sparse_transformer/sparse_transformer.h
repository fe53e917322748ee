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
  static constexpr const char* model_name = "sparse_transformer";  ///< in messages

  int64_t vocab = 256, n_layer = 4, n_head = 4, d_model = 128, d_ff = 512;
  double qk_ratio = 1;
  int64_t n_max = 1024;

  /// One or more index sets, separated by commas. With `merged` they are "local,strided",
  /// "block,summary" or a single one; with `interleave` and `multihead` a set may occur twice.
  std::string index_sets = "block,summary";
  Integration integration = Integration::merged;
  int64_t stride = 32;
  int64_t columns = 8;
  int64_t sub_blocks = 0;
  bool paper_window = false;

  /// Axes of the position tables, e.g. 32,32,3 for rows, columns and colours; empty: ceil(n_max /
  /// l) and l.
  std::vector<int64_t> position_shape;
  bool pos_before_shift = false;
  /// Shifts the input right by one: a learned vector replaces the embedding of the first token. For
  /// sequences without a preceding token, such as images.
  bool begin_vector = false;
  double norm_eps = 1e-5, final_norm_eps = 1e-5;
  bool tie_embedding = false;
  float dropout = 0;
  SparseInit init = SparseInit::code;
  double embed_std = 0;
  Precision precision = Precision::f32;
  HeadOptions token_head = {};
  MemoryPolicy memory = {};

  void visit(auto& v) {
    visit_sizes(v, *this);
    v("qk_ratio", qk_ratio, "width of all heads' queries over d_model; keys have the same");
    v("n_max", n_max, range::positive, "maximum tokens of a sequence");
    v("index_sets", index_sets, "local, strided, block, summary, .. with commas between them");
    v("integration", integration, "how the sets are distributed over layers and heads");
    v("stride", stride, range::positive,
      "l, period of the data, as the bytes of a row of an image");
    v("columns", columns, "c, last tokens of each stride that summary sets see");
    v("sub_blocks", sub_blocks, "head h uses sub-block h mod this; 0: min(n_head, l div c)");
    v("paper_window", paper_window, "local sets have l + 1 keys, as in the paper's formula");
    v("position_shape", position_shape,
      "axes of the position tables, as 32,32,3; empty: from n_max and l");
    v("pos_before_shift", pos_before_shift,
      "a slot has the position of its input token, not its target");
    v("begin_vector", begin_vector,
      "a learned vector before the first token; the last one is no input");
    v("norm_eps", norm_eps, range::above_zero, meaning::norm_eps);
    v("final_norm_eps", final_norm_eps, range::above_zero, "the same, of the final norm");
    v("tie_embedding", tie_embedding, meaning::tie_embedding);
    v("dropout", dropout, range::probability, "of the outputs of branches");
    v("init", init, "std of matrices: 0.125 under the root, or beside it");
    v("embed_std", embed_std, range::not_negative, "std of tokens and positions; 0: as init says");
    visit_computation(v, *this);
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
