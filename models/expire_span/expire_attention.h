#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "nn/attention/decoding_memory.h"
#include "nn/attention/multi_head.h"
#include "nn/segment.h"

namespace longspan {

/// When the penalty on spans is paid: while a memory expires, as in the authors' code, or when it
/// is made, as in the paper.
enum class SpanLoss : uint8_t { ramp, direct };
template <>
inline constexpr std::array<std::string_view, 2> value_names<SpanLoss>{"ramp", "direct"};

/// What happens when more memories live than there is space for.
enum class Overflow : uint8_t { error, drop };
template <>
inline constexpr std::array<std::string_view, 2> value_names<Overflow>{"error", "drop"};

/// Options of ExpireAttention.
struct ExpireOptions {
  int64_t most = 1024;      ///< L, the longest span
  double ramp = 32;         ///< R, steps over which the mask falls from 1 to 0
  double start = 0.1;       ///< p: spans begin at p L
  double pre_div = 1;       ///< tau, divides the logits of spans
  int64_t always_keep = 0;  ///< K: the latest K steps have a mask of 1
  /// Rows of the memory; 0: as many as can live.
  int64_t capacity = 0;
  Overflow overflow = Overflow::error;  ///< with fewer rows than can live
  double penalty = 0;                   ///< alpha, in nats
  SpanLoss loss = SpanLoss::ramp;
};

/// What a model may set in LayerContext::own: spans of memories count as no longer than this.
struct SpanLimit {
  Tensor steps;  ///< [1], no gradient
};

/// What the layer keeps beside InputRows, where some rows were deleted before others that are
/// older; in evaluation and decoding beside KeyValues too.
struct ExpiringRows {
  /// i64 [B, capacity]: the step of its stream, from 1 on, in which each row was made; with free
  /// rows, as if none were missing.
  Tensor births = {};
  /// [B, capacity] f32 (f64 for f64): steps that each row of KeyValues lives. In decoding [B,
  /// slots], and rows in place of steps: a span loses one with each row that is deleted behind its
  /// own.
  Tensor spans = {};

  /// Returns the births before a stream begins, 1 - capacity to 0, [1, capacity].
  static Tensor first_births(int64_t capacity, Device device);
  void visit(const StateVisitor& v) {
    v({.name = "births", .x = births, .blanks = [this] {
         return first_births(births.dim(1), births.device());
       }});
    v({"spans", spans});
  }
};

/// Multi-head attention to memories that expire \cite sukhbaatar2021 (sec. 3): each memory i, the
/// input h_i of the layer at step i, has a span e_i that all heads share. At distance delta = t - i
/// >= 1 (a step does not attend to itself),
///   e_i  = L sigma(w . h_i / tau + b)              m = clamp(1 + (e_i - delta) / R, 0, 1)
///   s    = q . (k + p_delta) / sqrt(d)             a = m exp(s) / sum of m exp(s)
/// Positions p exist for distances 1 to P; older memories have none. The spans, w and b are f32
/// (f64 for f64) whatever the layer computes in. They are computed again in each segment, with the
/// weights of that time.
///
/// The layer makes its own memory (Output::kept) from the rows of the last one and its input: it
/// deletes those whose mask will be 0 for every query of the next segment and of all after it, and
/// keeps the others in their order, at the end of `capacity` rows. ExpiringRows::births says when
/// they were made. The newest P rows always stay, so that among them the distance of rows is that
/// of steps. Which rows stay is decided on the device; the host reads nothing.
///
/// With KeyValues, as evaluation keeps them, keys, values and spans take the place of
/// states. Decoding appends to them in place (LayerContext::decoding) and deletes once in about
/// sqrt(2 M) tokens, where there are M rows: only then are rows copied, and more of them live than
/// `capacity` has space for.
class ExpireAttention final : public MultiHead {
 public:
  /// positions  p [P, d] for distances P to 1, shared with other layers, which do not visit it; may
  ///            be undefined: no positions
  /// throws     ValueError that names the option
  ExpireAttention(const AttentionOptions& options, const ExpireOptions& spans,
                  const Tensor& positions, const Init& init);

  /// As MultiHead::forward(), but with a pattern of its own in place of ctx.pattern: the rows of x
  /// are the last of all keys, and no row sees itself. In training the auxiliary loss "span" is,
  /// for L rows,
  ///   ramp    alpha / (R L) times the sum of e_i - delta over all pairs with 0 < m < 1
  ///   direct  alpha / L times the sum of e_i over the rows of x
  /// averaged over samples. The value of `ramp` is negative and means nothing; its gradients over
  /// the life of a memory add up to the gradient of `direct`. With ctx.mem_len there is an
  /// Output::kept. Throws ValueError in training with a memory of keys; ValueError, perhaps later,
  /// where more memories live than there are rows (Overflow::error).
  Output computed(const Tensor& onto, const Tensor& x, const LayerContext& ctx,
                  Pass pass) const override;
  /// Returns the penalty and the memory that forward() returns.
  Output left_out(const Tensor& x, const LayerContext& ctx, Pass pass) const override;
  Tensor probabilities(const Tensor& x, const LayerContext& ctx) const override;
  void visit(Visitor& v) override;
  bool splits() const override { return false; }

  /// [B, M, D] (or undefined) and [B, L, D], both as the layer reads them -> e [B, M + L].
  Tensor spans(const Tensor& before, const Tensor& x) const;
  /// Returns the life [B, M] f64 that rows of a memory have left on their ramp when the next token
  /// reads it, R + e - delta: it sees those with more than 0. Rows that do not exist have a large
  /// negative one.
  ///   memory  as the layer reads it: through the norm, if there is one before it
  Tensor lives(const LayerMemory& memory) const;
  /// Returns the rows of a memory: all that can live, unless the options say otherwise.
  int64_t capacity() const { return capacity_; }
  /// Returns the largest distance at which a memory can be seen.
  int64_t reach() const;

 private:
  struct Rows;
  struct Survivors;

  /// When the keys were made that come with x of this batch and these queries.
  static Rows rows_of(const LayerMemory& memory, int64_t batch, int64_t queries, Device device);
  Projected keys_of(const Tensor& x, const LayerContext& ctx) const;
  /// The spans [B, T] of the memory and of x.
  Tensor spans_with(const Tensor& x, const LayerContext& ctx) const;
  static Tensor shortened(const Tensor& spans, const LayerContext& ctx);
  /// The penalty of these spans.
  Tensor penalty_of(const Tensor& spans, const Rows& rows) const;
  /// u8 [B, T]: which rows stay.
  Tensor staying(const Tensor& spans, const Rows& rows) const;
  /// Those that stay in a memory with space for so many rows.
  Survivors survivors(const Tensor& spans, const Rows& rows, int64_t space) const;
  LayerMemory next_memory(const Tensor& spans, const Rows& rows, const Projected& p,
                          const LayerContext& ctx) const;
  struct Decoded;
  /// A memory of decoding without the rows that nobody will see, with n free slots.
  Decoded without_the_dead(const Decoded& m, int64_t n) const;
  Output decode(const Tensor& x, const LayerContext& ctx) const;
  /// The losses and the memory of forward(), without its y.
  Output remembered(const Tensor& spans, const Rows& rows, const Projected& p,
                    const LayerContext& ctx, Pass pass) const;
  /// Attends to p with these spans; returns [B, H, L, dv].
  Tensor attend_with(const Projected& p, const Tensor& spans, const Rows& rows,
                     const Dropout& dropout) const;

  ExpireOptions spans_;
  Tensor positions_;  // [P, d], or undefined
  Linear span_;       // w [1, D], b [1]
  int64_t newest_ = 1, capacity_ = 0;
};

}  // namespace longspan
