#pragma once

#include <span>
#include <string>
#include <string_view>

namespace longspan {

/// The candidate with the smallest edit distance, for messages that ask "did you mean"; "" where
/// none is near. Of dotted candidates the last part alone may match too.
std::string nearest(std::string_view name, std::span<const std::string> candidates);

}  // namespace longspan
