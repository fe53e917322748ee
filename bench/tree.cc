// Measures what attention over a binary tree costs beside our dense attention. All cases take turns
// in one process; the best turn of each counts, in CPU time of one thread. Prints one JSON line per
// case.
//
//   bench_tree pairs [--turns N] [--length L] [--heads H] [--causal 1] [--k K]
//     nanoseconds of an edge, forward and backward, for several k (or one) and label clips, and how
//     many times as much that is as a pair of dense attention (at 4,096 tokens) in the same run;
//     times_dense_products: how many times as many products the kernels compute for a pair;
//     layout_bytes_per_token: the tables that say which node attends to which
//   bench_tree growth [--turns N] [--longest L] [--heads H] [--k K]
//     seconds and peak bytes for lengths from 4,096 on, both sides, forward and backward, with the
//     exponents of their growth
//   bench_tree model [--turns N] [--longest L] [--k K]
//     the same of a step of BP-Transformer: 3 layers of 96, batch 1, gradients of the loss
//   bench_tree crossover [--turns N] [--longest L] [--heads H] [--k K]
//     seconds of the causal tree and of our causal attention over the same tokens, forward and
//     backward, for lengths from 256 on; bench/peers/lengths.py --groups tree has PyTorch's

#include <fmt/format.h>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "bench/command_line.h"
#include "bench/harness.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "models/bp_transformer/bp_transformer.h"
#include "nn/module.h"
#include "ops/attention/edge_attention.h"
#include "ops/patterns/tree.h"
#include "ops/random.h"

namespace longspan::bench {
namespace {

constexpr int64_t kWidth = 64;

/// k 0: dense attention.
struct Case {
  int64_t length = 0, heads = 0, k = 0, clip = 0;
  bool causal = true;
  Tensor out = {}, dout = {};
  std::vector<Tensor> leaves = {};   // q, k, v, labels
  double forward = 0, backward = 0;  // seconds of the best turn

  TreeOptions options() const { return {.k = k, .clip = clip, .causal = causal}; }
  Tensor attend() const {
    if (k == 0) {
      return block_attention(leaves[0], leaves[1], leaves[2],
                             causal ? patterns::causal() : patterns::dense())
          .out;
    }
    return edge_attention(leaves[0], leaves[1], leaves[2], leaves[3],
                          tree_edges(std::span(&length, 1), options()));
  }
  double pairs() const {
    const auto n = static_cast<double>(length);
    const double each = k > 0    ? static_cast<double>(tree_pairs(length, options()))
                        : causal ? n * (n + 1) / 2
                                 : n * n;
    return static_cast<double>(heads) * each;
  }
};

void prepare(Case& c) {
  const int64_t rows = c.k > 0 ? Tree{c.length}.nodes() : c.length;
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    Tensor leaf = values({1, c.heads, rows, kWidth}, seed, 2.0f);
    c.leaves.push_back(set_requires_grad(leaf));
  }
  if (c.k > 0) {
    Tensor labels = values({c.options().labels(), kWidth}, 7);
    c.leaves.push_back(set_requires_grad(labels));
  }
  c.out = c.attend();
  c.dout = values(c.out.shape(), 90);
}

void take_turn(Case& c) {
  {
    const NoGrad none;
    best(c.forward, [&] { c.attend(); });
  }
  const std::vector<Tensor> out = {c.out}, dout = {c.dout};
  best(c.backward, [&] { gradients(out, dout, c.leaves, true); });
}

void turns_of(std::vector<Case>& cases, int64_t turns) {
  for (Case& c : cases) prepare(c);
  for (int64_t turn = 0; turn < turns; ++turn) {
    for (Case& c : cases) take_turn(c);
  }
}

/// Returns how many products of a row and a key of d numbers the kernels compute for a layout,
/// forward and backward, the pairs that rows of a block or tile have in vain included. Dense
/// attention computes 7 for a pair.
double products(const EdgeLayout& layout) {
  const std::vector<int32_t> blocks = layout.blocks.to_vector<int32_t>(),
                             keys = layout.keys.to_vector<int32_t>(),
                             rows = layout.strip_rows.to_vector<int32_t>(),
                             runs = layout.runs.to_vector<int32_t>();
  static constexpr int64_t kLanes = kernels::kEdgeBlockRows, kTile = 4;
  // Scores have a lane for each of 16 rows (keys, in strips); sums go through tiles of four. `bits`
  // tells which of 16 each of n members meets.
  const auto sums = [](int64_t n, const auto& bits) {
    int64_t of_lanes = 0, of_members = 0;
    for (int64_t i = 0; i < n; i += kTile) {
      const int64_t some = std::min(kTile, n - i);
      uint32_t all = 0;
      for (int64_t j = i; j < i + some; ++j) all |= bits(j);
      of_members += some * (std::bit_width(all) - std::countr_zero(all));
      for (int64_t j = i; j < i + some; ++j) {
        for (int64_t lane = 0; lane < kLanes; lane += kTile) {
          of_lanes += (bits(j) >> lane & ((1U << kTile) - 1)) != 0 ? kTile : 0;
        }
      }
    }
    return std::pair(of_lanes, of_members);
  };
  int64_t total = 0;
  for (size_t at = 0; at < blocks.size(); at += kernels::kEdgeBlockFields) {
    const int32_t* const block = blocks.data() + at;
    if (block[0] == kernels::kEdgeStrip) {
      const auto [of_keys, of_rows] = sums(block[4], [&](int64_t i) {
        return static_cast<uint32_t>(
            rows[static_cast<size_t>(kernels::kEdgeStripFields * (block[3] + i) + 1)]);
      });
      total += 3 * kLanes * block[4] + 2 * of_rows + 2 * of_keys;
    } else if (block[6] > 0) {
      const auto [of_rows, of_keys] = sums(block[6], [&](int64_t i) {
        return static_cast<uint32_t>(keys[static_cast<size_t>(2 * (block[5] + i) + 1)]);
      });
      total += 3 * kLanes * block[6] + 2 * of_rows + 2 * of_keys + 4 * kLanes * block[10];
    } else {
      for (int64_t r = 0; r < block[2] * block[4]; ++r) {
        total += 9 * runs[static_cast<size_t>(3 * (block[3] + r) + 1)];
      }
    }
  }
  return static_cast<double>(total);
}

nlohmann::ordered_json described(const Case& c) {
  return {{"attention", c.k > 0 ? "tree" : "dense"},
          {"length", c.length},
          {"heads", c.heads},
          {"k", c.k},
          {"clip", c.clip},
          {"causal", c.causal},
          {"pairs", c.pairs()},
          {"forward", c.forward},
          {"both", c.forward + c.backward}};
}

void pairs(int64_t turns, int64_t length, int64_t heads, bool causal, int64_t only) {
  std::vector<Case> cases = {{.length = 4096, .heads = heads, .causal = causal}};
  for (const auto& [k, clip] : {std::pair{4, 2}, {4, 4}, {8, 4}, {16, 4}, {64, 2}, {64, 6}}) {
    if (only > 0 && k != only) continue;
    cases.push_back({.length = length, .heads = heads, .k = k, .clip = clip, .causal = causal});
  }
  turns_of(cases, turns);
  const Case& dense = cases.front();
  const double peak = fma_peak(1);
  for (const Case& c : cases) {
    const double f = c.forward / c.pairs(), all = (c.forward + c.backward) / c.pairs();
    nlohmann::ordered_json line = described(c);
    line["ns_forward"] = 1e9 * f;
    line["ns_both"] = 1e9 * all;
    line["times_dense_forward"] = f / (dense.forward / dense.pairs());
    line["times_dense_both"] = all / ((dense.forward + dense.backward) / dense.pairs());
    // Useful operations: 6 d for each pair forward and 16 d backward, with labels; dense 4 and 10.
    const double flops = (c.k > 0 ? 22.0 : 14.0) * static_cast<double>(kWidth);
    line["of_peak_both"] = flops / all / peak;
    // The cost of a pair if all its matmuls were as fast as in dense attention.
    if (c.k > 0) {
      const auto layout = tree_edges(std::span(&c.length, 1), c.options());
      line["times_dense_products"] = products(*layout) / (7 * static_cast<double>(layout->pairs));
      int64_t bytes = 0;
      EdgeLayout::visit_tensors([&](const Tensor& t) { bytes += t ? t.nbytes() : 0; }, *layout);
      line["layout_bytes_per_token"] = static_cast<double>(bytes) / static_cast<double>(c.length);
    }
    fmt::print("{}\n", line.dump());
    std::fflush(stdout);
  }
}

/// Prints a line with the time and peak bytes of each length, and how they grow from line to line.
class Growth {
 public:
  /// `work` runs once more, to find its peak.
  void print(nlohmann::ordered_json line, double length, double seconds,
             const std::function<void()>& work) {
    memory_tracker().reset_peak();
    work();
    const auto bytes = static_cast<double>(memory_tracker().peak().total());
    line["peak_bytes"] = bytes;
    if (seconds_ > 0) {
      line["time_exponent"] = std::log2(seconds / seconds_);
      line["bytes_ratio"] = bytes / bytes_;
      line["time_exponent_from_first"] =
          std::log2(seconds / first_seconds_) / std::log2(length / first_length_);
    } else {
      first_seconds_ = seconds;
      first_length_ = length;
    }
    seconds_ = seconds;
    bytes_ = bytes;
    fmt::print("{}\n", line.dump());
    std::fflush(stdout);
  }

 private:
  double seconds_ = 0, bytes_ = 0, first_seconds_ = 0, first_length_ = 0;
};

void growth(int64_t turns, int64_t longest, int64_t heads, int64_t k) {
  Growth growth;
  for (int64_t n = 4096; n <= longest; n *= 2) {
    std::vector<Case> cases = {{.length = n, .heads = heads, .k = k, .clip = 4, .causal = false}};
    turns_of(cases, turns);
    Case& c = cases.front();
    c.out = {};
    growth.print(described(c), static_cast<double>(n), c.forward + c.backward, [&] {
      const Tensor out = c.attend();
      const std::vector<Tensor> outs = {out}, douts = {c.dout};
      gradients(outs, douts, c.leaves, true);
    });
  }
}

void model_growth(int64_t turns, int64_t longest, int64_t k) {
  BpTransformerConfig config = bp_transformer_preset("small");
  config.k = k;
  BpTransformer model(config, Init{});
  const std::vector<Tensor> trained = parameters(model);
  Growth growth;
  for (int64_t n = 4096; n <= longest; n *= 2) {
    const Tensor tokens = randint({1, n}, Generator(1), 0, config.vocab);
    const Pass pass{.training = true, .gen = Generator(2)};
    const auto step = [&] {
      const std::vector<Tensor> loss = {model.loss(tokens, tokens, {}, pass).total()};
      gradients(loss, {}, trained);
    };
    double seconds = 0;
    step();
    for (int64_t turn = 0; turn < turns; ++turn) best(seconds, step);
    growth.print({{"model", "bp_transformer:small"}, {"k", k}, {"length", n}, {"both", seconds}},
                 static_cast<double>(n), seconds, step);
  }
}

void crossover(int64_t turns, int64_t longest, int64_t heads, int64_t k) {
  for (int64_t n = 256; n <= longest; n *= 2) {
    std::vector<Case> cases = {{.length = n, .heads = heads},
                               {.length = n, .heads = heads, .k = k, .clip = 4}};
    turns_of(cases, turns);
    for (const Case& c : cases) {
      nlohmann::ordered_json line = described(c);
      line["times_dense"] =
          (c.forward + c.backward) / (cases.front().forward + cases.front().backward);
      fmt::print("{}\n", line.dump());
    }
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) {
  using namespace longspan::bench;
  int64_t turns = 5, heads = 4, length = 8192, longest = 65536, longest_beside = 8192, k = 4,
          only_k = 0;
  bool causal = true;
  CommandLine command("bench_tree", "What attention over a binary tree costs.");
  CommandLine p = command.part("pairs", "an edge beside a pair of dense attention");
  CommandLine g = command.part("growth", "seconds and bytes over the lengths");
  CommandLine m = command.part("model", "the same of a step of BP-Transformer");
  CommandLine c = command.part("crossover", "beside causal attention over the lengths");
  for (CommandLine* part : {&p, &g, &m, &c}) {
    part->option("--turns", turns, "turns of each case");
  }
  for (CommandLine* part : {&p, &g, &c}) {
    part->option("--heads", heads, "heads");
  }
  p.option("--length", length, "tokens");
  p.option("--causal", causal, "whether queries see earlier tokens only, 0 or 1");
  p.option("--k", only_k, "nodes of each level on each side; 0: several in turns", 0);
  for (CommandLine* part : {&g, &m, &c}) {
    int64_t& most = part == &c ? longest_beside : longest;
    part->option("--longest", most, "tokens of the longest sequence");
    part->option("--k", k, "nodes of each level on each side");
  }
  command.read(argc, argv);
  longspan::set_num_threads(1);
  if (p.chosen()) pairs(turns, length, heads, causal, only_k);
  if (g.chosen()) growth(turns, longest, heads, k);
  if (m.chosen()) model_growth(turns, longest, k);
  if (c.chosen()) crossover(turns, longest_beside, heads, k);
  return 0;
}
