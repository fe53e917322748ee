#include "core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/generator.h"

namespace longspan {
namespace {

template <class H>
H with_bits(uint32_t bits) {
  H h;
  h.bits = static_cast<uint16_t>(bits);
  return h;
}

/// Checks that every bit pattern survives conversion to float and back; NaN stays NaN, with its
/// sign.
template <class H>
void round_trip_of_all() {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float wide = with_bits<H>(bits);
    const H back(wide);
    if (std::isnan(wide)) {
      ASSERT_TRUE(std::isnan(static_cast<float>(back))) << bits;
      ASSERT_EQ(back.bits & 0x8000u, bits & 0x8000u) << bits;
    } else {
      ASSERT_EQ(back.bits, bits);
    }
  }
}

TEST(F16, RoundTripOfAllPatterns) { round_trip_of_all<f16>(); }
TEST(BF16, RoundTripOfAllPatterns) { round_trip_of_all<bf16>(); }

/// Computes the value of a bit pattern from the definition of the format.
double value_of(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto mantissa = static_cast<double>(bits & ((1u << mantissa_bits) - 1));
  const int exponent = static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
  const double sign = (bits & 0x8000u) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * INFINITY : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(1 + std::ldexp(mantissa, -mantissa_bits), exponent - bias);
}

TEST(F16, ValuesOfAllPatterns) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const double want = value_of(bits, 5, 10), got = static_cast<float>(with_bits<f16>(bits));
    ASSERT_TRUE(want == got || (std::isnan(want) && std::isnan(got))) << bits;
  }
}

TEST(BF16, ValuesOfAllPatterns) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const double want = value_of(bits, 8, 7), got = static_cast<float>(with_bits<bf16>(bits));
    ASSERT_TRUE(want == got || (std::isnan(want) && std::isnan(got))) << bits;
  }
}

/// Checks rounding to nearest, ties to even, around the middle of every two neighbours.
template <class H>
void rounds_to_nearest_even(uint32_t infinity) {
  for (uint32_t bits = 0; bits < infinity; ++bits) {
    const float low = with_bits<H>(bits);
    // The step beyond the largest value counts as large as the one before it.
    const float high = bits + 1 < infinity
                           ? static_cast<float>(with_bits<H>(bits + 1))
                           : low + (low - static_cast<float>(with_bits<H>(bits - 1)));
    const auto middle =
        static_cast<float>((static_cast<double>(low) + static_cast<double>(high)) / 2);
    for (const float sign : {1.0f, -1.0f}) {
      const uint32_t s = sign < 0 ? 0x8000u : 0u;
      ASSERT_EQ(H(sign * std::nextafter(middle, 0.0f)).bits, s | bits) << bits;
      ASSERT_EQ(H(sign * middle).bits, s | (bits % 2 == 0 ? bits : bits + 1)) << bits;
      ASSERT_EQ(H(sign * std::nextafter(middle, INFINITY)).bits, s | (bits + 1)) << bits;
    }
  }
}

TEST(F16, RoundsToNearestEven) { rounds_to_nearest_even<f16>(0x7c00u); }

TEST(BF16, RoundsToNearestEven) {
  // The middle above the largest value is not a float, so the last step is checked separately.
  for (uint32_t bits = 0; bits + 1 < 0x7f80u; ++bits) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const auto float_of = [&](uint32_t pattern) {
        pattern |= sign;
        float f;
        memcpy(&f, &pattern, 4);
        return f;
      };
      const uint32_t s = sign >> 16;
      ASSERT_EQ(bf16(float_of(bits << 16 | 0x7fffu)).bits, s | bits);
      ASSERT_EQ(bf16(float_of(bits << 16 | 0x8000u)).bits, s | (bits + bits % 2));
      ASSERT_EQ(bf16(float_of(bits << 16 | 0x8001u)).bits, s | (bits + 1));
    }
  }
  EXPECT_EQ(bf16(std::numeric_limits<float>::max()).bits, 0x7f80u);
  EXPECT_EQ(bf16(-std::numeric_limits<float>::max()).bits, 0xff80u);
}

TEST(F16, SpecialValues) {
  EXPECT_EQ(f16(65504.0f).bits, 0x7bffu);
  EXPECT_EQ(f16(65519.9f).bits, 0x7bffu);
  EXPECT_EQ(f16(65520.0f).bits, 0x7c00u);
  EXPECT_EQ(f16(1e30f).bits, 0x7c00u);
  EXPECT_EQ(f16(-INFINITY).bits, 0xfc00u);
  EXPECT_EQ(f16(std::ldexp(1.0f, -24)).bits, 1u);
  EXPECT_EQ(f16(std::ldexp(1.0f, -25)).bits, 0u);
  EXPECT_EQ(f16(std::nextafter(std::ldexp(1.0f, -25), 1.0f)).bits, 1u);
  EXPECT_EQ(f16(-0.0f).bits, 0x8000u);
  EXPECT_EQ(f16(std::numeric_limits<float>::denorm_min()).bits, 0u);
}

TEST(DType, Traits) {
  const int64_t sizes[] = {8, 4, 2, 2, 8, 4, 1};
  const char* names[] = {"f64", "f32", "f16", "bf16", "i64", "i32", "u8"};
  for (int i = 0; i < dtype_count; ++i) {
    const auto t = static_cast<DType>(i);
    EXPECT_EQ(size_of(t), sizes[i]);
    EXPECT_EQ(name_of(t), names[i]);
    EXPECT_EQ(is_floating(t), i < 4);
    visit_dtype(t, [&](auto tag) {
      using T = typename decltype(tag)::type;
      EXPECT_EQ(dtype_of<T>, t);
      EXPECT_EQ(static_cast<int64_t>(sizeof(T)), size_of(t));
    });
    if (is_floating(t)) {
      visit_floating(t, [&](auto tag) { EXPECT_EQ(dtype_of<typename decltype(tag)::type>, t); });
    }
  }
  static_assert(std::is_same_v<Accumulator<double>, double>);
  static_assert(std::is_same_v<Accumulator<bf16>, float>);
  static_assert(std::is_same_v<Accumulator<uint8_t>, int64_t>);
}

}  // namespace
}  // namespace longspan
