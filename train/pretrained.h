#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/named_tensor.h"
#include "nn/other_name.h"
#include "train/config.h"

namespace longspan {

// Checkpoints of other implementations: a folder with config.json and model.safetensors.

/// Differences that are allowed between the names in such a file and the expected names.
struct PretrainedNames {
  /// A prefix that all names may lack, as in checkpoints without heads.
  std::string_view prefix = {};
  /// Names in the file that need not be expected. What their kind says of their values must hold.
  std::span<const OtherName> unused = {};
  /// Prefixes of names that the file need not have, e.g. of heads that are still to be trained.
  std::span<const std::string_view> fresh = {};
};

/// Overwrites `into` with the tensors of those names, from FOLDER/model.safetensors or a file.
/// Other floating dtypes are converted. Entries of the same name are the parts of one tensor of the
/// file, stacked along its first axis in the order of the list. Strict: throws IoError that lists
/// every missing name, unknown name, wrong shape, and every copy with other values than what
/// it copies, before anything is written; ShapeError if the parts of a tensor do not fit together.
void load_pretrained(const std::string& path, const TensorList& into,
                     const PretrainedNames& names = {});
/// The same from tensors that have been read; `source` names them in messages.
void load_pretrained(const TensorList& tensors, const std::string& source, const TensorList& into,
                     const PretrainedNames& names = {});

/// Writes FOLDER/config.json and FOLDER/model.safetensors, each completely or not at all. Tensors
/// of the same name are stacked, as load_pretrained() reads them. Fields of `config` are written as
/// transformers does: id2label, an array here, as an object, with its inverse label2id, or omitted
/// if it is empty; tie_projs, 0 and 1 here, as booleans; a classifier_dropout below 0 as null.
/// Throws IoError; ShapeError as load_pretrained().
void save_pretrained(const std::string& folder, const TensorList& tensors, const Json& config);

/// A member of a config.json that changes nothing if it has this value, written as JSON, and why
/// other values are refused.
struct OnlyValue {
  std::string_view name, value, why;
};

/// Members of a config.json to ignore, besides those that become fields.
struct PretrainedMembers {
  /// Members that the model's code never reads.
  std::span<const std::string_view> never_read = {};
  /// Members that the caller names: ignored whatever their value.
  std::vector<std::string> accepted = {};
  /// What this type of model expects where others expect something else.
  std::span<const OnlyValue> only = {};
};

/// Returns the fields of a configuration as transformers writes them, see save_pretrained().
Json pretrained_json(const Json& config);

/// Returns FOLDER/config.json, or a file. Throws IoError, also if it is no JSON object.
Json read_pretrained_json(const std::string& path);

/// Returns the members of `given` as settings of the fields of `known`, as read_pretrained_config()
/// does, and adds to `objections` a line for each member that cannot be ignored.
Settings settings_of_members(const Json& given, const std::string& origin, const Json& known,
                             const PretrainedMembers& others, std::vector<std::string>& objections);

/// Returns the members of FOLDER/config.json, or of a file, as settings. Null members are skipped,
/// and so are those that do not affect what a model computes, e.g. generation options; an integer
/// becomes an array of one if `known` has an array, id2label becomes an array, and booleans in
/// tie_projs become 0 and 1. Throws IoError, also of a file that is no JSON object; ValueError that
/// lists every other member that is not a field of `known`, with its value.
Settings read_pretrained_config(const std::string& path, const Json& known,
                                const PretrainedMembers& others = {});

/// Sets the fields that config.json has. Members named in `accepted` are ignored. Throws as
/// read_pretrained_config(), and ValueError if a value does not fit.
template <class Config>
void load_pretrained_config(const std::string& path, Config& config,
                            std::vector<std::string> accepted = {}) {
  PretrainedMembers others{.accepted = std::move(accepted)};
  if constexpr (requires { Config::passed_over; }) others.never_read = Config::passed_over;
  set_fields(config, read_pretrained_config(path, to_json(config), others));
}

}  // namespace longspan
