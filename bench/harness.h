#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "core/tensor.h"

namespace longspan::bench {

/// f32 multiply-adds per second that this machine reaches, times two: every thread runs
/// register-only FMA chains, and its CPU time counts, so that a busy neighbour does not matter.
/// About 20 ms per call and thread.
double fma_peak(int threads);

/// The same of products of bf16: of dot products of pairs where the processor has them and
/// LONGSPAN_SIMD allows them, else fma_peak().
double dot_peak(int threads);

/// Bytes per second of a triad a = b + s c over arrays far larger than the caches, 3 x 4 bytes per
/// element, by CPU time of the busiest thread.
double triad_bandwidth(int threads);

/// CPU seconds of every thread of this process, by thread id.
std::map<int, double> thread_times();

/// Uniform f32 values in scale * [-0.5, 0.5), the same as values() in bench/peers/worker.py.
Tensor values(const Shape& shape, uint32_t seed, float scale = 1.0f);

/// Mean of |x|; f32 and f64.
double magnitude(const Tensor& x);

/// "avx512", "avx2" or "portable": the instructions that fma_peak() used.
std::string instructions();

}  // namespace longspan::bench
