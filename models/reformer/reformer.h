#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/causal_decoder.h"
#include "models/model_spec.h"
#include "nn/attention/lsh.h"
#include "nn/axial.h"
#include "nn/fields.h"
#include "nn/layers.h"
#include "nn/memory_policy.h"

namespace longspan {

/// Option values of the settings of LSH attention.
template <>
inline constexpr std::array<std::string_view, 3> value_names<LshWrap>{"none", "round", "global"};
template <>
inline constexpr std::array<std::string_view, 3> value_names<LshDuplicates>{"first", "log_count",
                                                                            "off"};
template <>
inline constexpr std::array<std::string_view, 2> value_names<LshScale>{"official", "rsqrt_d"};

/// The attention of a Reformer layer.
enum class ReformerLayer : uint8_t { lsh, local };
template <>
inline constexpr std::array<std::string_view, 2> value_names<ReformerLayer>{"lsh", "local"};

/// Reformer: The Efficient Transformer. \cite kitaev2020 The fields of LSH attention have the
/// paper's values; reformer_variant() sets those of other implementations. `whole_chunks` does what
/// the code of transformers does and the paper does not: it pads sequences of more than one chunk
/// to whole chunks of every layer, attends in full within sequences of up to one chunk, and lets
/// the windows of bidirectional layers wrap around.
struct ReformerConfig {
  int64_t vocab = 256, n_layer = 4, n_head = 4, d_model = 128, d_ff = 512;
  int64_t d_head = 0;          ///< 0: d_model / n_head
  int64_t n_max = 1024;        ///< L, the longest sequence
  bool causal = true;          ///< true: predicts the next token; false: masked tokens
  std::string layers = "lsh";  ///< lsh or local for each layer, separated by commas, repeated
                               ///< cyclically

  int64_t rounds = 4;                     ///< R
  int64_t chunk = 64;                     ///< m
  int64_t look_back = 1, look_ahead = 0;  ///< a, z
  /// nb, or its two factors; empty: as bucket_rule says for the length of each sequence, and for
  /// n_max in decoding (programs settle it: settle_length()).
  std::vector<int64_t> buckets;
  BucketRule bucket_rule = BucketRule::paper;
  bool same_bucket = true;  ///< keys of other buckets are masked
  LshDuplicates duplicates = LshDuplicates::first;
  LshWrap wrap = LshWrap::none;
  LshScale logit_scale = LshScale::official;
  double self_logit = -1e5;
  bool whole_chunks = false;
  /// Shorter sequences get full attention without hashing; 0: none; -1: sequences shorter than the
  /// number of keys that hashing offers to a query, R m (1 + a + z), near which hashing becomes
  /// faster.
  int64_t full_below = 0;
  uint64_t hash_seed = 0;  ///< seed of the rotations outside training

  int64_t local_chunk = 0;  ///< chunk of local layers; 0: chunk
  int64_t local_back = 1, local_ahead = 0;

  std::vector<int64_t> position_shape;   ///< n_1, n_2[, n_3]; empty: as default_axial_shape()
  std::vector<int64_t> position_widths;  ///< d_1, d_2[, d_3]; empty: equal shares of d_model

  Activation activation = Activation::relu;
  double norm_eps = 1e-6;
  bool mean_exit = false;  ///< the head reads the mean of both streams instead of both
  bool head_bias = true;
  float dropout = 0;        ///< on embeddings, positions, branches and within feed-forward layers
  float dropout_attn = 0;   ///< on probabilities of LSH attention
  float dropout_local = 0;  ///< on probabilities of local attention
  /// Shares one mask of columns among all positions and samples, and one mask of LSH probabilities
  /// among all chunks, as trax does.
  bool dropout_broadcast = false;
  double init_std = 0;   ///< std of all matrices; 0: Glorot uniform
  double embed_std = 1;  ///< std of the token table
  double head_std = 0;   ///< std of the projection to tokens; 0: as the other matrices
  double position_std = 1;
  Precision precision = Precision::f32;
  HeadOptions token_head = {};
  MemoryPolicy memory = {};

  void visit(auto& v) {
    v("vocab", vocab)("n_layer", n_layer)("n_head", n_head)("d_model", d_model)("d_ff", d_ff)(
        "d_head", d_head)("n_max", n_max)("causal", causal)("layers", layers);
    v("rounds", rounds)("chunk", chunk)("look_back", look_back)("look_ahead", look_ahead)(
        "buckets", buckets)("bucket_rule", bucket_rule)("same_bucket", same_bucket)(
        "duplicates", duplicates)("wrap", wrap)("logit_scale", logit_scale)(
        "self_logit", self_logit)("whole_chunks", whole_chunks)("full_below", full_below)(
        "hash_seed", hash_seed);
    v("local_chunk", local_chunk)("local_back", local_back)("local_ahead", local_ahead)(
        "position_shape", position_shape)("position_widths", position_widths);
    v("activation", activation)("norm_eps", norm_eps)("mean_exit", mean_exit)(
        "head_bias", head_bias)("dropout", dropout)("dropout_attn", dropout_attn)(
        "dropout_local", dropout_local)("dropout_broadcast", dropout_broadcast);
    v("init_std", init_std)("embed_std", embed_std)("head_std", head_std)(
        "position_std", position_std)("precision", precision)("memory", memory)("chunks",
                                                                                memory.chunks);
    token_head.visit(v);
  }

  /// See ModelSpec. What is settled are the buckets.
  std::string_view extend_positions(int64_t length);
  std::string_view settle_length(int64_t length);
  /// Throws ValueError that names the fields when they do not fit together.
  void check() const;
  /// Resolve defaults: head_width() returns d, local_keys() returns m of local layers.
  int64_t head_width() const;
  int64_t local_keys() const;
  /// Returns the attention of each layer. Throws ValueError on an empty list or an unknown name.
  std::vector<ReformerLayer> layer_kinds() const;
  /// Returns the longest sequence that hashed layers attend to in full.
  int64_t full_up_to() const;
  /// Returns the length padded to whole chunks if whole_chunks requires it.
  int64_t padded(int64_t length) const;
  /// Return the grid of positions: position_shape and position_widths, or their defaults.
  std::vector<int64_t> axes() const;
  std::vector<int64_t> axis_widths() const;
};

/// The settings in which implementations differ (models/reformer/reformer_presets.cc): `paper`,
/// also trax until April 2020; `trax2`, later trax; `hf`, transformers; `lucid`, lucidrains'
/// reformer-pytorch.
enum class ReformerVariant : uint8_t { paper, trax2, hf, lucid };
ReformerConfig reformer_variant(ReformerConfig config, ReformerVariant variant);

/// The inputs of a Reformer.
struct ReformerInputs {
  Tensor tokens;                     ///< [B, L] of an integer dtype
  Tensor lengths = {};               ///< i64 [B]: number of valid tokens in each row; undefined:
                                     ///< all
  std::vector<Tensor> buckets = {};  ///< for each layer, in place of hashing: i32 [B, H, R, L]
};

/// A language model of reversible blocks, y1 = x1 + Attention(LN(x2)), y2 = x2 + FF(LN(y1)). A
/// query attends only to keys in its own hash bucket (with same_bucket).
class Reformer final : public CausalDecoder {
 public:
  /// Throws ValueError that names the fields when they do not fit together.
  Reformer(const ReformerConfig& config, const Init& init);

  const ReformerConfig& config() const { return config_; }

  /// Hidden states after the final norm, [B, L, 2 D] ([B, L, D] with mean_exit), and the buckets of
  /// each layer, undefined for local layers.
  struct Result {
    Tensor hidden;
    std::vector<Tensor> buckets;
  };
  Result forward(const ReformerInputs& in, Pass pass) const;
  using CausalDecoder::forward;
  /// Sets the rotations of every LSH layer, [1 or B, 1 or H, R, d, w], in place of random ones.
  void set_rotations(const Tensor& rotations);

  Objective objective() const override;
  int64_t mask_token() const override { return config_.causal ? -1 : config_.vocab - 1; }
  bool reversible_layers() const override { return true; }
  /// Says whether hashed layers hash or attend in full at this length.
  std::string remark(int64_t length) const override;
  std::unique_ptr<DecodeState> start_decoding(int64_t batch) const override;
  Tensor attention_map(const Tensor& tokens, int64_t layer) const override;
  /// For a local layer. Throws NotImplemented for LSH, whose attention depends on the tokens.
  AttentionOutline attention_outline(int64_t layer, int64_t length) const override;

 private:
  struct Branch;
  struct ReversibleRun;
  struct Block : Module {
    void visit(Visitor& v) override;
    std::shared_ptr<Branch> attention, ff;
  };

  LayerContext layer_context(int64_t queries, int64_t keys, int64_t /*first_key*/) const override {
    return local_context(queries, keys, {});
  }
  Tensor embed(const Tensor& tokens, int64_t first, Pass pass) const override;
  Stack::Result states(const Tensor& tokens, const SegmentMemory& memory, Pass pass) const override;
  Stack::Result run(const Tensor& x, const LayerContext& ctx, StreamState* state,
                    Pass pass) const override;
  void visit_more(Visitor& v) override;
  /// Returns the context of local layers when `queries` are the last of `keys` tokens.
  LayerContext local_context(int64_t queries, int64_t keys, const Tensor& lengths) const;
  /// Returns the streams after the first `blocks` blocks.
  ReversibleRun run_blocks(const Tensor& x, const LayerContext& ctx, const SegmentMemory& memory,
                           const std::vector<Tensor>& buckets, Pass pass, int64_t blocks) const;
  /// Returns the first `length` rows of both streams, prepared for the head.
  Tensor exit(ReversibleRun& run, int64_t length, Pass pass) const;
  LshAttention* lsh(int64_t layer) const;  // null for a local layer

  ReformerConfig config_;
  std::vector<ReformerLayer> kinds_;  // of each layer
  AxialPositions position_;
  std::vector<Block> blocks_;
  Normalization final_norm_;
};

/// Entry of the model under the name that programs use.
const ModelEntry& reformer_entry();

/// Configurations of the paper and of released code; models/reformer/reformer_presets.cc. Throws
/// ValueError on an unknown name.
ReformerConfig reformer_preset(std::string_view name);

}  // namespace longspan
