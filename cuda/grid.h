#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace longspan::cuda {

/// Three-dimensional index computed from a linear one, the first axis fastest. It serves grids
/// whose second or third axis may exceed the launch limit of 65,535.
struct GridPlace {
  int64_t x, y, z;

  LONGSPAN_HD GridPlace(int64_t index, int64_t along_x, int64_t along_y)
      : x(index % along_x), y(index / along_x % along_y), z(index / along_x / along_y) {}
};

}  // namespace longspan::cuda
