#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/capabilities.h"
#include "models/model_spec.h"

namespace longspan {

/// Returns all models in listing order: the library's, then those of register_model(). The span is
/// valid until the next call of register_model().
std::span<const ModelEntry> models();

/// Adds a model of one's own, which find_model() and the commands of run_program() (app/program.h)
/// then know by its name. The texts, presets and function of the entry must live as long as the
/// process. Call it before threads start. Throws ValueError if the name is empty, taken or has
/// characters other than a-z, 0-9 and "_"; if a preset's name has others or is there twice; if the
/// first preset is not "small"; or if `make` is null.
void register_model(const ModelEntry& entry);

/// Returns the spec for "NAME" (its small configuration) or "NAME:PRESET". Throws ValueError on an
/// unknown name; the message contains the nearest known one.
std::unique_ptr<ModelSpec> find_model(std::string_view name);

/// Returns the names of the models whose small configuration satisfies `has`, in listing order.
/// Builds all of them on the meta device.
std::vector<std::string> models_that(bool (*has)(const LanguageModel&));

/// Returns the names of the models whose class has a capability; some need a key for it, which its
/// name says.
template <class Capability>
std::vector<std::string> models_with() {
  return models_that(
      [](const LanguageModel& model) { return implements<Capability>(model) != nullptr; });
}

}  // namespace longspan
