#include "models/materialized_blocks.h"

#include <cmath>
#include <utility>

#include "core/divide.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/patterns/blocks.h"
#include "ops/random.h"
#include "ops/shape.h"
#include "ops/softmax.h"

namespace longspan {
namespace {

/// [B, 1, 1, count]: true at valid tokens among first .. first + count - 1.
Tensor valid_keys(const Tensor& lengths, int64_t first, int64_t count) {
  const Tensor places = narrow(iota(first + count, DType::i64, lengths.device()), 0, first, count);
  return unsqueeze(unsqueeze(less(places, unsqueeze(lengths, 1)), 1), 1);
}

}  // namespace

MaterializedBlocks::MaterializedBlocks(const MultiHead& heads,
                                       std::vector<std::vector<int64_t>> permutations, int64_t unit,
                                       float dropout)
    : heads_(heads), permutations_(std::move(permutations)), unit_(unit), dropout_(dropout) {}

Tensor MaterializedBlocks::attend(const Projected& p, int64_t first, int64_t count,
                                  const Tensor& lengths, Pass pass) const {
  const std::vector<int64_t>& pi = permutations_[static_cast<size_t>(first)];
  const int64_t length = p.q.dim(2);
  const int64_t padded = unit_ > 0 ? round_up(length, unit_) : length;
  const auto bounds = equal_block_bounds(length, static_cast<int64_t>(pi.size()), padded);
  const double scale = 1 / std::sqrt(static_cast<double>(p.q.dim(3)));
  const auto block = [&](const Tensor& x, int64_t k) {
    const int64_t begin = bounds[static_cast<size_t>(k)];
    return narrow(narrow(x, 1, first, count), 2, begin, bounds[static_cast<size_t>(k) + 1] - begin);
  };
  std::vector<Tensor> rows;
  for (size_t k = 0; k < pi.size(); ++k) {
    const Tensor q = block(p.q, static_cast<int64_t>(k));  // [B, count, s, d]
    if (q.dim(2) == 0) continue;
    const Tensor key = block(p.k, pi[k]), value = block(p.v, pi[k]);  // [B, count, t, d]
    if (key.dim(2) == 0) {
      rows.push_back(zeros(q.shape(), q.dtype(), q.device()));
      continue;
    }
    Tensor s = mul(matmul(q, transpose(key)), scale);  // [B, count, s, t]
    Tensor valid;
    if (lengths) {
      // A row without valid keys stays finite; its probabilities are set to zero below.
      valid = valid_keys(lengths, bounds[static_cast<size_t>(pi[k])], key.dim(2));
      s = where(valid, s, full_like(s.detach(), -1e30));
    }
    Tensor probabilities = softmax(s);
    if (lengths) probabilities = where(valid, probabilities, zeros_like(probabilities.detach()));
    rows.push_back(matmul(dropout(probabilities, dropout_, pass.at(first).at(k)), value));
  }
  return concat(rows, 2);
}

Output MaterializedBlocks::forward(const Tensor& x, const LayerContext& ctx, Pass pass) const {
  const Projected p = heads_.project(x);
  const Tensor lengths = ctx.pattern.mask.k_valid;
  std::vector<Tensor> parts;
  const auto heads = static_cast<int64_t>(permutations_.size());
  for (int64_t first = 0; first < heads;) {
    int64_t next = first + 1;
    while (next < heads &&
           permutations_[static_cast<size_t>(next)] == permutations_[static_cast<size_t>(first)]) {
      ++next;
    }
    parts.push_back(attend(p, first, next - first, lengths, pass.at("attn")));
    first = next;
  }
  Tensor y = concat(parts, 1);  // [B, H, L, d]
  if (lengths) {
    const Tensor valid = transpose(valid_keys(lengths, 0, y.dim(2)), 2, 3);  // [B, 1, L, 1]
    y = where(valid, y, zeros_like(y.detach()));
  }
  return heads_.merge(y);
}

}  // namespace longspan
