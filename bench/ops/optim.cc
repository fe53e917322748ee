// Fused parameter updates: they are limited by bandwidth.

#include "ops/optim.h"

#include <fmt/format.h>

#include <vector>

#include "bench/harness.h"
#include "bench/kernels.h"

namespace longspan::bench {

void add_optimizers() {
  const int64_t n = int64_t{8} << 20;
  const auto elements = static_cast<double>(n);
  const auto make = [n](uint32_t seed) { return values({n}, seed, 0.1f); };
  measure("adam/8M/f32", {.bytes = 28 * elements}, [=] {
    return [p = make(1), g = make(2), m = Tensor::zeros({n}), v = Tensor::zeros({n})] {
      adam_update(p, g, m, v, {.lr = 1e-3, .correction1 = 0.1, .correction2 = 0.001});
    };
  });
  measure("sgd with momentum/8M/f32", {.bytes = 20 * elements}, [=] {
    return [p = make(1), g = make(2), b = Tensor::zeros({n})] {
      sgd_update(p, g, b, {.lr = 1e-3, .momentum = 0.9});
    };
  });
  measure("adagrad/8M/f32", {.bytes = 20 * elements}, [=] {
    return [p = make(1), g = make(2), s = Tensor::zeros({n})] {
      adagrad_update(p, g, s, {.lr = 1e-3});
    };
  });
  measure("global_norm/8M/f32", {.bytes = 4 * elements}, [=] {
    return [x = std::vector<Tensor>{make(1)}] { benchmark::DoNotOptimize(global_norm(x)); };
  });
}

}  // namespace longspan::bench
