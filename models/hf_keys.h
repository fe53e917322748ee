#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/parts.h"

namespace longspan::detail {

// Helpers that the files models/*_hf.cc share. The structs of the keys of config.json have fields
// with the names of the keys. Reading a file throws on other keys (train/pretrained.h), except on
// those that do not concern the model.

inline constexpr const char* checkpoint_op = "checkpoint";

/// Convert between an activation and its name in config.json. Throw ValueError if there is none;
/// `member` is the member that has it.
Activation activation_of(std::string_view name, std::string_view member = "hidden_act");
std::string activation_name(Activation f);

/// Converts two-sided window sizes to one-sided ones. Throws ValueError on odd sizes and on an
/// empty list.
std::vector<int64_t> one_sided(const std::vector<int64_t>& windows);

}  // namespace longspan::detail
