#pragma once

#include <cstdint>
#include <vector>

#include "ops/patterns/pattern.h"

namespace longspan::patterns {

/// Longformer's rows that are not global \cite beltagy2020 , for self-attention over `length`
/// tokens with two key segments: the tokens, and the global ones of each sample, packed.
///   query i sees the keys i + n s that are not global, -reach <= n <= reach, of the first segment,
///   and all of the second, so that a global key inside the window counts once
/// Global rows see nothing here: another call computes them.
///   dilation  s of each head, or of all where there is one
///   globals   positions for each sample, ascending and below `length`; empty: nothing is global,
///             and there is no second segment. They need not be equally many: the second segment
///             has as many keys as the longest list, and hides what a sample lacks.
/// Throws ValueError where a list is not ascending or leaves the sequence, on a negative reach and
/// on a dilation below 1.
AttentionPattern window_and_globals(int64_t length, int64_t reach,
                                    const std::vector<int64_t>& dilation,
                                    const std::vector<std::vector<int64_t>>& globals,
                                    Device device = {});

/// f(n, w): pairs |i - j| <= w of n tokens.
int64_t window_pairs(int64_t n, int64_t reach);
/// Pairs of one sample and head: of window_and_globals, and of the global rows, which see all.
int64_t window_and_global_pairs(int64_t length, int64_t reach, int64_t dilation,
                                const std::vector<int64_t>& globals);

}  // namespace longspan::patterns
