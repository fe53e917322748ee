#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace longspan {

/// A scalar argument of a kernel: `value`, or, in a recorded step, the value stored at `at` on the
/// device when the kernel runs (core/graph.h). Only kernels may read it.
template <class T>
struct DeviceScalar {
  T value{};
  const T* at = nullptr;

  constexpr DeviceScalar() = default;
  // Converts a plain value, which does not change between replays.
  LONGSPAN_HD constexpr DeviceScalar(T v) : value(v) {}  // NOLINT(google-explicit-constructor)
  LONGSPAN_HD constexpr DeviceScalar(T v, const T* where) : value(v), at(where) {}

  LONGSPAN_HD operator T() const {  // NOLINT(google-explicit-constructor)
    return at != nullptr ? *at : value;
  }
};

}  // namespace longspan
