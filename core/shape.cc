#include "core/shape.h"

#include <fmt/format.h>

#include "core/error.h"

namespace longspan {

int Dims::throw_rank(size_t n) {
  fail<ShapeError>("shape", "{} axes, at most {} are supported; merge some with reshape", n,
                   max_rank);
}

std::string to_string(const Dims& dims) {
  return fmt::format("[{}]", fmt::join(dims.begin(), dims.end(), ", "));
}

}  // namespace longspan
