#pragma once

#include <cstdint>

#include "core/device_scalar.h"
#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

// Element i of a contiguous draw comes from philox_word(key, i), or, if it needs two words or two
// draws share two, as core/generator.h describes: the same bits on every device. Values are
// computed in f32 and rounded to the dtype.

/// y_i = x_i / (1 - p) if philox_word(key, first + i) >= drop_threshold(p), else 0. x, y
/// contiguous, same floating dtype; y may be x.
inline constinit Kernel<void(ConstView x, DeviceScalar<uint64_t> key, int64_t first, double p,
                             View y)>
    dropout{"dropout"};
/// y_i = low + to_uniform(word i) * (high - low). Floating.
inline constinit Kernel<void(DeviceScalar<uint64_t> key, double low, double high, View y)> uniform{
    "uniform"};
/// y_i = mean + deviation * n, with n the first of philox_normal(key, i, 0), (key, i, 1), ... that
/// is in [low, high]. Floating. The caller ensures that the interval is likely.
inline constinit Kernel<void(DeviceScalar<uint64_t> key, double mean, double deviation, double low,
                             double high, View y)>
    normal{"normal"};
/// y_i = 1 if word i < drop_threshold(p), else 0. Any dtype.
inline constinit Kernel<void(DeviceScalar<uint64_t> key, double p, View y)> bernoulli{"bernoulli"};
/// y_i = low + to_range(words 2i and 2i + 1 as lower and upper half, high - low). Integers.
inline constinit Kernel<void(DeviceScalar<uint64_t> key, int64_t low, int64_t high, View y)>
    randint{"randint"};
/// q / gain becomes the Gram-Schmidt orthonormalization of the rows of x, in order: orthonormal
/// rows, and x q^T lower triangular with a positive diagonal. Computed by Householder reflections.
///   x [n, m] f64, n <= m, contiguous, overwritten; q [n, m] f64, contiguous
inline constinit Kernel<void(View x, double gain, View q)> orthonormalize{"orthonormalize"};

}  // namespace longspan::kernels
