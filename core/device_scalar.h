#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace longspan {

/// A number that a kernel is given: `value`, or, in a recorded step, what lies at `at` on the
/// device when the kernel runs (core/graph.h). Only kernels may read it.
template <class T>
struct Live {
  T value{};
  const T* at = nullptr;

  constexpr Live() = default;
  // A plain number is one that does not change.
  LONGSPAN_HD constexpr Live(T v) : value(v) {}  // NOLINT(google-explicit-constructor)
  LONGSPAN_HD constexpr Live(T v, const T* where) : value(v), at(where) {}

  LONGSPAN_HD operator T() const {  // NOLINT(google-explicit-constructor)
    return at != nullptr ? *at : value;
  }
};

}  // namespace longspan
