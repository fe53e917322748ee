// Types of encoder-decoders: BART and its relatives, LED, BigBird-Pegasus.

#include "hub/type.h"
#include "models/bigbird/bigbird_pegasus_hf.h"
#include "models/longformer/led_hf.h"
#include "models/transformer/transformer_hf.h"

namespace longspan {
namespace {

Json bart(const ConfigMembers& members) {
  auto c = bart_config(members.keys<BartKeys>());
  return to_json(c);
}
Json mbart(const ConfigMembers& members) {
  auto c = mbart_config(members.keys<MBartKeys>());
  return to_json(c);
}
Json pegasus(const ConfigMembers& members) {
  auto c = pegasus_config(members.keys<PegasusKeys>());
  return to_json(c);
}
Json led(const ConfigMembers& members) {
  auto c = led_config(members.keys<LedKeys>());
  return to_json(c);
}
Json bigbird_pegasus(const ConfigMembers& members) {
  auto c = bigbird_pegasus_config(members.keys<BigBirdPegasusKeys>());
  return to_json(c);
}

Json bart_members(const Json& fields) { return members_of<TransformerConfig>(fields, bart_keys); }
Json mbart_members(const Json& fields) { return members_of<TransformerConfig>(fields, mbart_keys); }
Json pegasus_members(const Json& fields) {
  return members_of<TransformerConfig>(fields, pegasus_keys);
}
Json led_members(const Json& fields) { return members_of<LedConfig>(fields, led_keys); }
Json bigbird_pegasus_members(const Json& fields) {
  return members_of<BigBirdPegasusConfig>(fields, bigbird_pegasus_keys);
}

/// The tables of source, target and head are one or three.
template <const CheckpointFormat& tied, const CheckpointFormat& untied>
const CheckpointFormat& format_of(const Json& fields) {
  return fields["tie_embedding"].boolean() ? tied : untied;
}

constexpr HubArchitecture classes[] = {
    {"ForConditionalGeneration", HubTask::sequence},
    {"Model", HubTask::hidden},
};
constexpr NamePair aliases[] = {
    {"hidden_size", "d_model"},
    {"num_attention_heads", "encoder_attention_heads"},
    {"num_hidden_layers", "encoder_layers"},
};

/// Members of old files, which later releases no longer read.
constexpr OnlyValue bart_only[] = {
    {"normalize_before", "false", "norms come after the branches"},
    {"add_final_layer_norm", "false", "it has no norm after the last layer"},
    {"normalize_embedding", "true", "there is a norm after the tables"},
    {"static_position_embeddings", "false", "positions are learned"},
    {"extra_pos_embeddings", "2", "position tables begin at row 2"},
};
constexpr OnlyValue mbart_only[] = {
    {"normalize_before", "true", "norms come before the branches"},
    {"add_final_layer_norm", "true", "it has a norm after the last layer"},
    {"normalize_embedding", "true", "there is a norm after the tables"},
    {"static_position_embeddings", "false", "positions are learned"},
    {"extra_pos_embeddings", "2", "position tables begin at row 2"},
};
constexpr OnlyValue pegasus_only[] = {
    {"normalize_before", "true", "norms come before the branches"},
    {"add_final_layer_norm", "true", "it has a norm after the last layer"},
    {"normalize_embedding", "false", "there is no norm after the tables"},
    {"static_position_embeddings", "true", "positions are sines and cosines"},
    {"extra_pos_embeddings", "1", "position tables begin at row 0"},
};

constexpr HubType sequences[] = {
    {.name = "bart",
     .class_name = "Bart",
     .model = "transformer",
     .classes = classes,
     .format = &bart_format,
     .fields = bart,
     .members = bart_members,
     .aliases = aliases,
     .only = bart_only,
     .format_of = format_of<bart_format, bart_untied_format>},
    {.name = "mbart",
     .class_name = "MBart",
     .model = "transformer",
     .classes = classes,
     .format = &mbart_format,
     .fields = mbart,
     .members = mbart_members,
     .aliases = aliases,
     .only = mbart_only,
     .format_of = format_of<mbart_format, mbart_untied_format>},
    {.name = "pegasus",
     .class_name = "Pegasus",
     .model = "transformer",
     .classes = classes,
     .format = &pegasus_format,
     .fields = pegasus,
     .members = pegasus_members,
     .aliases = aliases,
     .only = pegasus_only,
     .format_of = format_of<pegasus_format, pegasus_untied_format>},
    {.name = "led",
     .class_name = "LED",
     .model = "led",
     .classes = classes,
     .format = &led_format,
     .fields = led,
     .members = led_members,
     .aliases = aliases,
     .only = bart_only,
     .format_of = format_of<led_format, led_untied_format>},
    {.name = "bigbird_pegasus",
     .class_name = "BigBirdPegasus",
     .model = "bigbird_pegasus",
     .classes = classes,
     .format = &bigbird_pegasus_format,
     .fields = bigbird_pegasus,
     .members = bigbird_pegasus_members,
     .aliases = aliases,
     .format_of = format_of<bigbird_pegasus_format, bigbird_pegasus_untied_format>},
};

}  // namespace

std::span<const HubType> detail::hub_sequences() { return sequences; }

}  // namespace longspan
