#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "nn/attention/multi_head.h"

namespace longspan {

/// Whether each head learns a span, or each layer one for all of its heads.
enum class SpanScope : uint8_t { head, layer };
template <>
inline constexpr std::array<std::string_view, 2> value_names<SpanScope>{"head", "layer"};

/// Options of SpanAttention.
struct SpanOptions {
  int64_t most = 512;  ///< S, the largest distance that a query sees
  double ramp = 32;    ///< R, distances over which the mask falls from 1 to 0
  double offset = 1;   ///< the mask is 1 up to distance z + offset; the paper's formula has 0
  /// z / S at first; 0 of dynamic spans: sigmoid(-4), as in the paper.
  double start = 0;
  double penalty = 0;  ///< lambda: the auxiliary loss "span" is lambda times the mean z
  SpanScope scope = SpanScope::head;
  bool dynamic = false;  ///< each query has a span of its own, in each head or for all of them
  double pre_div = 1;    ///< divides v . x of dynamic spans
  /// Spans are rounded up to multiples of it to find the keys that a head computes; 0: all S.
  int64_t trim = 64;
  int64_t persistent = 0;  ///< P, learned keys and values of each head that every query sees
};

/// Multi-head attention with a learned span z for each head \cite sukhbaatar2019 (sec. 3): a query
/// sees the keys at distances 1 to S before it, never itself, with relative positions p and a soft
/// mask,
///   s = q . (k + p_distance) / sqrt(d)     m = clamp((R + z + offset - distance) / R, 0, 1)
///   a = m exp(s) / sum of m exp(s)
/// Values have no positions. z = S z', where z' is the parameter "span", f32 (f64 for f64) whatever
/// the layer computes in; after_step() clamps it to [0, 1]. Each head computes only keys whose mask
/// can have a value or a gradient (SpanOptions::trim), which changes neither results nor gradients,
/// and only as much of the memory is projected as the longest span needs. The host reads the spans
/// again when they have changed.
///
/// A dynamic span (sec. 3, "dynamic attention span") is that of a query with input row x_t,
///   z_t = S sigmoid(v . x_t / pre_div + b)
/// with the parameters v = "span.weight" and b = "span.bias", v = 0 at first. It is not known
/// before it is computed, so every head has the layout of S keys and `trim` is not used.
///
/// Persistent vectors \cite sukhbaatar2019b (sec. 3) are P more keys K_p and values V_p for each
/// head, the parameters "persistent_key" and "persistent_value": scores q . K_p, no positions, a
/// mask of 1, in the same softmax. The parameters are K_p / sqrt(d) and V_p / sqrt(P).
class SpanAttention final : public MultiHead {
 public:
  /// positions  p [S, d] for distances S to 1, shared with other layers, which do not visit it
  /// throws     ValueError that names the option
  SpanAttention(const AttentionOptions& options, const SpanOptions& spans, const Tensor& positions,
                const Init& init);

  /// As MultiHead::forward(), but with a pattern of its own in place of ctx.pattern: the rows of x
  /// are the last of all keys. Throws NotImplemented in recordings, unless trim is 0 or spans are
  /// dynamic.
  Output computed(const Tensor& onto, const Tensor& x, const LayerContext& ctx,
                  Pass pass) const override;
  Tensor probabilities(const Tensor& x, const LayerContext& ctx) const override;
  void visit(Visitor& v) override;
  void after_step(const StepEnd& end) override;

  /// z in tokens, differentiable: [H], or [1] for one span of all heads. Not of dynamic spans.
  Tensor spans() const;
  /// Dynamic z in tokens of the rows x [B, L, D], differentiable: [B, H, L] or [B, 1, L].
  Tensor token_spans(const Tensor& x) const;
  /// Reads the spans of these layers that have changed since the host last read them, all at once.
  static void read(std::span<const SpanAttention* const> layers);
  /// Returns for each head the largest distance with a mask above 0: ceil(z) + R with offset 1, at
  /// most S; of dynamic spans, S. Waits for the device if the spans have changed.
  std::vector<int64_t> visible() const;
  /// Returns for each head the largest distance that is computed: floor(z + R + offset), rounded up
  /// to a multiple of `trim`, or of 2, 4, ... times that while there are more different ones than
  /// one layout can have. A distance at which the mask has just become 0 belongs to it, because its
  /// key has a part in the gradient of z.
  std::vector<int64_t> computed() const;
  /// Returns the pattern of heads that see the distances 1 to distances[h]; the queries are the
  /// last of the keys.
  static AttentionPattern pattern(const std::vector<int64_t>& distances, int64_t queries,
                                  int64_t keys);

 protected:
  ScoreTerms terms(Projected& p, const LayerContext& ctx, LayerMemory& memory) const override;
  std::vector<AuxiliaryLoss> penalties(const ScoreTerms& terms) const override;
  Tensor attend(const Projected& p, const LayerContext& ctx, const ScoreTerms& terms,
                const Dropout& dropout) const override;

 private:
  struct Known;

  /// Attends to p and to persistent keys with these values [B, H, P, ..].
  Tensor attend_with(const Tensor& persistent, const Projected& p, const LayerContext& ctx,
                     const ScoreTerms& terms, const Dropout& dropout) const;
  /// Returns the parameter x [H, P, d] times `scale` for each sample: [B, H, P, d] in the dtype of
  /// `like` [B, ..].
  Tensor for_samples(const Tensor& x, double scale, const Tensor& like) const;
  bool trims() const { return spans_.trim > 0 && !spans_.dynamic; }
  /// Returns R + z + offset for each head, rounded as the kernels round it.
  std::vector<double> edges() const;

  SpanOptions spans_;
  Tensor positions_;              // [S, d]
  Tensor span_;                   // z' [H] or [1]; undefined with dynamic spans
  Linear token_span_;             // v [H or 1, D] and b of dynamic spans, else undefined
  Tensor key_, value_;            // persistent, [H, P, d]; undefined without
  std::shared_ptr<Known> known_;  // edges as last read
};

}  // namespace longspan
