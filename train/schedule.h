#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace longspan {

// Learning rates as functions of the step, counted from 0. Over the first `warmup` steps the rate
// rises linearly and reaches `peak` at step warmup - 1.

/// How often parameters are updated: after each step before step `from`, then after every `every`
/// steps, by the mean of their gradients. Fewer updates late in training take the place of small
/// learning rates, with which models of long contexts no longer adapt to the text that they read
/// \cite rae2020 (optimisation schedule). Learning rates count steps, not updates.
struct UpdatePeriod {
  int64_t every = 1, from = 0;
  /// The number of steps whose gradients an update takes, for the one that `step` belongs to.
  int64_t at(int64_t step) const { return step < from ? 1 : every; }
  /// Whether gradients wait for an update after the first `steps` steps.
  bool waits(int64_t steps) const { return steps > from && (steps - from) % every != 0; }
};

/// Share of the peak during the warm-up, 1 after it.
inline double warmup_share(int64_t step, int64_t warmup) {
  return step < warmup ? static_cast<double>(step + 1) / static_cast<double>(warmup) : 1.0;
}

/// Fraction of the way from the end of the warm-up to `steps`, in [0, 1].
inline double schedule_progress(int64_t step, int64_t warmup, int64_t steps) {
  if (step < warmup) return 0;
  if (steps <= warmup) return 1;
  return std::min(1.0, static_cast<double>(step - warmup) / static_cast<double>(steps - warmup));
}

/// peak.
struct Constant {
  double peak = 1e-3;
  int64_t warmup = 0;
  double operator()(int64_t step) const { return peak * warmup_share(step, warmup); }
};

/// From peak to floor * peak along half a cosine, reached at `steps`.
struct Cosine {
  double peak = 1e-3;
  int64_t warmup = 0, steps = 0;
  double floor = 0;  ///< the last rate, as a fraction of the peak
  double operator()(int64_t step) const { return at(step, schedule_progress(step, warmup, steps)); }
  /// The rate at a step that is `t` of the way along, in [0, 1].
  double at(int64_t step, double t) const {
    return peak * warmup_share(step, warmup) *
           (floor + (1 - floor) * 0.5 * (1 + std::cos(std::numbers::pi * t)));
  }
};

/// From peak to floor * peak along a straight line, reached at `steps`.
struct LinearDecay {
  double peak = 1e-3;
  int64_t warmup = 0, steps = 0;
  double floor = 0;  ///< the last rate, as a fraction of the peak
  double operator()(int64_t step) const { return at(step, schedule_progress(step, warmup, steps)); }
  /// The rate at a step that is `t` of the way along, in [0, 1].
  double at(int64_t step, double t) const {
    return peak * warmup_share(step, warmup) * (1 - (1 - floor) * t);
  }
};

/// peak * sqrt(max(warmup, 1) / n) at the n-th step, n = step + 1, after the warm-up.
struct InverseSqrt {
  double peak = 1e-3;
  int64_t warmup = 0;
  double operator()(int64_t step) const {
    if (step < warmup) return peak * warmup_share(step, warmup);
    return peak * std::sqrt(static_cast<double>(std::max<int64_t>(warmup, 1)) /
                            static_cast<double>(step + 1));
  }
};

/// scale * D^-0.5 * min(n^-0.5, n * warmup^-1.5), n = step + 1 (Vaswani et al. 2017, eq. 3).
struct Noam {
  int64_t d_model = 512, warmup = 4000;
  double scale = 1;
  double operator()(int64_t step) const {
    const auto n = static_cast<double>(step + 1);
    const auto w = static_cast<double>(std::max<int64_t>(warmup, 1));
    return scale / std::sqrt(static_cast<double>(d_model)) *
           std::min(1 / std::sqrt(n), n / (w * std::sqrt(w)));
  }
};

/// peak, multiplied by `factor` every `every` steps after the warm-up.
struct Stepwise {
  double peak = 1e-3;
  int64_t warmup = 0, every = 1000;
  double factor = 0.5;
  double operator()(int64_t step) const {
    const int64_t drops = std::max<int64_t>(step - warmup, 0) / std::max<int64_t>(every, 1);
    return peak * warmup_share(step, warmup) * std::pow(factor, static_cast<double>(drops));
  }
};

}  // namespace longspan
