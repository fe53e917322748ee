// Measures what BlockBERT saves compared with the same encoder with full attention, at the shapes
// of its paper's base model. Prints JSON lines on standard output.
//   bench_blockbert memory [layers]    peak bytes of a training step, by category
//   bench_blockbert time [rounds]      CPU seconds of one layer, and of its attention alone
// Variants take turns, and ratios are medians over the rounds. docs/blockbert.md says what to
// expect.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "bench/command_line.h"
#include "bench/harness.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "models/blockbert/blockbert.h"
#include "ops/attention/block_attention.h"
#include "ops/cost.h"
#include "ops/patterns/blocks.h"
#include "ops/patterns/pairs.h"
#include "train/optimizer.h"

namespace longspan::bench {
namespace {

constexpr int64_t kMegabyte = 1'000'000;

struct Variant {
  std::string name;
  int64_t n_block = 1;
  std::vector<int64_t> heads;
  BlockBertPattern pattern = BlockBertPattern::blocks;
};

const std::vector<Variant>& variants() {
  static const std::vector<Variant> all = {{"dense", 1, {12}},
                                           {"n=2, 10:2", 2, {10, 2}},
                                           {"n=3, 10:1:1", 3, {10, 1, 1}},
                                           {"sparse", 1, {12}, BlockBertPattern::fixed}};
  return all;
}

BlockBertConfig base(const Variant& v, AttentionImpl impl, int64_t layers) {
  BlockBertConfig c = blockbert_preset("base1024");
  c.n_layer = layers;
  c.n_max = 2048;
  c.n_block = v.n_block;
  c.heads_per_shift = v.heads;
  c.pattern = v.pattern;
  c.attention_impl = impl;
  return c;
}

Tensor some_tokens(int64_t batch, int64_t length) {
  std::vector<int64_t> ids(static_cast<size_t>(batch * length));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i) * 7919 % 30'000;
  return Tensor::from(ids, {batch, length});
}

/// One in seven targets counts.
Tensor some_targets(const Tensor& tokens) {
  std::vector<int64_t> ids = tokens.to_vector<int64_t>();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i % 7 != 3) ids[i] = ignored_target;
  }
  return Tensor::from(ids, tokens.shape());
}

struct StepMemory {
  Usage peak;
  int64_t kept = 0;  // bytes saved for the backward pass at the end of the forward pass
};

/// Measures a step of AdamW. A short step before it allocates the moments, as in every later step.
StepMemory memory_of_step(const BlockBertConfig& config, int64_t batch, int64_t length) {
  BlockBert model(config, Init{.gen = Generator{1}});
  AdamW optimizer(named_parameters(model));
  StepMemory memory;
  for (const Tensor& tokens : {some_tokens(1, 8), some_tokens(batch, length)}) {
    memory_tracker().reset_peak();
    const Pass pass{.training = true, .gen = Generator{3}};
    const Tensor loss = model.loss(tokens, some_targets(tokens), {}, pass).loss;
    memory.kept = memory_tracker().live()[Category::saved];
    backward(loss);
    optimizer.step(1e-4);
  }
  memory.peak = memory_tracker().peak();
  return memory;
}

/// Peak bytes as a linear function of the number of tokens, through two points.
struct Line {
  double fixed = 0, per_token = 0;

  Line(int64_t tokens_a, int64_t bytes_a, int64_t tokens_b, int64_t bytes_b)
      : per_token(static_cast<double>(bytes_b - bytes_a) /
                  static_cast<double>(tokens_b - tokens_a)) {
    fixed = static_cast<double>(bytes_a) - per_token * static_cast<double>(tokens_a);
  }
  double at(int64_t tokens) const { return fixed + per_token * static_cast<double>(tokens); }
};

/// Probabilities before and after dropout, 4 bytes each: 8 H N^2 / n for every sequence and layer.
int64_t probability_bytes(const BlockBertConfig& c, int64_t length, int64_t tokens) {
  return 8 * c.n_head * length * tokens * c.n_layer / c.n_block;
}

void print_step(const Variant& v, const BlockBertConfig& c, int64_t length, int64_t tokens,
                const StepMemory& m) {
  fmt::print(
      "{{\"what\":\"a step\",\"variant\":\"{}\",\"layers\":{},\"length\":{},"
      "\"tokens\":{},\"peak\":{},\"parameter\":{},\"gradient\":{},\"optimizer\":{},"
      "\"saved\":{},\"workspace\":{},\"other\":{},\"kept\":{},\"probabilities\":{}}}\n",
      v.name, c.n_layer, length, tokens, m.peak.total(), m.peak[Category::parameter],
      m.peak[Category::gradient], m.peak[Category::optimizer], m.peak[Category::saved],
      m.peak[Category::workspace], m.peak[Category::other], m.kept,
      probability_bytes(c, length, tokens));
  std::fflush(stdout);
}

void report_memory(int64_t layers) {
  constexpr int64_t few = 1024, many = 2048;
  for (const int64_t length : {512, 1024}) {
    std::vector<Line> lines;
    int64_t dense_kept = 0;
    for (const Variant& v : variants()) {
      if (v.pattern == BlockBertPattern::fixed) continue;
      const BlockBertConfig config = base(v, AttentionImpl::materialized, layers);
      const StepMemory less = memory_of_step(config, few / length, length);
      print_step(v, config, length, few, less);
      const StepMemory more = memory_of_step(config, many / length, length);
      print_step(v, config, length, many, more);
      lines.emplace_back(few, less.peak.total(), many, more.peak.total());
      if (v.n_block == 1) {
        dense_kept = more.kept;
        continue;
      }
      const int64_t own = probability_bytes(config, length, many);
      fmt::print(
          "{{\"what\":\"kept less than dense\",\"variant\":\"{}\",\"layers\":{},"
          "\"length\":{},\"tokens\":{},\"bytes\":{},\"closed_form\":{}}}\n",
          v.name, layers, length, many, dense_kept - more.kept, own * (v.n_block - 1));
      for (const int64_t tokens : {2048, 8192, 16384}) {
        const double dense = lines[0].at(tokens), blocks = lines.back().at(tokens);
        fmt::print(
            "{{\"what\":\"reduction of the peak\",\"variant\":\"{}\",\"layers\":{},"
            "\"length\":{},\"tokens\":{},\"measured\":{},\"dense_megabytes\":{:.0f},"
            "\"megabytes\":{:.0f},\"reduction\":{:.4f}}}\n",
            v.name, layers, length, tokens, tokens <= many, dense / kMegabyte, blocks / kMegabyte,
            1 - blocks / dense);
      }
    }
  }
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

struct Timed {
  std::string name;
  double expected = 1;  // multiply-accumulates relative to the dense one
  std::function<void()> run;
};

/// Compares the others with the first of `all`.
void take_turns(const std::string& what, int64_t length, int64_t tokens, int64_t rounds,
                const std::vector<Timed>& all) {
  std::vector<std::vector<double>> seconds(all.size()), ratios(all.size());
  for (const Timed& t : all) t.run();
  for (int64_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < all.size(); ++i) {
      const double begin = process_seconds();
      all[i].run();
      seconds[i].push_back(process_seconds() - begin);
      ratios[i].push_back(seconds[i].back() / seconds[0].back());
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    fmt::print(
        "{{\"what\":\"{}\",\"variant\":\"{}\",\"length\":{},\"tokens\":{},\"rounds\":{},"
        "\"seconds\":{:.4f},\"share_of_dense\":{:.4f},\"share_of_its_products\":{:.4f}}}\n",
        what, all[i].name, length, tokens, rounds, median(seconds[i]), median(ratios[i]),
        all[i].expected);
  }
  std::fflush(stdout);
}

/// Multiply-accumulates of a forward pass over one sample, without a head.
int64_t macs_of(const BlockBertConfig& config, int64_t length) {
  const NoGrad off;
  const BlockBert plan(config, Init{.device = meta_device});
  const MacCount macs;
  plan.forward({.tokens = Tensor::empty({1, length}, DType::i32, meta_device)}, Pass{});
  return macs.total();
}

Timed layer(const Variant& v, AttentionImpl impl, int64_t batch, int64_t length) {
  BlockBertConfig config = base(v, impl, 1);
  config.mlm_head = false;
  config.vocab = 30'000;
  const auto model = std::make_shared<BlockBert>(config, Init{.gen = Generator{1}});
  const Tensor tokens = some_tokens(batch, length);
  const Tensor dy = values({batch, length, config.d_model}, 9);
  return {v.name, static_cast<double>(macs_of(config, length)), [=] {
            const Pass pass{.training = true, .gen = Generator{3}};
            backward(model->forward({.tokens = tokens}, pass), dy);
            for (const NamedTensor& p : named_parameters(*model)) set_grad(p.tensor, {});
          }};
}

Timed attention(const Variant& v, int64_t batch, int64_t length) {
  constexpr int64_t heads = 12, width = 64;
  AttentionPattern pattern;
  if (v.pattern == BlockBertPattern::fixed) {
    pattern = patterns::block_lists(length, {fixed_blocks(length, 128, 32)}, {}, "fixed both ways");
  } else {
    pattern = patterns::permuted_blocks(length, block_permutations(base(v, {}, 1)));
  }
  std::vector<Tensor> x;
  for (uint32_t i = 1; i <= 3; ++i) {
    Tensor input = values({batch, heads, length, width}, i, 2.0f);
    x.push_back(set_requires_grad(input));
  }
  const std::vector<Tensor> dy = {values({batch, heads, length, width}, 9)};
  const auto pairs = static_cast<double>(attended_pairs(pattern, batch, heads, length, length));
  return {v.name, pairs, [=] {
            gradients(std::vector<Tensor>{block_attention(x[0], x[1], x[2], pattern).out}, dy, x);
          }};
}

void relative_to_first(std::vector<Timed>& all) {
  const double first = all[0].expected;
  for (Timed& t : all) t.expected /= first;
}

void report_time(int64_t rounds) {
  constexpr int64_t tokens = 2048;
  set_num_threads(1);
  for (const int64_t length : {512, 1024, 2048}) {
    const int64_t batch = tokens / length;
    for (const AttentionImpl impl : {AttentionImpl::fused, AttentionImpl::materialized}) {
      std::vector<Timed> all;
      for (const Variant& v : variants()) {
        const bool fixed = v.pattern == BlockBertPattern::fixed;
        if (fixed && impl == AttentionImpl::materialized) continue;
        all.push_back(layer(v, impl, batch, length));
      }
      relative_to_first(all);
      take_turns(fmt::format("layer, {}", name_of_value(impl)), length, tokens, rounds, all);
    }
    std::vector<Timed> all;
    for (const Variant& v : variants()) all.push_back(attention(v, batch, length));
    relative_to_first(all);
    take_turns("attention, fused", length, tokens, rounds, all);
  }
}

void run(int argc, const char* const* argv) {
  int64_t layers = 12, rounds = 7;
  CommandLine command("bench_blockbert", "What BlockBERT saves beside full attention.");
  CommandLine memory = command.part("memory", "peak bytes of a training step");
  CommandLine time = command.part("time", "CPU seconds of a layer and of its attention");
  memory.option("layers", layers, "layers of the model");
  time.option("rounds", rounds, "turns of each case");
  command.read(argc, argv);
  if (memory.chosen()) report_memory(layers);
  if (time.chosen()) report_time(rounds);
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) try {
  longspan::bench::run(argc, argv);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
