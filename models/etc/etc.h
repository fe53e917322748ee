#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "models/capabilities.h"
#include "models/model.h"
#include "models/model_spec.h"
#include "models/parts.h"
#include "nn/attention/multi_head.h"
#include "nn/linked_stack.h"
#include "nn/stack.h"
#include "ops/patterns/linked.h"

namespace longspan {

/// The encoder of the sentences that contrastive prediction compares with: the model itself, or a
/// second encoder of the same shape.
enum class CpcEncoder : uint8_t { shared, separate };
template <>
inline constexpr std::array<std::string_view, 2> value_names<CpcEncoder>{"shared", "separate"};

/// How a summary h is scored against a sentence t: h . W t / sqrt(D), or h . t / sqrt(D).
enum class CpcScore : uint8_t { bilinear, dot };
template <>
inline constexpr std::array<std::string_view, 2> value_names<CpcScore>{"bilinear", "dot"};

/// ETC: Encoding Long and Structured Inputs in Transformers. \cite ainslie2020
/// The defaults are the small preset: bytes 0 to 255, a mask token, and the token of globals.
struct EtcConfig {
  static constexpr const char* model_name = "etc";  ///< in messages

  int64_t vocab = 258, n_layer = 4, n_head = 4, d_model = 128, d_ff = 512;
  int64_t d_embed = 0;
  int64_t n_long = 512;
  int64_t n_global = 32;
  int64_t radius = 32;
  int64_t max_distance = 8;
  /// BigBird's random blocks \cite zaheer2020 of long keys for long queries, outside the window: r
  /// of them for each block of queries, layer and head, drawn once.
  int64_t n_random = 0;
  int64_t block = 0;
  uint64_t random_seed = 0;
  int64_t relations = 0;
  int64_t token_types = 16;
  int64_t n_positions = 0;
  bool global_positions = false;
  int64_t global_features = 0;
  int64_t mask_id = 256, global_id = 257;

  bool labels = true;
  bool rel_bias = true;
  bool hard_g2l = true;
  bool hard_l2g = false;
  /// share_kv: one key and one value projection for all keys of long queries, and one for all keys
  /// of globals. share_qkv: one query, key and value projection for all. share_out: one output
  /// projection.
  bool share_kv = false, share_qkv = false, share_out = false;
  bool share_ff = true;
  NormPlace norm = NormPlace::post;
  bool final_norm = true;
  double norm_eps = 1e-12;
  Activation activation = Activation::gelu_tanh;
  bool tie_embedding = true;

  int64_t classes = 0;
  bool span_head = false;
  int64_t global_tags = 0;
  int64_t phrases = 0;

  bool cpc = false;
  CpcEncoder cpc_encoder = CpcEncoder::shared;
  CpcScore cpc_score = CpcScore::bilinear;
  bool cpc_stop_gradient = false;
  double mlm_weight = 0.8, cpc_weight = 0.2;

  /// Rates at the sites emb, attn (probabilities) and resid (branch outputs); dropout_attn = -1: as
  /// dropout.
  float dropout = 0.1f, dropout_attn = -1;
  double init_std = 0.02;
  Precision precision = Precision::f32;
  HeadOptions token_head = {};
  MemoryPolicy memory = {};

  LinkedOptions links() const {
    return {radius, hard_g2l, hard_l2g, labels, max_distance, label_count()};
  }
  int64_t label_count() const { return relations > 0 ? relations : 2 * max_distance + 4; }
  int64_t width() const { return d_embed > 0 ? d_embed : d_model; }

  /// See ModelSpec.
  std::string_view extend_positions(int64_t length) {
    return n_positions > 0 ? extend_table("n_positions", n_positions, length) : std::string_view{};
  }
  void visit(auto& v) {
    visit_sizes(v, *this);
    v("d_embed", d_embed, range::not_negative, meaning::d_embed);
    v("n_long", n_long, range::positive, "maximum long tokens");
    v("n_global", n_global, range::positive,
      "globals; in plain text each owns ceil(n_long / n_global)");
    v("radius", radius, range::not_negative, "r: long token i sees long tokens i - r to i + r");
    v("n_random", n_random, "random blocks of long keys, as in BigBird; 0: none");
    v("block", block, range::not_negative, "tokens of a random block; 0: radius");
    v("random_seed", random_seed, "seed of the random blocks");
    v("max_distance", max_distance, range::positive, "k: larger distances share a label");
    v("relations", relations, range::none_or_count,
      "rows of the relation tables; 0: 2 k + 4, the minimum");
    v("token_types", token_types,
      "rows of the token type table: 0 globals, 1 long tokens; 0: no table");
    v("n_positions", n_positions, range::not_negative,
      "rows of a table of absolute positions; 0: no table");
    v("global_positions", global_positions, "globals have such a table as well");
    v("global_features", global_features, range::not_negative,
      "width of features added to globals; 0: none");
    v("mask_id", mask_id, "id of the token that hides others");
    v("global_id", global_id, "id of the token of globals");
    v("labels", labels, "relation labels; false: attention sees no distance and no edge");
    v("rel_bias", rel_bias, "labels add a bias to scores (not in the paper's formula)");
    v("hard_g2l", hard_g2l, "a global sees only the long tokens that it owns");
    v("hard_l2g", hard_l2g, "a long token sees only the globals that own it");
    v("share_kv", share_kv, "one key and one value projection for all keys of a stream");
    v("share_qkv", share_qkv, "one query, key and value projection for all");
    v("share_out", share_out, "one output projection for both streams");
    v("share_ff", share_ff, "one feed-forward network and its norm for both streams");
    v("norm", norm, meaning::norm)("final_norm", final_norm, meaning::final_norm);
    v("norm_eps", norm_eps, range::above_zero, meaning::norm_eps);
    v("activation", activation, meaning::activation);
    v("tie_embedding", tie_embedding, meaning::tie_embedding);
    v("classes", classes, range::not_negative,
      "classes of an input, read from its first global; 0: no head");
    v("span_head", span_head, meaning::span_head);
    v("global_tags", global_tags, range::not_negative,
      "logits of each global, as for sentences; 0: none");
    v("phrases", phrases, range::none_or_count,
      "tokens of the longest phrase with a score; 0: no head");
    v("cpc", cpc, "has the parameters of contrastive prediction");
    v("cpc_encoder", cpc_encoder, "the encoder of sentences in contrastive prediction");
    v("cpc_score", cpc_score, "the score of contrastive prediction");
    v("cpc_stop_gradient", cpc_stop_gradient,
      "the separate encodings of sentences get no gradient");
    v("mlm_weight", mlm_weight, range::not_negative, "weight of the loss of masked tokens");
    v("cpc_weight", cpc_weight, range::not_negative, "weight of the contrastive loss");
    v("dropout", dropout, range::probability, "of embedded tokens and of the outputs of branches");
    v("dropout_attn", dropout_attn, range::as_dropout, meaning::dropout_attn);
    v("init_std", init_std, range::not_negative, meaning::init_std);
    visit_computation(v, *this);
  }
};

/// Returns patterns::linked() of all layers; with n_random > 0, `more` holds the random blocks.
LinkedPatterns etc_patterns(const EtcConfig& config, const LinkedStructure& structure,
                            int64_t batch, int64_t n_l, int64_t n_g, Device device);

/// The inputs of a forward pass; ids of any integer dtype.
struct EtcInputs {
  Tensor tokens = {};   ///< [B, n_l]; undefined: no long tokens
  Tensor globals = {};  ///< [B, n_g]; undefined: no globals
  LinkedStructure structure = {};
  Tensor types = {}, global_types = {};  ///< shaped as tokens and globals; undefined: 1 and 0
  Tensor global_features = {};           ///< [B, n_g, global_features]; undefined: none
};

/// Sec. 2: four pieces of attention, with one softmax for each side.
///   long i:   keys = {long j : |i - j| <= r} and {global m}
///   global m: keys = {global m'} and {long j}
///   score(x, y) = (q_x . k_y + q_x . a[id(x, y)] + b[id(x, y)]) / sqrt(d)
class EtcAttention : public LinkedAttention {
 public:
  EtcAttention(const EtcConfig& config, const Init& init);
  LinkedStreams forward(const LinkedStreams& x, const LinkedPatterns& see,
                        Pass pass) const override;
  Tensor probabilities(const LinkedStreams& x, const LinkedPatterns& see) const override;
  void visit(Visitor& v) override;

 private:
  enum Piece : size_t { l2l, l2g, g2g, g2l };
  enum Side : size_t { from_long, from_global };
  /// Indices of the projections of a piece or a side; shared ones are stored at the first index.
  size_t stored(Piece piece) const;
  size_t stored_query(Side side) const { return config_.share_qkv ? size_t{0} : side; }
  size_t stored_out(Side side) const { return config_.share_out ? size_t{0} : side; }
  Tensor split_heads(const Tensor& x) const;  // [B, n, D] -> [B, H, n, d]
  Tensor merge(const Tensor& heads, Side side) const;
  /// Attends from the long queries to all of their keys, in one softmax.
  Tensor attend_long(const Tensor& q, const Keys& of_l, const Keys& of_g, const LinkedPatterns& see,
                     Pass pass) const;
  Keys keys(const Tensor& x, Piece piece) const;
  /// Returns the queries of a side and the keys and values of a piece, all of the same rows.
  Projected project(const Tensor& x, Side side, Piece piece) const;
  ScoreTerms terms(Side side, const AttentionPattern& see, DType dtype) const;

  EtcConfig config_;
  Linear q_[2], out_[2];  // of each side
  Linear k_[4], v_[4];    // of each piece
  Tensor a_[2], b_[2];    // of each side: [R, H, d], [R, H]
  Tensor rows_;           // i64 [R]: label of each of the kernel's ids
};

/// Embeddings and layers.
class EtcEncoder : public Module {
 public:
  EtcEncoder(const EtcConfig& config, const Init& init);
  LinkedStreams embed(const EtcInputs& in, Pass pass) const;
  LinkedPatterns patterns(const EtcInputs& in) const;
  /// Throws ShapeError, and ValueError when the structure does not fit the tokens.
  LinkedStreams forward(const EtcInputs& in, Pass pass) const;
  void visit(Visitor& v) override;

  const LinkedStack& layers() const { return layers_; }
  const Embedding& tokens() const { return token_; }

 private:
  EtcConfig config_;
  DType compute_;
  Embedding token_, type_;                       // [V, E], [types, D]
  Linear projection_;                            // [D, E]
  Linear features_;                              // [D, global_features]
  LearnedPositions position_, global_position_;  // [n_positions, D]
  Normalization norm_l_, norm_g_;
  LinkedStack layers_;
};

/// The sentences that contrastive prediction hides in the main input.
struct EtcHidden {
  Tensor places;        ///< i64 [P]: b n_g + m, the globals that own them
  EtcInputs sentences;  ///< P samples: the same sentences, each encoded separately with one global
};

/// The encoder with its heads. \cite ainslie2020
class Etc : public LanguageModel, public FillsMasks, public ShowsAttention {
 public:
  Etc(const EtcConfig& config, const Init& init);
  const EtcConfig& config() const { return config_; }

  LinkedStreams forward(const EtcInputs& in, Pass pass) const { return encoder_.forward(in, pass); }
  /// Prepares text without structure: each global owns the next ceil(n_long / n_global) tokens.
  EtcInputs plain(const Tensor& tokens) const;

  /// Prepares text with a hierarchy of globals; see hierarchy_labels() for levels and parents.
  EtcInputs structured(const Tensor& tokens, const LinkedStructure& structure, const Tensor& level,
                       const Tensor& parent) const;
  /// Prepares hidden sentences [P, n_s] for separate encoding; example [P, n_s] is 0 at their
  /// tokens, -1 at padding.
  EtcHidden alone(const Tensor& places, const Tensor& tokens, const Tensor& example) const;

  /// head() maps [..., D] to the logits of masked tokens [..., V]; mlm_loss() is the mean loss of
  /// the targets [B, n_l] that count.
  Tensor head(const Tensor& hidden) const;
  Tensor mlm_loss(const Tensor& hidden, const Tensor& targets, Pass pass = {}) const;
  /// Contrastive predictive coding. With h_s the summary of hidden sentence s in the main input and
  /// t_s its summary when encoded separately,
  ///   L = -mean_s log softmax_u(score(h_s, t_u))[u = s]
  /// over all hidden sentences of the batch. The paper does not publish its score; see CpcScore.
  Tensor cpc_loss(const LinkedStreams& main, const EtcHidden& hidden, Pass pass) const;

  struct Pretraining {
    Tensor loss;      ///< mlm_weight mlm + cpc_weight cpc
    Tensor mlm, cpc;  ///< cpc is undefined if nothing is hidden
  };
  Pretraining pretraining_loss(const EtcInputs& in, const Tensor& targets, const EtcHidden& hidden,
                               Pass pass) const;

  Tensor classify(const LinkedStreams& x, Pass pass) const;  ///< [B, classes]
  Tensor spans(const LinkedStreams& x) const;                ///< [B, n_l, 2]: start, end
  Tensor tag_globals(const LinkedStreams& x) const;          ///< [B, n_g, global_tags]
  Tensor score_phrases(const LinkedStreams& x) const;        ///< [B, n_l, phrases]: PhraseHead

  Objective objective() const override { return Objective::masked_token; }
  int64_t vocab() const override { return config_.vocab; }
  int64_t mask_token() const override { return config_.mask_id; }
  int64_t max_length() const override {
    return config_.n_positions > 0 ? config_.n_positions : LanguageModel::max_length();
  }
  Device device() const override { return encoder_.tokens().weight.device(); }
  int64_t layers() const override { return config_.n_layer; }
  Losses loss(const Tensor& tokens, const Tensor& targets, const SegmentMemory& memory,
              Pass pass) const override;
  Tensor logits(const Tensor& tokens, Pass pass) const override;
  Tensor attention_map(const Tensor& tokens, int64_t layer) const override;
  AttentionOutline attention_outline(int64_t layer, int64_t length) const override;
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
  PhraseHead phrases_;
};

/// Throws ValueError that names the field when a configuration does not fit together.
void check(const EtcConfig& config);

/// Entry under the name that programs use.
const ModelEntry& etc_entry();
/// Throws ValueError on an unknown name.
EtcConfig etc_preset(std::string_view name);

}  // namespace longspan
