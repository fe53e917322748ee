#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace longspan {

/// Largest number of axes of a tensor.
inline constexpr int max_rank = 8;

/// At most max_rank integers, stored inline: the sizes or the strides (in elements) of a tensor.
class Dims {
 public:
  constexpr Dims() = default;
  constexpr Dims(std::initializer_list<int64_t> dims)
      : Dims(std::span(dims.begin(), dims.size())) {}
  constexpr explicit Dims(std::span<const int64_t> dims) : rank_(checked_rank(dims.size())) {
    for (int i = 0; i < rank_; ++i) dims_[static_cast<size_t>(i)] = dims[static_cast<size_t>(i)];
  }
  /// Returns `rank` entries of `value`.
  static constexpr Dims filled(int rank, int64_t value) {
    Dims d;
    d.rank_ = checked_rank(static_cast<size_t>(rank));
    for (int i = 0; i < rank; ++i) d[i] = value;
    return d;
  }

  constexpr int rank() const { return rank_; }
  constexpr int64_t operator[](int i) const { return dims_[static_cast<size_t>(i)]; }
  constexpr int64_t& operator[](int i) { return dims_[static_cast<size_t>(i)]; }
  constexpr int64_t back() const { return (*this)[rank_ - 1]; }
  constexpr const int64_t* begin() const { return dims_.data(); }
  constexpr const int64_t* end() const { return dims_.data() + rank_; }
  constexpr void push_back(int64_t value) {
    const int r = rank_;
    rank_ = checked_rank(static_cast<size_t>(r) + 1);
    (*this)[r] = value;
  }
  /// insert() adds `value` before axis `i`; erase() removes axis `i`.
  constexpr void insert(int i, int64_t value) {
    push_back(value);
    for (int j = rank_ - 1; j > i; --j) (*this)[j] = (*this)[j - 1];
    (*this)[i] = value;
  }
  constexpr void erase(int i) {
    for (int j = i; j + 1 < rank_; ++j) (*this)[j] = (*this)[j + 1];
    --rank_;
  }

  friend constexpr bool operator==(const Dims& a, const Dims& b) {
    if (a.rank_ != b.rank_) return false;
    for (int i = 0; i < a.rank_; ++i) {
      if (a[i] != b[i]) return false;
    }
    return true;
  }

 private:
  static constexpr int checked_rank(size_t n) {
    return n <= max_rank ? static_cast<int>(n) : throw_rank(n);
  }
  [[noreturn]] static int throw_rank(size_t n);  // ShapeError

  std::array<int64_t, max_rank> dims_{};
  int rank_ = 0;
};

/// Sizes, and strides in elements, one for each axis.
using Shape = Dims;
using Strides = Dims;

/// Returns the product of the sizes; 1 for a scalar.
constexpr int64_t numel(const Shape& shape) {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return n;
}

/// Returns numel(). Throws ShapeError, naming the op, if a size is negative, or if there are more
/// than 2^59 elements, not counting axes of size 0: below that limit neither strides nor bytes
/// overflow.
int64_t checked_numel(std::string_view op, const Shape& shape);
/// Return a + b and a b for sizes. Throw ShapeError, naming the op, if the result is above 2^59.
int64_t checked_sum(std::string_view op, int64_t a, int64_t b);
int64_t checked_product(std::string_view op, int64_t a, int64_t b);

/// Returns row-major strides, in elements.
constexpr Strides contiguous_strides(const Shape& shape) {
  Strides s = shape;
  int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    s[i] = step;
    step *= shape[i] > 0 ? shape[i] : 1;
  }
  return s;
}

/// Whether the elements are stored row-major without gaps. Strides of axes of size 1 do not matter,
/// and an empty tensor is contiguous.
constexpr bool is_contiguous(const Shape& shape, const Strides& strides) {
  int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    if (shape[i] == 0) return true;
    if (shape[i] != 1 && strides[i] != step) step = -1;
    if (step > 0) step *= shape[i];
    if (step < 0) break;
  }
  if (step > 0) return true;
  for (const int64_t d : shape) {
    if (d == 0) return true;
  }
  return false;
}

/// Returns "[8, 1024, 512]".
std::string to_string(const Dims& dims);

}  // namespace longspan
