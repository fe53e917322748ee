// Measures one attention layer of Linformer beside full attention, projections and gradients
// included. Prints JSON lines on standard output.
//   bench_linformer growth [rounds]   CPU seconds and peak bytes of a layer for lengths from 1,024
//                                     to 65,536 tokens (full attention: to 8,192), for growth.py
//   bench_linformer turn dense|none|headwise|kv LENGTH   the best of three calls in seconds,
//                                     processor and wall clock: for bench/peers/linformer.py
// A layer is 256 wide and has 4 heads; keys and values are projected to 128 rows, and n is the
// length. The variants of a length take turns; figures are the best and the median of the rounds.
// Bytes are results, gradients and workspace at the peak, beyond the input and the parameters.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "bench/command_line.h"
#include "bench/harness.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "models/linformer/linformer_attention.h"
#include "nn/attention/multi_head.h"

namespace longspan::bench {
namespace {

constexpr int64_t kWidth = 256, kHeads = 4, kRows = 128;

struct Seconds {
  double cpu = 0, wall = 0;
};

/// One layer with its input and the gradient of its output.
class Variant {
 public:
  Variant(const std::string& name, int64_t length) : name_(name) {
    const AttentionOptions heads{
        .d_model = kWidth, .n_head = kHeads, .qkv_bias = true, .out_bias = true};
    const Init init{.gen = Generator{1}};
    if (name == "dense") {
      layer_ = std::make_unique<MultiHead>(heads, ShawTables{}, init);
      ctx_.pattern = patterns::dense();
    } else {
      LinformerOptions o{.n_max = length, .r = kRows};
      const auto known = std::find(value_names<ProjectionSharing>.begin(),
                                   value_names<ProjectionSharing>.end(), name);
      require(known != value_names<ProjectionSharing>.end(), "bench_linformer",
              "got \"{}\"; expected dense, none, headwise or kv", name);
      o.sharing = static_cast<ProjectionSharing>(known - value_names<ProjectionSharing>.begin());
      layer_ = std::make_unique<LinformerAttention>(heads, o, nullptr, init);
    }
    x_ = values({1, length, kWidth}, 1, 2.0f);
    set_requires_grad(x_);
    dy_ = {values({1, length, kWidth}, 2)};
    leaves_ = parameters(*layer_);
    leaves_.push_back(x_);
  }

  Seconds run() const {
    const std::clock_t cpu = std::clock();
    const auto wall = std::chrono::steady_clock::now();
    gradients(std::vector<Tensor>{layer_->forward(x_, ctx_, Pass{}).y}, dy_, leaves_);
    return {static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC,
            std::chrono::duration<double>(std::chrono::steady_clock::now() - wall).count()};
  }
  int64_t peak() const {
    memory_tracker().reset_peak();
    const int64_t before = memory_tracker().live().total();
    run();
    return memory_tracker().peak().total() - before;
  }
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::unique_ptr<Layer> layer_;
  LayerContext ctx_;
  Tensor x_;
  std::vector<Tensor> dy_, leaves_;
};

int growth(int64_t rounds) {
  set_num_threads(1);
  for (int64_t length = 1024; length <= 65536; length *= 2) {
    std::vector<Variant> all;
    for (const char* name : {"headwise", "kv"}) all.emplace_back(name, length);
    if (length <= 8192) all.emplace_back("dense", length);
    std::vector<int64_t> peaks;
    for (const Variant& v : all) peaks.push_back(v.peak());
    std::vector<std::vector<double>> seconds(all.size());
    for (int64_t round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < all.size(); ++i) seconds[i].push_back(all[i].run().cpu);
    }
    for (size_t i = 0; i < all.size(); ++i) {
      std::vector<double>& s = seconds[i];
      std::sort(s.begin(), s.end());
      fmt::print(
          "{{\"name\":\"attention layer, {}/L={}\",\"rounds\":{},\"best\":{:.6g},"
          "\"median\":{:.6g},\"workspace_bytes\":{}}}\n",
          all[i].name(), length, rounds, s.front(), s[s.size() / 2], peaks[i]);
    }
    std::fflush(stdout);
  }
  return 0;
}

int turn(const std::string& name, int64_t length) {
  const Variant v(name, length);
  v.run();
  Seconds best = v.run();
  for (int i = 0; i < 2; ++i) {
    const Seconds s = v.run();
    best = {std::min(best.cpu, s.cpu), std::min(best.wall, s.wall)};
  }
  fmt::print("{{\"cpu\":{:.6g},\"wall\":{:.6g}}}\n", best.cpu, best.wall);
  return 0;
}

int run(int argc, const char* const* argv) {
  int64_t rounds = 1, length = 0;
  std::string name;
  CommandLine command("bench_linformer", "A layer of Linformer beside full attention.");
  CommandLine g = command.part("growth", "seconds and bytes over the lengths");
  CommandLine t = command.part("turn", "the best of three calls");
  g.option("rounds", rounds, "turns of each case");
  t.option("name", name, "dense, none, headwise or kv");
  t.option("length", length, "tokens", kRows);
  t.require("name");
  t.require("length");
  command.read(argc, argv);
  return g.chosen() ? growth(rounds) : turn(name, length);
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) try {
  return longspan::bench::run(argc, argv);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
