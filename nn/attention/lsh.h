#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "nn/attention/decoding_memory.h"
#include "nn/attention/head_share.h"
#include "nn/fields.h"
#include "nn/layers.h"
#include "ops/attention/lsh.h"

namespace longspan {

/// The number of buckets per round if the options give none, for L tokens in chunks of m:
///   paper     2 max(1, floor(L / m)), two factors above 128
///   hf        the same rounded down to a power of two (transformers)
///   chunks    floor(L / m), rounded down to an even number (lucidrains' reformer-pytorch)
enum class BucketRule : uint8_t { paper, hf, chunks };
template <>
inline constexpr std::array<std::string_view, 3> value_names<BucketRule>{"paper", "hf", "chunks"};

/// Returns that number, as one or two factors, for sequences of `length` tokens of at most n_max.
LshBuckets buckets_for(BucketRule rule, int64_t length, int64_t chunk, int64_t n_max);

/// Options of LshAttention.
struct LshAttentionOptions {
  int64_t d_model = 0, n_head = 1, d_head = 0;
  int64_t rounds = 1;           ///< R
  LshBuckets buckets = {0, 1};  ///< per round; first = 0: chosen by `rule`
  BucketRule rule = BucketRule::paper;
  int64_t n_max = 0;       ///< longest sequence: decoding uses the number of buckets for this
                           ///< length, unless `buckets` says it
  int64_t full_up_to = 0;  ///< up to this L every token sees every other, without hashing
  LshOptions pairs = {};   ///< chunk, neighbours and rules; buckets and pass are set here
  Generator evaluation;    ///< of the rotations outside training
  Scheme weights = {};
};

/// Attention by locality-sensitive hashing \cite kitaev2020 (sec. 2): queries and keys share a
/// projection, and a token sees the tokens of its bucket near it in sorted order, in any of R
/// rounds.
///   q = x Wqk^T, v = x Wv^T; ids from new rotations in every training pass; y = concat(o) Wo^T
/// Ids are the only element of Output::choices, and are taken from LayerContext::choices if given.
/// Rows from LayerContext::lengths on do not exist. Chunk borders depend on all tokens, even with
/// causal attention: no value flows back from later tokens, but which earlier tokens are seen does
/// depend on them.
class LshAttention : public Layer {
 public:
  LshAttention(const LshAttentionOptions& options, const Init& init);

  /// x [B, L, D] -> [B, L, D]. Decoding appends q and v of x to those in ctx.memory, and ids to
  /// those in ctx.choices; the result holds all ids. A prompt is hashed as in one pass. Each later
  /// token attends to the last (1 + a + z) m tokens before it in sorted order, only of its own
  /// bucket with same_bucket, in any round. This equals a single pass over all tokens if attention
  /// is causal with same_bucket and no bucket has more than m tokens; otherwise it selects other
  /// keys. Throws ShapeError, DTypeError; GradientError when decoding with recording on.
  Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const override;
  void visit(Visitor& v) override { v("qk", q_)("v", v_)("out", out_); }
  bool splits() const override { return true; }
  Tensor probabilities(const Tensor& x, const LayerContext& ctx) const override;

  /// Sets rotations [1 or B, 1 or H, R, d, w] to use instead of drawn ones; an undefined tensor
  /// resets.
  void set_rotations(const Tensor& rotations) { rotations_ = rotations; }

 private:
  bool dense(int64_t length) const;
  LshBuckets buckets_of(int64_t length) const;
  Tensor split_heads(const Tensor& x) const;  // [B, L, H d] -> [B, H, L, d]
  /// Returns the queries, which are the keys too, and the values of x, [B, H, L, d] each.
  std::array<Tensor, 2> project(const Tensor& x) const;
  Tensor hash(const Tensor& q, const LshBuckets& buckets, const Tensor& lengths, Pass pass,
              const HeadShare& share = {}) const;
  LshOptions pairs_of(const LshBuckets& buckets, int64_t length, Pass pass) const;
  Tensor merge(const Tensor& heads) const;  // [B, H, L, d] -> [B, L, D]
  Output decode(const Tensor& x, const LayerContext& ctx) const;
  /// Attends from the newest token in `memory` to all tokens there: [B, H, 1, d]. ids: [B, H, R,
  /// known], which may include later tokens.
  Tensor attend_last(const KeyValues& memory, const std::vector<int32_t>& ids, int64_t known,
                     const LshBuckets& buckets) const;

  LshAttentionOptions options_;
  Linear q_, v_, out_;
  Tensor rotations_;
};

}  // namespace longspan
