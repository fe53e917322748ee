#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

namespace longspan::bench {

/// A computation that is measured in turns with others. `turn` runs it once and returns the seconds
/// of its parts, equally many each time.
struct Contestant {
  std::function<std::vector<double>()> turn;
  /// The fewest seconds of each part, and their medians, over the turns that count. Written by
  /// take_turns().
  std::vector<double> best = {}, median = {};
  /// The seconds of its slowest turn that counts, all parts together.
  double slowest = 0;
};

/// Results of the loading probe between turns; rates in FLOPs per second.
struct Phases {
  double loading_peak = 0;  // the best probe of the process so far
  double lowest = 0, highest = 0;
  int64_t repeated = 0;  // turns beyond the rounds
  bool slow = false;     // whether a contestant has no turn in a fast phase
};

/// Takes `rounds` turns of every contestant on one thread, in an order that rotates.
/// loading_probe(1) runs directly before and after each: a turn one of whose probes is below 90 %
/// of the best probe of the process was taken in a slow phase of the machine. Such turns are
/// repeated, at most `most_repeated` for each contestant, and count only for a contestant that has
/// no others. bench/peers/phases.py does the same for processes.
Phases take_turns(std::vector<Contestant>& contestants, int64_t rounds, int64_t most_repeated = 7);

/// Returns what a JSON line says of them: phase ("fast" or "slow"), loading_peak, probe_lowest,
/// probe_highest, repeated_turns.
nlohmann::ordered_json fields_of(const Phases& phases);

/// Useful FLOPs per second of a forward pass, of a backward pass, and of both.
struct Rates {
  double forward = 0, backward = 0, both = 0;
};

/// Returns the rates of passes of so many useful FLOPs that took so many seconds.
Rates rates_of(double forward_flops, double forward_seconds, double backward_flops,
               double backward_seconds);

/// Returns what a JSON line says of them: share_of_dense, share_of_fma_peak and share_of_loading,
/// each with forward, backward and both. The peaks are in FLOPs per second.
nlohmann::ordered_json share_fields(const Rates& rates, const Rates& dense, double fma_peak,
                                    double loading_peak);

}  // namespace longspan::bench
