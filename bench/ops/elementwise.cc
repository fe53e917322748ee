// Elementwise ops and activations, forward and backward, in cache (2048 x 256) and in DRAM.

#include "ops/elementwise.h"

#include <fmt/format.h>

#include <vector>

#include "bench/harness.h"
#include "bench/kernels.h"

namespace longspan::bench {

void add_elementwise() {
  struct Unary {
    const char* name;
    Tensor (*f)(const Tensor&);
    bool keeps_half = false;  // the output is half as wide as the input
  };
  const Unary unary[] = {{"exp", exp},
                         {"log", log},
                         {"log1p", log1p},
                         {"sin", sin},
                         {"cos", cos},
                         {"erf", erf},
                         {"softplus", softplus},
                         {"tanh", tanh},
                         {"sigmoid", sigmoid},
                         {"relu", relu},
                         {"silu", silu},
                         {"gelu_erf", gelu_erf},
                         {"gelu_tanh", gelu_tanh},
                         {"sigmoid_gelu", sigmoid_gelu},
                         {"geglu", geglu, true},
                         {"swiglu", swiglu, true}};
  struct Binary {
    const char* name;
    Tensor (*f)(const Tensor&, const Tensor&);
  };
  const Binary binary[] = {{"add", add}, {"mul", mul}, {"div", div}, {"maximum", maximum}};

  for (const int64_t rows : {2048, 32768}) {
    const Shape size = {rows, 256};
    const auto n = static_cast<double>(numel(size));
    for (const Unary& op : unary) {
      const double out = op.keeps_half ? n / 2 : n;
      measure_op(
          fmt::format("{}/{}x256/f32", op.name, rows), {.bytes = 4 * (n + out)},
          {.bytes = 4 * (2 * n + out)}, [=] { return std::vector<Tensor>{values(size, 1)}; },
          [f = op.f](const std::vector<Tensor>& x) { return f(x[0]); });
    }
    for (const Binary& op : binary) {
      measure_op(
          fmt::format("{}/{}x256/f32", op.name, rows), {.bytes = 12 * n}, {.bytes = 20 * n},
          [=] {
            return std::vector<Tensor>{values(size, 1), add(values(size, 2), 2.0)};
          },
          [f = op.f](const std::vector<Tensor>& x) { return f(x[0], x[1]); });
    }
    measure_op(
        fmt::format("add bias/{}x256/f32", rows), {.bytes = 8 * n}, {.bytes = 8 * n},
        [=] {
          return std::vector<Tensor>{values(size, 1), values({256}, 2)};
        },
        [](const std::vector<Tensor>& x) { return add(x[0], x[1]); });
  }
}

}  // namespace longspan::bench
