#include "ops/patterns/window.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "core/divide.h"
#include "ops/copy.h"
#include "ops/patterns/layout_cache.h"

namespace longspan::patterns {
namespace {

constexpr const char* kWindowAndGlobals = "patterns::window_and_globals";

void require_globals(const std::vector<int64_t>& globals, int64_t length) {
  int64_t last = -1;
  for (const int64_t p : globals) {
    require(p > last && p < length, kWindowAndGlobals,
            "global position {} after {}; expected them ascending, 0 to {}", p, last, length - 1);
    last = p;
  }
}

/// Masks the rows and keys of global tokens out of the windows, and sets the number of global keys
/// per sample.
void mask_globals(int64_t length, const std::vector<std::vector<int64_t>>& globals, Device device,
                  AttentionPattern& p) {
  const auto batch = static_cast<int64_t>(globals.size());
  std::vector<uint8_t> hidden(static_cast<size_t>(batch * length), 0);
  std::vector<int32_t> to(hidden.size(), static_cast<int32_t>(length));
  std::vector<int64_t> count;
  for (int64_t b = 0; b < batch; ++b) {
    const std::vector<int64_t>& own = globals[static_cast<size_t>(b)];
    require_globals(own, length);
    count.push_back(static_cast<int64_t>(own.size()));
    for (const int64_t i : own) {
      hidden[static_cast<size_t>(b * length + i)] = 1;
      to[static_cast<size_t>(b * length + i)] = 0;
    }
  }
  p.mask.k_hidden = Tensor::from(hidden, {batch, length}, device);
  p.mask.q_from = p.side_mask.q_from = zeros({batch, length}, DType::i32, device);
  p.mask.q_to = p.side_mask.q_to = Tensor::from(to, {batch, length}, device);
  p.side_mask.k_valid = Tensor::from(count, {batch}, device);
}

}  // namespace

AttentionPattern window_and_globals(int64_t length, int64_t reach,
                                    const std::vector<int64_t>& dilation,
                                    const std::vector<std::vector<int64_t>>& globals,
                                    Device device) {
  require(reach >= 0, kWindowAndGlobals, "the one-sided window is {}; expected 0 or more", reach);
  require(!dilation.empty(), kWindowAndGlobals,
          "there is no dilation; expected one for each head, or one");
  size_t side_keys = 0;
  for (const std::vector<int64_t>& own : globals) side_keys = std::max(side_keys, own.size());
  std::vector<AttentionPattern> heads;
  for (const int64_t s : dilation) {
    require(s >= 1, kWindowAndGlobals, "the dilation is {}; expected 1 (none) or more", s);
    heads.push_back(s == 1 ? local_bidirectional(2 * reach) : dilated(reach, reach, s));
  }
  AttentionPattern p = by_head(heads, length, length);
  p.layout = with_side_keys(p.layout, static_cast<int64_t>(side_keys));
  p.name = fmt::format("window_and_globals({})", reach);
  if (side_keys > 0) mask_globals(length, globals, device, p);
  return p;
}

int64_t window_pairs(int64_t n, int64_t reach) {
  return n <= reach ? n * n : n * (2 * reach + 1) - reach * (reach + 1);
}

int64_t window_and_global_pairs(int64_t length, int64_t reach, int64_t dilation,
                                const std::vector<int64_t>& globals) {
  // Counts every pair of the windows, without the pairs of a global row or key, which the last line
  // adds.
  int64_t pairs = 0;
  for (int64_t c = 0; c < std::min(dilation, length); ++c) {
    pairs += window_pairs(ceil_div(length - c, dilation), reach);
  }
  const auto g = static_cast<int64_t>(globals.size());
  const auto in_window = [&](int64_t i, int64_t j) {
    return (i - j) % dilation == 0 && std::abs(i - j) <= reach * dilation;
  };
  for (const int64_t i : globals) {
    const int64_t before = std::min(reach, i / dilation);
    const int64_t after = std::min(reach, (length - 1 - i) / dilation);
    pairs -= 2 * (before + after + 1);  // its row and its column
    for (const int64_t j : globals) pairs += in_window(i, j) ? 1 : 0;
  }
  return pairs + (length - g) * g + g * length;
}

}  // namespace longspan::patterns
