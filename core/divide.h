#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace longspan {

/// Return n / unit rounded down and up, for any n and unit >= 1.
LONGSPAN_HD constexpr int64_t floor_div(int64_t n, int64_t unit) {
  return n / unit - (n % unit < 0 ? 1 : 0);
}
LONGSPAN_HD constexpr int64_t ceil_div(int64_t n, int64_t unit) {
  return n / unit + (n % unit > 0 ? 1 : 0);
}
/// Return the nearest multiple of unit >= 1 that is at most n, and the nearest that is at least n.
LONGSPAN_HD constexpr int64_t round_down(int64_t n, int64_t unit) {
  return floor_div(n, unit) * unit;
}
LONGSPAN_HD constexpr int64_t round_up(int64_t n, int64_t unit) { return ceil_div(n, unit) * unit; }

}  // namespace longspan
