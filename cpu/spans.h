#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/kernels/elementwise.h"

/// Elementwise functions of contiguous elements: the vectorised inner loops of kernels.
namespace longspan::cpu {

/// y[i] = f(x[i]). T is float or double; y may be x.
template <class T>
void unary_span(kernels::Unary f, double alpha, double beta, const T* x, T* y, int64_t n);
/// dx[i] = f'(x[i]) dy[i], from x or y as listed in kernels::Unary; dx may be either input.
template <class T>
void unary_gradient_span(kernels::Unary f, double alpha, double beta, const T* x_or_y, const T* dy,
                         T* dx, int64_t n);
/// y[i] = f(x[i]), slope[i] = f'(x[i]), for silu and the gelus.
template <class T>
void unary_slope_span(kernels::Unary f, const T* x, T* y, T* slope, int64_t n);
/// y[i] = f(a[i], b[i]).
template <class T>
void binary_span(kernels::Binary f, const T* a, const T* b, T* y, int64_t n);

/// Convert between f32 and the 16-bit formats, to nearest even.
void widen_span(const f16* x, float* y, int64_t n);
void widen_span(const bf16* x, float* y, int64_t n);
void narrow_span(const float* x, f16* y, int64_t n);
void narrow_span(const float* x, bf16* y, int64_t n);

}  // namespace longspan::cpu
