#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "nn/after_step.h"
#include "nn/fields.h"
#include "nn/init.h"
#include "nn/module.h"

namespace longspan {

/// How centroids follow the tokens that are nearest to them, with decay l. n_c and S_c are the
/// number and the sum of a step's members:
///   spherical   S <- l S + (1 - l) S_c,  mu = r S / |S|
///   counts_raw  the same S and n <- l n + (1 - l) n_c from n = 0,  mu = S / n', n' = n smoothed,
///   as
///               in the authors' code: the first steps divide by almost 0 where a cluster is empty
///   paper_sum   mu <- l mu + (1 - l) / 2 (S_c of queries + S_c of keys), the paper's formula with
///               its two misprints (1 - mu) read as (1 - l)
///   lucid       mu <- l mu + (1 - l) S_c / |S_c| where a cluster has members
enum class CentroidUpdate : uint8_t { spherical, counts_raw, paper_sum, lucid };
template <>
inline constexpr std::array<std::string_view, 4> value_names<CentroidUpdate>{
    "spherical", "counts_raw", "paper_sum", "lucid"};

/// Where the first centroids lie. random: in random directions; data: see Centroids::start_from.
enum class CentroidInit : uint8_t { random, data };
template <>
inline constexpr std::array<std::string_view, 2> value_names<CentroidInit>{"random", "data"};

/// Options of Centroids.
struct CentroidOptions {
  int64_t heads = 1, clusters = 1, width = 1;
  CentroidUpdate update = CentroidUpdate::spherical;
  double decay = 0.999;     ///< l
  double radius = 1;        ///< r, also of the first centroids
  double reseed_below = 0;  ///< a cluster with a smaller n takes half of the fullest one; 0: never
};

/// The centroids mu_c of the clusters of each head \cite roy2021 : state that is learned without
/// gradients. They start as random directions of length r. Queries and keys that are projected
/// apart have separate sums; unless the update adds the two, the centroids follow the queries
/// first, then the keys.
class Centroids : public Module {
 public:
  Centroids() = default;
  /// Throws ValueError unless there is a centroid, 0 <= decay <= 1 and nothing is negative.
  Centroids(const CentroidOptions& options, const Init& init);

  /// [H, k, d].
  const Tensor& means() const { return means_; }
  /// n_c of the clusters, averaged over steps with decay l, [H, k].
  const Tensor& counts() const { return counts_; }
  /// In the last step: tokens and heads in which a token was in no group, in one, in several, [3].
  const Tensor& membership() const { return membership_; }
  explicit operator bool() const { return static_cast<bool>(means_); }

  /// Places the centroids by k-means on a batch: they start at random tokens, no token twice, and
  /// ten times each moves to the mean direction of the tokens nearest to it, as in lucidrains'
  /// routing-transformer. Counts and sums become those of the batch, as if every step before had
  /// had it; a cluster without tokens counts as one token at its centroid.
  ///   x        one or two of [B, H, L, d], as for statistics(): clustered together
  ///   lengths  i64 [B], or undefined: the tokens that exist
  ///   throws   ValueError if fewer tokens exist than there are clusters
  void start_from(const std::vector<Tensor>& x, const Tensor& lengths, Generator gen);

  /// Returns the sums of a batch for after_step().
  ///   x            one or two of [B, H, L, d]: the queries, and the keys if they differ
  ///   clusters     for each x, i32 [B, H, L], -1 for tokens that do not exist
  ///   memberships  [B, H, L]: in how many groups each token is; those without a cluster do not
  ///                count
  Statistics statistics(const std::vector<Tensor>& x, const std::vector<Tensor>& clusters,
                        const Tensor& memberships) const;
  void after_step(const StepEnd& end) override;
  void visit(Visitor& v) override;

 private:
  /// The number and the sum of the tokens x [B, H, L, d] of each cluster, [H, k] and [H, k, d].
  struct Members {
    Tensor counts, sums;
  };
  Members members(const Tensor& x, const Tensor& clusters) const;
  void follow(const Members& now, double decay);
  void reseed(Generator gen);

  CentroidOptions options_;
  Tensor means_, sums_;  // mu and S [H, k, d]
  Tensor counts_;        // n [H, k]
  Tensor membership_;    // [3]
};

}  // namespace longspan
