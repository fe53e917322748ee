#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "models/model_spec.h"

namespace longspan {

/// All models, in the order in which they are listed.
std::span<const ModelEntry> models();

/// The spec for "NAME" (its small configuration) or "NAME:PRESET". Throws ValueError on an
/// unknown one, with the nearest that exists.
std::unique_ptr<ModelSpec> find_model(std::string_view name);

}  // namespace longspan
