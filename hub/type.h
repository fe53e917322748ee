#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/io/json.h"
#include "models/checkpoint_format.h"
#include "train/config.h"
#include "train/pretrained.h"

namespace longspan {

/// What the head of a checkpoint computes.
enum class HubTask : uint8_t {
  hidden,        ///< nothing: the checkpoint has no head
  masked_token,  ///< the tokens that a mask hides
  next_token,    ///< the token after each one
  sequence,      ///< the tokens of a sequence after a source
  classes,       ///< classes of a sequence
  tags,          ///< classes of tokens
  spans,         ///< where an answer begins and ends
  choice         ///< a score of each candidate
};

/// A class of the package transformers whose checkpoints are read.
struct HubArchitecture {
  std::string_view name;  ///< without the name of the type: "ForMaskedLM"
  HubTask task;
  /// Names of parameters of its head that differ from those of the type's format.
  std::span<const NamePair> heads = {};
  std::string_view without = {};  ///< what of the class is left out; empty: nothing
};

/// The members of a config.json while they become the fields of a model.
struct ConfigMembers {
  const Json& given;
  const std::string& file;  ///< for messages
  HubTask task = HubTask::hidden;
  int64_t labels = 0;  ///< classes of the head
  std::span<const OnlyValue> only = {};
  std::vector<std::string>& objections;

  /// Returns the members as a struct of keys, such as EncoderKeys. Adds an objection for each
  /// member that is not one of them and cannot be ignored. Throws ValueError that names the member
  /// on a value of a wrong type or outside its range.
  template <class Keys>
  Keys keys() const {
    Keys result;
    PretrainedMembers others{.only = only};
    if constexpr (requires { Keys::passed_over; }) others.never_read = Keys::passed_over;
    set_fields(result, settings_of_members(given, file, to_json(result), others, objections));
    check_fields("config.json", result);
    return result;
  }
};

/// A type of model in the package transformers, and the model here that computes the same.
struct HubType {
  std::string_view name;        ///< the value of model_type: "bert"
  std::string_view class_name;  ///< with which the names of its classes begin: "Bert"
  std::string_view model;       ///< the value of --model: "blockbert"
  std::span<const HubArchitecture> classes;
  const CheckpointFormat* format;
  /// Returns the fields of the model with the head that the members ask for.
  Json (*fields)(const ConfigMembers& members);
  /// Returns the members of a model with these fields. Throws ValueError if the type cannot have a
  /// value. To find fields that it ignored, read the result with `fields` and compare.
  Json (*members)(const Json& fields);
  /// Members that have a second name: that name, and the one that `fields` reads.
  std::span<const NamePair> aliases = {};
  /// What this type expects of members where others expect something else.
  std::span<const OnlyValue> only = {};
  /// Endings of the names of matrices that its files store as [in, out].
  std::span<const std::string_view> transposed = {};
  /// Endings of the names of tensors that its files may have and that mean nothing here.
  std::span<const std::string_view> ignored = {};
  /// Returns the format of files whose model has these fields, where that depends on them; null:
  /// `format`.
  const CheckpointFormat& (*format_of)(const Json& fields) = nullptr;
  bool by_name_alone = false;  ///< another type has the same models, so exports must name this one
};

/// Returns all types, in alphabetical order.
std::span<const HubType> hub_types();

/// Returns a configuration with these fields.
template <class Config>
Config config_of(const Json& fields) {
  Settings settings;
  for (const JsonMember& m : fields.object()) settings.push_back({m.name, m.value, "the model"});
  Config config;
  set_fields(config, settings);
  return config;
}

/// Returns the members of config.json, which `keys_of` makes of a configuration with these fields.
template <class Config>
Json members_of(const Json& fields, auto keys_of) {
  auto keys = keys_of(config_of<Config>(fields));
  return to_json(keys);
}

namespace detail {
// The types of each family of models.
std::span<const HubType> hub_encoders();
std::span<const HubType> hub_decoders();
std::span<const HubType> hub_sequences();
std::span<const HubType> hub_memories();
}  // namespace detail

}  // namespace longspan
