#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace longspan {

/// The global tokens of a batch, which see and are seen by all.
struct GlobalTokens {
  Tensor rows;                                  ///< i64 [B, G] positions, -1 after the last one
  Tensor count;                                 ///< i64 [B]
  std::vector<std::vector<int64_t>> positions;  ///< the same, for each sample

  explicit operator bool() const { return static_cast<bool>(rows); }
};

/// Those of a mask [B, L] that is not 0 where a token is global; none beyond the lengths. Without
/// any in the whole batch the result is empty.
///   lengths  i64 [B], or undefined: all of L
GlobalTokens global_tokens(const Tensor& mask, const Tensor& lengths);
/// The same from a mask that may be on another device, so that a known one stays on the host.
GlobalTokens global_tokens(const Tensor& mask, const Tensor& lengths, Device device);

/// A mask u8 [B, L] that makes one position global in every sample. Throws ValueError on a position
/// out of range.
Tensor global_mask(int64_t batch, int64_t length, const std::vector<int64_t>& positions,
                   Device device = {});

}  // namespace longspan
