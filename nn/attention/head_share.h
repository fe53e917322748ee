#pragma once

#include <cstdint>

#include "core/generator.h"
#include "core/ranks/sequence_split.h"
#include "nn/layers.h"
#include "ops/attention/block_attention.h"
#include "ops/patterns/pattern.h"

namespace longspan {

/// The heads that this process computes: all of a layer, or with Pass::split its share, over the
/// rows of all processes. Everything below returns its argument where all heads are here.
class HeadShare {
 public:
  HeadShare() = default;
  /// The share of `heads` heads. Throws ValueError unless the processes divide them.
  HeadShare(int64_t heads, const Pass& pass);

  /// Whether other processes have the other heads.
  bool divided() const { return split_ != nullptr; }
  /// The number of these heads, of `all`.
  int64_t count(int64_t all) const { return divided() ? own_.count : all; }

  /// The share of x, whose axis `axis` has an entry for each head, or one for all; x may be
  /// undefined.
  Tensor of(const Tensor& x, int axis) const;
  /// The part of a layer that computes these heads, `width` output columns each.
  Linear of(const Linear& all, int64_t width) const;
  AttentionPattern of(const AttentionPattern& pattern) const;
  /// The terms, with the tables of these heads only.
  ScoreTerms of(ScoreTerms terms) const;
  /// x, whose axis `axis` has an entry for each of these heads, padded with zeros for the other
  /// heads: the sum over all processes has all heads.
  Tensor among_all(const Tensor& x, int axis) const;
  /// The pass of an op inside attention, which draws for these heads.
  Pass site(const Pass& pass) const;

  /// x [1, H, n, d] of this process's rows -> all rows of this share [1, H / S, L, d];
  /// rows_to_heads().
  Tensor to_heads(const Tensor& x) const { return to_heads(x, rows_); }
  Tensor to_heads(const Tensor& x, int64_t rows) const;
  /// The inverse of to_heads().
  Tensor to_rows(const Tensor& x) const;
  /// x [1, n, D] of this process's rows -> [1, L, D]; rows_of_all().
  Tensor all_rows(const Tensor& x) const { return all_rows(x, rows_); }
  Tensor all_rows(const Tensor& x, int64_t rows) const;
  /// Rows at `index`, i64 [1, G], among those of all processes, of which x [1, n, D] are this
  /// one's -> [1, G, D]; permute_rows(). `index` is -1 for a row of zeros.
  Tensor rows_at(const Tensor& x, const Tensor& index) const;

 private:
  const SequenceSplit* split_ = nullptr;
  int64_t rows_ = 0, heads_ = 0;
  SequenceSplit::Range own_{};
};

/// The rows of LayerContext::encoder_output of all processes, where they divide it.
struct SourceRows {
  int64_t count = 0;
};

}  // namespace longspan
