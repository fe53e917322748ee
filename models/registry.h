#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "models/model_spec.h"

namespace longspan {

/// Returns all models in listing order.
std::span<const ModelEntry> models();

/// Returns the spec for "NAME" (its small configuration) or "NAME:PRESET". Throws ValueError on an
/// unknown name; the message contains the nearest known one.
std::unique_ptr<ModelSpec> find_model(std::string_view name);

}  // namespace longspan
