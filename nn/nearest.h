#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace longspan {

/// Returns the edit distance of two texts: how many characters have to be inserted, deleted or
/// replaced.
size_t edit_distance(std::string_view a, std::string_view b);

/// Returns the candidate with the smallest edit distance, for "did you mean" messages, or "" if
/// none is close. The last component of a dotted candidate may also match on its own.
std::string nearest(std::string_view name, std::span<const std::string> candidates);

}  // namespace longspan
