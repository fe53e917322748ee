#pragma once

#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "bench/harness.h"
#include "core/memory.h"

namespace longspan::bench {

/// The cost of one call of a workload; the report relates it to FMA peak and triad bandwidth.
struct Cost {
  double flops = 0;     ///< useful ones: masked scores do not count
  double bytes = 0;     ///< minimum traffic: every input read once, every output written once
  double executed = 0;  ///< all multiply-adds that the kernel performs, as FLOPs; 0: not counted
};

/// Registers a workload. `prepare` runs before the clock starts and returns the function to time.
template <class Prepare>
void measure(const std::string& name, Cost cost, Prepare prepare) {
  benchmark::RegisterBenchmark(name.c_str(), [cost, prepare](benchmark::State& state) {
    auto run = prepare();
    run();  // fills the arena and the caches
    memory_tracker().reset_peak();
    const int64_t before = memory_tracker().live().total();
    for ([[maybe_unused]] auto _ : state) run();
    const int64_t peak = memory_tracker().peak().total() - before;
    state.counters["flops"] = cost.flops;
    state.counters["bytes"] = cost.bytes;
    state.counters["executed"] = cost.executed;
    state.counters["workspace"] = static_cast<double>(peak);
  });
}

/// Registers an op with differentiable inputs, `forward(inputs)`, as two workloads: its forward
/// without autograd, and its backward on a retained graph.
template <class Prepare, class Forward>
void measure_op(const std::string& name, Cost forward_cost, Cost backward_cost, Prepare prepare,
                Forward forward) {
  measure(name + "/forward", forward_cost, [=] {
    return [=, x = prepare()] {
      const NoGrad none;
      forward(x);
    };
  });
  measure(name + "/backward", backward_cost, [=] {
    std::vector<Tensor> x = prepare(), leaves;
    for (Tensor& leaf : x) {
      if (is_floating(leaf.dtype())) leaves.push_back(set_requires_grad(leaf));
    }
    const std::vector<Tensor> y = {forward(x)};
    const std::vector<Tensor> dy = {y[0].rank() > 0 ? values(y[0].shape(), 90)
                                                    : Tensor::scalar(1.0f)};
    return [=] { gradients(y, dy, leaves, true); };
  });
}

void add_gemm();
void add_projections();
void add_attention();
void add_linear_attention();
void add_elementwise();
void add_rows();
void add_optimizers();
void add_steps();
void add_sparse_layers();

}  // namespace longspan::bench
