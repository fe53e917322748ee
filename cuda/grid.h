#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace longspan::cuda {

/// A place of three axes by its number, the first axis fastest: for grids whose second or third
/// axis may have more than the 65,535 places that a launch allows.
struct GridPlace {
  int64_t x, y, z;

  LONGSPAN_HD GridPlace(int64_t index, int64_t along_x, int64_t along_y)
      : x(index % along_x), y(index / along_x % along_y), z(index / along_x / along_y) {}
};

}  // namespace longspan::cuda
