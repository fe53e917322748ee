#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/dtype.h"
#include "core/host_device.h"

namespace longspan::kernels {

/// Returns an unsigned integer that orders as x does, of 64 bits for 64-bit types and of 32 bits
/// for the others: NaN is highest, -0 equals 0.
template <class T>
LONGSPAN_HD inline auto key_of(T x) {
  if constexpr (std::is_same_v<T, uint8_t>) {
    return uint32_t{x};
  } else if constexpr (std::is_same_v<T, int32_t>) {
    return static_cast<uint32_t>(x) ^ 0x80000000u;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return static_cast<uint64_t>(x) ^ (uint64_t{1} << 63);
  } else {
    using A = Accumulator<T>;
    using U = std::conditional_t<sizeof(A) == 8, uint64_t, uint32_t>;
    const auto value = static_cast<A>(x);
    if (value != value) return static_cast<U>(~U{0});
    const A plain = value + A{0};  // -0 + 0 is 0
    U bits;
    memcpy(&bits, &plain, sizeof bits);
    constexpr U sign = U{1} << (8 * sizeof(U) - 1);
    return static_cast<U>((bits & sign) != 0 ? ~bits : bits | sign);
  }
}

}  // namespace longspan::kernels
