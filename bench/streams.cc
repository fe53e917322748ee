// Measures what a memory between segments saves. Prints JSON lines on standard output.
//   bench_streams evaluation [rounds]   CPU seconds per token of a Transformer-XL that is evaluated
//                                       segment by segment, and of one that reads the whole context
//                                       of each token anew, by the length of the context
//   bench_streams long [rounds]         the same at the width and the context of the paper's large
//                                       model (3,800 tokens; 3 layers of 1024)
//   bench_streams turn train|evaluation small|base   the best of a few segments in seconds per
//                                       token, processor and wall clock, for bench/peers/streams.py
// The first two take turns, and ratios are medians over the rounds. The ratio of
// multiply-accumulates for a context of A tokens is A (4 D^2 + 2 D F + A D) / (4 D^2 + 2 D F + 3 A
// D).

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "bench/command_line.h"
#include "bench/harness.h"
#include "core/error.h"
#include "models/transformer_xl/transformer_xl.h"
#include "nn/objective.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/shape.h"
#include "train/optimizer.h"

namespace longspan::bench {
namespace {

constexpr int64_t kSegment = 128;

Tensor some_tokens(int64_t length) {
  std::vector<int64_t> ids(static_cast<size_t>(length));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i) * 7919 % 251;
  return Tensor::from(ids, {1, length});
}

double seconds_of(const auto& work) {
  const std::clock_t begin = std::clock();
  work();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

/// Returns the configuration with a memory of `rows` rows.
TransformerXLConfig with_memory(TransformerXLConfig c, int64_t rows) {
  c.mem_len = rows;
  return c;
}

void compare(const TransformerXLConfig& c, int64_t context, int64_t rounds) {
  const NoGrad off;
  const TransformerXL stateful(with_memory(c, context), Init{}), whole(with_memory(c, 0), Init{});
  const Tensor segment = some_tokens(kSegment), window = some_tokens(context);
  std::vector<int64_t> last(static_cast<size_t>(context), ignored_target);
  last.back() = 1;
  const Tensor target = Tensor::from(last, {1, context});

  SegmentMemory memory = stateful.evaluation_memory(1);
  const auto next = [&] { memory = stateful.loss(segment, segment, memory, Pass{}).memory; };
  for (int64_t read = 0; read < context + kSegment; read += kSegment) next();  // until it is full
  const auto anew = [&] { whole.loss(window, target, {}, Pass{}); };
  anew();
  std::vector<double> a, b, ratios;
  for (int64_t round = 0; round < rounds; ++round) {
    a.push_back(seconds_of(next) / kSegment);
    b.push_back(seconds_of(anew));
    ratios.push_back(b.back() / a.back());
  }
  const auto d = static_cast<double>(c.d_model), f = static_cast<double>(c.d_ff),
             n = static_cast<double>(context), each = 4 * d * d + 2 * d * f;
  const double macs = n * (each + n * d) / (each + 3 * n * d);
  fmt::print(
      "{{\"context\": {}, \"d_model\": {}, \"layers\": {}, \"seconds_per_token_by_segments\": "
      "{:.4g}, \"seconds_per_token_anew\": {:.4g}, \"ratio\": {:.1f}, \"ratio_of_macs\": {:.1f}, "
      "\"share\": {:.3f}}}\n",
      context, c.d_model, c.n_layer, median(a), median(b), median(ratios), macs,
      median(ratios) / macs);
  std::fflush(stdout);
}

/// Reads segments of a batch of streams, with gradients and an update if `train`, and prints the
/// best seconds per token after a first one.
int turn(std::string_view what, std::string_view shape) {
  const bool train = what == "train", small = shape == "small";
  require(train || what == "evaluation", "bench_streams", "no turn \"{}\"", what);
  require(small || shape == "base", "bench_streams", "no shape \"{}\"", shape);
  TransformerXLConfig c = transformer_xl_preset(small ? "small" : "enwik8_base");
  c.vocab = 256;
  c.dropout = 0;
  c.mem_len = train ? (small ? 128 : 512) : (small ? 512 : 2100);
  const int64_t batch = train ? (small ? 16 : 2) : 1, length = train ? c.mem_len : 128;
  TransformerXL model(c, Init{});
  Adam adam(named_parameters(model));
  const Tensor row = some_tokens(length), tokens = contiguous(expand(row, {batch, length}));
  SegmentMemory memory = train ? model.empty_memory(batch) : model.evaluation_memory(batch);
  const auto next = [&] {
    if (!train) {
      const NoGrad off;
      memory = model.loss(tokens, tokens, memory, Pass{}).memory;
      return;
    }
    auto result = model.loss(tokens, tokens, memory, {.training = true, .gen = Generator{1}});
    memory = std::move(result.memory);
    backward(result.loss);
    clip_gradients(adam, 0.25);
    adam.step(1e-4);
  };
  for (int64_t read = 0; read <= c.mem_len; read += length) next();
  const MacCount counted;
  next();
  const double flops = 2 * with_relative_scores(counted) * (train ? 3 : 1);
  double best = HUGE_VAL, wall = HUGE_VAL;
  for (int i = 0; i < 3; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    best = std::min(best, seconds_of(next));
    wall = std::min(
        wall, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  const auto count = static_cast<double>(batch * length);
  fmt::print("{{\"cpu\": {:.4g}, \"wall\": {:.4g}, \"share_of_peak\": {:.3f}}}\n", best / count,
             wall / count, flops / best / fma_peak(1));
  return 0;
}

int run(int argc, const char* const* argv) {
  int64_t rounds = 7;
  std::string what, size;
  CommandLine command("bench_streams", "What a memory between segments saves.");
  CommandLine e =
      command.part("evaluation", "with a memory and without, by the length of the context");
  CommandLine l =
      command.part("long", "the same at the width and context of the paper's large model");
  CommandLine t = command.part("turn", "the best of a few segments, for bench/peers/streams.py");
  for (CommandLine* part : {&e, &l}) part->option("rounds", rounds, "turns of each case");
  t.option("what", what, "train or evaluation");
  t.option("size", size, "small or base");
  t.require("what");
  t.require("size");
  command.read(argc, argv);
  if (t.chosen()) return turn(what, size);
  if (l.chosen()) {
    TransformerXLConfig c = transformer_xl_preset("enwik8_large");
    c.n_layer = 3;
    c.vocab = 256;
    c.dropout = c.dropout_attn = 0;
    compare(c, 3800, rounds);
    return 0;
  }
  for (const int64_t context : {128, 256, 512, 1024}) {
    compare(transformer_xl_preset("small"), context, rounds);
  }
  return 0;
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) try {
  return longspan::bench::run(argc, argv);
} catch (const longspan::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
