#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "core/tensor.h"
#include "nn/fields.h"

namespace longspan {

/// What becomes of evicted rows that do not fill a group of c: they wait in the memory, or the
/// newest ones are lost, as in the paper.
enum class Eviction : uint8_t { carry, floor };
template <>
inline constexpr std::array<std::string_view, 2> value_names<Eviction>{"carry", "floor"};

/// The queue [cm; m] of one layer, right-aligned in `capacity` rows: at most n_cm compressed rows,
/// then fine ones, of which n_m stay when a segment ends. A sample's rows begin at `begin`, its
/// fine ones at `fine_begin`; both are `capacity` at first. \cite rae2020
struct CompressedQueue {
  int64_t compressed = 0;  ///< n_cm
  int64_t fine = 0;        ///< n_m
  int64_t rate = 1;        ///< c
  Eviction eviction = Eviction::carry;

  /// n_cm + n_m, and with `carry` c - 1 more rows that may wait.
  int64_t capacity() const;
  /// The largest number of groups that a segment of this many rows can evict from a sample.
  int64_t max_groups(int64_t length) const;

  /// Says what leaves the queue after a segment, and what the queue then holds, as row numbers for
  /// permute_rows(), where -1 is a row of zeros. All tensors are i64 on the device of the queue,
  /// and their shapes depend on B and L alone.
  struct Update {
    int64_t groups = 0;        ///< E = max_groups(L)
    Tensor old;                ///< [B, E c]: rows of [queue; segment] to compress, right-aligned
    Tensor old_begin;          ///< [B]: the first of them that exists
    Tensor new_begin;          ///< [B]: the first of the E compressed rows that exists
    Tensor next;               ///< [B, capacity]: rows of [queue; segment; compressed rows]
    Tensor begin, fine_begin;  ///< [B], of the next queue
  };
  /// The update after a segment of `length` rows.
  ///   begin, fine_begin  i64 [B]
  Update after(const Tensor& begin, const Tensor& fine_begin, int64_t length) const;
};

}  // namespace longspan
