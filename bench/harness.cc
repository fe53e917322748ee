#include "bench/harness.h"

#include <dirent.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <thread>
#include <vector>

#include "core/build.h"
#include "core/kernel.h"
#include "core/kernels/matmul.h"

namespace longspan::bench {
namespace {

double clock_seconds(clockid_t clock) {
  timespec t{};
  if (clock_gettime(clock, &t) != 0) return -1.0;
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

#if defined(__x86_64__) && !defined(__clang__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void triad(int64_t n, float* __restrict x, const float* __restrict y, const float* __restrict z) {
  for (int64_t i = 0; i < n; ++i) x[i] = y[i] + 0.5f * z[i];
}

/// Runs body(i) on its own thread for each i and returns the CPU seconds of each.
template <class F>
std::vector<double> on_threads(int threads, F body) {
  std::vector<double> seconds(static_cast<size_t>(threads));
  const auto timed = [&](int i) {
    const double start = thread_seconds();
    body(i);
    seconds[static_cast<size_t>(i)] = thread_seconds() - start;
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(timed, i);
  timed(0);
  for (std::thread& t : others) t.join();
  return seconds;
}

double peak_of(int threads, PeakLoop loop, double seconds, const char** instructions = nullptr) {
  register_backends();
  double macs = 0;
  const char* name = "";
  kernels::measure_peak(Device{}, threads, loop, seconds, &macs, &name);
  if (instructions != nullptr) *instructions = name;
  return 2 * macs;
}

}  // namespace

std::string instructions() {
  register_backends();
  return std::string(cpu_instructions());
}
std::string peak_instructions() {
  const char* name = "";
  peak_of(1, PeakLoop::registers, 0.0, &name);
  return name;
}
double fma_peak(int threads) { return peak_of(threads, PeakLoop::registers, 0.02); }
double dot_peak(int threads) { return peak_of(threads, PeakLoop::dots, 0.02); }
double loading_peak(int threads) { return peak_of(threads, PeakLoop::loads, 0.02); }
double loading_probe(int threads) { return peak_of(threads, PeakLoop::loads, 0.002); }

double triad_bandwidth(int threads) {
  constexpr int64_t n = 16'000'000;  // three arrays of 64 MB
  Tensor a = Tensor::zeros({n}), b = Tensor::zeros({n}), c = Tensor::zeros({n});
  auto* x = a.mut().as<float>();
  const auto *y = b.view().as<float>(), *z = c.view().as<float>();
  double best = 0;
  for (int repeat = 0; repeat < 8; ++repeat) {
    const std::vector<double> seconds = on_threads(threads, [&](int i) {
      const int64_t begin = n * i / threads, end = n * (i + 1) / threads;
      triad(end - begin, x + begin, y + begin, z + begin);
    });
    best = std::max(best, 12.0 * n / *std::max_element(seconds.begin(), seconds.end()));
  }
  return best;
}

double thread_seconds() { return clock_seconds(CLOCK_THREAD_CPUTIME_ID); }

double process_seconds() { return clock_seconds(CLOCK_PROCESS_CPUTIME_ID); }

double with_relative_scores(const MacCount& counted) {
  return static_cast<double>(counted.total()) + 0.5 * static_cast<double>(counted.attention());
}

void best(double& seconds, const std::function<void()>& work) {
  const double start = thread_seconds();
  work();
  const double now = thread_seconds() - start;
  seconds = seconds == 0 ? now : std::min(seconds, now);
}

std::map<int, double> thread_times() {
  std::map<int, double> times;
  if (DIR* folder = opendir("/proc/self/task")) {
    while (const dirent* entry = readdir(folder)) {
      const int tid = std::atoi(entry->d_name);
      if (tid <= 0) continue;
      const auto clock = static_cast<clockid_t>((~tid << 3) | 6);  // the CPU clock of that thread
      times[tid] = clock_seconds(clock);
    }
    closedir(folder);
  }
  return times;
}

Tensor values(const Shape& shape, uint32_t seed, float scale) {
  std::vector<float> x(static_cast<size_t>(numel(shape)));
  for (size_t i = 0; i < x.size(); ++i) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u + seed * 0x9E3779B9u;
    h ^= h >> 16;
    h *= 0x85EBCA6Bu;
    h ^= h >> 13;
    h *= 0xC2B2AE35u;
    h ^= h >> 16;
    x[i] = (static_cast<float>(h >> 8) / 16777216.0f - 0.5f) * scale;
  }
  return Tensor::from(x, shape);
}

double magnitude(const Tensor& x) {
  double sum = 0;
  if (x.dtype() == DType::f64) {
    for (const double v : x.to_vector<double>()) sum += std::fabs(v);
  } else {
    for (const float v : x.to_vector<float>()) sum += std::fabs(static_cast<double>(v));
  }
  return sum / static_cast<double>(std::max<int64_t>(1, x.numel()));
}

}  // namespace longspan::bench
