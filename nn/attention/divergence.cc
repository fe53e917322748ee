#include "nn/attention/divergence.h"

#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "autograd/mode.h"
#include "ops/copy.h"

namespace longspan {
namespace {

double sum_of(std::span<const double> row) {
  double sum = 0;
  for (const double p : row) sum += p;
  return sum;
}

/// JSD of the rows p / sum_p and q / sum_q, as the mean of their divergences from the middle m:
/// (KL(p | m) + KL(q | m)) / 2.
double divergence(std::span<const double> p, double sum_p, std::span<const double> q,
                  double sum_q) {
  double total = 0;
  for (size_t j = 0; j < p.size(); ++j) {
    const double a = p[j] / sum_p, b = q[j] / sum_q;
    if (a > 0) total += a * std::log(2 * a / (a + b));
    if (b > 0) total += b * std::log(2 * b / (a + b));
  }
  return total / 2;
}

}  // namespace

Tensor head_divergence(const Tensor& probabilities) {
  constexpr const char* op = "head_divergence";
  const NoGrad off;
  if (probabilities.rank() != 3) {
    fail_with<ShapeError>(op, "probabilities must be [H, L, T]",
                          {{"probabilities", probabilities}});
  }
  require<DTypeError>(is_floating(probabilities.dtype()), op, "{}; expected a floating dtype",
                      name_of(probabilities.dtype()));
  const int64_t heads = probabilities.dim(0), rows = probabilities.dim(1);
  const auto keys = static_cast<size_t>(probabilities.dim(2));
  const std::vector<double> all = cast(probabilities.detach(), DType::f64).to_vector<double>();
  const auto row_of = [&](int64_t head, int64_t row) {
    return std::span(all).subspan(static_cast<size_t>(head * rows + row) * keys, keys);
  };
  std::vector<double> sums;
  for (int64_t i = 0; i < heads * rows; ++i) sums.push_back(sum_of(row_of(0, i)));
  std::vector<double> result(static_cast<size_t>(heads * heads), 0);
  for (int64_t g = 0; g < heads; ++g) {
    for (int64_t h = g + 1; h < heads; ++h) {
      double total = 0, count = 0;
      for (int64_t i = 0; i < rows; ++i) {
        const double sum_g = sums[static_cast<size_t>(g * rows + i)];
        const double sum_h = sums[static_cast<size_t>(h * rows + i)];
        if (sum_g <= 0 || sum_h <= 0) continue;
        total += divergence(row_of(g, i), sum_g, row_of(h, i), sum_h);
        count += 1;
      }
      const double mean = count > 0 ? total / count : std::numeric_limits<double>::quiet_NaN();
      result[static_cast<size_t>(g * heads + h)] = result[static_cast<size_t>(h * heads + g)] =
          mean;
    }
  }
  return Tensor::from(result, {heads, heads});
}

}  // namespace longspan
