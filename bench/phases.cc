#include "bench/phases.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "bench/harness.h"

namespace longspan::bench {
namespace {

constexpr double slow_below = 0.9;  // of the best probe
constexpr int patience = 200;       // probes at most while waiting for the fast phase

/// The best probe of this process.
double best_probe = 0;

double sample(Phases& phases) {
  const double now = loading_probe(1);
  best_probe = std::max(best_probe, now);
  phases.lowest = phases.highest == 0 ? now : std::min(phases.lowest, now);
  phases.highest = std::max(phases.highest, now);
  return now;
}

bool is_slow(double probe) { return probe < slow_below * best_probe; }

/// The seconds of a turn's parts, and the lower of the probes before and after it.
struct Turn {
  std::vector<double> seconds;
  double probe;
};

/// Sets a contestant's figures from its turns in fast phases or, if there are none, from all
/// `turns`; returns whether there are none.
bool choose(const std::vector<Turn>& turns, Contestant& contestant) {
  std::vector<const Turn*> chosen;
  for (const Turn& turn : turns) {
    if (!is_slow(turn.probe)) chosen.push_back(&turn);
  }
  const bool slow = chosen.empty();
  if (slow) {
    for (const Turn& turn : turns) chosen.push_back(&turn);
  }
  contestant.best.clear();
  contestant.median.clear();
  for (size_t part = 0; part < turns[0].seconds.size(); ++part) {
    std::vector<double> sorted;
    for (const Turn* turn : chosen) sorted.push_back(turn->seconds[part]);
    std::sort(sorted.begin(), sorted.end());
    contestant.best.push_back(sorted.front());
    contestant.median.push_back(sorted[sorted.size() / 2]);
  }
  contestant.slowest = 0;
  for (const Turn* turn : chosen) {
    const double all = std::accumulate(turn->seconds.begin(), turn->seconds.end(), 0.0);
    contestant.slowest = std::max(contestant.slowest, all);
  }
  return slow;
}

}  // namespace

Phases take_turns(std::vector<Contestant>& contestants, int64_t rounds, int64_t most_repeated) {
  Phases phases;
  if (best_probe == 0) {  // some of these should meet the fast phase
    Phases before_all;
    for (int i = 0; i < patience; ++i) sample(before_all);
  }
  const size_t n = contestants.size();
  std::vector<std::vector<Turn>> turns(n);
  double now = sample(phases);
  const auto one = [&](size_t i) {
    const double before = now;
    std::vector<double> seconds = contestants[i].turn();
    now = sample(phases);
    turns[i].push_back({std::move(seconds), std::min(before, now)});
  };
  for (int64_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < n; ++i) one((i + static_cast<size_t>(round)) % n);
  }
  for (int64_t again = 0; again < most_repeated; ++again) {
    for (size_t i = 0; i < n; ++i) {
      const auto fast = std::count_if(turns[i].begin(), turns[i].end(),
                                      [](const Turn& turn) { return !is_slow(turn.probe); });
      if (fast >= rounds) continue;
      for (int wait = 0; wait < patience && is_slow(now); ++wait) now = sample(phases);
      one(i);
      ++phases.repeated;
    }
  }
  for (size_t i = 0; i < n; ++i) phases.slow |= choose(turns[i], contestants[i]);
  phases.loading_peak = best_probe;
  return phases;
}

nlohmann::ordered_json fields_of(const Phases& phases) {
  return {{"phase", phases.slow ? "slow" : "fast"},
          {"loading_peak", phases.loading_peak},
          {"probe_lowest", phases.lowest},
          {"probe_highest", phases.highest},
          {"repeated_turns", phases.repeated}};
}

Rates rates_of(double forward_flops, double forward_seconds, double backward_flops,
               double backward_seconds) {
  return {forward_flops / forward_seconds, backward_flops / backward_seconds,
          (forward_flops + backward_flops) / (forward_seconds + backward_seconds)};
}

nlohmann::ordered_json share_fields(const Rates& rates, const Rates& dense, double fma_peak,
                                    double loading_peak) {
  const auto of = [&rates](const Rates& whole) -> nlohmann::ordered_json {
    return {{"forward", rates.forward / whole.forward},
            {"backward", rates.backward / whole.backward},
            {"both", rates.both / whole.both}};
  };
  return {{"share_of_dense", of(dense)},
          {"share_of_fma_peak", of({fma_peak, fma_peak, fma_peak})},
          {"share_of_loading", of({loading_peak, loading_peak, loading_peak})}};
}

}  // namespace longspan::bench
