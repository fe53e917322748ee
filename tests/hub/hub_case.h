#pragma once

#include <string>

#include "hub/folder.h"
#include "models/model.h"

namespace longspan::test {

/// Reads a folder of tests/oracles/hub_folders.py into a model in f64, and returns which outputs,
/// loss and gradients differ from those in expected.safetensors; empty: none. Throws as reading
/// does.
std::string fault_of_hub_folder(const std::string& path);
/// The same of a model that has been read.
std::string fault_of(const HubFolder& folder, LanguageModel& model, const std::string& path);

}  // namespace longspan::test
