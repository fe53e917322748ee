#pragma once

#include <algorithm>
#include <cstdint>

#include "core/kernels/strided.h"
#include "core/parallel.h"

namespace longspan::cpu {

using kernels::Layouts;

/// Calls body(offsets, n) in parallel for ranges of about `grain` elements along the last axis
/// of the layouts; `offsets` locates the range's first element in each layout.
template <int N, class F>
void for_ranges(const Layouts<N>& layouts, int64_t grain, F&& body) {
  const int64_t n = layouts.length(), rows = layouts.rows();
  if (rows == 1) {
    parallel_ranges(n, grain, [&](int64_t i, int64_t end) {
      int64_t offset[N];
      for (int k = 0; k < N; ++k) offset[k] = i * layouts.step(k);
      body(offset, end - i);
    });
    return;
  }
  parallel_ranges(rows, std::max<int64_t>(1, grain / std::max<int64_t>(1, n)),
                  [&](int64_t r, int64_t end) {
                    for (; r < end; ++r) {
                      int64_t offset[N];
                      layouts.row(r, offset);
                      body(offset, n);
                    }
                  });
}

}  // namespace longspan::cpu
