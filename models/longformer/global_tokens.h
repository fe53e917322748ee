#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace longspan {

/// The global tokens of a batch, which attend to and are attended to by all tokens.
struct GlobalTokens {
  Tensor rows;                                  ///< i64 [B, G] positions, padded with -1
  Tensor count;                                 ///< i64 [B]
  std::vector<std::vector<int64_t>> positions;  ///< the same as lists, one per sample

  explicit operator bool() const { return static_cast<bool>(rows); }
};

/// The tokens of a batch that no other token sees, for layers that make their own patterns.
struct HiddenTokens {
  Tensor rows;  ///< u8 [B, L], nonzero at those tokens
};

/// Returns the global tokens of a mask [B, L], which is nonzero where a token is global; positions
/// beyond the lengths are ignored. The result is empty if the whole batch has none.
///   lengths  i64 [B], or undefined: all of L
GlobalTokens global_tokens(const Tensor& mask, const Tensor& lengths);
/// The same, with the result on `device`: a mask that is known on the host can stay there.
GlobalTokens global_tokens(const Tensor& mask, const Tensor& lengths, Device device);

/// Returns a mask u8 [B, L] that makes the given positions global in every sample. Throws
/// ValueError if a position is out of range.
Tensor global_mask(int64_t batch, int64_t length, const std::vector<int64_t>& positions,
                   Device device = {});

}  // namespace longspan
