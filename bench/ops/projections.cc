// Queries, keys and values: as three products, which is what layers compute, and as one product
// with the three weights in one tensor, which shows how much a joint product could save at most.
// That was too little to store the weights so: bench/results/projections_*.jsonl.

#include <fmt/format.h>

#include <vector>

#include "bench/harness.h"
#include "bench/kernels.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"

namespace longspan::bench {
namespace {

/// Projections of rows that another op computed, as a layer's input is: then the gradients of
/// several products are added while they are stored.
struct Projections {
  std::vector<Tensor> leaves, y, dy;
};

Projections project(int64_t rows, int64_t width, int64_t products) {
  Projections p;
  Tensor h = values({rows, width}, 1);
  p.leaves.push_back(set_requires_grad(h));
  const Tensor x = add(h, values({rows, width}, 2));
  const int64_t out = 3 * width / products;
  for (int64_t i = 0; i < products; ++i) {
    Tensor weight = values({out, width}, static_cast<uint32_t>(10 + i));
    p.leaves.push_back(set_requires_grad(weight));
    p.y.push_back(linear(x, weight));
    p.dy.push_back(values({rows, out}, static_cast<uint32_t>(20 + i)));
  }
  return p;
}

void add_case(int64_t rows, int64_t width, int64_t products) {
  const std::string name = fmt::format("projections/{}x{}/{}/f32", rows, width,
                                       products == 1 ? "one product" : "three products");
  const double forward = 6.0 * static_cast<double>(rows * width * width);
  measure(name + "/forward", {.flops = forward}, [=] {
    return [x = values({rows, width}, 1), p = project(rows, width, products)] {
      const NoGrad none;
      for (size_t i = 1; i < p.leaves.size(); ++i) linear(x, p.leaves[i]);
    };
  });
  measure(name + "/backward", {.flops = 2 * forward}, [=] {
    return [p = project(rows, width, products)] { gradients(p.y, p.dy, p.leaves, true); };
  });
}

}  // namespace

void add_projections() {
  for (const int64_t rows : {64, 1024, 4096}) {
    for (const int64_t width : {256, 512, 768}) {
      for (const int64_t products : {3, 1}) add_case(rows, width, products);
    }
  }
}

}  // namespace longspan::bench
