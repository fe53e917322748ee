// Types of encoders: BERT and its relatives, Longformer, BigBird.

#include "hub/type.h"
#include "models/bigbird/bigbird_hf.h"
#include "models/blockbert/blockbert.h"
#include "models/encoder_hf.h"
#include "models/longformer/longformer_hf.h"

namespace longspan {
namespace {

/// Gives an encoder the head of a checkpoint. Candidates are scored one by one, as one class.
void set_head(const ConfigMembers& members, EncoderConfig& c) {
  c.mlm_head = members.task == HubTask::masked_token;
  c.classes = members.task == HubTask::classes  ? members.labels
              : members.task == HubTask::choice ? 1
                                                : 0;
  c.tags = members.task == HubTask::tags ? members.labels : 0;
  c.span_head = members.task == HubTask::spans;
  if (members.task == HubTask::choice) c.pool_dropout = false;
}

/// The fields of a dense encoder: BlockBERT with one block.
template <class Keys>
Json dense(const ConfigMembers& members, Keys keys) {
  BlockBertConfig c;
  c.n_block = 1;
  c.heads_per_shift = {};
  set_encoder(keys, c);
  set_head(members, c);
  return to_json(c);
}

Json bert(const ConfigMembers& members) { return dense(members, members.keys<BertKeys>()); }

/// XLM-RoBERTa and CamemBERT are RoBERTas with other vocabularies.
template <int64_t vocabulary>
struct RobertaKeys : EncoderKeys {
  RobertaKeys() { vocab_size = vocabulary; }
};

template <class Keys>
Json roberta(const ConfigMembers& members) {
  EncoderKeys keys = members.keys<Keys>();
  keys.model_type = "roberta";
  return dense(members, keys);
}

Json electra(const ConfigMembers& members) { return dense(members, members.keys<ElectraKeys>()); }

Json distilbert(const ConfigMembers& members) {
  return dense(members, members.keys<DistilBertKeys>());
}

Json longformer(const ConfigMembers& members) {
  LongformerConfig c = longformer_config(members.keys<LongformerKeys>());
  set_head(members, c);
  c.dropout_classifier = -1;  // the package ignores classifier_dropout
  switch (members.task) {
    case HubTask::classes:
      c.globals = GlobalDefault::first;
      break;
    case HubTask::spans:
      c.globals = GlobalDefault::question;
      break;
    case HubTask::choice:
      c.globals = GlobalDefault::candidate;
      break;
    default:
      c.globals = GlobalDefault::none;
  }
  return to_json(c);
}

Json big_bird(const ConfigMembers& members) {
  BigBirdConfig c = bigbird_config(members.keys<BigBirdKeys>());
  set_head(members, c);
  c.span_block = c.span_head;
  if (!c.span_head) c.separator_id = -1;
  if (members.task == HubTask::choice) c.pool_activation = PoolActivation::tanh;
  return to_json(c);
}

/// ELECTRA's and RoBERTa's heads for candidates.
constexpr NamePair bert_choice[] = {{"pool", "bert.pooler.dense"}, {"classifier", "classifier"}};
constexpr NamePair roberta_choice[] = {{"pool", "roberta.pooler.dense"},
                                       {"classifier", "classifier"}};
constexpr NamePair electra_choice[] = {{"pool", "sequence_summary.summary"},
                                       {"classifier", "classifier"}};

Json bert_members(const Json& fields) {
  return members_of<BlockBertConfig>(fields, [](const auto& c) { return encoder_keys(c, "bert"); });
}
Json roberta_members(const Json& fields) {
  return members_of<BlockBertConfig>(fields,
                                     [](const auto& c) { return encoder_keys(c, "roberta"); });
}
Json electra_members(const Json& fields) {
  return members_of<BlockBertConfig>(fields, electra_keys);
}
Json distilbert_members(const Json& fields) {
  return members_of<BlockBertConfig>(fields, distilbert_keys);
}
Json longformer_members(const Json& fields) {
  return members_of<LongformerConfig>(fields, longformer_keys);
}
Json big_bird_members(const Json& fields) {
  return members_of<BigBirdConfig>(fields, bigbird_keys);
}

constexpr NamePair longformer_choice[] = {{"pool", "longformer.pooler.dense"},
                                          {"classifier", "classifier"}};
constexpr NamePair big_bird_choice[] = {{"pool", "bert.pooler"}, {"classifier", "classifier"}};

constexpr HubArchitecture bert_classes[] = {
    {"Model", HubTask::hidden},
    {"ForMaskedLM", HubTask::masked_token},
    {"ForPreTraining", HubTask::masked_token, {}, "the head for next sentences"},
    {"ForNextSentencePrediction", HubTask::hidden, {}, "the head for next sentences"},
    {"ForSequenceClassification", HubTask::classes},
    {"ForTokenClassification", HubTask::tags},
    {"ForQuestionAnswering", HubTask::spans},
    {"ForMultipleChoice", HubTask::choice, bert_choice},
};
constexpr HubArchitecture roberta_classes[] = {
    {"Model", HubTask::hidden},
    {"ForMaskedLM", HubTask::masked_token},
    {"ForSequenceClassification", HubTask::classes},
    {"ForTokenClassification", HubTask::tags},
    {"ForQuestionAnswering", HubTask::spans},
    {"ForMultipleChoice", HubTask::choice, roberta_choice},
};
constexpr HubArchitecture longformer_classes[] = {
    {"Model", HubTask::hidden},
    {"ForMaskedLM", HubTask::masked_token},
    {"ForSequenceClassification", HubTask::classes},
    {"ForTokenClassification", HubTask::tags},
    {"ForQuestionAnswering", HubTask::spans},
    {"ForMultipleChoice", HubTask::choice, longformer_choice},
};
constexpr HubArchitecture big_bird_classes[] = {
    {"Model", HubTask::hidden},
    {"ForMaskedLM", HubTask::masked_token},
    {"ForPreTraining", HubTask::masked_token, {}, "the head for next sentences"},
    {"ForSequenceClassification", HubTask::classes},
    {"ForTokenClassification", HubTask::tags},
    {"ForQuestionAnswering", HubTask::spans},
    {"ForMultipleChoice", HubTask::choice, big_bird_choice},
};
constexpr HubArchitecture electra_classes[] = {
    {"Model", HubTask::hidden},
    {"ForMaskedLM", HubTask::masked_token},
    {"ForPreTraining", HubTask::hidden, {}, "the head that tells replaced tokens"},
    {"ForSequenceClassification", HubTask::classes},
    {"ForTokenClassification", HubTask::tags},
    {"ForQuestionAnswering", HubTask::spans},
    {"ForMultipleChoice", HubTask::choice, electra_choice},
};
constexpr HubArchitecture distilbert_classes[] = {
    {"Model", HubTask::hidden},
    {"ForMaskedLM", HubTask::masked_token},
    {"ForSequenceClassification", HubTask::classes},
    {"ForTokenClassification", HubTask::tags},
    {"ForQuestionAnswering", HubTask::spans},
    {"ForMultipleChoice", HubTask::choice},
};

constexpr NamePair distilbert_aliases[] = {
    {"hidden_size", "dim"},
    {"num_attention_heads", "n_heads"},
    {"num_hidden_layers", "n_layers"},
};

/// The only values of these members that ELECTRA's head for candidates has here.
constexpr OnlyValue electra_only[] = {
    {"summary_type", "\"first\"", "the head for candidates reads the first token"},
    {"summary_use_proj", "true", "the head for candidates has two layers"},
    {"summary_activation", "\"gelu\"", "the head for candidates has gelu"},
};

/// Makes a type that needs no other fields of HubType than these.
constexpr HubType type_of(std::string_view name, std::string_view class_name,
                          std::string_view model, std::span<const HubArchitecture> classes,
                          const CheckpointFormat& format, Json (*fields)(const ConfigMembers&),
                          Json (*members)(const Json&), bool by_name_alone = false) {
  return {.name = name,
          .class_name = class_name,
          .model = model,
          .classes = classes,
          .format = &format,
          .fields = fields,
          .members = members,
          .by_name_alone = by_name_alone};
}

constexpr HubType encoders[] = {
    type_of("bert", "Bert", "blockbert", bert_classes, bert_format, bert, bert_members),
    type_of("big_bird", "BigBird", "bigbird", big_bird_classes, bigbird_format, big_bird,
            big_bird_members),
    {.name = "distilbert",
     .class_name = "DistilBert",
     .model = "blockbert",
     .classes = distilbert_classes,
     .format = &distilbert_format,
     .fields = distilbert,
     .members = distilbert_members,
     .aliases = distilbert_aliases},
    {.name = "electra",
     .class_name = "Electra",
     .model = "blockbert",
     .classes = electra_classes,
     .format = &electra_format,
     .fields = electra,
     .members = electra_members,
     .only = electra_only},
    type_of("longformer", "Longformer", "longformer", longformer_classes, longformer_format,
            longformer, longformer_members),
    type_of("roberta", "Roberta", "blockbert", roberta_classes, roberta_format,
            roberta<RobertaKeys<50'265>>, roberta_members),
    // The same models as RoBERTa, with other tokenizers: an export names them.
    type_of("xlm-roberta", "XLMRoberta", "blockbert", roberta_classes, roberta_format,
            roberta<RobertaKeys<30'522>>, roberta_members, true),
    type_of("camembert", "Camembert", "blockbert", roberta_classes, roberta_format,
            roberta<RobertaKeys<30'522>>, roberta_members, true),
};

}  // namespace

std::span<const HubType> detail::hub_encoders() { return encoders; }

}  // namespace longspan
