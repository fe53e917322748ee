// Queries, keys and values by three ops, by the one op that layers call, and by one product of a
// weight that holds all three, which shows how much a joint product could save at most:
// bench/results/projections_1.jsonl and, on two threads, bench/results/projections_2.jsonl.

#include <fmt/format.h>

#include <span>
#include <string>
#include <vector>

#include "bench/harness.h"
#include "bench/kernels.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"

namespace longspan::bench {
namespace {

enum class Way { three_ops, one_op, one_weight };

/// Projections of rows that another op computed, as a layer's input is: then gradients of x are
/// added while they are stored.
struct Projections {
  Tensor x;
  std::vector<Tensor> leaves, y, dy;
};

std::vector<Tensor> results(const Tensor& x, std::span<const Tensor> weights, Way way) {
  if (way == Way::one_op) {
    std::vector<Projection> to;
    for (const Tensor& weight : weights) to.push_back({weight});
    return projections(x, to);
  }
  std::vector<Tensor> y;
  for (const Tensor& weight : weights) y.push_back(linear(x, weight));
  return y;
}

Projections project(int64_t rows, int64_t width, Way way) {
  Projections p;
  const int64_t products = way == Way::one_weight ? 1 : 3, out = 3 * width / products;
  p.leaves.push_back(values({rows, width}, 1));
  for (int64_t i = 0; i < products; ++i) {
    p.leaves.push_back(values({out, width}, static_cast<uint32_t>(10 + i)));
    p.dy.push_back(values({rows, out}, static_cast<uint32_t>(20 + i)));
  }
  for (Tensor& leaf : p.leaves) set_requires_grad(leaf);
  p.x = add(p.leaves[0], values({rows, width}, 2));
  p.y = results(p.x, std::span(p.leaves).subspan(1), way);
  return p;
}

void add_case(int64_t rows, int64_t width, Way way) {
  const char* const names[] = {"three ops", "one op", "one weight"};
  const std::string name =
      fmt::format("projections/{}x{}/{}/f32", rows, width, names[static_cast<size_t>(way)]);
  const double forward = 6.0 * static_cast<double>(rows * width * width);
  measure(name + "/forward", {.flops = forward}, [=] {
    return [way, p = project(rows, width, way)] {
      const NoGrad none;
      results(p.x, std::span(p.leaves).subspan(1), way);
    };
  });
  measure(name + "/backward", {.flops = 2 * forward}, [=] {
    return [p = project(rows, width, way)] { gradients(p.y, p.dy, p.leaves, true); };
  });
}

}  // namespace

void add_projections() {
  for (const int64_t rows : {4, 64, 1024, 4096}) {
    for (const int64_t width : {128, 256, 512, 768}) {
      for (const Way way : {Way::three_ops, Way::one_op, Way::one_weight}) {
        add_case(rows, width, way);
      }
    }
  }
}

}  // namespace longspan::bench
