#pragma once

#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "core/generator.h"
#include "core/tensor.h"

namespace longspan::test {

inline constexpr double inf = std::numeric_limits<double>::infinity();

/// Host values in f64 with a shape, row-major; references compute on these.
struct Array {
  Shape shape;
  std::vector<double> values;

  Array() = default;
  /// Fills the array with `value`.
  explicit Array(const Shape& s, double value = 0)
      : shape(s), values(static_cast<size_t>(numel(s)), value) {}
  Array(const Shape& s, std::vector<double> v) : shape(s), values(std::move(v)) {}

  int64_t size() const { return static_cast<int64_t>(values.size()); }
  int64_t dim(int axis) const { return shape[axis < 0 ? axis + shape.rank() : axis]; }
  double& operator[](int64_t i) { return values[static_cast<size_t>(i)]; }
  double operator[](int64_t i) const { return values[static_cast<size_t>(i)]; }
  /// False for an argument that is not given.
  explicit operator bool() const { return defined; }
  bool defined = true;
};

/// Returns the values of a tensor of any dtype and strides.
Array to_array(const Tensor& x);
/// Returns `value` as `dtype` stores it.
double rounded(double value, DType dtype);

/// How a tensor is stored. Gaps are filled with NaN, so that reading them shows.
enum class Layout {
  contiguous,
  transposed,  ///< axes in reverse order
  sliced,      ///< every second element of a larger block
  expanded     ///< the first axis has stride 0: all its entries are the same
};
std::string_view name_of(Layout layout);

/// Specifies an argument by its shape and a value for every row-major index. Input specs are values
/// and allocate no tensors, so tables of them may be static.
struct InputSpec {
  Shape shape;
  std::function<double(Generator, int64_t)> value;  ///< empty: the argument is not given
  bool fixed = false;        ///< whether `dtype` replaces the dtype under test
  DType dtype = DType::f64;  ///< used if fixed
  bool gradient = true;      ///< whether a floating argument requires grad

  bool floating() const { return value && (!fixed || is_floating(dtype)); }
};

/// Standard normal values.
InputSpec randn(const Shape& shape);
/// Uniform in [low, high).
InputSpec uniform(const Shape& shape, double low, double high);
/// 0, 1, 2, ... as i64.
InputSpec iota(const Shape& shape);
/// Uniform integers in [low, high], i64.
InputSpec integers(const Shape& shape, int64_t low, int64_t high);
/// A random permutation of 0 ... n-1, i64.
InputSpec permutation(int64_t n);
/// A constant.
InputSpec full(const Shape& shape, double value);
/// A tensor of rank 0.
InputSpec scalar(double value);
/// The given values, in row-major order.
InputSpec values(const Shape& shape, std::vector<double> numbers);
/// Random zeros and ones, u8.
InputSpec mask(const Shape& shape);
/// An argument that is not given.
InputSpec none();
/// The same with a fixed dtype instead of the one under test.
InputSpec as(DType dtype, InputSpec spec);
/// The same without requiring its gradient.
InputSpec constant(InputSpec spec);

InputSpec operator*(double factor, InputSpec spec);
InputSpec operator+(InputSpec spec, double offset);

/// How make() turns a spec into a tensor.
struct Making {
  DType dtype = DType::f64;     ///< of arguments without a fixed dtype
  DType rounding = DType::f64;  ///< to which these values are rounded first
  Layout layout = Layout::contiguous;
  Device device;
};
Tensor make(const InputSpec& spec, Generator gen, const Making& making);
/// Returns standard normal values in f64, times a factor.
inline Tensor normals(const Shape& shape, uint64_t seed, double factor = 1) {
  return make(factor * randn(shape), Generator{seed}, {});
}

}  // namespace longspan::test
