#pragma once

#include <algorithm>
#include <utility>

#include "cuda/runtime.h"

namespace longspan::cuda {

/// Shared memory that a block may use without an opt-in.
inline constexpr int64_t plain_shared_bytes = 48 * 1024;

/// Launches a kernel: `grid` blocks of `threads` threads with `shared` bytes, which block_memory()
/// returns. `name` appears in errors. An empty grid launches nothing.
template <class... Parameters, class... Args>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, int threads, int64_t shared,
            Args&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  if (shared > plain_shared_bytes) {
    allow_shared(name, reinterpret_cast<const void*>(kernel), shared);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = stream();
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), name);
}

/// Number of blocks for `tasks` in a grid-stride loop: as many as can be resident at once, or
/// fewer.
inline unsigned blocks_for(int64_t tasks, int64_t tasks_per_block, int resident = 8) {
  const int64_t blocks = (tasks + tasks_per_block - 1) / tasks_per_block;
  const int64_t most = static_cast<int64_t>(limits().multiprocessors) * resident;
  return static_cast<unsigned>(std::min(blocks, most));
}

}  // namespace longspan::cuda
