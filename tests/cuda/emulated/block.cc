#include "tests/cuda/emulated/block.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "core/dtype.h"
#include "cuda/tile.cuh"
#include "tests/cuda/emulated/cuda_runtime.h"

namespace longspan::emulated {
namespace {

constexpr size_t stack_bytes = 256 * 1024;
constexpr int lanes = 32;

[[noreturn]] void stop(const char* error) {
  std::fprintf(stderr, "emulated device: %s (thread %u of block %u, %u, %u)\n", error, threadIdx.x,
               blockIdx.x, blockIdx.y, blockIdx.z);
  std::abort();
}

/// The point at which a context was left. Jumps are the compiler's own: those of the C library look
/// for handlers of threads to run, at several times the cost.
struct Place {
  void* words[5];
};
[[gnu::noinline, noreturn]] void jump(Place& to) { __builtin_longjmp(to.words, 1); }

/// A context on which threads of a block run, one after another. A waiting thread keeps its
/// context.
struct Fiber {
  Place at;
  ucontext_t start;
  bool started = false;
  char* stack = nullptr;

  Fiber() {
    void* memory = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) stop("no memory for a stack");
    stack = static_cast<char*>(memory);
  }
  Fiber(const Fiber&) = delete;
  ~Fiber() { munmap(stack, stack_bytes); }
};

struct Copy {
  void* to;
  const void* from;
  bool take;
};

/// The state of one thread of a block.
struct Thread {
  enum State { ready, in_warp, at_barrier, done } state = ready;
  Fiber* fiber = nullptr;
  std::vector<std::vector<Copy>> groups;  // copies that have not arrived
  std::vector<Copy> open;
};

/// The kind of a collective. All lanes of a warp, and all threads of a block, must reach the same
/// one.
enum class Meeting { sync, vote, exchange, load, load_transposed, multiply_bf16, multiply_f16 };

struct Warp {
  std::array<void*, lanes> arguments;
  int arrived = 0;
  Meeting at = Meeting::sync;
};

/// A host thread that runs blocks.
class Processor {
 public:
  static Processor& current() {
    static thread_local Processor instance;
    return instance;
  }

  void run(int count, size_t shared, bool from_last, const std::function<void()>& body) {
    body_ = &body;
    from_last_ = from_last;
    threads_.resize(static_cast<size_t>(count));
    warps_.assign((threads_.size() + lanes - 1) / lanes, {});
    for (Thread& t : threads_) {
      t.state = Thread::ready;
      t.fiber = nullptr;
      t.groups.clear();
      t.open.clear();
    }
    shared_.assign(shared + 16, '\xff');
    live_ = count;
    at_barrier_ = 0;
    ready_.clear();
    for (int i = 0; i < count; ++i) ready_.push_back(ordered(i));
    while (live_ > 0) {
      const int next = ready_.front();
      ready_.pop_front();
      resume(next);
    }
  }

  /// Waits for the other lanes of the warp. The last lane to arrive calls act on all their
  /// arguments.
  template <class F>
  void meet(Meeting at, void* argument, F act) {
    const auto self = static_cast<size_t>(running_);
    Warp& w = warps_[self / lanes];
    if (w.arrived > 0 && w.at != at) stop("lanes of a warp are at different collectives");
    w.at = at;
    w.arguments[self % lanes] = argument;
    if (++w.arrived == lanes) {
      w.arrived = 0;
      act(w.arguments);
      const int first = running_ / lanes * lanes;
      for (int i = 0; i < lanes; ++i) {  // the warp continues before others do
        const int other = first + (from_last_ ? i : lanes - 1 - i);
        if (other == running_) continue;
        thread(other).state = Thread::ready;
        ready_.push_front(other);
      }
      return;
    }
    thread(running_).state = Thread::in_warp;
    suspend();
  }

  void barrier(Meeting at) {
    if (at_barrier_ > 0 && barrier_ != at) stop("threads of a block are at different barriers");
    barrier_ = at;
    thread(running_).state = Thread::at_barrier;
    ++at_barrier_;
    suspend();
  }

  Thread& self() { return thread(running_); }
  unsigned char* shared() {
    const auto address = reinterpret_cast<uintptr_t>(shared_.data());
    return reinterpret_cast<unsigned char*>((address + 15) / 16 * 16);
  }
  bool vote = false, decision = false;

 private:
  Thread& thread(int i) { return threads_[static_cast<size_t>(i)]; }
  int ordered(int i) const { return from_last_ ? static_cast<int>(threads_.size()) - 1 - i : i; }

  void release_barrier() {
    if (at_barrier_ < live_) {
      stop("threads wait for lanes of their warp that have ended or wait at a barrier");
    }
    at_barrier_ = 0;
    decision = std::exchange(vote, false);
    for (int i = 0; i < static_cast<int>(threads_.size()); ++i) {
      Thread& t = thread(ordered(i));
      if (t.state != Thread::at_barrier) continue;
      t.state = Thread::ready;
      ready_.push_back(ordered(i));
    }
  }

  void take(int i) {
    running_ = i;
    threadIdx.x = static_cast<unsigned>(i);
  }

  /// Runs thread i and then others. Returns when a thread waits and the next ready thread needs a
  /// new context, or when no thread is ready.
  [[gnu::noinline]] void resume(int i) {
    take(i);
    Thread& t = thread(i);
    if (t.fiber == nullptr) t.fiber = free_fiber();
    Fiber& f = *t.fiber;
    if (__builtin_setjmp(back_.words) != 0) return;
    if (f.started) jump(f.at);
    f.started = true;
    getcontext(&f.start);
    f.start.uc_stack.ss_sp = f.stack;
    f.start.uc_stack.ss_size = stack_bytes;
    f.start.uc_link = nullptr;
    makecontext(&f.start, &Processor::enter, 0);
    setcontext(&f.start);
  }

  /// The loop of a context: runs threads, one after another, forever.
  static void enter() {
    for (;;) current().run_threads();
  }
  void run_threads() {
    Fiber* const fiber = thread(running_).fiber;
    for (;;) {
      (*body_)();
      Thread& t = thread(running_);
      t.state = Thread::done;
      t.fiber = nullptr;
      --live_;
      if (ready_.empty() || thread(ready_.front()).fiber != nullptr) break;
      take(ready_.front());
      ready_.pop_front();
      thread(running_).fiber = fiber;
    }
    free_.push_back(fiber);
    leave(*fiber);
  }

  void suspend() { leave(*thread(running_).fiber); }
  [[gnu::noinline]] void leave(Fiber& f) {
    if (__builtin_setjmp(f.at.words) == 0) go_on();
  }
  /// Jumps to the next thread if it has begun, else to the loop of run().
  [[noreturn]] void go_on() {
    if (ready_.empty() && live_ > 0) release_barrier();
    if (ready_.empty() || thread(ready_.front()).fiber == nullptr) jump(back_);
    take(ready_.front());
    ready_.pop_front();
    jump(thread(running_).fiber->at);
  }

  Fiber* free_fiber() {
    if (free_.empty()) {
      fibers_.push_back(std::make_unique<Fiber>());
      return fibers_.back().get();
    }
    Fiber* const f = free_.back();
    free_.pop_back();
    return f;
  }

  const std::function<void()>* body_ = nullptr;
  bool from_last_ = false;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<unsigned char> shared_;
  std::deque<int> ready_;
  int running_ = 0, live_ = 0, at_barrier_ = 0;
  Meeting barrier_ = Meeting::sync;
  Place back_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_;
};

}  // namespace

void run_block(int threads, size_t shared, bool from_last, const std::function<void()>& body) {
  Processor::current().run(threads, shared, from_last, body);
}

void exchange(void* value, size_t bytes, const std::function<int(int)>& source) {
  constexpr size_t most = 16;
  if (bytes > most) stop("too many bytes for an exchange between lanes");
  struct Lane {
    alignas(16) char value[most];
    int from;
  } mine;
  std::memcpy(mine.value, value, bytes);
  mine.from = source(static_cast<int>(threadIdx.x) % lanes);
  Processor::current().meet(Meeting::exchange, &mine, [](const std::array<void*, lanes>& all) {
    std::array<Lane, lanes> before;
    for (size_t i = 0; i < lanes; ++i) before[i] = *static_cast<Lane*>(all[i]);
    for (size_t i = 0; i < lanes; ++i) {
      const int from = before[i].from;
      if (from < 0) continue;
      std::memcpy(static_cast<Lane*>(all[i])->value, before[static_cast<size_t>(from)].value, most);
    }
  });
  std::memcpy(value, mine.value, bytes);
}

}  // namespace longspan::emulated

namespace {
using longspan::emulated::Meeting;
using longspan::emulated::Processor;
}  // namespace

void __syncthreads() { Processor::current().barrier(Meeting::sync); }
int __syncthreads_or(int value) {
  Processor& p = Processor::current();
  p.vote = p.vote || value != 0;
  p.barrier(Meeting::vote);
  return p.decision ? 1 : 0;
}
void __syncwarp(unsigned) {
  Processor::current().meet(Meeting::sync, nullptr, [](const auto&) {});
}
int __any_sync(unsigned, int value) {
  int mine = value;
  Processor::current().meet(Meeting::vote, &mine, [](const auto& all) {
    bool any = false;
    for (void* x : all) any = any || *static_cast<int*>(x) != 0;
    for (void* x : all) *static_cast<int*>(x) = any ? 1 : 0;
  });
  return mine;
}

// Emulates the instructions of cuda/tile.cuh as the manual defines them. Copies arrive as late as
// the program allows, and their targets hold NaN until then.
namespace longspan::cuda::simulated {

using emulated::Copy;
using emulated::lanes;
using emulated::Meeting;
using emulated::Processor;
using Arguments = std::array<void*, lanes>;

unsigned char* block_memory() { return Processor::current().shared(); }
int thread() { return static_cast<int>(threadIdx.x); }
void barrier() { __syncthreads(); }
void warp_barrier() { __syncwarp(); }
bool any_thread(bool value) { return __syncthreads_or(value ? 1 : 0) != 0; }
bool any(bool value) { return __any_sync(0xffffffffu, value ? 1 : 0) != 0; }
uint32_t exchange(uint32_t value, int bits) { return __shfl_xor_sync(0xffffffffu, value, bits); }

/// Stops the program if the address is not a multiple of 16: instructions that move 16 bytes fault
/// there.
void expect_aligned(const void* address) {
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0) {
    emulated::stop("16 bytes at an address that is not a multiple of 16");
  }
}

void copy16(void* to, const void* from, bool take) {
  expect_aligned(to);
  if (take) expect_aligned(from);
  memset(to, 0xff, 16);
  Processor::current().self().open.push_back({to, from, take});
}
void commit() {
  emulated::Thread& t = Processor::current().self();
  t.groups.push_back(std::move(t.open));
  t.open.clear();
}
void wait(int pending) {
  emulated::Thread& t = Processor::current().self();
  while (static_cast<int>(t.groups.size()) > pending) {
    for (const Copy& c : t.groups.front()) {
      if (c.take) {
        memcpy(c.to, c.from, 16);
      } else {
        memset(c.to, 0, 16);
      }
    }
    t.groups.erase(t.groups.begin());
  }
}

void load_matrices(const void* row, bool transposed, uint32_t (&x)[4]) {
  struct Lane {
    const void* row;
    uint32_t* x;
  } mine{row, x};
  const Meeting at = transposed ? Meeting::load_transposed : Meeting::load;
  expect_aligned(row);
  Processor::current().meet(at, &mine, [transposed](const Arguments& all) {
    for (size_t matrix = 0; matrix < 4; ++matrix) {
      uint16_t m[8][8];
      for (size_t r = 0; r < 8; ++r) {
        memcpy(m[r], static_cast<Lane*>(all[8 * matrix + r])->row, 16);
      }
      for (size_t lane = 0; lane < lanes; ++lane) {
        const size_t g = lane / 4, t = lane % 4 * 2;
        const uint16_t low = transposed ? m[t][g] : m[g][t],
                       high = transposed ? m[t + 1][g] : m[g][t + 1];
        static_cast<Lane*>(all[lane])->x[matrix] = low | static_cast<uint32_t>(high) << 16;
      }
    }
  });
}

void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bool is_bf16) {
  struct Lane {
    float* c;
    const uint32_t* a;
    uint32_t b[2];
  } mine{c, a, {b0, b1}};
  const Meeting at = is_bf16 ? Meeting::multiply_bf16 : Meeting::multiply_f16;
  Processor::current().meet(at, &mine, [is_bf16](const Arguments& all) {
    const auto number = [is_bf16](uint32_t word, size_t half) {
      const auto bits = static_cast<uint16_t>(half == 0 ? word : word >> 16);
      return is_bf16 ? bf16::to_float(bits) : f16::to_float(bits);
    };
    float x[16][16], y[16][8];
    for (size_t lane = 0; lane < lanes; ++lane) {
      const Lane& l = *static_cast<Lane*>(all[lane]);
      const size_t g = lane / 4, t = lane % 4 * 2;
      for (size_t h = 0; h < 2; ++h) {
        x[g][t + h] = number(l.a[0], h);
        x[g + 8][t + h] = number(l.a[1], h);
        x[g][t + 8 + h] = number(l.a[2], h);
        x[g + 8][t + 8 + h] = number(l.a[3], h);
        y[t + h][g] = number(l.b[0], h);
        y[t + 8 + h][g] = number(l.b[1], h);
      }
    }
    for (size_t lane = 0; lane < lanes; ++lane) {
      float* const to = static_cast<Lane*>(all[lane])->c;
      for (size_t e = 0; e < 4; ++e) {
        const size_t r = lane / 4 + (e < 2 ? 0 : 8), col = lane % 4 * 2 + e % 2;
        for (size_t k = 0; k < 16; ++k) to[e] += x[r][k] * y[k][col];
      }
    }
  });
}

float exp2(float x) { return x < -126 ? 0.0f : std::exp2(x); }

uint32_t pack(float low, float high, bool is_bf16) {
  const uint16_t a = is_bf16 ? bf16::from_float(low) : f16::from_float(low),
                 b = is_bf16 ? bf16::from_float(high) : f16::from_float(high);
  return a | static_cast<uint32_t>(b) << 16;
}

}  // namespace longspan::cuda::simulated
