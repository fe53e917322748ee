#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "hub/type.h"
#include "train/config.h"

namespace longspan {

/// Returns the hub folder that the settings of a run name in `model.name` or, without that key, in
/// `start.from`; empty if there is none.
std::string hub_folder_of(const Settings& settings);

/// Returns settings in which a hub folder stands for its model: the name of the model here and its
/// fields, before all others. The task decides the head of a folder in `start.from`: the fields are
/// for the class with a head for `task`, if the type has one. Throws as read_hub_folder() does.
Settings with_hub_model(const Settings& settings, std::optional<HubTask> task = {});

/// Whether a field of a model is a head's, which a task asks for.
bool is_head_field(std::string_view name);

/// Returns the model of a hub folder with its head as settings. Throws as read_hub_folder() does.
Settings settings_of_folder(const std::string& folder);

/// Whether a folder has files of a tokenizer.
bool has_tokenizer(const std::string& folder);

}  // namespace longspan
