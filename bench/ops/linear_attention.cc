// Linear attention forward and backward.

#include <fmt/format.h>

#include <vector>

#include "bench/harness.h"
#include "bench/kernels.h"
#include "ops/attention/linear_attention.h"

namespace longspan::bench {
namespace {

struct Call {
  FeatureMap map = FeatureMap::positive;
  const char* name = "positive";
  bool causal = true;
  int64_t batch = 1, heads = 8, length = 65536, width = 64, m = 256;
};

// Useful FLOPs are those of the recurrence, for each token and feature: forward 2 d for both
// projections and 2 dv for the sums and the quotient; backward, which computes features and sums
// again, 4 d and 5 dv. What kernels compute besides to work in chunks, the pairs within a chunk and
// features that both sweeps need, counts as executed alone.
void add_call(const Call& c) {
  const double each = 2.0 * static_cast<double>(c.batch * c.heads * c.length * c.m *
                                                kernels::feature_halves(c.map));
  const auto halves = static_cast<double>(kernels::feature_halves(c.map));
  const auto width = static_cast<double>(c.width);
  // Both sums have a column more, for the denominator. A causal chunk of 64 tokens has 32.5 pairs a
  // token: of features and of values, once forward and three times backward, whose two sweeps need
  // all features; in both directions the features of keys are needed twice.
  const double pairs = c.causal ? 32.5 : 0,
               of_values = pairs * width / static_cast<double>(c.m) / halves;
  const double forward = 2 * width / halves + 2 * (width + 1) + pairs + of_values;
  const double backward = (c.causal ? 6 : 5) * width / halves + 5 * width + (c.causal ? 4 : 3) +
                          3 * (pairs + of_values);
  const auto inputs = [=] {
    const Shape size = {c.batch, c.heads, c.length, c.width};
    return std::vector<Tensor>{values(size, 1, 2.0f), values(size, 2, 2.0f), values(size, 3, 2.0f)};
  };
  const Tensor projection = values({c.m, c.width}, 4, 3.5f);
  const auto attend = [=](const std::vector<Tensor>& x) {
    LinearAttentionOptions o;
    o.features = c.map;
    o.causal = c.causal;
    return linear_attention(x[0], x[1], x[2], projection, o).out;
  };
  const std::string label = fmt::format("linear attention/{}, {}/B={} H={} L={} d={} m={}/f32",
                                        c.name, c.causal ? "causal" : "both directions", c.batch,
                                        c.heads, c.length, c.width, c.m);
  measure_op(label, {each * width * (2 / halves + 2), 0, each * forward},
             {each * width * (4 / halves + 5), 0, each * backward}, inputs, attend);
}

}  // namespace

void add_linear_attention() {
  for (const bool causal : {true, false}) {
    for (const int64_t m : {128, 256}) add_call({.causal = causal, .m = m});
  }
  add_call({FeatureMap::relu, "relu"});
  add_call({FeatureMap::trigonometric, "trigonometric", true, 1, 8, 65536, 64, 128});
  add_call({.width = 128});
  for (int64_t length = 1024; length < 65536; length *= 2) add_call({.length = length});
}

}  // namespace longspan::bench
