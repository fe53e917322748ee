#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "nn/attention/multi_head.h"
#include "nn/fields.h"
#include "ops/attention/linear_attention.h"
#include "ops/attention/random_features.h"

namespace longspan {

/// Option values of the settings of random features.
template <>
inline constexpr std::array<std::string_view, kernels::feature_map_count> value_names<FeatureMap>{
    "positive", "hyperbolic", "trigonometric", "phase",   "exp",  "relu",    "elu_plus_one",
    "abs",      "square",     "gelu",          "sigmoid", "tanh", "identity"};
template <>
inline constexpr std::array<std::string_view, 4> value_names<ProjectionRows>{"iid", "gram_schmidt",
                                                                             "hadamard", "givens"};
template <>
inline constexpr std::array<std::string_view, 2> value_names<ProjectionNorms>{"normal", "constant"};

/// Options of PerformerAttention besides those of MultiHead.
struct PerformerOptions {
  FeatureMap features = FeatureMap::positive;
  int64_t n_features = 0;
  bool projected = true;
  ProjectionRows projection_rows = ProjectionRows::gram_schmidt;
  ProjectionNorms projection_norms = ProjectionNorms::normal;
  bool projection_per_head = false;
  int64_t redraw_interval = 1000;
  double feature_scale = 0;
  double feature_epsilon = 0;
  bool qk_norm = false;
  /// Up to this length attention is exact, a softmax over all pairs; 0: never; -1: as long as it is
  /// faster than features, see crossover_length().
  int64_t exact_up_to = 0;

  void visit(auto& v) {
    v("features", features, "the feature map");
    v("n_features", n_features, "M, rows of the projection; 0: d ln d");
    v("projected", projected, "false: the features are those of x itself, of kinds that allow it");
    v("projection_rows", projection_rows, "how the rows of the projection are drawn");
    v("projection_norms", projection_norms, "the norms of these rows");
    v("projection_per_head", projection_per_head, "false: all heads share one projection");
    v("redraw_interval", redraw_interval, "updates between projections; 0: the first one stays");
    v("feature_scale", feature_scale,
      "of q and k; 0: d^(-1/4) where the softmax is approximated, else 1");
    v("feature_epsilon", feature_epsilon, "added to features; only relu and later ones");
    v("qk_norm", qk_norm, "a layer norm of each head's q and k before the features");
    v("exact_up_to", exact_up_to,
      "longest length with exact attention; 0: never; -1: where it is faster");
  }
};

/// Returns about the length below which exact attention is faster than `features` features:
/// 5 features, or 2 if every query sees every key (docs/performer.md has the measurements).
int64_t crossover_length(int64_t features, bool causal);

/// How well the features of a layer approximate softmax attention on some rows.
struct FeatureError {
  double query_norm = 0, key_norm = 0;  ///< means of |x|^2, x the scaled query or key
  double largest_norm = 0;              ///< the largest |x|^2 of both
  /// |out - exact| / |exact|, root mean squares over all rows and heads, where exact is softmax
  /// attention over the same q, k and v.
  double output = 0;
};

/// What linear attention keeps in decoding: sums over all keys so far and their exponents,
/// [B, H, F, dv + 1] and [B, H, F] (ops/attention/linear_attention.h).
struct LinearSums {
  Tensor sums, top;

  void visit(const StateVisitor& v) {
    v({"sums", sums});
    v({"top", top});
  }
};

/// Multi-head attention whose weights are products of random features \cite choromanski2021 (FAVOR
/// and FAVOR+), or of any features that linear_attention() knows:
///   out_i = sum_j (phi(q_i) . phi(k_j)) v_j / sum_j phi(q_i) . phi(k_j)
/// Projections of x have the names and shapes of MultiHead's, so that weights of a Transformer fit.
/// The projection W of the features is the buffer "projection" [m, d], [H, m, d] with
/// projection_per_head, f32 (f64 for f64): after_step() draws it anew from its generator after
/// every redraw_interval-th update, and nothing else does. Features `phase` have the buffer "phase"
/// too. There are no attention probabilities to drop: the dropout of MultiHead is applied to the
/// outputs of heads, except where attention is exact.
class PerformerAttention final : public MultiHead {
 public:
  /// Throws ValueError that names the option.
  PerformerAttention(const AttentionOptions& attention, const PerformerOptions& options,
                     bool causal, const Init& init);

  /// x [B, L, D] -> [B, L, D]. Rows from LayerContext::pattern's lengths on are no keys. Decoding
  /// takes one state of constant size from ctx.memory and returns the next one; the tokens up to
  /// exact_up_to are kept as keys and values and attended to exactly, until there are more.
  /// Throws as MultiHead; NotImplemented if there are states of earlier segments.
  Output computed(const Tensor& onto, const Tensor& x, const LayerContext& ctx,
                  Pass pass) const override;
  void visit(Visitor& v) override;
  void after_step(const StepEnd& end) override;

  /// Compares features with softmax attention over the rows x [B, L, D], at the cost of softmax
  /// attention. Throws NotImplemented unless features approximate the softmax kernel.
  FeatureError error(const Tensor& x, const LayerContext& ctx) const;
  /// Whether sequences of this length are attended to exactly.
  bool exact(int64_t length) const { return length <= exact_up_to_; }
  /// M, the number of features.
  int64_t features() const;
  /// W; undefined without a projection.
  const Tensor& projection() const { return projection_; }

 protected:
  Tensor attend(const Projected& p, const LayerContext& ctx, const ScoreTerms& terms,
                const Dropout& dropout) const override;
  Tensor drop_outputs(const Tensor& heads, int64_t rows, const Pass& pass) const override;

 private:
  /// Writes the buffers, drawn from `gen`.
  void draw(Generator gen);
  Projected normed(const Projected& p) const;
  Tensor attend_exactly(const Projected& p, const LayerContext& ctx, ScoreTerms terms,
                        const Dropout& dropout) const;
  LinearAttentionOptions features_of(const LayerContext& ctx, const HeadShare& share = {}) const;
  Output decode(const Tensor& x, const LayerContext& ctx) const;

  PerformerOptions performer_;
  bool causal_;
  int64_t width_, exact_up_to_;  // of a head; resolved
  Tensor projection_, phase_;
  Normalization q_norm_, k_norm_;
};

}  // namespace longspan
