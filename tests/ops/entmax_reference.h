#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/harness/input_spec.h"

namespace longspan::test {

/// Replaces a row by its alpha-entmax, from a bisection of the threshold; softmax below 1.01. With
/// NaN or inf there are no probabilities: NaN.
inline void entmax_row(std::vector<double>& row, double alpha) {
  alpha = std::min(alpha, 2.0);
  double most = -inf;
  bool numbers = true;
  for (const double x : row) {
    most = std::max(most, x);
    numbers = numbers && x < inf;
  }
  if (!numbers) {
    for (double& x : row) x = std::numeric_limits<double>::quiet_NaN();
    return;
  }
  const auto weight = [&](double x, double tau) {
    if (alpha < 1.01) return std::exp(x - most);
    const double u = (alpha - 1) * (x - most) - tau;
    return u > 0 ? std::pow(u, 1 / (alpha - 1)) : 0.0;
  };
  const auto total = [&](double tau) {
    double sum = 0;
    for (const double x : row) sum += x == -inf ? 0 : weight(x, tau);
    return sum;
  };
  double low = -1, high = 0;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (total(middle) >= 1 ? low : high) = middle;
  }
  const double sum = total(low);
  for (double& x : row) x = sum > 0 && x != -inf ? weight(x, low) / sum : 0;
}

}  // namespace longspan::test
