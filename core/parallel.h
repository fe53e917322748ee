#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace longspan {

/// Threads that parallel_for uses, the caller included. Default: LONGSPAN_THREADS, else the
/// processors that this process may run on. A forked child begins with one.
int num_threads();
/// Throws ValueError below 1, above 1024 and inside parallel_for, and Error where the system gives
/// no such number; then all stays as it was.
void set_num_threads(int n);
/// 0 in the calling thread, 1 to num_threads()-1 in the pool's own.
int worker_index();

namespace detail {
void parallel_run(int64_t n, void (*call)(void*, int64_t), void* body);
}

/// Calls body(i) for every i in [0, n), handing out indices in order as threads get free. Which
/// thread runs which index must not matter to the result. Nested calls run in the calling thread.
/// The first exception is rethrown here after all threads have stopped.
///
/// Two threads or more are pinned to the processors of the process (LONGSPAN_PIN=0 leaves them
/// free), the calling one included; they spin for about 50 us after a job and then sleep.
template <class F>
void parallel_for(int64_t n, F&& body) {
  using Body = std::remove_reference_t<F>;
  detail::parallel_run(
      n, [](void* b, int64_t i) { (*static_cast<Body*>(b))(i); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

/// Calls body(begin, end) over [0, n) cut into pieces of `grain`, whatever the number of threads.
template <class F>
void parallel_ranges(int64_t n, int64_t grain, F&& body) {
  if (n <= grain) {
    if (n > 0) body(int64_t{0}, n);
    return;
  }
  parallel_for((n + grain - 1) / grain,
               [&](int64_t i) { body(i * grain, std::min(n, (i + 1) * grain)); });
}

}  // namespace longspan
