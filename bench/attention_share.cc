// Measures the rate of sparse attention as a fraction of the rate of dense attention. Every pattern
// and dense attention take turns in one process; the best turn of each counts, in CPU time of one
// thread. Prints one JSON line per pattern: seconds, and useful FLOPs (4 d per attended pair
// forward, 10 d backward) per second as a share of the dense rate of the same run, of the FMA peak
// and of the loading peak. Other processes slow all cases equally. The loading probe runs before
// and after every turn: turns in a slow phase of the machine are repeated and do not count
// (bench/phases.h).
//
//   bench_attention_share [--rounds N] [--repeat-slow N] [--length L] [--heads H] [--match TEXT]

#include <fmt/format.h>
#include <algorithm>
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
#include "core/parallel.h"
#include "ops/attention/block_attention.h"
#include "ops/patterns/blocks.h"
#include "ops/patterns/layout.h"
#include "ops/patterns/pairs.h"

namespace longspan::bench {
namespace {

constexpr int64_t kWidth = 64;

struct Case {
  std::string name;
  AttentionPattern pattern = {};
  int64_t pairs = 0;      // of one head
  int64_t side_keys = 0;  // keys of a second segment
  int64_t relations = 0;  // rows of the tables of Shaw terms for keys and values; 0: none
  // Saved between turns: the graph, and the leaves whose gradients it computes.
  std::vector<Tensor> leaves = {};
  Tensor out = {}, dout = {};
  double forward = 0, backward = 0;  // seconds of the best turn
};

Case pattern_case(const std::string& name, const AttentionPattern& pattern, int64_t length) {
  return {.name = name, .pattern = pattern, .pairs = visible_pairs(pattern, length, length)};
}

// Blocks of queries that attend to `seen` blocks of keys each, drawn once.
AttentionPattern scattered(int64_t length, int64_t block, int64_t seen) {
  BlockTable table;
  table.bounds = block_bounds(length, block);
  const int64_t blocks = length / block, part = blocks / seen;
  for (int64_t i = 0; i < blocks; ++i) {
    table.keys.emplace_back();
    for (int64_t n = 0; n < seen; ++n) {  // draws one from each segment of the keys
      const uint32_t draw = philox_word(1, i * seen + n);
      table.keys.back().push_back(n * part + draw % static_cast<uint32_t>(part));
    }
  }
  return patterns::block_lists(length, {table}, {}, "scattered");
}

// BigBird with three random blocks in each row.
AttentionPattern bigbird(int64_t length, int64_t block) {
  const int64_t n = length / block;
  std::vector<std::vector<int64_t>> random;
  int64_t draw = 0;
  for (int64_t i = 1; i + 1 < n; ++i) {
    std::vector<int64_t> row;
    while (row.size() < 3) {
      const int64_t k = philox_word(2, draw++) % static_cast<uint32_t>(n);
      const bool seen = k == 0 || k == n - 1 || (k >= i - 1 && k <= i + 1);
      if (!seen && std::find(row.begin(), row.end(), k) == row.end()) row.push_back(k);
    }
    std::sort(row.begin(), row.end());
    random.push_back(row);
  }
  return patterns::block_lists(length, {bigbird_blocks(length, block, random)}, {}, "bigbird");
}

// One head of BlockBERT: every block of queries attends to the next block of keys.
AttentionPattern blockbert(int64_t length, int64_t block) {
  std::vector<int64_t> next;
  for (int64_t i = 0; i < length / block; ++i) next.push_back((i + 1) % (length / block));
  return patterns::permuted_blocks(length, {next});
}

// ETC's long tokens: a window, and all global tokens as a second segment.
Case etc(int64_t length, int64_t radius, int64_t globals) {
  Case c = {.name = fmt::format("etc, radius {}, {} globals", radius, globals)};
  c.pattern = resolve(patterns::dilated(radius, radius, 1), length, length);
  c.pairs = visible_pairs(c.pattern, length, length) + length * globals;
  c.side_keys = globals;
  std::vector<TileRuns> tiles = tiles_of(*c.pattern.layout, 0);
  for (TileRuns& t : tiles) {
    t.runs.push_back({0, static_cast<int32_t>(globals), 1, RunKind::full});
  }
  c.pattern.layout = make_layout(length, length, {tiles}, {.side_keys = globals});
  c.pattern.layout_spec = {};
  return c;
}

Case shaw(int64_t length, int64_t width) {
  Case c =
      pattern_case(fmt::format("local {}, Shaw {}", width, width), patterns::local(width), length);
  c.relations = width + 1;
  return c;
}

std::vector<Case> all_cases(int64_t length) {
  std::vector<Case> cases = {pattern_case("dense", patterns::dense(), length),
                             pattern_case("causal", patterns::causal(), length)};
  const auto add = [&](const std::string& name, const AttentionPattern& pattern) {
    cases.push_back(pattern_case(name, pattern, length));
  };
  for (const int64_t block : {64, 32, 16}) {
    add(fmt::format("bigbird, blocks of {}", block), bigbird(length, block));
  }
  for (const int64_t block : {64, 32, 16}) {
    add(fmt::format("scattered blocks of {}", block), scattered(length, block, 512 / block));
  }
  for (const int64_t block : {512, 128, 64, 32}) {
    add(fmt::format("blockbert, blocks of {}", block), blockbert(length, block));
  }
  cases.push_back(etc(length, 84, 256));
  for (const int64_t stride : {32, 64, 128}) {
    add(fmt::format("strided {}", stride), patterns::strided(stride));
  }
  add("fixed 128, 32", patterns::fixed(128, 32));
  add("fixed 128, 8", patterns::fixed(128, 8));
  for (const int64_t width : {128, 256, 512}) {
    add(fmt::format("local {}", width), patterns::local(width));
  }
  add("bidirectional 512", patterns::local_bidirectional(512));
  add("dilated 64 by 4", patterns::dilated(64, 0, 4));
  cases.push_back(shaw(length, 64));
  return cases;
}

AttentionResult attend(const Case& c) {
  ScoreTerms terms;
  size_t next = 3;
  std::vector<Keys> keys = {{c.leaves[1], c.leaves[2]}};
  if (c.side_keys > 0) {
    keys.push_back({c.leaves[3], c.leaves[4]});
    next = 5;
  }
  if (c.relations > 0) {
    terms.id = {c.relations - 1, 0};
    terms.relation_key = c.leaves[next];
    terms.relation_value = c.leaves[next + 1];
  }
  return block_attention(c.leaves[0], keys, c.pattern, terms);
}

void prepare(Case& c, int64_t length, int64_t heads) {
  std::vector<Shape> shapes(3, {1, heads, length, kWidth});
  for (int i = 0; i < 2 && c.side_keys > 0; ++i) shapes.push_back({1, heads, c.side_keys, kWidth});
  for (int i = 0; i < 2 && c.relations > 0; ++i) shapes.push_back({c.relations, kWidth});
  uint32_t seed = 1;
  for (const Shape& shape : shapes) {
    Tensor leaf = values(shape, seed++, shape.rank() == 4 ? 2.0f : 1.0f);
    c.leaves.push_back(set_requires_grad(leaf));
  }
  c.out = attend(c).out;
  c.dout = values(c.out.shape(), 90);
}

/// Returns the seconds of a forward and of a backward pass.
std::vector<double> take_turn(const Case& c) {
  double forward = 0, backward = 0;
  best(forward, [&] {
    const NoGrad none;
    attend(c);
  });
  const std::vector<Tensor> out = {c.out}, dout = {c.dout};
  best(backward, [&] { gradients(out, dout, c.leaves, true); });
  return {forward, backward};
}

/// Takes turns of all cases and keeps the best seconds of each.
Phases measure(std::vector<Case>& cases, int64_t rounds, int64_t repeat_slow) {
  std::vector<Contestant> contestants;
  for (const Case& c : cases) contestants.push_back({.turn = [&c] { return take_turn(c); }});
  const Phases phases = take_turns(contestants, rounds, repeat_slow);
  for (size_t i = 0; i < cases.size(); ++i) {
    cases[i].forward = contestants[i].best[0];
    cases[i].backward = contestants[i].best[1];
  }
  return phases;
}

Rates rates_of(const Case& c, int64_t heads) {
  const double unit = static_cast<double>(c.pairs * heads * kWidth);
  return bench::rates_of(4 * unit, c.forward, 10 * unit, c.backward);
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) {
  using namespace longspan;
  using namespace longspan::bench;
  int64_t rounds = 7, repeat_slow = 7, length = 8192, heads = 4;
  std::string match;
  CommandLine command("bench_attention_share",
                      "Which share of dense attention's rate sparse attention reaches.");
  command.option("--rounds", rounds, "turns of each case");
  command.option("--repeat-slow", repeat_slow, "most turns taken again in slow phases", 0);
  command.option("--length", length, "tokens", 1024);
  command.option("--heads", heads, "heads");
  command.option("--match", match, "only cases with this text in their names");
  command.read(argc, argv);
  set_num_threads(1);
  std::vector<Case> cases = all_cases(length);
  const auto skip = [&](const Case& c) {
    return c.name != "dense" && c.name.find(match) == std::string::npos;
  };
  cases.erase(std::remove_if(cases.begin(), cases.end(), skip), cases.end());
  const double before = fma_peak(1);
  for (Case& c : cases) prepare(c, length, heads);
  const Phases phases = measure(cases, rounds, repeat_slow);
  const double peak = std::max(before, fma_peak(1));
  const Rates dense = rates_of(cases.front(), heads);
  for (const Case& c : cases) {
    nlohmann::ordered_json line = {
        {"name", c.name},
        {"length", length},
        {"heads", heads},
        {"keys_per_query", static_cast<double>(c.pairs) / static_cast<double>(length)},
        {"forward_seconds", c.forward},
        {"backward_seconds", c.backward}};
    line.update(share_fields(rates_of(c, heads), dense, peak, phases.loading_peak));
    line.update(fields_of(phases));
    std::printf("%s\n", line.dump().c_str());
  }
  return 0;
}
