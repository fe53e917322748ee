#include "core/shape.h"

#include <fmt/format.h>

#include "core/error.h"

namespace longspan {

int Dims::throw_rank(size_t n) {
  fail<ShapeError>("shape", "{} axes, at most {} are supported; merge some with reshape", n,
                   max_rank);
}

namespace {

constexpr int64_t kMostElements = int64_t{1} << 59;  // in bytes, times 8, still far below 2^63

}  // namespace

int64_t checked_sum(std::string_view op, int64_t a, int64_t b) {
  int64_t y = 0;
  require<ShapeError>(!__builtin_add_overflow(a, b, &y) && y <= kMostElements, op,
                      "{} + {} elements; at most 2^59 are supported", a, b);
  return y;
}

int64_t checked_product(std::string_view op, int64_t a, int64_t b) {
  int64_t y = 0;
  require<ShapeError>(!__builtin_mul_overflow(a, b, &y) && y <= kMostElements, op,
                      "{} x {} elements; at most 2^59 are supported", a, b);
  return y;
}

int64_t checked_numel(std::string_view op, const Shape& shape) {
  int64_t steps = 1, n = 1;
  for (const int64_t d : shape) {
    require<ShapeError>(d >= 0, op, "negative size in {}", to_string(shape));
    require<ShapeError>(
        !__builtin_mul_overflow(steps, d > 0 ? d : 1, &steps) && steps <= kMostElements, op,
        "{} has more than 2^59 elements (axes of size 0 left out)", to_string(shape));
    n *= d;
  }
  return n;
}

std::string to_string(const Dims& dims) {
  return fmt::format("[{}]", fmt::join(dims.begin(), dims.end(), ", "));
}

}  // namespace longspan
