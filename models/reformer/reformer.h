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
  static constexpr const char* model_name = "reformer";  ///< in messages

  int64_t vocab = 256, n_layer = 4, n_head = 4, d_model = 128, d_ff = 512;
  int64_t d_head = 0;
  int64_t n_max = 1024;
  bool causal = true;
  std::string layers = "lsh";

  int64_t rounds = 4;
  int64_t chunk = 64;
  int64_t look_back = 1, look_ahead = 0;
  /// nb, or its two factors; empty: as bucket_rule says for the length of each sequence, and for
  /// n_max in decoding (programs settle it: settle_length()).
  std::vector<int64_t> buckets;
  BucketRule bucket_rule = BucketRule::paper;
  bool same_bucket = true;
  LshDuplicates duplicates = LshDuplicates::first;
  LshWrap wrap = LshWrap::none;
  LshScale logit_scale = LshScale::official;
  double self_logit = -1e5;
  bool whole_chunks = false;
  /// Shorter sequences get full attention without hashing; 0: none; -1: sequences shorter than the
  /// number of keys that hashing offers to a query, R m (1 + a + z), near which hashing becomes
  /// faster.
  int64_t full_below = 0;
  uint64_t hash_seed = 0;
  /// Every pass uses the rotations that PyTorch draws after this seed, as the package transformers
  /// does with hash_seed. -1: they are drawn here. Needs `buckets`.
  int64_t torch_seed = -1;

  int64_t local_chunk = 0;
  int64_t local_back = 1, local_ahead = 0;

  std::vector<int64_t> position_shape;
  std::vector<int64_t> position_widths;

  Activation activation = Activation::relu;
  double norm_eps = 1e-6;
  int64_t classes = 0;
  bool span_head = false;
  bool mean_exit = false;
  bool head_bias = true;
  float dropout = 0;
  float dropout_attn = 0;
  float dropout_local = 0;
  /// Shares one mask of columns among all positions and samples, and one mask of LSH probabilities
  /// among all chunks, as trax does.
  bool dropout_broadcast = false;
  double init_std = 0;
  double embed_std = 1;
  double head_std = 0;
  double position_std = 1;
  Precision precision = Precision::f32;
  HeadOptions token_head = {};
  MemoryPolicy memory = {};

  void visit(auto& v) {
    visit_sizes(v, *this);
    v("d_head", d_head, range::not_negative, meaning::d_head);
    v("n_max", n_max, range::positive, "maximum tokens of a sequence");
    v("causal", causal, "predicts the next token; false: masked tokens");
    v("layers", layers, "lsh or local for each layer, with commas between them; repeated");
    v("rounds", rounds, range::positive, "R, rounds of hashing");
    v("chunk", chunk, range::positive, "m, tokens of a chunk of sorted tokens");
    v("look_back", look_back, range::not_negative, "a, chunks before its own that a row sees");
    v("look_ahead", look_ahead, range::not_negative, "z, chunks after its own that a row sees");
    v("buckets", buckets, "number of buckets or its two factors; empty: as bucket_rule says");
    v("bucket_rule", bucket_rule, "number of buckets for a length");
    v("same_bucket", same_bucket, "keys of other buckets are masked");
    v("duplicates", duplicates, "keys that a query meets in several rounds");
    v("wrap", wrap, "whether the windows of the first and the last chunk wrap around");
    v("logit_scale", logit_scale, "how scores are scaled");
    v("self_logit", self_logit, "score of a token with itself");
    v("whole_chunks", whole_chunks, "pads to whole chunks, as the code of transformers does");
    v("full_below", full_below,
      "shorter sequences get full attention; 0: none; -1: where it is faster");
    v("hash_seed", hash_seed, "seed of the rotations outside training");
    v("torch_seed", torch_seed, range::at_least(-1),
      "rotations of every pass are those of PyTorch after this seed; -1: drawn here");
    v("local_chunk", local_chunk, "chunk of local layers; 0: chunk");
    v("local_back", local_back, range::not_negative,
      "local layers: chunks before its own that a row sees");
    v("local_ahead", local_ahead, range::not_negative,
      "local layers: chunks after its own that a row sees");
    v("position_shape", position_shape, "axes of the position tables, as 32,32; empty: from n_max");
    v("position_widths", position_widths,
      "widths of the axes' tables; empty: equal parts of d_model");
    v("activation", activation, meaning::activation);
    v("norm_eps", norm_eps, range::above_zero, meaning::norm_eps);
    v("mean_exit", mean_exit, "the head reads the mean of both streams instead of both");
    v("head_bias", head_bias, meaning::head_bias);
    v("classes", classes, range::not_negative, meaning::classes);
    v("span_head", span_head, meaning::span_head);
    v("dropout", dropout, range::probability,
      "of embeddings, positions, branches and inner layers");
    v("dropout_attn", dropout_attn, range::probability, "of the probabilities of LSH attention");
    v("dropout_local", dropout_local, range::probability,
      "of the probabilities of local attention");
    v("dropout_broadcast", dropout_broadcast,
      "one mask for all positions and samples, as trax has it");
    v("init_std", init_std, meaning::glorot_std);
    v("embed_std", embed_std, "std of the token table");
    v("head_std", head_std, "std of the projection to tokens; 0: as the other matrices");
    v("position_std", position_std, "std of the position tables");
    visit_computation(v, *this);
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
class Reformer final : public CausalDecoder,
                       public FillsMasks,
                       public ClassifiesSequences,
                       public FindsSpans,
                       public ReversibleLayers,
                       public Remarks {
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

  bool predicts_tokens() const override { return true; }
  int64_t classes() const override { return config_.classes; }
  bool finds_spans() const override { return config_.span_head; }
  /// From the first token.
  Tensor class_logits(const EncoderInputs& in, Pass pass) const override;
  /// None with whole_chunks.
  std::vector<int64_t> divided_heads() const override {
    return config_.whole_chunks ? std::vector<int64_t>{} : CausalDecoder::divided_heads();
  }
  SpanLogits span_logits(const EncoderInputs& in, Pass pass) const override;
  void visit(Visitor& v) override;

  Objective objective() const override;
  bool continues_sequences() const override { return config_.causal; }
  int64_t mask_token() const override { return config_.causal ? -1 : config_.vocab - 1; }
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
  /// Returns forward() of an input for a head.
  Tensor hidden_of(const EncoderInputs& in, Pass pass) const;
  /// Returns the first `length` rows of both streams, prepared for the head.
  Tensor exit(ReversibleRun& run, int64_t length, Pass pass) const;
  LshAttention* lsh(int64_t layer) const;  // null for a local layer
  /// Sets the rotations of torch_seed.
  void set_torch_rotations(const Init& init);

  ReformerConfig config_;
  std::vector<ReformerLayer> kinds_;  // of each layer
  AxialPositions position_;
  std::vector<Block> blocks_;
  Normalization final_norm_;
  PooledHead classes_;
  Linear spans_;  // [2, 2 D]
};

/// Entry of the model under the name that programs use.
const ModelEntry& reformer_entry();

/// Configurations of the paper and of released code; models/reformer/reformer_presets.cc. Throws
/// ValueError on an unknown name.
ReformerConfig reformer_preset(std::string_view name);

}  // namespace longspan
