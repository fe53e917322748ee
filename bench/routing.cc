// Measures what routing attention costs, including scores, selection, gathers and scatters. All
// cases take turns in one process; the best turn of each counts, in CPU time of one thread. Prints
// one JSON line per case.
//
//   bench_routing share [--turns N] [--length L] [--heads H]
//     useful FLOPs (4 d per attended pair forward, 10 d backward, 2 d per score of a token and a
//     centroid) per second, as a share of the rate of our dense attention in the same run (at 4,096
//     tokens), of the FMA peak and of the loading peak; turns in a slow phase of the machine do not
//     count (bench/phases.h)
//   bench_routing growth [--turns N] [--longest L] [--heads H]
//     seconds and peak bytes of heads, forward and backward, for lengths from 1,024 with k and w
//     near sqrt(L), and the exponents of their growth

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "bench/command_line.h"
#include "bench/harness.h"
#include "bench/phases.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "ops/attention/routing.h"

namespace longspan::bench {
namespace {

constexpr int64_t kWidth = 64;

/// clusters 0: dense attention, not causal.
struct Case {
  std::string name;
  int64_t length = 0, heads = 0, clusters = 0, window = 0;
  bool recent = false, shared = true;
  Tensor centroids = {}, out = {}, dout = {};
  std::vector<Tensor> leaves = {};               // q, v[, k]
  double select = 0, forward = 0, backward = 0;  // seconds of the best turn

  Tensor lists() const {
    return recent ? nearest_centroids(leaves[0].detach(), centroids)
                  : routing_members(leaves[0].detach(), centroids, window);
  }
  Tensor attend() const {
    const Tensor &q = leaves[0], &v = leaves[1], k = shared ? Tensor{} : leaves[2];
    if (clusters == 0) return block_attention(q, k, v, patterns::dense()).out;
    if (recent) return attend_to_recent(q, k, v, lists(), clusters, window, 0).out;
    const Tensor keys = shared ? Tensor{} : routing_members(k.detach(), centroids, window);
    return attend_in_groups(q, k, v, lists(), keys, 0).out;
  }
  double pairs() const {
    const auto w = static_cast<double>(window), l = static_cast<double>(length);
    if (clusters == 0) return static_cast<double>(heads) * l * l;
    // With recent members a token sees those of its cluster, at most w: counted as if clusters were
    // of equal size, L / k tokens.
    const double size = recent ? l / static_cast<double>(clusters) : w;
    const double each = size <= w ? size * (size + 1) / 2 : size * w - w * (w - 1) / 2;
    return static_cast<double>(heads * clusters) * each;
  }
  double scores() const {
    return static_cast<double>(heads * length * clusters * (shared ? 1 : 2));
  }
};

void prepare(Case& c) {
  for (uint32_t seed = 1; seed <= (c.shared ? 2u : 3u); ++seed) {
    Tensor leaf = values({1, c.heads, c.length, kWidth}, seed, 2.0f);
    c.leaves.push_back(set_requires_grad(leaf));
  }
  if (c.clusters > 0) c.centroids = values({c.heads, c.clusters, kWidth}, 7, 2.0f);
  c.out = c.attend();
  c.dout = values(c.out.shape(), 90);
}

/// Returns the seconds of selection, forward and backward.
std::vector<double> take_turn(const Case& c) {
  double select = 0, forward = 0, backward = 0;
  {
    const NoGrad none;
    if (c.clusters > 0) best(select, [&] { c.lists(); });
    best(forward, [&] { c.attend(); });
  }
  const std::vector<Tensor> out = {c.out}, dout = {c.dout};
  best(backward, [&] { gradients(out, dout, c.leaves, true); });
  return {select, forward, backward};
}

/// Takes turns of all cases and keeps the best seconds of each.
Phases measure(std::vector<Case>& cases, int64_t turns) {
  std::vector<Contestant> contestants;
  for (const Case& c : cases) contestants.push_back({.turn = [&c] { return take_turn(c); }});
  const Phases phases = take_turns(contestants, turns);
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::vector<double>& least = contestants[i].best;
    cases[i].select = least[0];
    cases[i].forward = least[1];
    cases[i].backward = least[2];
  }
  return phases;
}

Case sized(const std::string& name, int64_t length, int64_t heads, bool recent, bool shared) {
  const auto k = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(length))));
  return {.name = name,
          .length = length,
          .heads = heads,
          .clusters = k,
          .window = length / k,
          .recent = recent,
          .shared = shared};
}

Rates rates_of(const Case& c) {
  const auto d = static_cast<double>(kWidth);
  const double pairs = c.pairs() * d, scores = 2 * c.scores() * d;
  return bench::rates_of(4 * pairs + scores, c.forward, 10 * pairs, c.backward);
}

void share(int64_t turns, int64_t length, int64_t heads) {
  std::vector<Case> cases = {{.name = "dense", .length = 4096, .heads = heads, .shared = false},
                             sized("topw", length, heads, false, true),
                             sized("topw, separate keys", length, heads, false, false),
                             sized("argmax_recent", length, heads, true, true)};
  for (const int64_t window : {256, 512}) {
    Case c = sized(fmt::format("topw, groups of {}", window), length, heads, false, true);
    c.clusters = length / window;
    c.window = window;
    cases.push_back(c);
  }
  const double before = fma_peak(1);
  for (Case& c : cases) prepare(c);
  const Phases phases = measure(cases, turns);
  const double after = fma_peak(1), peak = std::max(before, after);
  const Rates dense = rates_of(cases.front());
  for (const Case& c : cases) {
    nlohmann::ordered_json line = {{"name", c.name},
                                   {"length", c.length},
                                   {"heads", c.heads},
                                   {"clusters", c.clusters},
                                   {"window", c.window},
                                   {"select_seconds", c.select},
                                   {"forward_seconds", c.forward},
                                   {"backward_seconds", c.backward}};
    line.update(share_fields(rates_of(c), dense, peak, phases.loading_peak));
    line["peak_after"] = after / before;
    line.update(fields_of(phases));
    std::printf("%s\n", line.dump().c_str());
  }
}

/// Least squares through (log x, log y).
double exponent(const std::vector<double>& x, const std::vector<double>& y) {
  double sx = 0, sy = 0, sxx = 0, sxy = 0;
  const auto n = static_cast<double>(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double a = std::log(x[i]), b = std::log(y[i]);
    sx += a, sy += b, sxx += a * a, sxy += a * b;
  }
  return (n * sxy - sx * sy) / (n * sxx - sx * sx);
}

void growth(int64_t turns, int64_t longest, int64_t heads) {
  for (const bool recent : {false, true}) {
    std::vector<double> lengths, seconds, bytes;
    nlohmann::ordered_json each;
    for (int64_t length = 1024; length <= longest; length *= 2) {
      Case c = sized(recent ? "argmax_recent" : "topw", length, heads, recent, true);
      prepare(c);
      double time = 0, peak = 0;
      for (int64_t turn = 0; turn < turns; ++turn) {
        MemoryTracker& tracker = memory_tracker({});
        tracker.reset_peak();
        const auto before = static_cast<double>(tracker.live().total());
        best(time, [&] {
          const std::vector<Tensor> out = {c.attend()}, dout = {c.dout};
          gradients(out, dout, c.leaves, false);
        });
        peak = static_cast<double>(tracker.peak().total()) - before;
      }
      lengths.push_back(static_cast<double>(length));
      seconds.push_back(time);
      bytes.push_back(peak);
      each[std::to_string(length)] = {
          {"clusters", c.clusters}, {"window", c.window}, {"seconds", time}, {"peak_bytes", peak}};
    }
    const nlohmann::ordered_json line = {{"name", recent ? "argmax_recent" : "topw"},
                                         {"heads", heads},
                                         {"lengths", each},
                                         {"time_exponent", exponent(lengths, seconds)},
                                         {"memory_exponent", exponent(lengths, bytes)}};
    std::printf("%s\n", line.dump().c_str());
  }
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) {
  using namespace longspan;
  using namespace longspan::bench;
  int64_t turns = 5, length = 16384, heads = 4, longest = 65536;
  CommandLine command("bench_routing", "What routing attention costs.");
  CommandLine s = command.part("share", "useful FLOPs per second beside dense attention");
  CommandLine g = command.part("growth", "seconds and bytes over the lengths");
  for (CommandLine* part : {&s, &g}) {
    part->option("--turns", turns, "turns of each case");
    part->option("--heads", heads, "heads");
  }
  s.option("--length", length, "tokens");
  g.option("--longest", longest, "tokens of the longest sequence", 1024);
  command.read(argc, argv);
  set_num_threads(1);
  if (s.chosen()) share(turns, length, heads);
  if (g.chosen()) growth(turns, longest, heads);
  return 0;
}
