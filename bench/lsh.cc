// Measures what LSH attention costs, including hash, sort and gathers. All cases take turns in one
// process; the best turn of each counts, in CPU time of one thread. Prints one JSON line per case.
//
//   bench_lsh share [--turns N] [--length L] [--heads H] [--match TEXT]
//     useful FLOPs (4 d per attended pair forward, 10 d backward) per second, as a share of the
//     rate of our dense attention in the same run (at 4,096 tokens), of the FMA peak and of the
//     loading peak; turns in a slow phase of the machine do not count (bench/phases.h)
//   bench_lsh flat [--turns N] [--tokens T] [--longest L] [--full 0]
//     seconds of a layer, forward and backward, for lengths from 1,024 at a constant number of
//     tokens, compared with full attention: qk and v from D = 256, 4 heads of 64, and the output
//     projection
//   bench_lsh short [--turns N] [--tokens T]
//     the same layer at short lengths, hashed and with full attention, as models use below
//     full_below: finds the length from which hashing is faster, compared with its keys per query

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
#include "ops/attention/lsh.h"
#include "ops/matmul.h"
#include "ops/shape.h"

namespace longspan::bench {
namespace {

constexpr int64_t kWidth = 64;

struct Case {
  std::string name;
  LshOptions options = {};  // chunk 0: dense attention
  int64_t rounds = 1, length = 0, heads = 0;
  LshBuckets buckets = {};
  Tensor rotations = {}, out = {}, dout = {};
  std::vector<Tensor> leaves = {};
  double pairs = 0;
  double hash = 0, sort = 0, forward = 0, backward = 0;  // seconds of the best turn

  bool dense() const { return options.chunk == 0; }
  Tensor ids() const { return lsh_buckets(leaves[0], rotations, buckets); }
  Tensor attend() const {
    if (dense()) {
      return block_attention(leaves[0], leaves[1], leaves[2], patterns::dense()).out;
    }
    return lsh_attention(leaves[0], leaves[1], ids(), options).out;
  }
};

void prepare(Case& c) {
  for (uint32_t seed = 1; seed <= (c.dense() ? 3u : 2u); ++seed) {
    Tensor leaf = values({1, c.heads, c.length, kWidth}, seed, 2.0f);
    c.leaves.push_back(set_requires_grad(leaf));
  }
  if (c.dense()) {
    c.pairs = static_cast<double>(c.heads * c.length * c.length);
  } else {
    c.buckets = lsh_auto_buckets(c.length, c.options.chunk);
    c.options.buckets = c.buckets.count();
    c.rotations = lsh_rotations(Generator{1}, c.heads, c.rounds, kWidth, c.buckets);
    const LshPairs pairs = count_lsh_pairs(c.ids(), c.options);
    c.pairs = static_cast<double>(c.options.duplicates == LshDuplicates::off ? pairs.visits
                                                                             : pairs.distinct);
  }
  c.out = c.attend();
  c.dout = values(c.out.shape(), 90);
}

/// Returns the seconds of hash, sort, forward and backward.
std::vector<double> take_turn(const Case& c) {
  double hash = 0, sort = 0, forward = 0, backward = 0;
  {
    const NoGrad none;
    if (!c.dense()) {
      Tensor ids;
      best(hash, [&] { ids = c.ids(); });
      best(sort, [&] { lsh_sort(ids, c.options.buckets + 1); });
    }
    best(forward, [&] { c.attend(); });
  }
  const std::vector<Tensor> out = {c.out}, dout = {c.dout};
  best(backward, [&] { gradients(out, dout, c.leaves, true); });
  return {hash, sort, forward, backward};
}

/// Takes turns of all cases and keeps the best seconds of each.
Phases measure(std::vector<Case>& cases, int64_t turns) {
  std::vector<Contestant> contestants;
  for (const Case& c : cases) contestants.push_back({.turn = [&c] { return take_turn(c); }});
  const Phases phases = take_turns(contestants, turns);
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::vector<double>& least = contestants[i].best;
    cases[i].hash = least[0];
    cases[i].sort = least[1];
    cases[i].forward = least[2];
    cases[i].backward = least[3];
  }
  return phases;
}

std::vector<Case> all_cases(int64_t length, int64_t heads) {
  std::vector<Case> cases = {{.name = "dense", .options = {.chunk = 0}, .length = 4096}};
  for (const int64_t chunk : {64, 128}) {
    for (const bool causal : {false, true}) {
      for (const int64_t rounds : {1, 2, 4, 8}) {
        const std::string kind =
            fmt::format("chunks of {}, {} rounds{}", chunk, rounds, causal ? ", causal" : "");
        LshOptions o;
        o.chunk = chunk;
        o.causal = causal;
        cases.push_back({.name = "paper, " + kind, .options = o, .rounds = rounds});
        o.same_bucket = false;
        cases.push_back({.name = "all buckets, " + kind, .options = o, .rounds = rounds});
        o.duplicates = LshDuplicates::off;
        cases.push_back({.name = "trax2, " + kind, .options = o, .rounds = rounds});
      }
    }
  }
  for (Case& c : cases) {
    if (c.length == 0) c.length = length;
    c.heads = heads;
  }
  return cases;
}

Rates rates_of(const Case& c) {
  const double unit = c.pairs * static_cast<double>(kWidth);
  return bench::rates_of(4 * unit, c.forward, 10 * unit, c.backward);
}

void share(int64_t turns, int64_t length, int64_t heads, const std::string& match) {
  std::vector<Case> cases = all_cases(length, heads);
  cases.erase(std::remove_if(cases.begin(), cases.end(),
                             [&](const Case& c) {
                               return !c.dense() && c.name.find(match) == std::string::npos;
                             }),
              cases.end());
  const double before = fma_peak(1);
  for (Case& c : cases) prepare(c);
  const Phases phases = measure(cases, turns);
  const double after = fma_peak(1), peak = std::max(before, after);
  const Rates dense = rates_of(cases.front());
  for (const Case& c : cases) {
    const auto rows = static_cast<double>(c.heads * c.length);
    nlohmann::ordered_json line = {
        {"name", c.name},
        {"length", c.length},
        {"heads", c.heads},
        {"pairs_per_query", c.pairs / rows},
        {"hash_seconds", c.hash},
        {"sort_seconds", c.sort},
        {"forward_seconds", c.forward},
        {"backward_seconds", c.backward},
        {"microseconds_per_token_and_head", 1e6 * (c.forward + c.backward) / rows}};
    line.update(share_fields(rates_of(c), dense, peak, phases.loading_peak));
    line["peak_after"] = after / before;
    line.update(fields_of(phases));
    std::printf("%s\n", line.dump().c_str());
  }
}

// ------------------------------------------------------------------------------------------ flat

constexpr int64_t kModel = 256, kHeads = kModel / kWidth;

/// A layer at one length; rounds 0: full attention; -1: LSH attention with all tokens in one chunk.
struct Layer {
  int64_t rounds, length, batch;
  std::vector<Tensor> leaves = {};  // x, projections
  Tensor dout = {};
  double seconds = 0;

  Tensor heads(const Tensor& x, const Tensor& w) const {
    return transpose(reshape(matmul(x, w), {batch, length, kHeads, kWidth}), 1, 2);
  }
  void run() {
    const Tensor& x = leaves[0];
    const Tensor q = heads(x, leaves[1]), v = heads(x, leaves[2]);
    Tensor out;
    if (rounds == 0) {
      out = block_attention(q, heads(x, leaves[4]), v, patterns::causal()).out;
    } else {
      LshOptions o;
      o.causal = true;
      const LshBuckets buckets = lsh_auto_buckets(length, o.chunk);
      o.buckets = buckets.count();
      if (rounds < 0) {
        o.chunk = length;
        o.before = 0;
        o.same_bucket = false;
        out = lsh_attention(q, v, Tensor::zeros({batch, kHeads, 1, length}, DType::i32), o).out;
      } else {
        const Tensor rotations = lsh_rotations(Generator{1}, kHeads, rounds, kWidth, buckets);
        out = lsh_attention(q, v, lsh_buckets(q.detach(), rotations, buckets), o).out;
      }
    }
    const Tensor y = matmul(reshape(transpose(out, 1, 2), {batch * length, kModel}), leaves[3]);
    const std::vector<Tensor> result = {y}, dy = {dout};
    gradients(result, dy, leaves, false);
  }
};

void draw_leaves(Layer& layer) {
  const int64_t rows = layer.batch * layer.length;
  for (uint32_t i = 0; i < (layer.rounds == 0 ? 5u : 4u); ++i) {
    Tensor leaf =
        values(i == 0 ? Shape{rows, kModel} : Shape{kModel, kModel}, i + 1, i == 0 ? 3.5f : 0.2f);
    layer.leaves.push_back(set_requires_grad(leaf));
  }
  layer.dout = values({rows, kModel}, 90);
}

void short_lengths(int64_t turns, int64_t tokens) {
  std::vector<Layer> layers;
  constexpr int64_t rounds[] = {-1, 1, 2, 4, 8};
  for (const int64_t length : {128, 192, 256, 384, 512, 768, 1024, 1536, 2048}) {
    for (const int64_t r : rounds) layers.push_back({r, length, tokens / length});
  }
  for (Layer& layer : layers) draw_leaves(layer);
  for (int64_t turn = 0; turn < turns; ++turn) {
    for (Layer& layer : layers) best(layer.seconds, [&] { layer.run(); });
  }
  for (const int64_t r : rounds) {
    nlohmann::ordered_json each;
    int64_t quicker = 0;
    for (const Layer& layer : layers) {
      if (layer.rounds != r) continue;
      const auto same = [&](const Layer& l) { return l.rounds == -1 && l.length == layer.length; };
      const double full = std::find_if(layers.begin(), layers.end(), same)->seconds;
      each[std::to_string(layer.length)] =
          1e6 * layer.seconds / static_cast<double>(layer.batch * layer.length);
      if (quicker == 0 && layer.seconds < full) quicker = layer.length;
    }
    nlohmann::ordered_json line = {
        {"name", r < 0 ? std::string("all in one chunk") : fmt::format("LSH, {} rounds", r)},
        {"microseconds_per_token", each}};
    if (r > 0) {
      line["keys_shown"] = r * 2 * LshOptions{}.chunk;
      line["quicker_from"] = quicker;
    }
    std::printf("%s\n", line.dump().c_str());
  }
}

void flat(int64_t turns, int64_t tokens, int64_t longest, bool full) {
  std::vector<Layer> layers;
  for (int64_t length = 1024; length <= longest; length *= 2) {
    for (const int64_t rounds : {0, 1, 2, 4, 8}) {
      if (rounds == 0 && !full) continue;
      layers.push_back({rounds, length, std::max<int64_t>(1, tokens / length)});
    }
  }
  for (Layer& layer : layers) draw_leaves(layer);
  for (int64_t turn = 0; turn < turns; ++turn) {
    for (Layer& layer : layers) best(layer.seconds, [&] { layer.run(); });
  }
  for (const int64_t rounds : {0, 1, 2, 4, 8}) {
    double least = 0, most = 0;
    nlohmann::ordered_json each;
    for (const Layer& layer : layers) {
      if (layer.rounds != rounds) continue;
      const double cost = layer.seconds / static_cast<double>(layer.batch * layer.length);
      least = least == 0 ? cost : std::min(least, cost);
      most = std::max(most, cost);
      each[std::to_string(layer.length)] = 1e6 * cost;
    }
    if (each.empty()) continue;
    const nlohmann::ordered_json line = {
        {"name", rounds == 0 ? std::string("full") : fmt::format("LSH, {} rounds", rounds)},
        {"microseconds_per_token", each},
        {"most_over_least", most / least}};
    std::printf("%s\n", line.dump().c_str());
  }
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) {
  using namespace longspan;
  using namespace longspan::bench;
  int64_t turns = 5, length = 16384, heads = 4, tokens = 32768, longest = 32768;
  bool full = true;
  std::string match;
  CommandLine command("bench_lsh", "What LSH attention costs.");
  CommandLine s = command.part("share", "useful FLOPs per second beside dense attention");
  CommandLine f = command.part("flat", "a layer over the lengths, at a constant number of tokens");
  CommandLine b = command.part("short", "the same layer at short lengths, beside full attention");
  for (CommandLine* part : {&s, &f, &b}) {
    part->option("--turns", turns, "turns of each case");
  }
  s.option("--length", length, "tokens");
  s.option("--heads", heads, "heads");
  s.option("--match", match, "only cases with this text in their names");
  for (CommandLine* part : {&f, &b}) {
    part->option("--tokens", tokens, "tokens of all sequences", 2048);
  }
  f.option("--longest", longest, "tokens of the longest sequence");
  f.option("--full", full, "whether full attention runs too, 0 or 1");
  command.read(argc, argv);
  set_num_threads(1);
  if (s.chosen()) share(turns, length, heads, match);
  if (f.chosen()) flat(turns, tokens, longest, full);
  if (b.chosen()) short_lengths(turns, tokens);
  return 0;
}
