#pragma once

#include <span>
#include <string>
#include <string_view>

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

/// Writes FOLDER/config.json and FOLDER/model.safetensors, complete or not at all each. Throws
/// IoError.
void save_pretrained(const std::string& folder, const TensorList& tensors, const Json& config);

/// The members of FOLDER/config.json, or of a file, as settings. Members that are null or no field
/// of `known` are passed over; an integer where that has an array is an array of one. Throws
/// IoError, ValueError.
Settings read_pretrained_config(const std::string& path, const Json& known);

/// Sets those fields that config.json has. Throws IoError, ValueError on a value that does not fit.
template <class Config>
void load_pretrained_config(const std::string& path, Config& config) {
  set_fields(config, read_pretrained_config(path, to_json(config)));
}

}  // namespace longspan
