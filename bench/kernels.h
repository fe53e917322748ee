#pragma once

#include <benchmark/benchmark.h>

#include <string>
#include <utility>

#include "core/memory.h"

namespace longspan::bench {

/// What one call of a workload costs; the report sets it against FMA peak and triad bandwidth.
struct Cost {
  double flops = 0;  ///< useful ones: a causal score that is not visible does not count
  double bytes = 0;  ///< least traffic: every input read once, every output written once
};

/// Registers a workload. `prepare` is called first and returns what to time: work done before the
/// clock runs belongs there.
template <class Prepare>
void add(const std::string& name, Cost cost, Prepare prepare) {
  benchmark::RegisterBenchmark(name.c_str(), [cost, prepare](benchmark::State& state) {
    auto run = prepare();
    run();  // fills the arena and the caches
    memory_tracker().reset_peak();
    const int64_t before = memory_tracker().live().total();
    for ([[maybe_unused]] auto _ : state) run();
    const int64_t peak = memory_tracker().peak().total() - before;
    state.counters["flops"] = cost.flops;
    state.counters["bytes"] = cost.bytes;
    state.counters["workspace"] = static_cast<double>(peak);
  });
}

void add_gemm();
void add_attention();

}  // namespace longspan::bench
