#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "core/host_device.h"

namespace longspan {

/// Element types. f16 and bf16 are storage formats on the CPU: kernels widen them to f32, except
/// that matrix products multiply bf16 directly if the processor can.
enum class DType : uint8_t { f64, f32, f16, bf16, i64, i32, u8 };
inline constexpr int dtype_count = 7;

/// IEEE 754 binary16, stored as its bits. Conversion rounds to nearest even; NaN stays NaN.
struct f16 {
  uint16_t bits;
  f16() = default;
  LONGSPAN_HD explicit f16(float value) : bits(from_float(value)) {}
  LONGSPAN_HD operator float() const { return to_float(bits); }

  LONGSPAN_HD static uint16_t from_float(float value) {
#if defined(__CUDA_ARCH__)
    uint16_t rounded;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
    return rounded;
#else
    uint32_t x;
    memcpy(&x, &value, 4);
    const uint32_t sign = (x >> 16) & 0x8000u;
    x &= 0x7fffffffu;
    if (x > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
    if (x >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
    if (x < 0x38800000u) {  // subnormal in f16: add so that the mantissa rounds in place
      const float scale = 0.5f;
      float magnitude;
      memcpy(&magnitude, &x, 4);
      magnitude += scale;
      uint32_t y;
      memcpy(&y, &magnitude, 4);
      return static_cast<uint16_t>(sign | (y - 0x3f000000u));
    }
    const uint32_t odd = (x >> 13) & 1u;
    return static_cast<uint16_t>(sign | ((x - 0x38000000u + 0xfffu + odd) >> 13));
#endif
  }
  LONGSPAN_HD static float to_float(uint16_t h) {
#if defined(__CUDA_ARCH__)
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(h));
    return wide;
#else
    const uint32_t sign = (h & 0x8000u) << 16;
    const uint32_t exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
    uint32_t x;
    if (exponent == 31) {
      x = sign | 0x7f800000u | (mantissa << 13);
    } else if (exponent != 0) {
      x = sign | ((exponent + 112) << 23) | (mantissa << 13);
    } else {
      const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;  // 2^-24
      memcpy(&x, &magnitude, 4);
      x |= sign;
    }
    float y;
    memcpy(&y, &x, 4);
    return y;
#endif
  }
};

/// bfloat16: the upper half of an f32. Conversion rounds to nearest even; NaN stays NaN.
struct bf16 {
  uint16_t bits;
  bf16() = default;
  LONGSPAN_HD explicit bf16(float value) : bits(from_float(value)) {}
  LONGSPAN_HD operator float() const { return to_float(bits); }

  LONGSPAN_HD static uint16_t from_float(float value) {
#if defined(__CUDA_ARCH__)
    uint16_t rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
    return rounded;
#else
    uint32_t x;
    memcpy(&x, &value, 4);
    if ((x & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((x >> 16) | 0x40u);
    return static_cast<uint16_t>((x + 0x7fffu + ((x >> 16) & 1u)) >> 16);
#endif
  }
  LONGSPAN_HD static float to_float(uint16_t h) {
    const uint32_t x = static_cast<uint32_t>(h) << 16;
    float y;
    memcpy(&y, &x, 4);
    return y;
  }
};

/// Returns the bytes of one element.
LONGSPAN_HD constexpr int64_t size_of(DType t) {
  switch (t) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::u8:
      return 1;
  }
  return 0;
}

/// Whether `t` is f64, f32, f16 or bf16.
constexpr bool is_floating(DType t) { return t <= DType::bf16; }
/// The dtype of sums and statistics over values of a floating dtype: f64 for f64, else f32.
constexpr DType accumulator_of(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

/// Returns "f32" and so on.
constexpr std::string_view name_of(DType t) {
  constexpr std::string_view names[] = {"f64", "f32", "f16", "bf16", "i64", "i32", "u8"};
  return names[static_cast<int>(t)];
}

/// Maps a C++ type to the dtype that stores it.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<double> : std::integral_constant<DType, DType::f64> {};
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::f32> {};
template <>
struct DTypeOf<f16> : std::integral_constant<DType, DType::f16> {};
template <>
struct DTypeOf<bf16> : std::integral_constant<DType, DType::bf16> {};
template <>
struct DTypeOf<int64_t> : std::integral_constant<DType, DType::i64> {};
template <>
struct DTypeOf<int32_t> : std::integral_constant<DType, DType::i32> {};
template <>
struct DTypeOf<uint8_t> : std::integral_constant<DType, DType::u8> {};

/// The dtype that stores T.
template <class T>
inline constexpr DType dtype_of = DTypeOf<std::remove_cv_t<T>>::value;

/// The type in which T is computed and summed: f64 for f64, f32 for the other floating types, else
/// i64.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double,
                                       std::conditional_t<std::is_integral_v<T>, int64_t, float>>;

/// Carries a type as a value.
template <class T>
struct TypeTag {
  using type = T;
};

/// Calls f(TypeTag<T>{}) with the C++ type of `t`.
template <class F>
decltype(auto) visit_dtype(DType t, F&& f) {
  switch (t) {
    case DType::f64:
      return f(TypeTag<double>{});
    case DType::f32:
      return f(TypeTag<float>{});
    case DType::f16:
      return f(TypeTag<f16>{});
    case DType::bf16:
      return f(TypeTag<bf16>{});
    case DType::i64:
      return f(TypeTag<int64_t>{});
    case DType::i32:
      return f(TypeTag<int32_t>{});
    case DType::u8:
      break;
  }
  return f(TypeTag<uint8_t>{});
}

/// Calls f(TypeTag<T>{}) for a floating `t`; the caller has checked that `t` is floating.
template <class F>
decltype(auto) visit_floating(DType t, F&& f) {
  switch (t) {
    case DType::f64:
      return f(TypeTag<double>{});
    case DType::f16:
      return f(TypeTag<f16>{});
    case DType::bf16:
      return f(TypeTag<bf16>{});
    default:
      return f(TypeTag<float>{});
  }
}

}  // namespace longspan
