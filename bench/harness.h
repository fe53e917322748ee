#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "core/tensor.h"
#include "ops/cost.h"

namespace longspan::bench {

/// Measures the peak f32 FLOPs per second of this machine (two per multiply-add): every thread runs
/// register-only FMA chains. The best of many runs of half a millisecond counts, so that other
/// processes do not distort it. Takes about 20 ms of CPU time in each thread.
double fma_peak(int threads);

/// Measures the peak of bf16 dot-product instructions if the processor has them and LONGSPAN_SIMD
/// allows them; otherwise returns fma_peak().
double dot_peak(int threads);

/// Measures the peak f32 FLOPs per second of loops that load factors as a tile of a matmul does,
/// from L1 and L2. On some machines they run at two speeds that alternate within seconds, while
/// fma_peak() stays the same. Takes about 20 ms of CPU time in each thread.
double loading_peak(int threads);

/// Measures the current one of the two speeds of loading_peak(), in about 2 ms.
double loading_probe(int threads);

/// Measures the bytes per second of a triad a = b + s c over arrays far larger than the caches, 3 x
/// 4 bytes per element, by the CPU time of the busiest thread.
double triad_bandwidth(int threads);

/// Returns the CPU seconds of the calling thread, and of the whole process, up to now.
double thread_seconds();
double process_seconds();

/// Runs `work` and keeps the CPU seconds of the calling thread if they are fewer than `seconds`, or
/// `seconds` is 0.
void best(double& seconds, const std::function<void()>& work);

/// Returns the CPU seconds of every thread of this process, by thread id.
std::map<int, double> thread_times();

/// Returns the multiply-accumulates of a model whose scores have a relative term r_i . a[id] for
/// every pair. MacCount leaves those out; they are half as many as the others of attention, whose
/// keys and values are as wide.
double with_relative_scores(const MacCount& counted);

/// Returns uniform f32 values in scale * [-0.5, 0.5), identical to values() in
/// bench/peers/worker.py.
Tensor values(const Shape& shape, uint32_t seed, float scale = 1.0f);

/// Returns the mean of |x|; f32 and f64.
double magnitude(const Tensor& x);

/// Returns the instruction set that this engine's kernels use, which says how wide its vectors are:
/// "avx512-bf16" and "avx512" (512 bits), "avx2" (256), "portable" (128), or another target's name.
std::string instructions();

/// Returns "avx512", "avx2" or "portable", the instruction set that fma_peak() and loading_peak()
/// use.
std::string peak_instructions();

}  // namespace longspan::bench
