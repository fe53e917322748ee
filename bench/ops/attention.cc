// Attention forward and backward, useful FLOPs: 4 d per visible pair forward, 10 d backward.

#include <fmt/format.h>

#include <vector>

#include "bench/harness.h"
#include "bench/kernels.h"
#include "ops/block_attention.h"
#include "ops/pattern.h"

namespace longspan::bench {
namespace {

constexpr int64_t heads = 8;

void add_pattern(const std::string& name, const AttentionPattern& pattern, int64_t length,
                 int64_t width) {
  const double pairs = static_cast<double>(heads * visible_pairs(pattern, length, length));
  const auto d = static_cast<double>(width);
  const Shape size = {1, heads, length, width};
  measure_op(
      fmt::format("attention/{}/H={} L={} d={}/f32", name, heads, length, width),
      {.flops = 4 * d * pairs}, {.flops = 10 * d * pairs},
      [=] {
        return std::vector<Tensor>{values(size, 1, 2.0f), values(size, 2, 2.0f),
                                   values(size, 3, 2.0f)};
      },
      [=](const std::vector<Tensor>& x) { return block_attention(x[0], x[1], x[2], pattern).out; });
}

}  // namespace

void add_attention() {
  for (const int64_t width : {64, 128}) {
    for (const int64_t length : {1024, 4096}) {
      add_pattern("causal", patterns::causal(), length, width);
    }
  }
  add_pattern("dense", patterns::dense(), 1024, 64);
  for (const int64_t length : {4096, 16384}) {
    add_pattern("local 256", patterns::local(256), length, 64);
    add_pattern("local block 256", patterns::local_block(256), length, 64);
  }
  add_pattern("dilated 64 by 4", patterns::dilated(64, 0, 4), 4096, 64);
}

}  // namespace longspan::bench
