#pragma once

#include <span>
#include <string>
#include <string_view>

namespace longspan {

/// Returns the candidate with the smallest edit distance, for "did you mean" messages, or "" if
/// none is close. The last component of a dotted candidate may also match on its own.
std::string nearest(std::string_view name, std::span<const std::string> candidates);

}  // namespace longspan
