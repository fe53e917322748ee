#pragma once

#include <ucontext.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "cuda/tile.cuh"

/// Blocks of threads on the host: every thread is a context of its own that runs until it must wait
/// for others. Copies arrive as late as the program allows, and their targets hold NaN until then.
namespace longspan::cuda::simulated {

struct Copy {
  void* to;
  const void* from;
  bool take;
};

struct Block {
  struct Thread {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    bool done = false;
    std::vector<std::vector<Copy>> groups;
    std::vector<Copy> open;
  };
  struct Warp {
    std::array<void*, 32> arguments;
    int arrived = 0;
    long generation = 0;
  };

  static inline Block* current = nullptr;
  static constexpr size_t stack_bytes = 256 * 1024;

  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::function<void()> body;
  ucontext_t main;
  int running = 0, live = 0, at_barrier = 0;
  long barriers = 0;
  bool vote = false, decision = false;

  explicit Block(int count) : threads(static_cast<size_t>(count)), warps(threads.size() / 32) {
    for (Thread& t : threads) t.stack = std::make_unique<char[]>(stack_bytes);
  }

  /// Runs f once in every thread.
  void run(std::function<void()> f) {
    body = std::move(f);
    current = this;
    live = static_cast<int>(threads.size());
    for (Thread& t : threads) {
      t.done = false;
      t.groups.clear();
      t.open.clear();
      getcontext(&t.context);
      t.context.uc_stack.ss_sp = t.stack.get();
      t.context.uc_stack.ss_size = stack_bytes;
      t.context.uc_link = nullptr;
      makecontext(&t.context, &Block::enter, 0);
    }
    running = 0;
    swapcontext(&main, &threads[0].context);
    current = nullptr;
  }

  static void enter() {
    Block& b = *current;
    b.body();
    b.threads[static_cast<size_t>(b.running)].done = true;
    --b.live;
    b.yield();
  }

  /// Lets the next thread run that has not finished.
  void yield() {
    const auto from = static_cast<size_t>(running);
    if (live == 0) {
      swapcontext(&threads[from].context, &main);
      return;
    }
    size_t next = from;
    do next = (next + 1) % threads.size();
    while (threads[next].done);
    if (next == from) return;
    running = static_cast<int>(next);
    swapcontext(&threads[from].context, &threads[next].context);
  }

  /// Meets the lanes of the warp; the last one to come calls act on all their arguments.
  template <class F>
  void meet(void* argument, F act) {
    Warp& w = warps[static_cast<size_t>(running / 32)];
    w.arguments[static_cast<size_t>(running % 32)] = argument;
    if (++w.arrived == 32) {
      w.arrived = 0;
      ++w.generation;
      act(w.arguments);
      return;
    }
    const long before = w.generation;
    while (w.generation == before) yield();
  }
};

inline int thread() { return Block::current->running; }

inline void barrier() {
  Block& b = *Block::current;
  const long before = b.barriers;
  if (++b.at_barrier == b.live) {
    b.at_barrier = 0;
    ++b.barriers;
    return;
  }
  while (b.barriers == before) b.yield();
}

inline bool any_thread(bool value) {
  Block& b = *Block::current;
  b.vote = b.vote || value;
  if (b.at_barrier + 1 == b.live) {
    b.decision = b.vote;
    b.vote = false;
  }
  barrier();
  return b.decision;
}

inline void warp_barrier() {
  Block::current->meet(nullptr, [](const std::array<void*, 32>&) {});
}

inline void copy16(void* to, const void* from, bool take) {
  Block& b = *Block::current;
  memset(to, 0xff, 16);
  b.threads[static_cast<size_t>(b.running)].open.push_back({to, from, take});
}
inline void commit() {
  auto& t = Block::current->threads[static_cast<size_t>(Block::current->running)];
  t.groups.push_back(std::move(t.open));
  t.open.clear();
}
inline void wait(int pending) {
  auto& t = Block::current->threads[static_cast<size_t>(Block::current->running)];
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

inline void load_matrices(const void* row, bool transposed, uint32_t (&x)[4]) {
  struct Lane {
    const void* row;
    uint32_t* x;
  } mine{row, x};
  Block::current->meet(&mine, [transposed](const std::array<void*, 32>& all) {
    for (size_t matrix = 0; matrix < 4; ++matrix) {
      uint16_t m[8][8];
      for (size_t r = 0; r < 8; ++r) {
        memcpy(m[r], static_cast<Lane*>(all[8 * matrix + r])->row, 16);
      }
      for (size_t lane = 0; lane < 32; ++lane) {
        const size_t g = lane / 4, t = lane % 4 * 2;
        const uint16_t low = transposed ? m[t][g] : m[g][t],
                       high = transposed ? m[t + 1][g] : m[g][t + 1];
        static_cast<Lane*>(all[lane])->x[matrix] = low | static_cast<uint32_t>(high) << 16;
      }
    }
  });
}

inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                     bool is_bf16) {
  struct Lane {
    float* c;
    const uint32_t* a;
    uint32_t b[2];
  } mine{c, a, {b0, b1}};
  Block::current->meet(&mine, [is_bf16](const std::array<void*, 32>& all) {
    const auto number = [is_bf16](uint32_t word, size_t half) {
      const auto bits = static_cast<uint16_t>(half == 0 ? word : word >> 16);
      return is_bf16 ? bf16::to_float(bits) : f16::to_float(bits);
    };
    float x[16][16], y[16][8];
    for (size_t lane = 0; lane < 32; ++lane) {
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
    for (size_t lane = 0; lane < 32; ++lane) {
      float* const to = static_cast<Lane*>(all[lane])->c;
      for (size_t e = 0; e < 4; ++e) {
        const size_t r = lane / 4 + (e < 2 ? 0 : 8), col = lane % 4 * 2 + e % 2;
        for (size_t k = 0; k < 16; ++k) to[e] += x[r][k] * y[k][col];
      }
    }
  });
}

inline uint32_t exchange(uint32_t value, int lanes) {
  struct Lane {
    uint32_t value, got;
  } mine{value, 0};
  Block::current->meet(&mine, [lanes](const std::array<void*, 32>& all) {
    for (size_t lane = 0; lane < 32; ++lane) {
      static_cast<Lane*>(all[lane])->got =
          static_cast<Lane*>(all[lane ^ static_cast<size_t>(lanes)])->value;
    }
  });
  return mine.got;
}

inline bool any(bool value) {
  bool mine = value;
  Block::current->meet(&mine, [](const std::array<void*, 32>& all) {
    bool result = false;
    for (void* x : all) result = result || *static_cast<bool*>(x);
    for (void* x : all) *static_cast<bool*>(x) = result;
  });
  return mine;
}

inline float exp2(float x) { return x < -126 ? 0.0f : std::exp2(x); }

inline uint32_t pack(float low, float high, bool is_bf16) {
  const uint16_t a = is_bf16 ? bf16::from_float(low) : f16::from_float(low),
                 b = is_bf16 ? bf16::from_float(high) : f16::from_float(high);
  return a | static_cast<uint32_t>(b) << 16;
}

}  // namespace longspan::cuda::simulated
