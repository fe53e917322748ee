#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/named_tensor.h"
#include "train/config.h"

namespace longspan {

// Checkpoints of other implementations: a folder with config.json and model.safetensors.

/// What the names in such a file may be besides those that are asked for.
struct PretrainedNames {
  /// Names may lack it, all of them: checkpoints without heads do.
  std::string_view prefix = {};
  /// Ends of names that are passed over.
  std::span<const std::string_view> unused = {};
  /// How names begin that the file need not have, e.g. of heads that are still to be trained.
  std::span<const std::string_view> fresh = {};
};

/// Overwrites `into` with the tensors of those names; FOLDER/model.safetensors, or a file. Floats
/// of other widths are converted. Strict: throws IoError that lists every missing name, every
/// unknown one and every other shape, before anything is written.
void load_pretrained(const std::string& path, const TensorList& into,
                     const PretrainedNames& names = {});

/// Writes FOLDER/config.json and FOLDER/model.safetensors, complete or not at all each. Fields of
/// `config` go out as transformers writes them: id2label, an array here, as an object, with its
/// inverse label2id, and not at all where it is empty; a classifier_dropout below 0 as null. Throws
/// IoError.
void save_pretrained(const std::string& folder, const TensorList& tensors, const Json& config);

/// Members of a config.json besides those that become fields.
struct PretrainedMembers {
  /// Of a model: members that its code never reads.
  std::span<const std::string_view> never_read = {};
  /// Named by whoever calls: passed over, whatever they are.
  std::vector<std::string> accepted = {};
};

/// The members of FOLDER/config.json, or of a file, as settings. Members that are null are passed
/// over, and so are those that say nothing of what a model computes, e.g. how to generate from it;
/// an integer where `known` has an array is an array of one, and id2label becomes an array. Throws
/// IoError; ValueError that lists every other member that is no field of `known`, with its value.
Settings read_pretrained_config(const std::string& path, const Json& known,
                                const PretrainedMembers& others = {});

/// Sets those fields that config.json has. Members named in `accepted` are passed over. Throws as
/// read_pretrained_config(), and ValueError on a value that does not fit.
template <class Config>
void load_pretrained_config(const std::string& path, Config& config,
                            std::vector<std::string> accepted = {}) {
  PretrainedMembers others{.accepted = std::move(accepted)};
  if constexpr (requires { Config::passed_over; }) others.never_read = Config::passed_over;
  set_fields(config, read_pretrained_config(path, to_json(config), others));
}

}  // namespace longspan
