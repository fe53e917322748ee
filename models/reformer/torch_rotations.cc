#include "models/reformer/torch_rotations.h"

#include <cmath>
#include <numbers>
#include <random>
#include <vector>

#include "core/error.h"

namespace longspan {
namespace {

constexpr int64_t kBlock = 16;  // numbers that are made from as many draws

/// Numbers in [0, 1) as PyTorch draws them: 53 bits of two words for f64, 24 of one for f32.
class Uniform {
 public:
  Uniform(uint32_t seed, bool wide) : engine_(seed), wide_(wide) {}

  double next() { return wide_ ? next_wide() : narrow_(engine_()); }
  double next_wide() {
    const uint64_t high = engine_(), low = engine_();
    constexpr uint64_t mask = (uint64_t{1} << 53) - 1;
    return static_cast<double>(((high << 32) | low) & mask) * 0x1p-53;
  }

 private:
  static double narrow_(uint64_t word) { return static_cast<double>(word & 0xffffff) * 0x1p-24; }

  std::mt19937 engine_;
  bool wide_;
};

/// Makes 16 normal numbers of 16 uniform ones, in place.
void fill_block(double* x) {
  for (int64_t j = 0; j < kBlock / 2; ++j) {
    const double radius = std::sqrt(-2 * std::log(1 - x[j]));
    const double angle = 2 * std::numbers::pi * x[j + kBlock / 2];
    x[j] = radius * std::cos(angle);
    x[j + kBlock / 2] = radius * std::sin(angle);
  }
}

/// Fills 16 numbers or more; the last 16 are drawn again if 16 does not divide their count.
void fill(Uniform& uniform, std::vector<double>& x) {
  for (double& value : x) value = uniform.next();
  const auto count = static_cast<int64_t>(x.size());
  for (int64_t i = 0; i + kBlock <= count; i += kBlock) fill_block(x.data() + i);
  if (count % kBlock == 0) return;
  double* const last = x.data() + count - kBlock;
  for (int64_t i = 0; i < kBlock; ++i) last[i] = uniform.next();
  fill_block(last);
}

/// Fills fewer than 16 numbers, two of each pair of draws.
void fill_few(Uniform& uniform, std::vector<double>& x) {
  for (size_t i = 0; i < x.size(); i += 2) {
    const double first = uniform.next_wide(), second = uniform.next_wide();
    const double radius = std::sqrt(-2 * std::log1p(-second));
    const double angle = 2 * std::numbers::pi * first;
    x[i] = radius * std::cos(angle);
    if (i + 1 < x.size()) x[i + 1] = radius * std::sin(angle);
  }
}

}  // namespace

Tensor torch_normal(uint32_t seed, const Shape& shape, DType dtype) {
  require<DTypeError>(dtype == DType::f32 || dtype == DType::f64, "torch_normal",
                      "the dtype is {}; expected f32 or f64", name_of(dtype));
  Uniform uniform(seed, dtype == DType::f64);
  int64_t count = 1;
  for (int64_t i = 0; i < shape.rank(); ++i) count *= shape[i];
  std::vector<double> x(static_cast<size_t>(count));
  if (count < kBlock) {
    fill_few(uniform, x);
  } else {
    fill(uniform, x);
  }
  if (dtype == DType::f64) return Tensor::from(x, shape);
  return Tensor::from(std::vector<float>(x.begin(), x.end()), shape);
}

}  // namespace longspan
