#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace longspan {

/// Returns the number of threads that parallel_for uses, the caller included. Default:
/// LONGSPAN_THREADS, else the number of processors that this process may run on. A forked child
/// starts with one.
int num_threads();
/// Throws ValueError below 1, above 1024 and inside parallel_for, and Error if the system cannot
/// start that many threads; the old setting then stays.
void set_num_threads(int n);
/// Returns 0 in the calling thread, 1 to num_threads()-1 in the pool's own threads.
int worker_index();

/// Returns the processors that this thread may run on; never none.
std::vector<int> allowed_processors();
/// Has this thread, and those that it starts, run on these processors; to be called before
/// parallel_for is used first. Does nothing where the system does not allow it.
void run_on(std::span<const int> processors);

/// Notes when threads work on the jobs of parallel_for, while it lives; one at a time. Of thread 0,
/// which calls, also how long it waits for the others.
class WorkTimes {
 public:
  struct Span {
    int64_t begin, end;  ///< nanoseconds of std::chrono::steady_clock
  };
  WorkTimes();
  ~WorkTimes();
  WorkTimes(const WorkTimes&) = delete;
  WorkTimes& operator=(const WorkTimes&) = delete;

  /// Of each thread, the times in which it worked on jobs that several threads share.
  const std::vector<std::vector<Span>>& spans() const { return spans_; }
  int64_t waited() const { return waited_; }  ///< nanoseconds

  // Called by the threads.
  static WorkTimes* current();
  void worked(int worker, Span span);
  void wait(int64_t nanoseconds) { waited_ += nanoseconds; }

 private:
  std::vector<std::vector<Span>> spans_;
  int64_t waited_ = 0;
};

namespace detail {
void parallel_run(int64_t n, void (*call)(void*, int64_t), void* body);
}

/// Calls body(i) for every i in [0, n), handing out indices in order as threads become free. The
/// result must not depend on which thread runs which index. Nested calls run in the calling thread.
/// Rethrows the first exception after all threads have stopped.
///
/// If there are two or more threads, all of them, the calling one included, are pinned to the
/// processors of the process (LONGSPAN_PIN=0 disables this). They spin for about 50 us after a job
/// and then sleep.
template <class F>
void parallel_for(int64_t n, F&& body) {
  using Body = std::remove_reference_t<F>;
  detail::parallel_run(
      n, [](void* b, int64_t i) { (*static_cast<Body*>(b))(i); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

/// Calls body(begin, end) for ranges of `grain` indices that cover [0, n); the ranges do not depend
/// on the number of threads.
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
