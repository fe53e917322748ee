// Types with a memory or hashing: Transformer-XL, Reformer.

#include "hub/type.h"
#include "models/reformer/reformer_hf.h"
#include "models/transformer_xl/transformer_xl_hf.h"

namespace longspan {
namespace {

Json reformer(const ConfigMembers& members) {
  const auto keys = members.keys<ReformerKeys>();
  require(members.task != HubTask::next_token || keys.is_decoder, "config.json",
          "is_decoder is false; expected true for a model that predicts the next token");
  ReformerConfig c = reformer_config(keys);
  c.classes = members.task == HubTask::classes ? members.labels : 0;
  c.span_head = members.task == HubTask::spans;
  return to_json(c);
}

Json transformer_xl(const ConfigMembers& members) {
  TransformerXLConfig c = transformer_xl_config(members.keys<TransformerXLKeys>());
  return to_json(c);
}

const CheckpointFormat& transformer_xl_names(const Json& fields) {
  TransformerXLConfig c;
  c.div_value = fields["div_value"].integer();
  return transformer_xl_format(c);
}

Json reformer_members(const Json& fields) {
  ReformerKeys keys = reformer_keys(config_of<ReformerConfig>(fields));
  return to_json(keys);
}

Json transformer_xl_members(const Json& fields) {
  TransformerXLKeys keys = transformer_xl_keys(config_of<TransformerXLConfig>(fields));
  return to_json(keys);
}

constexpr HubArchitecture reformer_classes[] = {
    {"Model", HubTask::hidden},
    {"ModelWithLMHead", HubTask::next_token},
    {"ForMaskedLM", HubTask::masked_token},
    {"ForSequenceClassification", HubTask::classes},
    {"ForQuestionAnswering", HubTask::spans},
};
constexpr HubArchitecture transformer_xl_classes[] = {
    {"Model", HubTask::hidden},
    {"LMHeadModel", HubTask::next_token},
};
constexpr NamePair transformer_xl_aliases[] = {
    {"hidden_size", "d_model"},
    {"n_token", "vocab_size"},
    {"num_attention_heads", "n_head"},
    {"num_hidden_layers", "n_layer"},
};

constexpr HubType memories[] = {
    {.name = "reformer",
     .class_name = "Reformer",
     .model = "reformer",
     .classes = reformer_classes,
     .format = &reformer_format,
     .fields = reformer,
     .members = reformer_members},
    {.name = "transfo-xl",
     .class_name = "TransfoXL",
     .model = "transformer_xl",
     .classes = transformer_xl_classes,
     .format = nullptr,
     .fields = transformer_xl,
     .members = transformer_xl_members,
     .aliases = transformer_xl_aliases,
     .format_of = transformer_xl_names},
};

}  // namespace

std::span<const HubType> detail::hub_memories() { return memories; }

}  // namespace longspan
