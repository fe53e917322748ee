// Measures what Performer promises: how near its features come to softmax attention, and what a
// step costs as texts grow. Prints JSON lines on standard output.
//   bench_performer error [seeds]    |out - exact| / |exact| of one head, 256 tokens of width 16
//                                    with entries of queries and keys N(0, 0.5^2) and N(0, 1), for
//                                    kinds of features and projections; means over the seeds
//   bench_performer steps [rounds]   CPU seconds and peak bytes of a training step of the small
//                                    preset (decoder) and of the same model with exact attention,
//                                    1,024 to 65,536 tokens (8,192), and of the small Reformer;
//                                    the best of the rounds
// docs/performer.md says what to expect.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "bench/command_line.h"
#include "core/error.h"
#include "core/memory.h"
#include "models/performer/performer.h"
#include "models/reformer/reformer.h"
#include "nn/attention/performer.h"
#include "ops/attention/block_attention.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "train/optimizer.h"

namespace longspan::bench {
namespace {

constexpr int64_t kTokens = 256, kWidth = 16;

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

/// Relative errors of one draw of inputs and projection: over all rows together, and the median
/// over rows.
struct RelativeError {
  double all = 0, row = 0;
};

RelativeError error_of(FeatureMap map, ProjectionRows rows, int64_t features, double deviation,
                       uint64_t seed) {
  const NoGrad off;
  const Generator gen{seed};
  const auto draw = [&](const char* name, double size) {
    return normal({1, 1, kTokens, kWidth}, gen.fork(name), 0, size, DType::f64);
  };
  const Tensor q = draw("q", deviation), k = draw("k", deviation), v = draw("v", 1);
  const Tensor w = random_projection(features / kernels::feature_halves(map), kWidth, gen.fork("w"),
                                     rows, ProjectionNorms::normal, DType::f64);
  LinearAttentionOptions options;
  options.features = map;
  const Tensor out = linear_attention(q, k, v, w, options).out;
  const Tensor exact = block_attention(q, k, v, patterns::dense()).out;
  const Tensor wrong = sum(square(sub(out, exact)), {3}), whole = sum(square(exact), {3});
  return {std::sqrt(sum(wrong).item() / sum(whole).item()),
          median(sqrt(div(wrong, whole)).to_vector<double>())};
}

int errors(int64_t seeds) {
  for (const double deviation : {0.5, 1.0}) {
    for (const FeatureMap map :
         {FeatureMap::positive, FeatureMap::hyperbolic, FeatureMap::trigonometric}) {
      for (const ProjectionRows rows : {ProjectionRows::gram_schmidt, ProjectionRows::iid}) {
        for (int64_t features = 16; features <= 4096; features *= 2) {
          std::vector<double> all;
          double total = 0, row = 0;
          for (int64_t seed = 1; seed <= seeds; ++seed) {
            const RelativeError e =
                error_of(map, rows, features, deviation, static_cast<uint64_t>(seed));
            all.push_back(e.all);
            total += e.all / static_cast<double>(seeds);
            row += e.row / static_cast<double>(seeds);
          }
          fmt::print(
              "{{\"deviation\": {}, \"features\": \"{}\", \"rows\": \"{}\", \"M\": {}, \"error\": "
              "{:.4g}, \"median\": {:.4g}, \"row_median\": {:.4g}}}\n",
              deviation, name_of_value(map), name_of_value(rows), features, total, median(all),
              row);
        }
      }
    }
  }
  return 0;
}

Tensor some_tokens(int64_t length) {
  std::vector<int64_t> ids(static_cast<size_t>(length));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i) * 7919 % 251;
  return Tensor::from(ids, {1, length});
}

struct StepCost {
  double seconds = HUGE_VAL;
  int64_t peak = 0;
};

/// Measures a step of AdamW; the first one, which allocates the moments, does not count.
void measure(const LanguageModel& model, AdamW& optimizer, int64_t length, StepCost& cost) {
  const Tensor tokens = some_tokens(length);
  memory_tracker().reset_peak();
  const std::clock_t begin = std::clock();
  backward(model.loss(tokens, tokens, {}, {.training = true, .gen = Generator{3}}).loss);
  optimizer.step(1e-9);
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  cost.seconds = std::min(cost.seconds, seconds);
  cost.peak = memory_tracker().peak().total();
}

int steps(int64_t rounds) {
  constexpr int64_t longest = 65536, longest_exact = 8192;
  const Init init{.gen = Generator{1}};
  const auto lengths = [rounds](LanguageModel&& model, const char* name, int64_t most) {
    AdamW optimizer(named_parameters(model));
    StepCost first;
    measure(model, optimizer, 64, first);
    for (int64_t length = 1024; length <= most; length *= 2) {
      StepCost cost;
      for (int64_t round = 0; round < rounds; ++round) measure(model, optimizer, length, cost);
      fmt::print("{{\"model\": \"{}\", \"length\": {}, \"seconds\": {:.4g}, \"peak_bytes\": {}}}\n",
                 name, length, cost.seconds, cost.peak);
      std::fflush(stdout);
    }
  };
  PerformerConfig c = performer_preset("small");
  c.redraw_interval = 0;
  lengths(Performer(c, init), "performer", longest);
  c.features = FeatureMap::relu;
  lengths(Performer(c, init), "performer_relu", longest);
  lengths(Transformer(c, init), "transformer", longest_exact);
  ReformerConfig r = reformer_preset("small");
  r.d_ff = c.d_ff;
  lengths(Reformer(r, init), "reformer", r.n_max);
  return 0;
}

int run(int argc, const char* const* argv) {
  int64_t seeds = 20, rounds = 3;
  CommandLine command("bench_performer", "How near Performer comes to softmax, and what it costs.");
  CommandLine e = command.part("error", "relative errors of one head");
  CommandLine s = command.part("steps", "seconds and bytes of a training step over the lengths");
  e.option("seeds", seeds, "draws");
  s.option("rounds", rounds, "turns of each case");
  command.read(argc, argv);
  return e.chosen() ? errors(seeds) : steps(rounds);
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) try {
  return longspan::bench::run(argc, argv);
} catch (const longspan::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
