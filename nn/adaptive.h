#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "nn/fields.h"
#include "nn/init.h"
#include "nn/layers.h"
#include "nn/module.h"
#include "nn/objective.h"
#include "ops/loss.h"

namespace longspan {

/// A vocabulary in clusters: ids are sorted by decreasing frequency, and cluster c holds the ids
/// from cutoffs[c - 1] (0 for c = 0) to cutoffs[c] (V for the last one). The vectors of cluster c
/// have width(c) = d_embed / div_value^c elements, rounded down; a projection [D, width(c)] leads
/// to D. Without cutoffs there is one cluster.
struct AdaptiveOptions {
  int64_t vocab = 0;                  ///< V
  int64_t d_model = 0;                ///< D
  int64_t d_embed = 0;                ///< width of cluster 0; 0: d_model
  std::vector<int64_t> cutoffs = {};  ///< 0 < cutoffs[0] < cutoffs[1] < ... < V
  int64_t div_value = 1;
  Scheme tables = {}, projections = {};

  int64_t clusters() const { return std::ssize(cutoffs) + 1; }
  /// The first id of cluster c; begin(clusters()) is V.
  int64_t begin(int64_t c) const;
  int64_t size(int64_t c) const { return begin(c + 1) - begin(c); }
  int64_t width(int64_t c) const;
  /// Whether clusters have projections: all have, unless all are D wide, with div_value = 1.
  bool projects() const;
  /// Throws ValueError that names `op` and the field if the numbers do not fit together.
  void check(std::string_view op) const;
};

/// An embedding table in clusters \cite baevski2019 : y = P_c E_c[id - begin(c)] for an id of
/// cluster c. The models multiply the result by sqrt(D) where they scale embeddings.
struct AdaptiveEmbedding : Module {
  AdaptiveEmbedding() = default;
  /// Throws ValueError as AdaptiveOptions::check().
  AdaptiveEmbedding(const AdaptiveOptions& options, const Init& init);

  /// Returns the vectors of ids. On the host a cluster's products have only the rows of its own
  /// ids, and none if the batch has none: its gradients are zero. A device, whose ids the host does
  /// not read, multiplies zeros for the other rows. The meta device counts all ids as those of the
  /// widest cluster, the first.
  ///   ids      [...]     i64 i32 u8, in [0, V)
  ///   returns  [..., D]  dtype of the parameters
  ///   saves    the lists of ids and, with projections, the rows of the tables
  ///   throws   DTypeError; ValueError that names the first id out of range; DeviceError
  Tensor forward(const Tensor& ids) const;
  void visit(Visitor& v) override { v("table", tables)("projection", projections); }

  AdaptiveOptions options;
  std::vector<Embedding> tables;    ///< [size(c), width(c)] for each cluster
  std::vector<Linear> projections;  ///< [D, width(c)] for each cluster, or none
};

/// Which cluster row i of AdaptiveSoftmax::cluster belongs to, of n clusters besides the first.
enum class ClusterOrder : uint8_t {
  forward,  ///< cluster i + 1; also PyTorch's AdaptiveLogSoftmaxWithLoss
  reversed  ///< cluster n - i, as in the PyTorch code of Transformer-XL's authors
};
template <>
inline constexpr std::array<std::string_view, 2> value_names<ClusterOrder>{"forward", "reversed"};

/// Options of AdaptiveSoftmax besides the clusters.
struct AdaptiveSoftmaxOptions {
  bool bias = false;         ///< for every token and every cluster
  bool tie_weights = false;  ///< the tables are those of the embedding
  /// Clusters that share the projection of the embedding: 1, 2, 3 in Transformer-XL on
  /// WikiText-103, none on LM1B.
  std::vector<int64_t> tie_projections = {};
  ClusterOrder cluster_order = ClusterOrder::forward;
};

/// The adaptive softmax \cite grave2017 : a classifier that computes the logits of rare tokens only
/// for the targets that need them. A first softmax is over the tokens of cluster 0 and one entry
/// for each other cluster; each of those has a softmax of its own:
///   log p(x) = log p_head(x)                       x in cluster 0
///            = log p_head(cluster) + log p_c(x)    else
/// with logits W_c P_c^T h + b_c, where P_c^T is left out without projections.
struct AdaptiveSoftmax : Module {
  AdaptiveSoftmax() = default;
  /// `tied` holds what is tied, and may be null if nothing is. Throws ValueError as
  /// AdaptiveOptions::check(), and if `tied` lacks what is to be tied or has other clusters.
  AdaptiveSoftmax(const AdaptiveOptions& options, const AdaptiveSoftmaxOptions& softmax,
                  const Init& init, const AdaptiveEmbedding* tied = nullptr);

  /// Negative log-likelihood of the targets in nats, in their order. Never holds the logits of all
  /// rows (linear_cross_entropy). On the host the products of a cluster have only the rows of its
  /// own targets, and rows with an ignored target are in none, even if they hold NaN; a device
  /// reads zeros for these rows. The meta device counts all targets as those of cluster 1.
  ///   hidden   [..., D]  f64 f32 f16 bf16
  ///   targets  [...]     i64 i32 u8, in [0, V) or ignored_target
  ///   gradient           in_forward needs the mean or the sum; automatic is recompute, since the
  ///                      gradients of all softmaxes would be held at once
  ///   saves    as linear_cross_entropy for each softmax: rows of hidden or their projections; and
  ///            the table of cluster 0 once more, followed by the rows of `cluster`
  ///   returns  scalar, or [...] for Reduction::none, 0 where the target is ignored; f64 for f64,
  ///            else f32. The mean is over targets that are not ignored; 0 if there are none
  ///   throws   ShapeError, DTypeError, DeviceError, ValueError that names the first bad target
  Tensor loss(const Tensor& hidden, const Tensor& targets, Reduction reduction = Reduction::mean,
              LossGradient gradient = LossGradient::recompute) const;

  /// The logarithms of the probabilities of all tokens, for short inputs: costs as much as a
  /// softmax over V.
  ///   hidden   [..., D]  floating
  ///   returns  [..., V]  dtype of the parameters
  ///   throws   ShapeError, DTypeError, DeviceError
  Tensor log_probabilities(const Tensor& hidden) const;

  void visit(Visitor& v) override {
    v("table", tables)("projection", projections)("cluster", cluster);
  }

  AdaptiveOptions options;
  AdaptiveSoftmaxOptions softmax;
  std::vector<Linear> tables;       ///< [size(c), width(c)], bias [size(c)] for each cluster
  std::vector<Linear> projections;  ///< [D, width(c)] for each cluster, or none
  Linear cluster;  ///< [clusters - 1, width(0)], bias [clusters - 1], in cluster_order; undefined
                   ///< if there is one cluster

 private:
  /// The row of `cluster` that belongs to cluster c >= 1.
  int64_t row_of(int64_t c) const;
  /// P_c^T h, or h.
  Tensor narrowed(int64_t c, const Tensor& h) const;
};

}  // namespace longspan
