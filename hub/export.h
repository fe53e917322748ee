#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/folder.h"

namespace longspan {

/// What a checkpoint says besides its parameters.
struct HubDescription {
  std::string type = {};                 ///< the value of model_type; empty: the first that fits
  std::string architecture = {};         ///< the class, "BertForMaskedLM"; empty: that of the head
  std::vector<std::string> labels = {};  ///< names of the classes of its head; empty: LABEL_0, ...
  std::string problem_type = {};         ///< see HubFolder
  std::optional<HubTask> task = {};      ///< what the head is for; nothing: the fields say it
  HubIds ids = {};
  /// config.json of the folder that the model comes from, whose members are kept where their
  /// meaning is unchanged; null: none.
  Json origin = {};
};

/// Returns a model's configuration as the config.json of a hub folder, which read_hub_folder()
/// reads as the same fields.
///   model   its name here, as "blockbert"
///   fields  of its configuration
/// Throws NotImplemented, which lists for each type of this model what the type cannot express.
HubFolder hub_folder_for(std::string_view model, const Json& fields,
                         const HubDescription& description = {});

/// Writes config.json, generation_config.json of models that write, and model.safetensors of a
/// folder of hub_folder_for() into an empty or missing folder `path`.
///   others  more tensors of the class; they replace the model's tensors of equal name
/// Throws IoError.
void write_hub_folder(const HubFolder& folder, Module& model, const std::string& path,
                      const TensorList& others = {});

}  // namespace longspan
