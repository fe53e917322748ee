#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "ops/patterns/pattern.h"

namespace longspan {

/// Throws ValueError that names a pair if two of the patterns of one call share it: one softmax
/// over both would count it twice. A pair that the masks or lengths of either pattern hide counts
/// as not shared; soft masks (spans) hide nothing here.
///   op     the caller, for the message
///   parts  resolved for the same queries and keys; their second segments, if several have one, are
///          the same keys
///   batch  of the call, as `heads`
/// Patterns whose layouts and rules alone keep them apart are compared once, in the first call with
/// these layouts, in time proportional to rows and runs; then a call costs one lookup. Patterns
/// that only their masks keep apart are compared in every call, except in recorded steps and on the
/// meta device, where masks have no values to read.
void require_disjoint(std::string_view op, std::span<const AttentionPattern> parts, int64_t batch,
                      int64_t heads);

}  // namespace longspan
