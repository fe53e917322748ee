#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace longspan {

/// A number that a kernel is given: `value`, or, in a recorded step, what lies at `at` on the
/// device when the kernel runs (core/graph.h). Only kernels may read it.
template <class T>
struct DeviceScalar {
  T value{};
  const T* at = nullptr;

  constexpr DeviceScalar() = default;
  // A plain number is one that does not change.
  LONGSPAN_HD constexpr DeviceScalar(T v) : value(v) {}  // NOLINT(google-explicit-constructor)
  LONGSPAN_HD constexpr DeviceScalar(T v, const T* where) : value(v), at(where) {}

  LONGSPAN_HD operator T() const {  // NOLINT(google-explicit-constructor)
    return at != nullptr ? *at : value;
  }
};

}  // namespace longspan
