#pragma once

#include <string>

#include "app/run_config.h"
#include "train/config.h"

namespace longspan {

/// Applies the settings to the defaults of the model that they name, which may be a hub folder. A
/// run that starts from such a folder has the folder's model unless they name one. Throws
/// ValueError on an unknown key or model, a wrong type, or a number outside its range.
RunConfig make_config(const Settings& settings);

/// Gives the model the sizes that follow from its task and tokens, where `settings` do not set
/// them: a vocabulary that is large enough, an output for each class, a head. Returns lines about
/// what it changed; empty: nothing.
std::string fill_sizes(RunConfig& config, const Settings& settings);

/// Returns settings that name a task: if they do not, that which their model is for.
Settings with_task_of_model(Settings settings);

/// Returns the settings of the run that a hub folder is: its model with its head, a task that fits
/// it, and its tokenizer. Throws as read_hub_folder() does.
Settings settings_of_hub(const std::string& folder);

/// Reads the settings of a run from its config.toml, with what its model derives from the length
/// that it was trained with: earlier versions left that open. Throws IoError, ValueError.
Settings settings_of_run(const std::string& out);

}  // namespace longspan
