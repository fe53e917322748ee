// Compares the host's cost of a training step that is run kernel by kernel with one that is
// replayed as a CUDA graph. Prints JSON lines on standard output, then a readable line. Needs a
// device.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "autograd/engine.h"
#include "bench/harness.h"
#include "core/error.h"
#include "models/transformer/transformer.h"
#include "ops/random.h"
#include "train/optimizer.h"
#include "train/step_graph.h"

namespace longspan::bench {
namespace {

constexpr int kSteps = 20, kRounds = 5;
constexpr Device kDevice{DeviceKind::cuda, 0};

/// Seconds of a step.
struct Cost {
  double thread = 0;  ///< CPU time of the host thread until the step has been submitted
  double wall = 0;    ///< until the step has finished
};

class Contestant {
 public:
  Contestant(int64_t layers, int64_t width, int64_t length, bool replays)
      : model_(config(layers, width, length), Init{.gen = Generator{1}, .device = kDevice}),
        optimizer_(named_parameters(model_)),
        graph_(kDevice, optimizer_),
        replays_(replays) {
    for (uint64_t i = 0; i < 2; ++i) {
      batch_.push_back(randint({1, length}, Generator{2}.fork(i), 0, 8192, DType::i64, kDevice));
    }
  }

  Cost steps(int count) {
    const auto begin = std::chrono::steady_clock::now();
    Cost cost;
    double loss = 0;
    for (int i = 0; i < count; ++i) {
      const double before = thread_seconds();
      const Generator gen = Generator{3}.fork(step_++);
      const Tensor y = replays_ ? graph_.gradients(batch_, gen, body_)[0] : body_(batch_, gen)[0];
      replays_ ? graph_.update(1e-4) : optimizer_.step(1e-4);
      cost.thread += (thread_seconds() - before) / count;
      loss = y.item();
    }
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
    cost.wall = wall.count() / count;
    require(!replays_ || step_ < 5 || graph_.replays(), "bench_graph", "{} {} (loss {})",
            graph_.refusal(), graph_.update_refusal(), loss);
    return cost;
  }

 private:
  static TransformerConfig config(int64_t layers, int64_t width, int64_t length) {
    TransformerConfig c;
    c.n_layer = layers;
    c.n_head = width / 64;
    c.d_model = width;
    c.d_ff = 4 * width;
    c.vocab = 8192;
    c.n_max = length;
    c.dropout = 0.1f;
    return c;
  }

  Transformer model_;
  AdamW optimizer_;
  StepGraph graph_;
  bool replays_;
  uint64_t step_ = 0;
  std::vector<Tensor> batch_;
  StepGraph::Body body_ = [this](const std::vector<Tensor>& in, Generator gen) {
    const Tensor loss = model_.loss(in[0], in[1], {}, {.training = true, .gen = gen}).loss;
    backward(loss);
    return std::vector<Tensor>{loss.detach()};
  };
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void compare(int64_t layers, int64_t width, int64_t length) {
  Contestant eager(layers, width, length, false), graph(layers, width, length, true);
  Contestant* const both[] = {&eager, &graph};
  for (Contestant* c : both) c->steps(5);
  std::vector<double> thread[2], wall[2];
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < 2; ++i) {
      const Cost cost = both[i]->steps(kSteps);
      thread[i].push_back(1e6 * cost.thread);
      wall[i].push_back(1e6 * cost.wall);
    }
  }
  const double host[] = {median(thread[0]), median(thread[1])};
  const double all[] = {median(wall[0]), median(wall[1])};
  fmt::print(
      "{{\"layers\": {}, \"width\": {}, \"length\": {}, \"host_us\": {:.1f}, \"graph_host_us\": "
      "{:.1f}, \"step_us\": {:.1f}, \"graph_step_us\": {:.1f}}}\n",
      layers, width, length, host[0], host[1], all[0], all[1]);
  fmt::print(
      "{} layers of {}, {} tokens: the host {:.0f} us a step, {:.0f} us of replays; steps "
      "{:.0f} and {:.0f} us\n",
      layers, width, length, host[0], host[1], all[0], all[1]);
}

int run() {
  if (!is_available(kDevice)) {
    std::puts("no device");
    return 77;
  }
  compare(12, 256, 128);   // kernels shorter than their launches
  compare(12, 768, 1024);  // and longer ones
  return 0;
}

}  // namespace
}  // namespace longspan::bench

int main() {
  try {
    return longspan::bench::run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
