#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/generator.h"
#include "core/named_tensor.h"
#include "hub/type.h"
#include "models/model.h"
#include "models/model_spec.h"

namespace longspan {

namespace detail {
/// Names the reader of folders in its errors.
inline constexpr const char* hub_op = "hub folder";
}  // namespace detail

/// Ids of special tokens, as a config.json says them; empty where it says nothing.
struct HubIds {
  std::optional<int64_t> pad, begin, end, separator, decoder_start;
};

/// A folder of the Hugging Face hub, as its config.json describes it: a checkpoint of the package
/// transformers.
struct HubFolder {
  std::string path;
  const HubType* type = nullptr;
  const HubArchitecture* head = nullptr;
  Json fields;                      ///< of the model here, type->model
  std::vector<std::string> labels;  ///< names of the classes of its head, if it has some
  /// "single_label_classification", "multi_label_classification" or "regression"; empty: the number
  /// of labels decides.
  std::string problem_type;
  HubIds ids;
  Json members;  ///< of config.json, without null members

  /// Returns the configuration of the model.
  std::unique_ptr<ModelSpec> spec() const;
  /// Returns the names of its tensors, which depend on whether its tables are tied.
  const CheckpointFormat& format() const;
};

/// Whether `path` is a folder with a config.json that is no run of Longspan.
bool is_hub_folder(const std::string& path);

/// Returns the folder `path` whose config.json has these members. Throws as read_hub_folder() does.
HubFolder hub_folder_of_members(const Json& members, const std::string& path);

/// Reads FOLDER/config.json. Throws IoError if it cannot be read; ValueError that lists everything
/// that the model here would not do.
HubFolder read_hub_folder(const std::string& path);

/// What became of the tensors of a folder.
struct HubTensors {
  int64_t read = 0;                   ///< tensors that parameters got
  std::vector<std::string> drawn;     ///< parameters of new heads, which the folder lacks
  std::vector<std::string> left_out;  ///< tensors of heads that the model lacks
};

/// Reads the weights of a folder, model.safetensors or its parts, into a model of folder.spec().
/// Parameters of heads for classes, tags, answers and candidates may be missing, and then keep
/// their values. Throws IoError that lists every missing, unknown and mis-shaped tensor, before a
/// parameter changes.
HubTensors load_hub_weights(const HubFolder& folder, Module& model);

/// A folder and its model with the weights of the folder.
struct LoadedHubFolder {
  HubFolder folder;
  std::unique_ptr<ModelSpec> spec;
  std::unique_ptr<LanguageModel> model;
  HubTensors tensors;
};
/// Reads a folder, builds its model and loads the weights. `head`: a class of the type with this
/// head and so many outputs instead of the folder's own; what the folder lacks of it is drawn with
/// `gen`. Throws as read_hub_folder(), check_hub_shapes() and load_hub_weights() do, and ValueError
/// if the type has no class with that head.
LoadedHubFolder load_hub_folder(const std::string& path, std::optional<HubTask> head = {},
                                int64_t outputs = 0, Generator gen = Generator{1});

/// Builds a model of a folder and loads its weights. `init` draws what the folder lacks; without
/// such parameters nothing is drawn. Throws as load_hub_weights().
std::unique_ptr<LanguageModel> build_loaded(const HubFolder& folder, const ModelSpec& spec,
                                            const Init& init, HubTensors& tensors);

/// Returns a folder in the class of its type that has this head; unchanged if there is no such
/// class.
HubFolder with_hub_head(const HubFolder& folder, HubTask head);

/// Compares the header of a folder's weights with the shapes of a model, before one is built.
/// Throws IoError that lists the tensors of other shapes and the members of config.json that say
/// so.
void check_hub_shapes(const HubFolder& folder, const ModelSpec& spec);

/// Returns the tensors of a folder that load_hub_weights() left out, by their names in the file.
TensorList hub_left_out(const HubFolder& folder, const HubTensors& tensors);

/// Returns the parameters of a model under their names in checkpoints of the folder's class,
/// without those that the class does not have.
TensorList hub_named(const HubFolder& folder, Module& model);

/// Returns parameters, or gradients, with the names of hub_named() as files store them: parts of
/// one tensor joined, matrices transposed if the type's are.
TensorList hub_stored(const HubFolder& folder, const TensorList& named);

}  // namespace longspan
