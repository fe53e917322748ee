#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/parts.h"

namespace longspan::detail {

// What the files models/weights_*.cc share.

inline constexpr const char* checkpoint_op = "checkpoint";

/// An activation by its name in config.json, and back. Throw ValueError where there is none.
Activation activation_of(std::string_view name);
std::string activation_name(Activation f);

/// One-sided windows from sums of both sides. Throws ValueError on odd ones and on none.
std::vector<int64_t> one_sided(const std::vector<int64_t>& windows);

}  // namespace longspan::detail
