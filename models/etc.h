#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/etc_structure.h"
#include "models/model.h"
#include "models/model_spec.h"
#include "models/parts.h"
#include "nn/stack.h"

namespace longspan {

/// What encodes the sentences that contrastive prediction compares with: the model itself, or
/// another encoder of its shape.
enum class CpcEncoder : uint8_t { shared, separate };
template <>
inline constexpr std::array<std::string_view, 2> value_names<CpcEncoder>{"shared", "separate"};

/// How a summary h is held against a sentence t: h . W t / sqrt(D), or h . t / sqrt(D).
enum class CpcScore : uint8_t { bilinear, dot };
template <>
inline constexpr std::array<std::string_view, 2> value_names<CpcScore>{"bilinear", "dot"};

/// ETC: Encoding Long and Structured Inputs in Transformers. \cite ainslie2020
/// Defaults are the small preset: bytes 0 to 255, a mask, and the token of the globals.
struct EtcConfig {
  int64_t vocab = 258, n_layer = 4, n_head = 4, d_model = 128, d_ff = 512;
  int64_t d_embed = 0;       ///< width of the token table; 0: d_model
  int64_t n_long = 512;      ///< long tokens, and
  int64_t n_global = 32;     ///< globals, of plain text: a global owns ceil(n_long / n_global)
  int64_t radius = 32;       ///< r: long token i sees long tokens i - r to i + r
  int64_t max_distance = 8;  ///< k: distances beyond share a label
  /// BigBird's random blocks \cite zaheer2020 of long keys for long queries, none of which a window
  /// reaches: r of them for each block of queries, layer and head, drawn once and for all.
  int64_t n_random = 0;
  int64_t block = 0;            ///< tokens of such a block; 0: as many as the radius
  uint64_t random_seed = 0;     ///< of the random blocks
  int64_t relations = 0;        ///< R, rows of the relation tables; 0: 2 k + 4, the least
  int64_t token_types = 16;     ///< rows of the table of segments; long tokens have 1, globals 0
  int64_t n_positions = 0;      ///< rows of a table of absolute positions of long tokens; 0: none
  int64_t global_features = 0;  ///< width of features that are projected and added to globals
  int64_t mask_id = 256, global_id = 257;  ///< the token that hides others; that of globals

  bool labels = true;     ///< relation labels at all: off, no pair knows its distance or its edge
  bool rel_bias = true;   ///< b of the labels; the paper's formula has none
  bool hard_g2l = true;   ///< a global sees, of the long tokens, only those that it owns
  bool hard_l2g = false;  ///< a long token sees, of the globals, only its owner
  /// One key and one value projection for what long queries read, and one for what globals read;
  /// one query, key and value projection for all; one output projection.
  bool share_kv = false, share_qkv = false, share_out = false;
  bool share_ff = true;  ///< one feed-forward network, and its norm, for both streams
  NormPlace norm = NormPlace::post;
  double norm_eps = 1e-12;
  Activation activation = Activation::gelu_tanh;
  bool tie_embedding = true;  ///< the head of masked tokens uses the token table

  int64_t classes = 0;      ///< of the whole input, from its first global: types of answers
  bool span_head = false;   ///< start and end of an answer among the long tokens
  int64_t global_tags = 0;  ///< logits of each global: supporting sentences, candidates
  int64_t phrases = 0;      ///< longest phrase, in long tokens, that gets a score

  bool cpc = false;  ///< what contrastive prediction needs of parameters
  CpcEncoder cpc_encoder = CpcEncoder::shared;
  CpcScore cpc_score = CpcScore::bilinear;
  bool cpc_stop_gradient = false;  ///< sentences on their own get no gradient
  double mlm_weight = 0.8, cpc_weight = 0.2;

  /// Sites emb, attn (probabilities) and resid (branch outputs); dropout_attn = -1: as dropout.
  float dropout = 0.1f, dropout_attn = -1;
  double init_std = 0.02;
  Precision precision = Precision::f32;
  HeadOptions token_head = {};
  MemoryPolicy memory = {};

  int64_t label_count() const { return relations > 0 ? relations : 2 * max_distance + 4; }
  int64_t width() const { return d_embed > 0 ? d_embed : d_model; }

  /// As ModelSpec's.
  std::string_view extend_positions(int64_t length) {
    return n_positions > 0 ? extend_table("n_positions", n_positions, length) : std::string_view{};
  }
  void visit(auto& v) {
    v("vocab", vocab)("n_layer", n_layer)("n_head", n_head)("d_model", d_model)("d_ff", d_ff)(
        "d_embed", d_embed)("n_long", n_long)("n_global", n_global)("radius", radius);
    v("n_random", n_random)("block", block)("random_seed", random_seed);
    v("max_distance", max_distance)("relations", relations)("token_types", token_types)(
        "n_positions", n_positions)("global_features", global_features)("mask_id", mask_id)(
        "global_id", global_id);
    v("labels", labels)("rel_bias", rel_bias)("hard_g2l", hard_g2l)("hard_l2g", hard_l2g)(
        "share_kv", share_kv)("share_qkv", share_qkv)("share_out", share_out)("share_ff", share_ff);
    v("norm", norm)("norm_eps", norm_eps)("activation", activation)("tie_embedding", tie_embedding)(
        "classes", classes)("span_head", span_head)("global_tags", global_tags)("phrases", phrases);
    v("cpc", cpc)("cpc_encoder", cpc_encoder)("cpc_score", cpc_score)(
        "cpc_stop_gradient", cpc_stop_gradient)("mlm_weight", mlm_weight)("cpc_weight", cpc_weight);
    v("dropout", dropout)("dropout_attn", dropout_attn)("init_std", init_std)(
        "precision", precision)("memory", memory)("chunks", memory.chunks);
    token_head.visit(v);
  }
};

/// The two streams: X^l [B, n_l, D] and X^g [B, n_g, D].
struct EtcStreams {
  Tensor l, g;
};

/// What a forward pass reads; ids of any integer dtype.
struct EtcInputs {
  Tensor tokens = {};   ///< [B, n_l]; no tensor: no long tokens
  Tensor globals = {};  ///< [B, n_g]; no tensor: no globals
  EtcStructure structure = {};
  Tensor types = {}, global_types = {};  ///< as tokens and globals; undefined: 1 and 0
  Tensor global_features = {};           ///< [B, n_g, global_features]; undefined: none
};

/// Sec. 2: four pieces of attention, one softmax on each side.
///   long i:   keys = {long j : |i - j| <= r} and {global m}
///   global m: keys = {global m'} and {long j}
///   score(x, y) = (q_x . k_y + q_x . a[id(x, y)] + b[id(x, y)]) / sqrt(d)
class EtcAttention : public Module {
 public:
  EtcAttention(const EtcConfig& config, const Init& init);
  EtcStreams forward(const EtcStreams& x, const EtcPatterns& see, Pass pass) const;
  /// [B, H, n, n], n = n_l + n_g: the probabilities themselves, long rows and columns first.
  Tensor probabilities(const EtcStreams& x, const EtcPatterns& see) const;
  void visit(Visitor& v) override;

 private:
  enum Piece : size_t { l2l, l2g, g2g, g2l };
  enum Side : size_t { from_long, from_global };
  /// Where the projections of a piece or of a side are: where shared, in the first place.
  size_t stored(Piece piece) const;
  size_t stored_query(Side side) const { return config_.share_qkv ? size_t{0} : side; }
  size_t stored_out(Side side) const { return config_.share_out ? size_t{0} : side; }
  Tensor split_heads(const Tensor& x) const;  // [B, n, D] -> [B, H, n, d]
  Tensor merge(const Tensor& heads, Side side) const;
  /// What long queries read, in one softmax.
  Tensor attend_long(const Tensor& q, const Keys& of_l, const Keys& of_g, const EtcPatterns& see,
                     Pass pass) const;
  Keys keys(const Tensor& x, Piece piece) const;
  ScoreTerms terms(Side side, const AttentionPattern& see, DType dtype) const;

  EtcConfig config_;
  Linear q_[2], out_[2];  // of each side
  Linear k_[4], v_[4];    // of each piece
  Tensor a_[2], b_[2];    // of each side: [R, H, d], [R, H]
  Tensor rows_;           // i64 [R]: labels in the order of the kernel's ids
};

/// Attention and a feed-forward network that both streams share, each with residual and norm.
class EtcLayer : public Module {
 public:
  EtcLayer(const EtcConfig& config, const Init& init);
  EtcStreams forward(EtcStreams x, const EtcPatterns& see, Pass pass) const;
  void visit(Visitor& v) override;
  /// What attention is given for the input of the layer, and the attention.
  EtcStreams attention_input(const EtcStreams& x) const;
  const EtcAttention& attention() const { return attention_; }

 private:
  friend class EtcEncoder;
  struct Residual;

  NormPlace place_;
  float dropout_;
  EtcAttention attention_;
  Normalization norm_l_, norm_g_;
  std::vector<Block> ff_;  // one for both streams, or one for each
};

/// Embeddings and layers.
class EtcEncoder : public Module {
 public:
  EtcEncoder(const EtcConfig& config, const Init& init);
  EtcStreams embed(const EtcInputs& in, Pass pass) const;
  EtcPatterns patterns(const EtcInputs& in) const;
  /// Throws ShapeError, ValueError on structure that does not fit the tokens.
  EtcStreams forward(const EtcInputs& in, Pass pass) const;
  void visit(Visitor& v) override;

  /// What the attention of a layer is given.
  EtcStreams attention_input(int64_t layer, const EtcInputs& in, const EtcPatterns& all) const;
  const EtcLayer& layer(int64_t i) const { return layers_[static_cast<size_t>(i)]; }
  const Embedding& tokens() const { return token_; }

 private:
  struct Walk;
  Walk walk(const EtcStreams& x, const EtcPatterns& all, Pass pass, int64_t count) const;
  EtcStreams forward_reversible(const EtcStreams& x, const EtcPatterns& all, Pass pass) const;
  EtcStreams reversible_attention_input(int64_t layer, const EtcStreams& x,
                                        const EtcPatterns& all) const;

  EtcConfig config_;
  DType compute_;
  Embedding token_, type_;     // [V, E], [types, D]
  Linear projection_;          // [D, E]
  Linear features_;            // [D, global_features]
  LearnedPositions position_;  // [n_positions, D]
  Normalization norm_l_, norm_g_;
  std::vector<EtcLayer> layers_;
  Normalization final_norm_;  // pre-norm only
};

/// Sentences that contrastive prediction hides in the main input.
struct EtcHidden {
  Tensor places;        ///< i64 [P]: b n_g + m of the globals that own them
  EtcInputs sentences;  ///< P samples, the same sentences on their own, each with one global
};

/// The encoder with its heads. \cite ainslie2020
class Etc : public LanguageModel {
 public:
  Etc(const EtcConfig& config, const Init& init);
  const EtcConfig& config() const { return config_; }

  EtcStreams forward(const EtcInputs& in, Pass pass) const { return encoder_.forward(in, pass); }
  /// Text without structure: a global owns every ceil(n_long / n_global) tokens in turn.
  EtcInputs plain(const Tensor& tokens) const;

  /// The same with a hierarchy of globals; hierarchy_labels() has their levels and parents.
  EtcInputs structured(const Tensor& tokens, const EtcStructure& structure, const Tensor& level,
                       const Tensor& parent) const;
  /// Hidden sentences [P, n_s] on their own; example [P, n_s] is 0 at their tokens, -1 at padding.
  EtcHidden alone(const Tensor& places, const Tensor& tokens, const Tensor& example) const;

  /// Masked tokens: [..., D] -> [..., V], and the mean loss of the targets [B, n_l] that count.
  Tensor head(const Tensor& hidden) const;
  Tensor mlm_loss(const Tensor& hidden, const Tensor& targets, Pass pass = {}) const;
  /// Contrastive predictive coding: with h_s the summary of hidden sentence s in the main input
  /// and t_s its summary on its own,
  ///   L = -mean_s log softmax_u(score(h_s, t_u))[u = s]
  /// over all hidden sentences of the batch. The paper does not publish its score; see CpcScore.
  Tensor cpc_loss(const EtcStreams& main, const EtcHidden& hidden, Pass pass) const;

  struct Pretraining {
    Tensor loss;      ///< mlm_weight mlm + cpc_weight cpc
    Tensor mlm, cpc;  ///< cpc is undefined where nothing is hidden
  };
  Pretraining pretraining_loss(const EtcInputs& in, const Tensor& targets, const EtcHidden& hidden,
                               Pass pass) const;

  Tensor classify(const EtcStreams& x, Pass pass) const;  ///< [B, classes]
  Tensor spans(const EtcStreams& x) const;                ///< [B, n_l, 2]: start, end
  Tensor tag_globals(const EtcStreams& x) const;          ///< [B, n_g, global_tags]
  /// [B, n_l, phrases]: of the phrase of n + 1 tokens that begins at i; -inf beyond the end.
  Tensor score_phrases(const EtcStreams& x) const;

  Objective objective() const override { return Objective::masked_token; }
  int64_t vocab() const override { return config_.vocab; }
  int64_t mask_token() const override { return config_.mask_id; }
  int64_t max_length() const override;
  Device device() const override { return encoder_.tokens().weight.device(); }
  int64_t layers() const override { return config_.n_layer; }
  Losses loss(const Tensor& tokens, const Tensor& targets, const SegmentMemory& memory,
              Pass pass) const override;
  Tensor logits(const Tensor& tokens, Pass pass) const override;
  Tensor attention_map(const Tensor& tokens, int64_t layer) const override;
  AttentionOutline attention_outline(int64_t layer, int64_t length) const override;
  int64_t macs(int64_t length) const override;
  void visit(Visitor& v) override;

 private:
  Tensor head_input(const Tensor& hidden) const;

  EtcConfig config_;
  EtcEncoder encoder_;
  TokenTransform mlm_;
  Linear head_projection_;  // [E, D]
  Linear head_;             // [V, E]
  std::optional<EtcEncoder> cpc_encoder_;
  Tensor cpc_weight_;  // W - I, [D, D]
  PooledHead classes_;
  Linear spans_, global_tags_;
  std::vector<Linear> phrase_mix_, phrase_score_;  // [D, n D] and [1, D] of each length n
};

/// Throws ValueError, naming the field, where a configuration does not fit together.
void check(const EtcConfig& config);

/// Starts from an encoder in the shape of BERT: its projections into every piece and side, its
/// feed-forward networks, norms, tokens and head; the first of its token types for all; positions
/// are dropped. Returns the names of the parameters that stay as they were: relation tables and
/// contrastive prediction. Throws ShapeError, naming both, where shapes differ, and ValueError
/// where the source lacks a parameter.
std::vector<std::string> lift(const TensorList& encoder, Etc& model);

/// By the name that programs use.
const ModelEntry& etc_entry();
/// Throws ValueError on an unknown name.
EtcConfig etc_preset(std::string_view name);

}  // namespace longspan
