#include "core/parallel.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "core/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace longspan {
namespace {

thread_local int this_worker = 0;
thread_local bool inside = false;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

std::atomic<WorkTimes*> work_times{nullptr};

int64_t nanoseconds() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

void allow(pthread_t thread, std::span<const int> processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int i : processors) CPU_SET(i, &set);
  pthread_setaffinity_np(thread, sizeof set, &set);  // best effort
}

}  // namespace

WorkTimes::WorkTimes() : spans_(static_cast<size_t>(num_threads())) {
  WorkTimes* none = nullptr;
  require(work_times.compare_exchange_strong(none, this), "profile",
          "times of work are being noted already; one at a time");
}
WorkTimes::~WorkTimes() { work_times = nullptr; }
void WorkTimes::worked(int worker, Span span) {
  const auto at = static_cast<size_t>(worker);
  if (at < spans_.size()) spans_[at].push_back(span);  // threads may have been added
}
WorkTimes* WorkTimes::current() { return work_times.load(std::memory_order_relaxed); }

std::vector<int> allowed_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> list;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &set)) list.push_back(i);
    }
  }
  if (list.empty()) list.push_back(0);
  return list;
}

void run_on(std::span<const int> processors) { allow(pthread_self(), processors); }

namespace {

class Pool {
 public:
  /// Throws std::system_error if the system cannot start the threads.
  Pool(int threads, std::span<const int> processors, bool pin) {
    const auto place = [&](int i) {
      return processors.subspan(static_cast<size_t>(i) % processors.size(), 1);
    };
    try {
      workers_.reserve(static_cast<size_t>(threads));
      for (int i = 1; i < threads; ++i) {
        workers_.emplace_back([this, i] { work(i); });
        if (pin) allow(workers_.back().native_handle(), place(i));
      }
    } catch (...) {
      stop();
      throw;
    }
    // A single thread is not pinned: another process may use the first processor.
    if (pin) allow(pthread_self(), threads > 1 ? place(0) : processors);
  }

  ~Pool() { stop(); }

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  void run(int64_t n, void (*call)(void*, int64_t), void* body) {
    n_ = n;
    call_ = call;
    body_ = body;
    next_.store(0, std::memory_order_relaxed);
    gate_.fetch_and(~closed);  // from here on workers may join
    epoch_.fetch_add(1);
    if (sleepers_.load() > 0) epoch_.notify_all();
    take_tasks();
    gate_.fetch_or(closed);
    WorkTimes* const times = WorkTimes::current();
    const int64_t waits_from = times != nullptr ? nanoseconds() : 0;
    for (int spins = 0; (gate_.load() & ~closed) != 0; ++spins) {
      if (spins > 2000)
        std::this_thread::yield();
      else
        pause();
    }
    if (times != nullptr) times->wait(nanoseconds() - waits_from);
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  static constexpr uint32_t closed = 1u << 31;

  void stop() {
    stop_.store(true);
    epoch_.fetch_add(1);
    epoch_.notify_all();
    for (std::thread& w : workers_) w.join();
  }

  void take_tasks() {
    WorkTimes* const times = WorkTimes::current();
    const int64_t begin = times != nullptr ? nanoseconds() : 0;
    run_tasks();
    if (times != nullptr) times->worked(this_worker, {begin, nanoseconds()});
  }

  void run_tasks() {
    inside = true;
    for (;;) {
      const int64_t i = next_.fetch_add(1, std::memory_order_relaxed);
      if (i >= n_) break;
      try {
        call_(body_, i);
      } catch (...) {
        const std::lock_guard lock(error_mutex_);
        if (!error_) error_ = std::current_exception();
        next_.store(n_, std::memory_order_relaxed);
      }
    }
    inside = false;
  }

  void work(int index) {
    this_worker = index;
    uint32_t seen = 0;
    for (;;) {
      wait_for_change(seen);
      seen = epoch_.load();
      if (stop_.load()) return;
      // The gate counts the workers inside. A worker that wakes late finds it closed and leaves
      // again.
      if ((gate_.fetch_add(1) & closed) == 0) take_tasks();
      gate_.fetch_sub(1);
    }
  }

  void wait_for_change(uint32_t seen) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0;; ++i) {
      if (epoch_.load() != seen) return;
      pause();
      if (i % 64 == 63 &&
          std::chrono::steady_clock::now() - start > std::chrono::microseconds(50)) {
        break;
      }
    }
    sleepers_.fetch_add(1);
    epoch_.wait(seen);
    sleepers_.fetch_sub(1);
  }

  std::vector<std::thread> workers_;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint32_t> gate_{closed};
  alignas(64) std::atomic<uint32_t> epoch_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  int64_t n_ = 0;
  void (*call_)(void*, int64_t) = nullptr;
  void* body_ = nullptr;
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

int environment_int(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return otherwise;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  require(*end == '\0' && value >= 0 && value <= 1024, "parallel",
          "{}={} is not a number from 0 to 1024", name, text);
  return static_cast<int>(value);
}

void forget_threads();

struct Owner {
  std::mutex mutex;  // one job at a time
  const std::vector<int> processors = allowed_processors();
  const bool pin = environment_int("LONGSPAN_PIN", 1) != 0;
  std::unique_ptr<Pool> pool;
  std::atomic<int> threads{0};

  Owner() {
    const int n = environment_int("LONGSPAN_THREADS", 0);
    make(n > 0 ? n : static_cast<int>(processors.size()));
    pthread_atfork(nullptr, nullptr, forget_threads);
  }
  /// Leaves the state unchanged if that many threads cannot be started.
  void make(int n) {
    try {
      pool = std::make_unique<Pool>(n, processors, pin);
    } catch (const std::exception& e) {  // std::system_error, std::bad_alloc
      fail<Error>("threads", "{} could not be started ({}); use fewer", n, e.what());
    }
    threads = n;
  }
};

Owner& owner() {
  static Owner instance;
  return instance;
}

/// Runs in a forked child, where the threads do not exist and must not be waited for.
void forget_threads() {
  static_cast<void>(owner().pool.release());
  owner().threads = 1;
}

}  // namespace

int num_threads() { return owner().threads; }

void set_num_threads(int n) {
  require(n >= 1 && n <= 1024, "set_num_threads", "{} threads; use 1 to 1024", n);
  require(!inside, "set_num_threads", "called from inside parallel_for");
  Owner& o = owner();
  const std::lock_guard lock(o.mutex);
  if (o.threads != n) o.make(n);
}

int worker_index() { return this_worker; }

namespace detail {

void parallel_run(int64_t n, void (*call)(void*, int64_t), void* body) {
  if (n <= 0) return;
  if (n > 1 && !inside) {
    Owner& o = owner();
    const std::unique_lock lock(o.mutex, std::try_to_lock);
    if (lock.owns_lock() && o.threads > 1) {
      o.pool->run(n, call, body);
      return;
    }
  }
  for (int64_t i = 0; i < n; ++i) call(body, i);
}

}  // namespace detail
}  // namespace longspan
