#include "models/longformer/global_tokens.h"

#include <algorithm>

#include "ops/copy.h"

namespace longspan {

GlobalTokens global_tokens(const Tensor& mask, const Tensor& lengths) {
  return global_tokens(mask, lengths, mask.device());
}

GlobalTokens global_tokens(const Tensor& mask, const Tensor& lengths, Device device) {
  constexpr const char* op = "global_tokens";
  require_rank_is(op, mask, 2, "global");
  const int64_t batch = mask.dim(0), length = mask.dim(1);
  const std::vector<double> marks = cast(mask, DType::f64).to_vector<double>();
  std::vector<int64_t> valid(static_cast<size_t>(batch), length);
  if (lengths) valid = lengths.to_vector<int64_t>();
  GlobalTokens g;
  std::vector<int64_t> count;
  size_t most = 0;
  for (int64_t b = 0; b < batch; ++b) {
    std::vector<int64_t> own;
    for (int64_t i = 0; i < std::min(length, valid[static_cast<size_t>(b)]); ++i) {
      if (marks[static_cast<size_t>(b * length + i)] != 0) own.push_back(i);
    }
    count.push_back(static_cast<int64_t>(own.size()));
    most = std::max(most, own.size());
    g.positions.push_back(std::move(own));
  }
  if (most == 0) return {};
  std::vector<int64_t> rows;
  for (const std::vector<int64_t>& own : g.positions) {
    rows.insert(rows.end(), own.begin(), own.end());
    rows.insert(rows.end(), most - own.size(), -1);
  }
  g.rows = Tensor::from(rows, {batch, static_cast<int64_t>(most)}, device);
  g.count = Tensor::from(count, {batch}, device);
  return g;
}

Tensor global_mask(int64_t batch, int64_t length, const std::vector<int64_t>& positions,
                   Device device) {
  std::vector<uint8_t> mask(static_cast<size_t>(batch * length), 0);
  for (const int64_t p : positions) {
    require(p >= 0 && p < length, "global_mask",
            "global position {} of a sequence of {}; expected 0 to {}", p, length, length - 1);
    for (int64_t b = 0; b < batch; ++b) mask[static_cast<size_t>(b * length + p)] = 1;
  }
  return Tensor::from(mask, {batch, length}, device);
}

}  // namespace longspan
