#pragma once

#include <cstdint>

#include "core/device_scalar.h"
#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

// Element i of a contiguous draw comes from philox_word(key, i) or, where it needs two words or
// two draws share two, as core/generator.h says: the same bits on every device. Numbers are made
// in f32 and rounded to the dtype.

/// y_i = x_i / (1 - p) where philox_word(key, first + i) >= drop_threshold(p), else 0. x, y
/// contiguous, one floating dtype; y may be x.
inline constinit Kernel<void(ConstView x, DeviceScalar<uint64_t> key, int64_t first, double p,
                             View y)>
    dropout{"dropout"};
/// y_i = low + to_uniform(word i) * (high - low). Floating.
inline constinit Kernel<void(DeviceScalar<uint64_t> key, double low, double high, View y)> uniform{
    "uniform"};
/// y_i = mean + deviation * n, n the first of philox_normal(key, i, 0), (key, i, 1), ... in
/// [low, high]. Floating. The caller sees to it that the interval is likely.
inline constinit Kernel<void(DeviceScalar<uint64_t> key, double mean, double deviation, double low,
                             double high, View y)>
    normal{"normal"};
/// y_i = 1 where word i < drop_threshold(p), else 0. Any dtype.
inline constinit Kernel<void(DeviceScalar<uint64_t> key, double p, View y)> bernoulli{"bernoulli"};
/// y_i = low + to_range(words 2i and 2i + 1 as lower and upper half, high - low). Integers.
inline constinit Kernel<void(DeviceScalar<uint64_t> key, int64_t low, int64_t high, View y)>
    randint{"randint"};
/// q / gain becomes what Gram and Schmidt would make of the rows of x, in order: orthonormal rows,
/// and x q^T a lower triangle whose diagonal is positive. By Householder reflections.
///   x [n, m] f64, n <= m, contiguous, overwritten; q [n, m] f64, contiguous
inline constinit Kernel<void(View x, double gain, View q)> orthonormalize{"orthonormalize"};

}  // namespace longspan::kernels
