#include "nn/attention/centroids.h"

#include <algorithm>
#include <cmath>

#include "autograd/mode.h"
#include "ops/attention/routing.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kCentroids = "centroids";

/// x / |x| over the last axis where |x| > 0, else `otherwise`.
Tensor directions(const Tensor& x, const Tensor& otherwise) {
  const Tensor norm = sqrt(sum(square(x), {-1}, true));
  const Tensor some = greater(norm, zeros_like(norm));
  return where(some, div(x, where(some, norm, ones_like(norm))), otherwise);
}

}  // namespace

Centroids::Centroids(const CentroidOptions& options, const Init& init) : options_(options) {
  const CentroidOptions& o = options_;
  require(o.heads >= 1 && o.clusters >= 1 && o.width >= 1, kCentroids,
          "got {} heads, {} clusters and width {}; expected 1 or more", o.heads, o.clusters,
          o.width);
  require(o.decay >= 0 && o.decay <= 1, kCentroids, "decay is {}; expected 0 to 1", o.decay);
  require(std::isfinite(o.radius) && o.radius > 0 && std::isfinite(o.reseed_below) &&
              o.reseed_below >= 0,
          kCentroids, "radius is {} and reseed_below is {}; expected more than 0, and 0 or more",
          o.radius, o.reseed_below);
  const Shape shape{o.heads, o.clusters, o.width};
  means_ = init.at("means").make_buffer(shape, Scheme::normal(1));
  sums_ = init.at("sums").make_buffer(shape, Scheme::zeros());
  const double first = o.update == CentroidUpdate::counts_raw ? 0 : 1;
  counts_ = init.at("counts").make_buffer({o.heads, o.clusters}, Scheme::constant(first));
  membership_ = init.at("membership").make_buffer({3}, Scheme::zeros());
  if (init.meta) return;
  const NoGrad off;
  write_buffer(means_, mul(directions(means_, means_), o.radius));
  write_buffer(sums_, means_);
}

void Centroids::visit(Visitor& v) {
  v.buffer("means", means_).buffer("sums", sums_);
  v.buffer("counts", counts_).buffer("membership", membership_);
}

Centroids::Members Centroids::members(const Tensor& x, const Tensor& clusters) const {
  const DType dtype = means_.dtype();
  const Tensor rows = cast(x.detach(), dtype);
  const Tensor one =
      expand(ones({1, 1, 1, 1}, dtype, rows.device()), {rows.dim(0), rows.dim(1), rows.dim(2), 1});
  const auto of_clusters = [&](const Tensor& of_tokens) {
    return sum(scatter_rows(of_tokens, clusters, options_.clusters), {0});
  };
  return {squeeze(of_clusters(one), -1), of_clusters(rows)};
}

void Centroids::start_from(const std::vector<Tensor>& x, const Tensor& lengths, Generator gen) {
  constexpr int iterations = 10;
  const NoGrad off;
  std::vector<Tensor> rows;
  for (const Tensor& of : x) rows.push_back(cast(of.detach(), means_.dtype()));
  std::vector<int64_t> exist(static_cast<size_t>(rows[0].dim(0)), rows[0].dim(2));
  if (lengths) exist = lengths.to_vector<int64_t>();
  std::vector<int32_t> places;  // of the tokens that exist, in rows [H, B L ..] of all x
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t b = 0; b < exist.size(); ++b) {
      const int64_t first = static_cast<int64_t>(i * exist.size() + b) * rows[0].dim(2);
      for (int64_t t = 0; t < exist[b]; ++t) places.push_back(static_cast<int32_t>(first + t));
    }
  }
  const int64_t heads = options_.heads, k = options_.clusters;
  require(std::ssize(places) >= k, kCentroids,
          "{} clusters start at tokens of a batch, which has {}; expected as many or more", k,
          places.size());
  std::vector<int32_t> chosen;
  for (int64_t h = 0; h < heads; ++h) {
    const Tensor order = permutation(std::ssize(places), gen.fork(static_cast<uint64_t>(h)));
    const std::vector<int64_t> at = order.to_vector<int64_t>();
    for (int64_t c = 0; c < k; ++c) {
      chosen.push_back(places[static_cast<size_t>(at[static_cast<size_t>(c)])]);
    }
  }
  std::vector<Tensor> all;
  for (const Tensor& of : rows) all.push_back(flatten(transpose(of, 0, 1), 1, 2));  // [H, B L, d]
  const Tensor tokens = all.size() == 1 ? all[0] : concat(all, 1);
  const auto place = [&](const Tensor& towards) {
    const Tensor unit = directions(towards, div(means_, options_.radius));
    write_buffer(means_, mul(unit, options_.radius));
  };
  place(permute_rows(tokens, Tensor::from(chosen, {heads, k}, tokens.device())));
  const auto nearest = [&] {
    Members now;
    for (const Tensor& of : rows) {
      const Members own = members(of, nearest_centroids(of, means_, lengths));
      now = now.counts ? Members{add(now.counts, own.counts), add(now.sums, own.sums)} : own;
    }
    return now;
  };
  for (int i = 0; i < iterations; ++i) place(nearest().sums);
  Members last = nearest();
  const Tensor some = greater(last.counts, zeros_like(last.counts));
  last.sums = where(unsqueeze(some, -1), last.sums, means_);
  last.counts = where(some, last.counts, ones_like(last.counts));
  follow(last, 0);
}

Statistics Centroids::statistics(const std::vector<Tensor>& x, const std::vector<Tensor>& clusters,
                                 const Tensor& memberships) const {
  const NoGrad off;
  const DType dtype = means_.dtype();
  Statistics result{this, {}};
  for (size_t i = 0; i < x.size(); ++i) {
    const Members own = members(x[i], clusters[i]);
    result.sums.push_back(own.counts);
    result.sums.push_back(own.sums);
  }
  const Tensor exists = greater_equal(clusters[0], zeros_like(clusters[0]));
  const Tensor n = where(exists, cast(memberships, dtype), full_like(cast(memberships, dtype), -1));
  const auto in = [&](double groups) { return sum(cast(equal(n, full_like(n, groups)), dtype)); };
  const Tensor several = sum(cast(greater(n, full_like(n, 1)), dtype));
  result.sums.push_back(stack({in(0), in(1), several}));
  return result;
}

void Centroids::after_step(const StepEnd& end) {
  if (end.statistics.empty()) return;
  const size_t sets = end.statistics.size() / 2;
  require(end.statistics.size() == 3 || end.statistics.size() == 5, kCentroids,
          "got {} sums; expected those of queries, or of queries and keys", end.statistics.size());
  const auto counts = [&](size_t i) { return end.statistics[2 * i]; };
  const auto sums = [&](size_t i) { return end.statistics[2 * i + 1]; };
  const bool joint =
      options_.update == CentroidUpdate::paper_sum || options_.update == CentroidUpdate::lucid;
  if (joint && sets == 2) {
    follow({add(counts(0), counts(1)), mul(add(sums(0), sums(1)), 0.5)}, options_.decay);
  } else {
    for (size_t i = 0; i < sets; ++i) follow({counts(i), sums(i)}, options_.decay);
  }
  write_buffer(membership_, end.statistics[2 * sets]);
  if (options_.reseed_below > 0) reseed(end.gen);
}

void Centroids::follow(const Members& now, double decay) {
  const auto& [counts, sums] = now;
  const auto toward = [&](const Tensor& old, const Tensor& step) {
    return add(mul(old, decay), mul(step, 1 - decay));
  };
  switch (options_.update) {
    case CentroidUpdate::spherical: {
      const Tensor all = toward(sums_, sums);
      const Tensor unit = directions(all, div(means_, options_.radius));
      write_buffer(means_, mul(unit, options_.radius));
      write_buffer(sums_, all);
      write_buffer(counts_, toward(counts_, counts));
      return;
    }
    case CentroidUpdate::counts_raw: {
      constexpr double epsilon = 1e-5;
      const Tensor all = toward(sums_, sums), n = toward(counts_, counts);
      const Tensor total = longspan::sum(n, {1}, true);  // [H, 1]
      const Tensor among = add(total, epsilon * static_cast<double>(options_.clusters));
      const Tensor smooth = unsqueeze(mul(div(add(n, epsilon), among), total), 2);
      // Without any count, as with decay 1, there is nothing to divide by.
      const Tensor counted = greater(smooth, zeros_like(smooth));
      const Tensor divisor = where(counted, smooth, ones_like(smooth));
      write_buffer(means_, where(counted, div(all, divisor), means_));
      write_buffer(sums_, all);
      write_buffer(counts_, n);
      return;
    }
    case CentroidUpdate::paper_sum: {
      write_buffer(means_, toward(means_, sums));
      write_buffer(counts_, toward(counts_, counts));
      return;
    }
    case CentroidUpdate::lucid: {
      write_buffer(means_, toward(means_, directions(sums, means_)));
      write_buffer(counts_, toward(counts_, counts));
      return;
    }
  }
}

/// Splits the fullest cluster of a head for each one that is nearly empty: both get half of its
/// members, and the new centroid lies near the old one.
void Centroids::reseed(Generator gen) {
  const int64_t k = options_.clusters, d = options_.width;
  std::vector<double> means = cast(means_, DType::f64).to_vector<double>();
  std::vector<double> sums = cast(sums_, DType::f64).to_vector<double>();
  std::vector<double> counts = cast(counts_, DType::f64).to_vector<double>();
  const std::vector<double> noise =
      normal(means_.shape(), gen, 0, 1, DType::f64).to_vector<double>();
  bool changed = false;
  for (int64_t h = 0; h < options_.heads; ++h) {
    double* const n = counts.data() + h * k;
    for (int64_t c = 0; c < k; ++c) {
      const int64_t full = std::max_element(n, n + k) - n;
      if (n[c] >= options_.reseed_below || n[full] < 2 * options_.reseed_below) continue;
      changed = true;
      const auto row = [&](std::vector<double>& all, int64_t of) {
        return all.data() + (h * k + of) * d;
      };
      double *const mu = row(means, c), *const from = row(means, full);
      double length = 0, moved = 0;
      for (int64_t j = 0; j < d; ++j) length += from[j] * from[j];
      const double step = 0.1 * std::sqrt(length / static_cast<double>(d));
      for (int64_t j = 0; j < d; ++j) {
        mu[j] = from[j] + step * noise[static_cast<size_t>((h * k + c) * d + j)];
        moved += mu[j] * mu[j];
      }
      n[c] = n[full] /= 2;
      for (int64_t j = 0; j < d; ++j) {
        mu[j] *= std::sqrt(length / moved);
        row(sums, full)[j] /= 2;
        row(sums, c)[j] = n[c] * mu[j];
      }
    }
  }
  if (!changed) return;
  const auto write = [](Tensor& buffer, const std::vector<double>& values) {
    const Tensor all = cast(Tensor::from(values, buffer.shape()), buffer.dtype());
    write_buffer(buffer, to_device(all, buffer.device()));
  };
  write(means_, means);
  write(sums_, sums);
  write(counts_, counts);
}

}  // namespace longspan
