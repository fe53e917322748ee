#pragma once

#include <cstdint>
#include <vector>

#include "ops/patterns/pattern.h"

namespace longspan::patterns {

/// Non-global rows of Longformer attention \cite beltagy2020 : self-attention over `length` tokens
/// with two key segments, the tokens and the packed global tokens of each sample.
///   query i sees the non-global keys i + n s, -reach <= n <= reach, of the first segment, and all
///   keys of the second, so that a global key inside the window counts once
/// Global rows see nothing here: another call computes them.
///   dilation  s of each head, or one s for all heads
///   globals   positions for each sample, ascending and below `length`; empty: no token is global,
///             and there is no second segment. The lists may differ in length: the second segment
///             has as many keys as the longest list, and masks the excess keys of a sample with a
///             shorter list.
/// Throws ValueError if a list is not ascending or leaves the sequence, if reach is negative, and
/// if a dilation is below 1.
AttentionPattern window_and_globals(int64_t length, int64_t reach,
                                    const std::vector<int64_t>& dilation,
                                    const std::vector<std::vector<int64_t>>& globals,
                                    Device device = {});

/// Returns f(n, w): the number of pairs |i - j| <= w of n tokens, w = reach.
int64_t window_pairs(int64_t n, int64_t reach);
/// Returns the number of pairs of one sample and head: the pairs of window_and_globals() and of the
/// global rows, which see all keys.
int64_t window_and_global_pairs(int64_t length, int64_t reach, int64_t dilation,
                                const std::vector<int64_t>& globals);

}  // namespace longspan::patterns
