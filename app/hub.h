#pragma once

#include <string>

#include "app/run.h"
#include "app/start.h"
#include "hub/folder.h"

namespace longspan {

/// Returns the hub folder that settings name: that of `model.name`, or without that of
/// `start.from`; empty if they name none.
std::string hub_folder_of(const Settings& settings);

/// Returns settings in which a hub folder stands for its model: the name of the model here and its
/// fields, before all others. A folder that a run starts from says nothing of heads, which follow
/// from the task. Throws as read_hub_folder() does.
Settings with_hub_model(const Settings& settings);

/// Whether a folder has files of a tokenizer.
bool has_tokenizer(const std::string& folder);

/// Copies the parameters of the hub folder in config.start.from into the model of a run, as
/// start_from_run() does those of a run.
Started start_from_hub(const TrainingRun& run);

/// Returns the settings of a run that a hub folder is: its model with its head, a task that fits
/// it, and its tokenizer.
Settings settings_of_hub(const std::string& folder);

/// Reads the parameters of a hub folder into the model of a run with settings_of_hub(). Throws
/// IoError.
HubTensors read_hub_parameters(const std::string& folder, TrainingRun& run);

}  // namespace longspan
