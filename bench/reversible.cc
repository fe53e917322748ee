// Measures what memory policies cost and save. Prints JSON lines on standard output.
//   bench_reversible steps [rounds]   CPU seconds of training steps by policy, relative to standard
//   bench_reversible depth            bytes saved for the backward pass, by depth and policy
//   bench_reversible errors           errors of the inversion, by depth, dtype of layers and mode
// Policies take turns, and ratios are medians over the rounds. docs/memory.md says what to expect.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "bench/command_line.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "models/transformer/transformer.h"
#include "nn/reversible.h"
#include "ops/random.h"
#include "train/optimizer.h"

namespace longspan::bench {
namespace {

constexpr int64_t kLength = 1024;
const char* const kPolicies[] = {"standard",     "lean",       "selective",       "checkpoint",
                                 "checkpoint:4", "reversible", "reversible:exact"};

/// The decoder of the specification's small measurements: D = 128, F = 512, V = 8192.
TransformerConfig small(int64_t layers, const std::string& policy) {
  TransformerConfig c;
  c.n_layer = layers;
  c.n_head = 4;
  c.d_model = 128;
  c.d_ff = 512;
  c.vocab = 8192;
  c.n_max = kLength;
  c.activation = Activation::gelu_tanh;
  c.positions = Positions::learned;
  c.dropout = 0.1f;
  c.memory.set(policy);
  return c;
}

Tensor some_tokens() {
  std::vector<int64_t> ids(kLength);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i) * 7919 % 8192;
  return Tensor::from(ids, {1, kLength});
}

/// The model and the optimizer of one policy.
struct Contestant {
  explicit Contestant(std::string_view name)
      : policy(name),
        model(std::make_unique<Transformer>(small(16, policy), Init{.gen = Generator{1}})),
        optimizer(std::make_unique<AdamW>(named_parameters(*model))) {}

  /// CPU seconds of a step, all threads.
  double step(int64_t index) {
    const Tensor tokens = some_tokens();
    const Pass pass{.training = true, .gen = Generator{3}.fork(static_cast<uint64_t>(index))};
    const std::clock_t begin = std::clock();
    backward(model->loss(tokens, tokens, {}, pass).loss);
    optimizer->step(1e-3);
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  }

  std::string policy;
  std::unique_ptr<Transformer> model;
  std::unique_ptr<AdamW> optimizer;
  std::vector<double> seconds, ratios;
};

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

void report_steps(int64_t rounds) {
  require(rounds >= 1, "bench", "{} rounds; expected 1 or more", rounds);
  std::vector<Contestant> all;
  for (const char* policy : kPolicies) all.emplace_back(policy);
  for (Contestant& c : all) c.step(0);
  for (int64_t round = 1; round <= rounds; ++round) {
    for (Contestant& c : all) {
      c.seconds.push_back(c.step(round));
      c.ratios.push_back(c.seconds.back() / all.front().seconds.back());
    }
  }
  for (const Contestant& c : all) {
    fmt::print(
        "{{\"what\":\"step\",\"policy\":\"{}\",\"layers\":16,\"d_model\":128,\"length\":{},"
        "\"threads\":{},\"rounds\":{},\"cpu_seconds\":{:.4f},\"ratio\":{:.3f},\"lowest\":{:.3f},"
        "\"highest\":{:.3f}}}\n",
        c.policy, kLength, num_threads(), rounds, median(c.seconds), median(c.ratios),
        *std::min_element(c.ratios.begin(), c.ratios.end()),
        *std::max_element(c.ratios.begin(), c.ratios.end()));
  }
}

void report_depth() {
  const Tensor tokens = some_tokens();
  for (const char* policy : kPolicies) {
    for (const int64_t layers : {4, 8, 16, 32, 64}) {
      const Transformer model(small(layers, policy), Init{.gen = Generator{1}});
      const int64_t before = memory_tracker().live()[Category::saved];
      const Tensor loss = model.loss(tokens, tokens, {}, {.training = true, .gen = {}}).loss;
      const int64_t kept = memory_tracker().live()[Category::saved] - before;
      memory_tracker().reset_peak();
      backward(loss);
      const Usage peak = memory_tracker().peak();
      fmt::print(
          "{{\"what\":\"depth\",\"policy\":\"{}\",\"layers\":{},\"length\":{},\"saved\":{},"
          "\"peak\":{},\"peak_without_parameters_and_gradients\":{}}}\n",
          policy, layers, kLength, kept, peak.total(),
          peak.total() - peak[Category::parameter] - peak[Category::gradient]);
      std::fflush(stdout);
    }
  }
}

/// f(norm(x)) of T = 32 rows of D = 64, F = 128, weights of unit gain.
struct NormedFeedForward final : Layer {
  NormedFeedForward(int64_t width, int64_t inner, const Init& init)
      : norm(NormKind::layer, width, 1e-5, init.at("norm")),
        ff({.d_model = width,
            .d_ff = inner,
            .activation = Activation::gelu_tanh,
            .weights = Scheme::normal(1 / std::sqrt(static_cast<double>(width))),
            .out_weights = Scheme::normal(1 / std::sqrt(static_cast<double>(inner)))},
           init.at("ff")) {}
  Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const override {
    return ff.forward(norm.forward(x), ctx, pass);
  }
  void visit(Visitor& v) override { v("norm", norm)("ff", ff); }
  Normalization norm;
  FeedForward ff;
};

struct Mode {
  const char* name;
  DType streams, layers;
  bool exact;
  int64_t checkpoint_every;
};

void report_errors() {
  constexpr int64_t rows = 32, width = 64, inner = 128;
  const Mode modes[] = {
      {"f64", DType::f64, DType::f64, false, 0},
      {"f32", DType::f32, DType::f32, false, 0},
      {"bf16 layers", DType::f32, DType::bf16, false, 0},
      {"bf16 layers, true streams every 4 blocks", DType::f32, DType::bf16, false, 8},
      {"exact", DType::f32, DType::f32, true, 0},
      {"exact, bf16 layers", DType::f32, DType::bf16, true, 0}};
  for (const Mode& mode : modes) {
    for (const int64_t blocks : {1, 2, 3, 6, 12, 24, 48, 96}) {
      const Init init{.gen = Generator{11}, .dtype = mode.streams};
      std::vector<Coupling> couplings(static_cast<size_t>(blocks));
      for (int64_t i = 0; i < blocks; ++i) {
        Coupling& c = couplings[static_cast<size_t>(i)];
        c.f = std::make_unique<NormedFeedForward>(width, inner, init.at(2 * i));
        c.g = std::make_unique<NormedFeedForward>(width, inner, init.at(2 * i + 1));
      }
      Tensor x = normal({1, rows, width}, Generator{5}, 0, 1, mode.streams);
      set_requires_grad(x);
      const ReversibleOptions options{
          .layers = mode.layers, .exact = mode.exact, .checkpoint_every = mode.checkpoint_every};
      const ReconstructionErrorMonitor watch(-1);
      const ReversibleOutput out =
          reversible(couplings, enter_reversible(x, options), {}, Pass{}, options);
      const Tensor y = mean_of(out.y);
      backward(y, normal(y.shape(), Generator{6}, 0, 1, y.dtype()));
      fmt::print(
          "{{\"what\":\"inversion error\",\"mode\":\"{}\",\"blocks\":{},\"relative_l2\":{:.3g}}}\n",
          mode.name, blocks, watch.last);
    }
  }
}

void run(int argc, const char* const* argv) {
  int64_t rounds = 9;
  CommandLine command("bench_reversible", "What memory policies cost and save.");
  CommandLine s = command.part("steps", "CPU seconds of training steps by policy");
  CommandLine d = command.part("depth", "bytes saved by depth and policy");
  CommandLine e = command.part("errors", "errors of the inversion");
  s.option("rounds", rounds, "turns of each policy");
  command.read(argc, argv);
  if (s.chosen()) report_steps(rounds);
  if (d.chosen()) report_depth();
  if (e.chosen()) report_errors();
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) try {
  longspan::bench::run(argc, argv);
} catch (const std::exception& e) {
  fmt::print(stderr, "{}\n", e.what());
  return 1;
}
