// The multiply-adds per second of this machine, measured: chains of instructions on registers
// alone.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
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

/// CPU seconds of this thread: what other processes do does not count.
double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
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

struct Chains {
  float (*run)(int64_t);
  int products;  // multiply-adds of each of the ten instructions
  const char* name;
};

/// Returns the widest chains that the processor has and LONGSPAN_SIMD allows.
Chains best_chains() {
#if defined(__x86_64__)
  const char* text = std::getenv("LONGSPAN_SIMD");
  const std::string limit = text != nullptr ? text : "";
  if (__builtin_cpu_supports("avx512f") && (limit.empty() || limit.rfind("avx512", 0) == 0)) {
    return {chains_avx512, 16, "avx512"};
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && limit != "portable") {
    return {chains_avx2, 8, "avx2"};
  }
#endif
  return {chains_portable, 1, "portable"};
}

/// Returns chains with twice the products of best_chains() if the processor has bf16 dot products.
Chains dot_chains() {
#if defined(__x86_64__)
  const char* text = std::getenv("LONGSPAN_SIMD");
  const std::string limit = text != nullptr ? text : "";
  if (__builtin_cpu_supports("avx512bf16") && (limit.empty() || limit == "avx512-bf16")) {
    return {chains_dot, 32, "avx512-bf16"};
  }
#endif
  return best_chains();
}

void measure(int threads, bool dots, double* macs, const char** instructions) {
  constexpr int64_t n = 2'000'000;
  const Chains chains = dots ? dot_chains() : best_chains();
  *instructions = chains.name;
  *macs = 0;
  for (int repeat = 0; repeat < 4; ++repeat) {
    std::vector<float> sinks(static_cast<size_t>(threads));
    std::vector<double> seconds(sinks.size());
    const auto timed = [&](int i) {
      const auto at = static_cast<size_t>(i);
      const double start = thread_seconds();
      sinks[at] = chains.run(n);
      seconds[at] = thread_seconds() - start;
    };
    if (threads == num_threads()) {
      parallel_for(threads, [&](int64_t i) { timed(static_cast<int>(i)); });  // where ops run
    } else {
      std::vector<std::thread> others;
      for (int i = 1; i < threads; ++i) others.emplace_back(timed, i);
      timed(0);
      for (std::thread& t : others) t.join();
    }
    double total = 0;
    for (const double s : seconds) total += 10.0 * chains.products * static_cast<double>(n) / s;
    if (std::isfinite(sinks[0])) *macs = std::max(*macs, total);
  }
}

}  // namespace

void register_peak() { kernels::measure_peak.set(DeviceKind::cpu, measure); }

}  // namespace longspan::cpu
