#include "core/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

namespace longspan {
namespace {

TEST(Philox, KnownAnswers) {
  // Test vectors that Random123 publishes for philox4x32 with 10 rounds.
  struct Case {
    uint32_t counter[4], key[2], words[4];
  };
  const Case cases[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       {0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const Case& c : cases) {
    const uint64_t key = uint64_t{c.key[1]} << 32 | c.key[0];
    const Philox4 w = philox(key, c.counter[0], c.counter[1], c.counter[2], c.counter[3]);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(w.word[i], c.words[i]);
  }
}

TEST(Philox, WordsOfASequence) {
  const uint64_t key = 0x0123456789abcdefu;
  for (const int64_t i : {int64_t{0}, int64_t{7}, int64_t{1} << 34, (int64_t{1} << 40) + 3}) {
    const auto c = static_cast<uint64_t>(i) / 4;
    const Philox4 w = philox(key, static_cast<uint32_t>(c), static_cast<uint32_t>(c >> 32), 0, 0);
    EXPECT_EQ(philox_word(key, i), w.word[i % 4]);
  }
}

TEST(Philox, UniformIsBelowOne) {
  EXPECT_EQ(to_uniform(0), 0.0f);
  EXPECT_LT(to_uniform(0xffffffffu), 1.0f);
  EXPECT_EQ(drop_threshold(0.0), 0u);
  EXPECT_EQ(drop_threshold(0.5), 0x80000000u);
  EXPECT_EQ(drop_threshold(1.0), uint64_t{1} << 32);
}

TEST(Philox, LogarithmAndCircleOverTheirRanges) {
  double worst_log = 0, worst_circle = 0;
  for (int64_t i = 0; i < 2'000'000; ++i) {
    const uint32_t w = philox_word(1, i) >> (i % 32);
    const float u = (static_cast<float>(w) + 0.5f) / 4294967296.0f;
    const double exact = std::log(static_cast<double>(u));
    worst_log = std::max(
        worst_log, std::abs(detail::log_of_uniform(u) - exact) / std::max(1e-6, std::abs(exact)));
    float c, s;
    const float t = to_uniform(philox_word(2, i));
    detail::circle(t, c, s);
    const double angle = 6.283185307179586 * static_cast<double>(t);
    worst_circle =
        std::max({worst_circle, std::abs(c - std::cos(angle)), std::abs(s - std::sin(angle))});
  }
  EXPECT_EQ(detail::log_of_uniform(1.0f), 0.0f);
  EXPECT_LT(worst_log, 3e-7);
  EXPECT_LT(worst_circle, 2e-7);
}

TEST(Philox, NormalTailsAreFinite) {
  for (const uint32_t w0 : {0u, 1u, 0x7fffffffu, 0xfffffffeu, 0xffffffffu}) {
    for (const uint32_t w1 : {0u, 0x40000000u, 0x80000000u, 0xc0000000u, 0xffffffffu}) {
      float a, b;
      to_normal(w0, w1, a, b);
      EXPECT_TRUE(std::isfinite(a) && std::isfinite(b));
      EXPECT_LT(std::hypot(a, b), 6.8);
    }
  }
  float a, b;
  to_normal(0, 0, a, b);
  EXPECT_GT(a, 6.6f);  // the far tail is reached
}

TEST(Philox, RangeIsTheUpperHalfOfTheProduct) {
  EXPECT_EQ(to_range(~uint64_t{0}, 10), 9u);
  EXPECT_EQ(to_range(0, 10), 0u);
  EXPECT_EQ(to_range(uint64_t{1} << 63, 10), 5u);
  EXPECT_EQ(to_range(~uint64_t{0}, ~uint64_t{0}), ~uint64_t{0} - 1);
  // Compares with long multiplication of 16-bit digits.
  for (int64_t i = 0; i < 1000; ++i) {
    const uint64_t a = uint64_t{philox_word(3, 4 * i)} << 32 | philox_word(3, 4 * i + 1);
    const uint64_t b = uint64_t{philox_word(3, 4 * i + 2)} << 32 | philox_word(3, 4 * i + 3);
    uint64_t digits[9] = {};
    for (int j = 0; j < 4; ++j) {
      for (int k = 0; k < 4; ++k) {
        const uint64_t p = (a >> 16 * j & 0xffff) * (b >> 16 * k & 0xffff);
        digits[j + k] += p & 0xffff;
        digits[j + k + 1] += p >> 16;
      }
    }
    for (int j = 0; j < 8; ++j) {
      digits[j + 1] += digits[j] >> 16;
      digits[j] &= 0xffff;
    }
    EXPECT_EQ(to_range(a, b), digits[7] << 48 | digits[6] << 32 | digits[5] << 16 | digits[4]);
  }
}

TEST(Generator, ForksDiffer) {
  const Generator gen{1};
  std::set<uint64_t> keys = {gen.key};
  for (uint64_t i = 0; i < 1000; ++i) {
    keys.insert(gen.fork(i).key);
    keys.insert(gen.fork(std::to_string(i)).key);
    keys.insert(Generator{i + 2}.fork("a").key);
  }
  EXPECT_EQ(keys.size(), 3001u);
  EXPECT_EQ(gen.fork("a").fork(3), Generator{1}.fork("a").fork(3));
  EXPECT_NE(gen.fork("a").fork("b"), gen.fork("b").fork("a"));
}

TEST(Pass, AtForksTheGeneratorAndKeepsTheRest) {
  const Pass pass{.training = true, .gen = {5}, .row = 17};
  const Pass inner = pass.at("layer").at(3);
  EXPECT_TRUE(inner.training);
  EXPECT_EQ(inner.row, 17);
  EXPECT_EQ(inner.gen, (Generator{5}.fork("layer").fork(3)));
}

}  // namespace
}  // namespace longspan
