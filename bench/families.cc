// Measures the cost of attention in a layer of each family, forward and backward, in this engine
// alone. Prints JSON lines on standard output.
//
//   bench_families pairs     pairs by the closed formulas, counted one by one, and computed
//   bench_families growth    time and workspace over the lengths, and their exponents
//   bench_families cost      time per attended pair of many patterns compared with a dense one, by
//   turns
//
// Options: --family NAME ... (as in bench/family.h; the default of growth and pairs is all sparse
// families), --lengths L ..., --rounds N, --repeat-slow N, --heads 8, --width 64. Runs on one
// thread; seconds are its CPU time, the best of all rounds. The loading probe runs before and after
// every turn: turns in a slow phase of the machine are repeated and do not count (bench/phases.h).
// If rounds take long, growth runs fewer of them, at least three, to keep a family within the
// budget.

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/command_line.h"
#include "bench/family.h"
#include "bench/harness.h"
#include "bench/phases.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/parallel.h"

namespace longspan::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::vector<std::string> family;
  std::vector<int64_t> lengths;
  int64_t rounds = 7, repeat_slow = 7, heads = 8, width = 64;
};

constexpr double least_sample = 0.05;  // seconds of a sample
constexpr double budget = 45;          // seconds of all samples of a family's growth
constexpr int64_t least_rounds = 3;
constexpr double steady = 0.05;  // allowed relative change of the FMA peak during a measurement
constexpr int64_t attempts = 3;  // measurements if it changes more
constexpr double within = 0.1;   // tolerance of an exponent

void print(const Json& line) {
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

/// One pattern at one length, prepared to run, and its samples.
class Subject {
 public:
  Subject(const std::string& name, int64_t length, const Options& o)
      : name_(name),
        length_(length),
        layer_(family_layer(name, length, o.heads)),
        run_(layer_, o.width) {
    run_.both();  // fills the arena and the caches
    memory_tracker().reset_peak();
    const int64_t before = memory_tracker().live().total();
    const double start = process_seconds();
    run_.both();
    once_ = process_seconds() - start;
    workspace_ = memory_tracker().peak().total() - before;
    calls_ = std::max<int64_t>(1, std::lround(least_sample / once_));
  }

  /// Returns the seconds of a sample.
  double sample() const {
    const double start = process_seconds();
    for (int64_t i = 0; i < calls_; ++i) run_.both();
    return (process_seconds() - start) / static_cast<double>(calls_);
  }

  /// Stores the best and the slowest seconds of its turns.
  void keep(const Contestant& turns) {
    best_ = turns.best[0];
    slowest_ = turns.slowest;
  }

  const std::string& name() const { return name_; }
  int64_t length() const { return length_; }
  const FamilyLayer& layer() const { return layer_; }
  int64_t workspace() const { return workspace_; }
  double sample_seconds() const { return once_ * static_cast<double>(calls_); }
  double best() const { return best_; }
  double spread() const { return slowest_ / best_ - 1; }
  double pair_seconds() const { return best() / static_cast<double>(layer_.pairs); }

 private:
  std::string name_;
  int64_t length_;
  FamilyLayer layer_;
  AttentionRun run_;
  double once_ = 0;
  int64_t workspace_ = 0, calls_ = 1;
  double best_ = 0, slowest_ = 0;
};

/// Samples all subjects by turns, `rounds` times, between two samples of the FMA peak. If these
/// differ, starts over.
Json take_turns(std::vector<std::unique_ptr<Subject>>& subjects, int64_t rounds,
                int64_t repeat_slow) {
  Json result;
  std::vector<Contestant> contestants;
  for (const auto& subject : subjects) {
    contestants.push_back({.turn = [&subject] { return std::vector{subject->sample()}; }});
  }
  for (int64_t attempt = 1; attempt <= attempts; ++attempt) {
    const double before = fma_peak(1);
    const Phases phases = take_turns(contestants, rounds, repeat_slow);
    const double after = fma_peak(1);
    const bool same = std::abs(before - after) <= steady * std::max(before, after);
    result = {{"rounds", rounds},      {"instructions", instructions()},
              {"peak_before", before}, {"peak_after", after},
              {"steady", same},        {"attempt", attempt}};
    result.update(fields_of(phases));
    if (same) break;
  }
  for (size_t i = 0; i < subjects.size(); ++i) subjects[i]->keep(contestants[i]);
  return result;
}

/// Returns the slope of log(value) over log(length), by least squares.
double exponent(const std::vector<int64_t>& lengths, const std::vector<double>& value) {
  const auto n = static_cast<double>(lengths.size());
  double mean_x = 0, mean_y = 0, covariance = 0, variance = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    mean_x += std::log(static_cast<double>(lengths[i])) / n;
    mean_y += std::log(value[i]) / n;
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    const double x = std::log(static_cast<double>(lengths[i])) - mean_x;
    covariance += x * (std::log(value[i]) - mean_y);
    variance += x * x;
  }
  return covariance / variance;
}

/// Fits seconds = token * tokens + pair * pairs by least squares of the relative errors, and
/// returns the largest of these errors too. `token` is the cost of a row independent of its pairs,
/// `pair` the cost of each pair.
Json token_and_pair(const std::vector<int64_t>& lengths, const std::vector<double>& pairs,
                    const std::vector<double>& seconds) {
  double tt = 0, tp = 0, pp = 0, t1 = 0, p1 = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const double t = static_cast<double>(lengths[i]) / seconds[i], p = pairs[i] / seconds[i];
    tt += t * t, tp += t * p, pp += p * p, t1 += t, p1 += p;
  }
  const double det = tt * pp - tp * tp;
  const double token = (t1 * pp - p1 * tp) / det, pair = (p1 * tt - t1 * tp) / det;
  double worst = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const double fitted = token * static_cast<double>(lengths[i]) + pair * pairs[i];
    worst = std::max(worst, std::abs(fitted / seconds[i] - 1));
  }
  return {{"token", token}, {"pair", pair}, {"worst_error", worst}};
}

std::vector<std::string> sparse_families(const Options& o) {
  if (!o.family.empty()) return o.family;
  std::vector<std::string> names;
  for (const Family& family : families()) {
    if (family.name != "dense" && family.name != "causal") names.emplace_back(family.name);
  }
  return names;
}

std::vector<int64_t> lengths_or(const Options& o, std::vector<int64_t> usual) {
  return o.lengths.empty() ? usual : o.lengths;
}

void count_pairs_of_all(const Options& o) {
  for (const std::string& name : sparse_families(o)) {
    for (const int64_t length : lengths_or(o, {2048, 4096, 8192, 12288, 16384, 32768})) {
      const FamilyLayer layer = family_layer(name, length, o.heads);
      const OutlineCount n = counted_pairs(layer);
      print({{"part", "pairs"},
             {"family", name},
             {"options", layer.options},
             {"length", length},
             {"heads", o.heads},
             {"formula", layer.pairs},
             {"counted", n.attended},
             {"computed", n.computed},
             {"equal", n.attended == layer.pairs}});
    }
  }
}

void grow(const std::string& name, const Options& o) {
  const Family& family = family_of(name.substr(0, name.find(':')));
  std::vector<std::unique_ptr<Subject>> subjects;
  double round = 0;
  for (const int64_t length : lengths_or(o, {2048, 4096, 8192, 16384, 32768})) {
    subjects.push_back(std::make_unique<Subject>(name, length, o));
    round += subjects.back()->sample_seconds();
  }
  const int64_t fitting = static_cast<int64_t>(budget / round);
  const Json turns =
      take_turns(subjects, std::min(o.rounds, std::max(fitting, std::min(least_rounds, o.rounds))),
                 o.repeat_slow);

  std::vector<int64_t> lengths;
  std::vector<std::string> options;
  std::vector<double> seconds, spread, workspace, pairs;
  for (const auto& s : subjects) {
    lengths.push_back(s->length());
    options.push_back(s->layer().options);
    seconds.push_back(s->best());
    spread.push_back(s->spread());
    workspace.push_back(static_cast<double>(s->workspace()));
    pairs.push_back(static_cast<double>(s->layer().pairs));
  }
  const double time = exponent(lengths, seconds), memory = exponent(lengths, workspace);
  Json line = {{"part", "growth"},
               {"family", name},
               {"options", options},
               {"heads", o.heads},
               {"width", o.width},
               {"lengths", lengths},
               {"pairs", pairs},
               {"seconds", seconds},
               {"spread", spread},
               {"workspace_bytes", workspace},
               {"time_exponent", time},
               {"time_theory", family.time_exponent},
               {"pairs_exponent", exponent(lengths, pairs)},
               {"seconds_fit", token_and_pair(lengths, pairs, seconds)},
               {"workspace_exponent", memory},
               {"workspace_theory", 1.0},
               {"time_within", std::abs(time - family.time_exponent) <= within},
               {"workspace_within", std::abs(memory - 1) <= within}};
  line.update(turns);
  print(line);
}

void compare_cost(const Options& o) {
  std::vector<std::string> names = {"dense", "causal"};
  for (const char* name :
       {"band:256", "causal_band:256", "longformer_globals:256", "bigbird:64", "bigbird:32",
        "bigbird:16", "blockbert:3", "blockbert:128", "blockbert:256", "blockbert:512", "fixed:128",
        "fixed:64", "strided:128", "strided:64", "etc"}) {
    if (o.family.empty()) names.emplace_back(name);
  }
  names.insert(names.end(), o.family.begin(), o.family.end());
  for (const int64_t length : lengths_or(o, {8192})) {
    std::vector<std::unique_ptr<Subject>> subjects;
    for (const std::string& name : names) {
      subjects.push_back(std::make_unique<Subject>(name, length, o));
    }
    const Json turns = take_turns(subjects, o.rounds, o.repeat_slow);
    const double peak =
        std::max(turns["peak_before"].get<double>(), turns["peak_after"].get<double>());
    for (const auto& s : subjects) {
      const double rate = static_cast<double>(14 * o.width) / s->pair_seconds();
      Json line = {{"part", "cost"},
                   {"pattern", s->name()},
                   {"options", s->layer().options},
                   {"length", length},
                   {"heads", o.heads},
                   {"width", o.width},
                   {"pairs", s->layer().pairs},
                   {"seconds", s->best()},
                   {"spread", s->spread()},
                   {"nanoseconds_a_pair", 1e9 * s->pair_seconds()},
                   {"share_of_fma_peak", rate / peak},
                   {"share_of_loading", rate / turns["loading_peak"].get<double>()},
                   {"cost_beside_dense", s->pair_seconds() / subjects[0]->pair_seconds()},
                   {"rate_beside_dense", subjects[0]->pair_seconds() / s->pair_seconds()},
                   {"rate_beside_causal", subjects[1]->pair_seconds() / s->pair_seconds()}};
      line.update(turns);
      print(line);
    }
  }
}

void run(int argc, const char* const* argv) {
  Options o;
  CommandLine command("bench_families", "What attention costs in a layer of each family.");
  CommandLine p = command.part("pairs", "pairs by the formulas, counted, and computed");
  CommandLine g = command.part("growth", "time and workspace over the lengths");
  CommandLine c = command.part("cost", "time per attended pair beside a dense one");
  for (CommandLine* part : {&p, &g, &c}) {
    part->option("--family", o.family, "names, as in bench/family.h");
    part->option("--lengths", o.lengths, "tokens");
    part->option("--rounds", o.rounds, "turns of each");
    part->option("--repeat-slow", o.repeat_slow, "most turns taken again in slow phases", 0);
    part->option("--heads", o.heads, "heads");
    part->option("--width", o.width, "width of a head");
  }
  command.read(argc, argv);
  set_num_threads(1);
  if (p.chosen()) count_pairs_of_all(o);
  if (c.chosen()) compare_cost(o);
  if (!g.chosen()) return;
  for (const std::string& name : sparse_families(o)) grow(name, o);
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) try {
  longspan::bench::run(argc, argv);
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
