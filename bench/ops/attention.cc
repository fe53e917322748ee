// Attention forward and backward.

#include <fmt/format.h>

#include <vector>

#include "bench/harness.h"
#include "bench/kernels.h"
#include "ops/attention/block_attention.h"
#include "ops/attention/entmax_attention.h"
#include "ops/copy.h"
#include "ops/patterns/pairs.h"
#include "ops/patterns/pattern.h"

namespace longspan::bench {
namespace {

struct Extra {
  int64_t clip = -1;  // Shaw terms for keys and values; -1: none
  float dropout = 0;
  int64_t queries = 0;  // 0: the number of keys
};

// Useful FLOPs: 4 d per attended pair forward, 10 d backward; relation terms do not count.
void add_pattern(const std::string& name, const AttentionPattern& pattern, int64_t batch,
                 int64_t heads, int64_t length, int64_t width, const Extra& extra = {}) {
  const int64_t queries = extra.queries > 0 ? extra.queries : length;
  const double pairs = static_cast<double>(batch * heads * visible_pairs(pattern, queries, length));
  const auto d = static_cast<double>(width);
  const auto inputs = [=] {
    const Shape size = {batch, heads, length, width};
    std::vector<Tensor> x = {values({batch, heads, queries, width}, 1, 2.0f), values(size, 2, 2.0f),
                             values(size, 3, 2.0f)};
    if (extra.clip >= 0) {
      x.push_back(values({extra.clip + 1, width}, 4));
      x.push_back(values({extra.clip + 1, width}, 5));
    }
    return x;
  };
  const auto attend = [=](const std::vector<Tensor>& x) {
    ScoreTerms terms;
    if (extra.clip >= 0) {
      terms.id = {extra.clip, 0};
      terms.relation_key = x[3];
      terms.relation_value = x[4];
    }
    return block_attention(x[0], x[1], x[2], pattern, terms, {extra.dropout, {true, Generator{1}}})
        .out;
  };
  const std::string label =
      fmt::format("attention/{}/B={} H={} L={} d={}/f32", name, batch, heads, queries, width);
  measure_op(label, {4 * d * pairs}, {10 * d * pairs}, inputs, attend);
}

// The same with entmax in place of the softmax, to be compared with "causal" and "dense".
void add_entmax(const std::string& name, const AttentionPattern& pattern, int64_t length,
                double alpha) {
  constexpr int64_t heads = 8, width = 64;
  const double pairs = static_cast<double>(heads * visible_pairs(pattern, length, length));
  const auto inputs = [=] {
    const Shape size = {1, heads, length, width};
    return std::vector<Tensor>{values(size, 1, 2.0f), values(size, 2, 2.0f), values(size, 3, 2.0f)};
  };
  const auto attend = [=](const std::vector<Tensor>& x) {
    return entmax_attention(x[0], x[1], x[2], pattern, full({1}, alpha)).out;
  };
  const std::string label = fmt::format("attention/{}/entmax {}/B=1 H={} L={} d={}/f32", name,
                                        alpha, heads, length, width);
  measure_op(label, {4 * width * pairs}, {10 * width * pairs}, inputs, attend);
}

// Query blocks that attend to `seen` key blocks each, drawn once: the random part of layouts like
// BigBird's and BlockBERT's.
AttentionPattern scattered_blocks(int64_t length, int64_t block, int64_t seen) {
  std::vector<TileRuns> tiles;
  const int64_t blocks = length / block;
  for (int64_t i = 0; i < blocks; ++i) {
    tiles.push_back({static_cast<int32_t>(i * block), static_cast<int32_t>(block), {}});
    for (int64_t n = 0; n < seen; ++n) {  // draws one from each segment of the keys
      const int64_t part = blocks / seen;
      const auto draw =
          static_cast<int64_t>(philox_word(1, i * seen + n) % static_cast<uint32_t>(part));
      tiles.back().runs.push_back({static_cast<int32_t>((n * part + draw) * block),
                                   static_cast<int32_t>(block), 0, RunKind::full});
    }
  }
  AttentionPattern p;
  p.layout = make_layout(length, length, {tiles});
  p.rules.emplace_back();
  return p;
}

}  // namespace

void add_attention() {
  const AttentionPattern causal = patterns::causal();
  for (const int64_t length : {1024, 4096}) {
    for (const double alpha : {1.0, 1.3, 1.5, 2.0}) {
      add_entmax("causal", causal, length, alpha);
      add_entmax("dense", patterns::dense(), length, alpha);
    }
  }
  for (const int64_t width : {64, 128}) {
    for (const int64_t length : {1024, 2048, 4096, 8192}) {
      add_pattern("causal", causal, 1, 8, length, width);
    }
  }
  add_pattern("causal", causal, 4, 8, 512, 32);
  for (const int64_t length : {4096, 8192, 16384}) {
    add_pattern("causal, one head", causal, 1, 1, length, 64);
  }
  add_pattern("dense", patterns::dense(), 1, 8, 1024, 64);
  for (int64_t length = 1024; length <= 65536; length *= 2) {
    add_pattern("local 256", patterns::local(256), 1, 8, length, 64);
  }
  add_pattern("local block 256", patterns::local_block(256), 1, 8, 4096, 64);
  add_pattern("dilated 64 by 4", patterns::dilated(64, 0, 4), 1, 8, 4096, 64);
  add_pattern("strided 64", patterns::strided(64), 1, 8, 4096, 64);
  add_pattern("local 64, Shaw 64", patterns::local(64), 4, 4, 256, 32, {.clip = 64});
  add_pattern("causal, Shaw 64", causal, 1, 8, 1024, 64, {.clip = 64});
  add_pattern("causal, dropout", causal, 1, 8, 1024, 64, {.dropout = 0.1f});
  for (const int64_t block : {16, 32, 64}) {
    add_pattern(fmt::format("blocks of {}", block), scattered_blocks(8192, block, 512 / block), 1,
                8, 8192, 64);
  }
  add_pattern("fixed 128, 32", patterns::fixed(128, 32), 1, 8, 8192, 64);
  add_pattern("dense", patterns::dense(), 1, 8, 4096, 64);
  add_pattern("one query", causal, 1, 8, 1024, 64, {.queries = 1});
}

}  // namespace longspan::bench
