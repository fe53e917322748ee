// Stores the sums of a transposed product, whose tiles are transposed on their way to c. Included
// once per SIMD target.

#if defined(LONGSPAN_CPU_GEMM_TRANSPOSED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_GEMM_TRANSPOSED_INL_H_
#undef LONGSPAN_CPU_GEMM_TRANSPOSED_INL_H_
#else
#define LONGSPAN_CPU_GEMM_TRANSPOSED_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <type_traits>

#include "cpu/matmul/gemm_pack-inl.h"
#include "cpu/matmul/gemm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET != HWY_SCALAR
/// Adds 4 n columns of `Rows` rows of sums, `width` apart, to the columns of a transposed product.
template <int Rows>
HWY_INLINE void finish_columns(const Target<float>& to, int64_t n, const float* sums,
                               int64_t width) {
  const hn::FixedTag<float, Rows> d;
  const auto bias = to.bias != nullptr ? hn::LoadU(d, to.bias) : hn::Zero(d);
  const auto put = [&](auto sum, float* p) {
    if (to.accumulate) sum = hn::Add(sum, hn::LoadU(d, p));
    if (to.bias != nullptr) sum = hn::Add(sum, bias);
    hn::StoreU(sum, d, p);
  };
  float* p = to.c;
  for (int64_t j = 0; j < n; ++j, p += 4 * to.row) {
    const Columns<Rows> c = load_columns<float, Rows>(sums + 4 * j, width);
    put(c.c0, p);
    put(c.c1, p + to.row);
    put(c.c2, p + 2 * to.row);
    put(c.c3, p + 3 * to.row);
  }
}

#endif

template <class T>
void finish_transposed(const Target<T>& to, int64_t rows, const Sum<T>* sums, int64_t width) {
  int64_t quick = 0;  // rows whose columns come four at a time
  const int64_t fours = to.columns / 4;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (std::is_same_v<T, float>) {
    Target<float> at = to;
    const auto block = [&](auto size) {
      finish_columns<size.value>(at, fours, sums + quick * width, width);
      quick += size.value;
      at.c += size.value;
      if (at.bias != nullptr) at.bias += size.value;
    };
    while (across == 8 && quick + 8 <= rows) block(std::integral_constant<int, across>());
    while (quick + 4 <= rows) block(std::integral_constant<int, 4>());
  }
#endif
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = i < quick ? 4 * fours : 0; j < to.columns; ++j) {
      Sum<T>& c = to.c[j * to.row + i];
      Sum<T> sum = sums[i * width + j];
      if (to.accumulate) sum += c;
      if (to.bias != nullptr) sum += to.bias[i];
      c = sum;
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif
