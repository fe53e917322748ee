#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/capabilities.h"
#include "models/model.h"
#include "models/own_rows.h"
#include "models/parts.h"
#include "nn/adaptive.h"
#include "nn/layers.h"
#include "nn/stack.h"

namespace longspan {

/// What a CausalDecoder reads of the configuration of its model.
struct DecoderOptions {
  std::string model;  ///< name of the model, for messages
  int64_t vocab = 0, n_layer = 0, n_head = 0, d_model = 0;
  int64_t n_max = 0;    ///< the longest sequence; 0: any
  int64_t d_embed = 0;  ///< width of the token table; 0: d_model
  int64_t d_exit = 0;   ///< width of the classifier's input; 0: width of the token table
  Scheme token = {}, classifier = {};
  bool tie_embedding = false;  ///< the classifier shares the token table
  bool head_bias = false;
  bool constant_bias = false;     ///< that bias gets no gradient
  Scheme bias = Scheme::zeros();  ///< of the classifier, without cutoffs
  /// With cutoffs, an adaptive embedding with projections to d_model and an adaptive softmax take
  /// the place of the token table and of the classifier (nn/adaptive.h); tie_embedding shares their
  /// tables. They need d_exit = 0, z_loss = 0 and soft_cap = 0.
  std::vector<int64_t> cutoffs = {};
  int64_t div_value = 1;
  std::vector<int64_t> tie_projections = {};  ///< clusters that share their projection
  Scheme projections = {};                    ///< of clusters
  ClusterOrder cluster_order = ClusterOrder::forward;
  bool emb_scale = false;  ///< tokens times sqrt(d_model)
  /// With a memory: it begins as zero vectors that are attended to, instead of empty. Such a model
  /// does not decode, because zero vectors have no position in a stream of projected keys.
  bool phantom_zero_memory = false;
  float dropout = 0;  ///< site "emb"
  Precision precision = Precision::f32;
  HeadOptions token_head = {};
};

/// Returns the options that every configuration of a decoder has under the same name; a model sets
/// the others.
template <class Config>
DecoderOptions decoder_options(const char* model, const Config& c) {
  return {.model = model,
          .vocab = c.vocab,
          .n_layer = c.n_layer,
          .n_head = c.n_head,
          .d_model = c.d_model,
          .precision = c.precision,
          .token_head = c.token_head};
}

/// The common decoder: a token table, a stack whose attention layers the model supplies, and a
/// classifier of tokens. It is causal if its layers are; a Transformer wired as an encoder and a
/// Reformer with causal = false derive from it too, and predict masked tokens.
///   x = E[token] + positions     x <- block_i(x), i < N     logits = W_out norm(x) + b
/// A model derives from it, passes its options, fills stack_, and says in layer_context() which
/// keys the rows attend to; decoding, maps and outlines of attention follow from that. What differs
/// otherwise (positions, other layers than a Stack, other losses) is overridden. With a
/// memory_length() the layers attend to their newest inputs from earlier segments too.
class CausalDecoder : public LanguageModel,
                      public ContinuesSequences,
                      public Streams,
                      public SplitsSequences,
                      public ShowsAttention {
 public:
  /// tokens [B, L] -> the input of head() [B, L, D], after the final norm if there is one. Throws
  /// ShapeError, and ValueError on an input longer than n_max.
  Tensor forward(const Tensor& tokens, Pass pass) const;
  /// [..., D] -> logits [..., V] in the dtype of the parameters; with cutoffs these are the
  /// logarithms of the probabilities.
  Tensor head(const Tensor& hidden) const;
  /// The mean loss of the targets [B, L] that count, in nats.
  virtual Tensor loss(const Tensor& hidden, const Tensor& targets, Pass pass = {}) const;

  Objective objective() const override { return Objective::next_token; }
  int64_t vocab() const override { return options_.vocab; }
  int64_t max_length() const override;
  Device device() const override;
  int64_t layers() const override { return options_.n_layer; }
  SegmentMemory empty_memory(int64_t batch) const override;
  SegmentMemory evaluation_memory(int64_t batch) const override;
  Losses loss(const Tensor& tokens, const Tensor& targets, const SegmentMemory& memory,
              Pass pass) const override;
  Tensor logits(const Tensor& tokens, Pass pass) const override;
  Tensor logits_after(SegmentMemory& memory, const Tensor& tokens) const override;
  /// Unless its memory begins as zero vectors.
  bool continues_sequences() const override { return !options_.phantom_zero_memory; }
  std::vector<int64_t> divided_heads() const override { return {options_.n_head}; }
  std::unique_ptr<DecodeState> start_decoding(int64_t batch) const override;
  Tensor decode(const Tensor& tokens, DecodeState& state) const override;
  Tensor attention_map(const Tensor& tokens, int64_t layer) const override;
  AttentionOutline attention_outline(int64_t layer, int64_t length) const override;
  void visit(Visitor& v) override;

 protected:
  /// Makes the token table "embed.token" and the classifier "head". The derived constructor makes
  /// stack_, e.g. with attention_stack().
  CausalDecoder(DecoderOptions options, const Init& init);

  /// Returns the context of the layers for `queries` rows, the last of `keys` keys, which begin at
  /// position first_key.
  virtual LayerContext layer_context(int64_t queries, int64_t keys, int64_t first_key) const = 0;
  /// Returns how many rows the layers have for so many tokens, whose rows are the first.
  virtual int64_t layer_rows(int64_t tokens) const { return tokens; }
  /// The rows of tokens [B, L] that this process computes.
  OwnRows own_rows(const Tensor& tokens, const Pass& pass) const {
    return {tokens, pass, tokens.rank() == 2 ? layer_rows(tokens.dim(1)) : -1};
  }
  /// Returns the first position that a row at `position` or later attends to; decoding drops the
  /// keys before it.
  virtual int64_t first_visible(int64_t /*position*/) const { return 0; }
  /// tokens [B, L], the first at position `first`, -> [B, L, D]: table, scale and dropout. Models
  /// with positions of their own override it.
  virtual Tensor embed(const Tensor& tokens, int64_t first, Pass pass) const;
  /// Returns forward() after the segments in `memory`, with the next memory and with the auxiliary
  /// losses and statistics of the layers, which loss() passes on.
  virtual Stack::Result states(const Tensor& tokens, const SegmentMemory& memory, Pass pass) const;
  /// Decodes tokens [B, n] after those in `state`, which it updates: the input of head() [B, n, D].
  Tensor continued(const Tensor& tokens, StreamState& state) const;
  /// Runs the layers over x [B, L, D] and returns the input of head(). With `state`, continues from
  /// it and updates it.
  virtual Stack::Result run(const Tensor& x, const LayerContext& ctx, StreamState* state,
                            Pass pass) const;
  /// What comes between the layers and the classifier: nothing, unless overridden.
  virtual Tensor head_input(const Tensor& hidden) const { return hidden; }
  /// Visits what a model has between token table and layers.
  virtual void visit_more(Visitor& /*v*/) {}

  /// Checks tokens, the first at position `first`, and returns embed() in the dtype that layers
  /// compute in, or in its place table().
  Tensor embedded(const Tensor& tokens, int64_t first, Pass pass) const;
  Tensor embedded(const Tensor& tokens, int64_t first, const std::function<Tensor()>& table) const;
  /// tokens [...] -> the rows of the token table [..., De], those of the id `padding` as constants;
  /// or of the adaptive embedding [..., D].
  Tensor token_rows(const Tensor& tokens, int64_t padding = -1) const {
    return adaptive_ ? adaptive_->forward(tokens) : token_.forward(tokens, padding);
  }
  /// The mean loss of the targets [...] that count, from the input [..., D] of the classifier.
  Tensor target_loss(const Tensor& h, const Tensor& targets, bool training,
                     double smoothing = 0) const;
  /// Returns head_, with its bias as a constant where the options say so.
  Linear classifier() const;
  const DecoderOptions& options() const { return options_; }
  DType compute() const { return compute_; }

  Embedding token_;  ///< [V, De]
  Stack stack_;
  Linear head_;  ///< [V, D], the token table if tied
  // With cutoffs, in place of token_ and head_, which are undefined.
  std::optional<AdaptiveEmbedding> adaptive_;
  std::optional<AdaptiveSoftmax> adaptive_head_;

 private:
  /// Makes the embedding and the classifier of a model with cutoffs.
  void make_adaptive(const Init& init);

  DecoderOptions options_;
  DType compute_;
};

}  // namespace longspan
