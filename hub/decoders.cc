// Types of decoders: GPT-2.

#include "hub/type.h"
#include "models/transformer/gpt2_hf.h"

namespace longspan {
namespace {

Json gpt2(const ConfigMembers& members) {
  TransformerConfig c = gpt2_config(members.keys<Gpt2Keys>());
  c.classes = members.task == HubTask::classes ? members.labels : 0;
  c.tags = members.task == HubTask::tags ? members.labels : 0;
  c.span_head = members.task == HubTask::spans;
  return to_json(c);
}

Json gpt2_members(const Json& fields) {
  Gpt2Keys keys = gpt2_keys(config_of<TransformerConfig>(fields));
  return to_json(keys);
}

constexpr HubArchitecture gpt2_classes[] = {
    {"Model", HubTask::hidden},
    {"LMHeadModel", HubTask::next_token},
    {"ForSequenceClassification", HubTask::classes},
    {"ForTokenClassification", HubTask::tags},
    {"ForQuestionAnswering", HubTask::spans},
};
constexpr NamePair gpt2_aliases[] = {
    {"hidden_size", "n_embd"},
    {"max_position_embeddings", "n_positions"},
    {"num_attention_heads", "n_head"},
    {"num_hidden_layers", "n_layer"},
};
/// Its matrices are applied from the right.
constexpr std::string_view gpt2_transposed[] = {"c_attn.weight", "c_proj.weight", "c_fc.weight"};
/// The causal mask, which old files hold.
constexpr std::string_view gpt2_ignored[] = {".attn.bias", ".attn.masked_bias"};

constexpr HubType decoders[] = {
    {.name = "gpt2",
     .class_name = "GPT2",
     .model = "transformer",
     .classes = gpt2_classes,
     .format = &gpt2_format,
     .fields = gpt2,
     .members = gpt2_members,
     .aliases = gpt2_aliases,
     .transposed = gpt2_transposed,
     .ignored = gpt2_ignored},
};

}  // namespace

std::span<const HubType> detail::hub_decoders() { return decoders; }

}  // namespace longspan
