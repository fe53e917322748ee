// The multiply-adds per second of this machine, measured: chains of instructions on registers
// alone, and tiles of sums whose factors are loaded. Neither shares code with the matmul kernels,
// so that a slower kernel cannot lower the peak to which it is compared.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "core/kernels/matmul.h"
#include "core/parallel.h"
#include "cpu/register.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace longspan::cpu {
namespace {

double seconds_of(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Ten chains hide the latency of four to five cycles of two units. The empty asm keeps the compiler
// from merging chains that hold equal values.
#if defined(__x86_64__)
__attribute__((target("avx512f"))) float chains_avx512(int64_t n) {
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  __m512 x0 = a, x1 = a, x2 = a, x3 = a, x4 = a, x5 = a, x6 = a, x7 = a, x8 = a, x9 = a;
  for (int64_t i = 0; i < n; ++i) {
    x0 = _mm512_fmadd_ps(x0, a, b);
    x1 = _mm512_fmadd_ps(x1, a, b);
    x2 = _mm512_fmadd_ps(x2, a, b);
    x3 = _mm512_fmadd_ps(x3, a, b);
    x4 = _mm512_fmadd_ps(x4, a, b);
    x5 = _mm512_fmadd_ps(x5, a, b);
    x6 = _mm512_fmadd_ps(x6, a, b);
    x7 = _mm512_fmadd_ps(x7, a, b);
    x8 = _mm512_fmadd_ps(x8, a, b);
    x9 = _mm512_fmadd_ps(x9, a, b);
    asm volatile("" : "+v"(x0), "+v"(x1), "+v"(x2), "+v"(x3), "+v"(x4));
    asm volatile("" : "+v"(x5), "+v"(x6), "+v"(x7), "+v"(x8), "+v"(x9));
  }
  const __m512 sum = x0 + x1 + x2 + x3 + x4 + x5 + x6 + x7 + x8 + x9;
  return sum[0] + sum[5] + sum[10] + sum[15];
}

/// Each instruction adds two products to each of its accumulators.
__attribute__((target("avx512f,avx512bf16"))) float chains_dot(int64_t n) {
  const __m512i bits = _mm512_set1_epi32(0x3c003c00);
  const auto a = (__m512bh)bits, b = (__m512bh)bits;
  __m512 x0 = _mm512_set1_ps(0.001f), x1 = x0, x2 = x0, x3 = x0, x4 = x0, x5 = x0, x6 = x0, x7 = x0,
         x8 = x0, x9 = x0;
  for (int64_t i = 0; i < n; ++i) {
    x0 = _mm512_dpbf16_ps(x0, a, b);
    x1 = _mm512_dpbf16_ps(x1, a, b);
    x2 = _mm512_dpbf16_ps(x2, a, b);
    x3 = _mm512_dpbf16_ps(x3, a, b);
    x4 = _mm512_dpbf16_ps(x4, a, b);
    x5 = _mm512_dpbf16_ps(x5, a, b);
    x6 = _mm512_dpbf16_ps(x6, a, b);
    x7 = _mm512_dpbf16_ps(x7, a, b);
    x8 = _mm512_dpbf16_ps(x8, a, b);
    x9 = _mm512_dpbf16_ps(x9, a, b);
    asm volatile("" : "+v"(x0), "+v"(x1), "+v"(x2), "+v"(x3), "+v"(x4));
    asm volatile("" : "+v"(x5), "+v"(x6), "+v"(x7), "+v"(x8), "+v"(x9));
  }
  const __m512 sum = x0 + x1 + x2 + x3 + x4 + x5 + x6 + x7 + x8 + x9;
  return sum[0] + sum[5] + sum[10] + sum[15];
}

__attribute__((target("avx2,fma"))) float chains_avx2(int64_t n) {
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  __m256 x0 = a, x1 = a, x2 = a, x3 = a, x4 = a, x5 = a, x6 = a, x7 = a, x8 = a, x9 = a;
  for (int64_t i = 0; i < n; ++i) {
    x0 = _mm256_fmadd_ps(x0, a, b);
    x1 = _mm256_fmadd_ps(x1, a, b);
    x2 = _mm256_fmadd_ps(x2, a, b);
    x3 = _mm256_fmadd_ps(x3, a, b);
    x4 = _mm256_fmadd_ps(x4, a, b);
    x5 = _mm256_fmadd_ps(x5, a, b);
    x6 = _mm256_fmadd_ps(x6, a, b);
    x7 = _mm256_fmadd_ps(x7, a, b);
    x8 = _mm256_fmadd_ps(x8, a, b);
    x9 = _mm256_fmadd_ps(x9, a, b);
    asm volatile("" : "+x"(x0), "+x"(x1), "+x"(x2), "+x"(x3), "+x"(x4));
    asm volatile("" : "+x"(x5), "+x"(x6), "+x"(x7), "+x"(x8), "+x"(x9));
  }
  const __m256 sum = x0 + x1 + x2 + x3 + x4 + x5 + x6 + x7 + x8 + x9;
  return sum[0] + sum[2] + sum[5] + sum[7];
}
#endif

float chains_portable(int64_t n) {
  float x[10];
  std::fill(x, x + 10, 0.999f);
  for (int64_t i = 0; i < n; ++i) {
    for (float& v : x) {
      v = v * 0.999f + 0.001f;
      asm volatile("" : "+m"(v));
    }
  }
  return x[0];
}

// Tiles of sums as matrix products have them: in each of `steps` steps two vectors of a panel of b
// are loaded, and every one of `rows` values of a strip of a is broadcast and multiplied with both.
// The strip lies in L1, the panels in L2.
constexpr int64_t steps = 512, panels = 4;

/// The factors; read only, so that all threads share them. Nothing is 0, which would save power.
struct Factors {
  alignas(64) float a[steps * 12];
  alignas(64) float b[panels * steps * 32];

  Factors() {
    uint32_t x = 1;
    const auto next = [&x] {
      x = x * 1664525u + 1013904223u;
      return static_cast<float>(x >> 8) / 16777216.0f - 0.49f;
    };
    std::generate(std::begin(a), std::end(a), next);
    std::generate(std::begin(b), std::end(b), next);
  }
};

const Factors& factors() {
  static const Factors all;
  return all;
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) float tiles_avx512(int64_t n) {
  constexpr int rows = 12;
  const Factors& f = factors();
  float sink = 0;
  for (int64_t tile = 0; tile < n; ++tile) {
    const float *a = f.a, *b = f.b + tile % panels * steps * 32;
    __m512 left[rows], right[rows];
#pragma GCC unroll 12
    for (int i = 0; i < rows; ++i) left[i] = right[i] = _mm512_setzero_ps();
    for (int64_t step = 0; step < steps; ++step, a += rows, b += 32) {
      const __m512 b0 = _mm512_load_ps(b), b1 = _mm512_load_ps(b + 16);
#pragma GCC unroll 12
      for (int i = 0; i < rows; ++i) {
        const __m512 one = _mm512_set1_ps(a[i]);
        left[i] = _mm512_fmadd_ps(one, b0, left[i]);
        right[i] = _mm512_fmadd_ps(one, b1, right[i]);
      }
    }
    __m512 sum = left[0] + right[0];
#pragma GCC unroll 12
    for (int i = 1; i < rows; ++i) sum += left[i] + right[i];
    sink += sum[0] + sum[5] + sum[10] + sum[15];
  }
  return sink;
}

__attribute__((target("avx2,fma"))) float tiles_avx2(int64_t n) {
  constexpr int rows = 6;
  const Factors& f = factors();
  float sink = 0;
  for (int64_t tile = 0; tile < n; ++tile) {
    const float *a = f.a, *b = f.b + tile % panels * steps * 16;
    __m256 left[rows], right[rows];
#pragma GCC unroll 6
    for (int i = 0; i < rows; ++i) left[i] = right[i] = _mm256_setzero_ps();
    for (int64_t step = 0; step < steps; ++step, a += rows, b += 16) {
      const __m256 b0 = _mm256_load_ps(b), b1 = _mm256_load_ps(b + 8);
#pragma GCC unroll 6
      for (int i = 0; i < rows; ++i) {
        const __m256 one = _mm256_broadcast_ss(a + i);
        left[i] = _mm256_fmadd_ps(one, b0, left[i]);
        right[i] = _mm256_fmadd_ps(one, b1, right[i]);
      }
    }
    __m256 sum = left[0] + right[0];
#pragma GCC unroll 6
    for (int i = 1; i < rows; ++i) sum += left[i] + right[i];
    sink += sum[0] + sum[2] + sum[5] + sum[7];
  }
  return sink;
}
#endif

/// Two rows of eight columns, as the compiler makes them.
float tiles_portable(int64_t n) {
  const Factors& f = factors();
  float sink = 0;
  for (int64_t tile = 0; tile < n; ++tile) {
    const float *a = f.a, *b = f.b + tile % panels * steps * 8;
    float sums[16] = {};
    for (int64_t step = 0; step < steps; ++step, a += 2, b += 8) {
      for (int j = 0; j < 8; ++j) {
        sums[j] += a[0] * b[j];
        sums[8 + j] += a[1] * b[j];
      }
    }
    for (const float x : sums) sink += x;
  }
  return sink;
}

/// A loop, its multiply-adds in each iteration, and the iterations of about half a millisecond.
struct Loop {
  float (*run)(int64_t);
  int64_t products, iterations;
  const char* name;
};

/// Returns the widest loop of that kind that the processor has and LONGSPAN_SIMD allows.
Loop widest(PeakLoop kind) {
  const bool loads = kind == PeakLoop::loads;
  constexpr int64_t chained = 250'000, tiles = 200;
#if defined(__x86_64__)
  const char* text = std::getenv("LONGSPAN_SIMD");
  const std::string limit = text != nullptr ? text : "";
  if (kind == PeakLoop::dots && __builtin_cpu_supports("avx512bf16") &&
      (limit.empty() || limit == "avx512-bf16")) {
    return {chains_dot, 10 * 32, chained, "avx512-bf16"};
  }
  if (__builtin_cpu_supports("avx512f") && (limit.empty() || limit.rfind("avx512", 0) == 0)) {
    if (loads) return {tiles_avx512, steps * 12 * 32, tiles, "avx512"};
    return {chains_avx512, 10 * 16, chained, "avx512"};
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && limit != "portable") {
    if (loads) return {tiles_avx2, steps * 6 * 16, 2 * tiles, "avx2"};
    return {chains_avx2, 10 * 8, chained, "avx2"};
  }
#endif
  if (loads) return {tiles_portable, steps * 2 * 8, tiles, "portable"};
  return {chains_portable, 10, chained / 2, "portable"};
}

/// Runs `loop` once in each thread; returns the multiply-adds per second of all together, 0 if a
/// sum is no number, and adds the CPU seconds of the busiest thread to *spent. Rates are by the
/// wall clock: a run is too short for most interruptions, and what a virtual machine subtracts from
/// CPU time, in lumps, would make some runs look faster than the processor is.
double once(const Loop& loop, int threads, double* spent) {
  std::vector<float> sinks(static_cast<size_t>(threads));
  std::vector<double> cpu(sinks.size()), wall(sinks.size());
  const auto timed = [&](int i) {
    const auto at = static_cast<size_t>(i);
    const double cpu_start = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    const double start = seconds_of(CLOCK_MONOTONIC);
    sinks[at] = loop.run(loop.iterations);
    wall[at] = seconds_of(CLOCK_MONOTONIC) - start;
    cpu[at] = seconds_of(CLOCK_THREAD_CPUTIME_ID) - cpu_start;
  };
  if (threads == num_threads()) {
    parallel_for(threads, [&](int64_t i) { timed(static_cast<int>(i)); });  // where ops run
  } else {
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(timed, i);
    timed(0);
    for (std::thread& t : others) t.join();
  }
  *spent += *std::max_element(cpu.begin(), cpu.end());
  double total = 0;
  for (const double s : wall) total += static_cast<double>(loop.products * loop.iterations) / s;
  return std::isfinite(sinks[0]) ? total : 0.0;
}

void measure(int threads, PeakLoop kind, double seconds, double* macs, const char** instructions) {
  const Loop loop = widest(kind);
  *instructions = loop.name;
  *macs = 0;
  double spent = 0;
  do {
    *macs = std::max(*macs, once(loop, threads, &spent));
  } while (spent < seconds);
}

}  // namespace

void register_peak() { kernels::measure_peak.set(DeviceKind::cpu, measure); }

}  // namespace longspan::cpu
