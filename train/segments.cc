#include "train/segments.h"

#include <algorithm>
#include <limits>

namespace longspan {

std::vector<int64_t> plan_segments(std::span<const BlockCost> blocks, int64_t room) {
  constexpr int64_t never = std::numeric_limits<int64_t>::max() / 2;
  const auto n = static_cast<int64_t>(blocks.size());
  const auto at = [&](int64_t i) -> const BlockCost& { return blocks[static_cast<size_t>(i)]; };
  std::vector<int64_t> least(static_cast<size_t>(n + 1), never), size(least.size(), 0);
  std::vector<int64_t> kept(static_cast<size_t>(n + 1), 0);  // total of the first i blocks
  for (int64_t i = 0; i < n; ++i) {
    kept[static_cast<size_t>(i + 1)] = kept[static_cast<size_t>(i)] + at(i).kept;
  }
  least[0] = 0;
  for (int64_t i = 1; i <= n; ++i) {
    for (int64_t g = 1; g <= i; ++g) {
      const auto from = static_cast<size_t>(i - g), to = static_cast<size_t>(i);
      const int64_t stays = least[from] + at(i - g).input;
      if (stays + kept[to] - kept[from] > room || stays >= least[to]) continue;
      least[to] = stays;
      size[to] = g;
    }
  }
  for (int64_t m = 0; m <= n; ++m) {  // the smallest m recomputes the fewest blocks
    const auto i = static_cast<size_t>(m);
    if (least[i] + kept[static_cast<size_t>(n)] - kept[i] > room) continue;
    std::vector<int64_t> sizes;
    for (int64_t end = m; end > 0; end -= size[static_cast<size_t>(end)]) {
      sizes.push_back(size[static_cast<size_t>(end)]);
    }
    std::reverse(sizes.begin(), sizes.end());
    return sizes;
  }
  return {0};
}

}  // namespace longspan
