#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/checkpoint_format.h"
#include "models/encoder.h"

namespace longspan {

/// Checkpoints of RoBERTa \cite liu2019 and BERT \cite devlin2019 in the format of the package
/// transformers.
extern const CheckpointFormat roberta_format, bert_format;

/// The keys of config.json that encoders in BERT's shape share, with the defaults of RoBERTa.
struct EncoderKeys {
  std::string model_type = "roberta", hidden_act = "gelu";
  int64_t vocab_size = 50'265, hidden_size = 768, num_hidden_layers = 12, num_attention_heads = 12,
          intermediate_size = 3072, max_position_embeddings = 514, type_vocab_size = 1;
  double hidden_dropout_prob = 0.1, attention_probs_dropout_prob = 0.1, initializer_range = 0.02,
         layer_norm_eps = 1e-12;
  double classifier_dropout = -1;  ///< -1, written as null: as hidden_dropout_prob
  bool tie_word_embeddings = true;
  int64_t pad_token_id = 1;           ///< positions of a RoBERTa or Longformer start after it
  std::vector<std::string> id2label;  ///< names of classes; empty: LABEL_0 and LABEL_1

  void visit(auto& v) {
    v("model_type", model_type)("hidden_act", hidden_act)("vocab_size", vocab_size)(
        "hidden_size", hidden_size)("num_hidden_layers", num_hidden_layers)(
        "num_attention_heads", num_attention_heads)("intermediate_size", intermediate_size)(
        "max_position_embeddings", max_position_embeddings)("type_vocab_size", type_vocab_size);
    v("hidden_dropout_prob", hidden_dropout_prob)("attention_probs_dropout_prob",
                                                  attention_probs_dropout_prob)(
        "initializer_range", initializer_range)("layer_norm_eps", layer_norm_eps)(
        "classifier_dropout", classifier_dropout)("tie_word_embeddings", tie_word_embeddings)(
        "pad_token_id", pad_token_id)("id2label", id2label);
  }
};

/// Sets the fields of a RoBERTa or BERT from its keys; heads and patterns keep their values.
/// RoBERTa's positions start after row pad_token_id, and its head for masked tokens uses gelu
/// whatever hidden_act is. Throws ValueError on another model_type or hidden_act.
void set_encoder(const EncoderKeys& keys, EncoderConfig& config);
/// Returns the keys of a configuration; `model_type` is "roberta" or "bert". The labels of
/// `classes`, or else of `tags`, get the default names of transformers, and a BERT's pad_token_id
/// is 0; set both if yours differ. Throws ValueError when such a model cannot have this
/// configuration.
EncoderKeys encoder_keys(const EncoderConfig& config, std::string_view model_type = "roberta");

namespace detail {

/// The names that encoders in BERT's shape share, and those of a RoBERTa's heads.
inline constexpr NamePair encoder_names[] = {
    {"embed.token", "embeddings.word_embeddings"},
    {"embed.position", "embeddings.position_embeddings"},
    {"embed.type", "embeddings.token_type_embeddings"},
    {"embed.norm", "embeddings.LayerNorm"},
    {"layers.#.attention.q", "encoder.layer.#.attention.self.query"},
    {"layers.#.attention.k", "encoder.layer.#.attention.self.key"},
    {"layers.#.attention.v", "encoder.layer.#.attention.self.value"},
    {"layers.#.attention.out", "encoder.layer.#.attention.output.dense"},
    {"layers.#.norm1", "encoder.layer.#.attention.output.LayerNorm"},
    {"layers.#.ff.in", "encoder.layer.#.intermediate.dense"},
    {"layers.#.ff.out", "encoder.layer.#.output.dense"},
    {"layers.#.norm2", "encoder.layer.#.output.LayerNorm"},
};
inline constexpr NamePair roberta_heads[] = {
    {"mlm.dense", "lm_head.dense"},
    {"mlm.norm", "lm_head.layer_norm"},
    {"head.weight", "lm_head.decoder.weight"},
    {"head.bias", "lm_head.bias"},
    {"pool", "classifier.dense"},
    {"classifier", "classifier.out_proj"},
    {"tags", "classifier"},
    {"spans", "qa_outputs"},
};
/// An untied head adds the bias of its decoder, and the other is dead.
inline constexpr NamePair roberta_untied[] = {{"head.bias", "lm_head.decoder.bias"}};

/// What to do about a head of its own beside a configuration that ties it to the token table.
inline constexpr std::string_view untie =
    "for a head of its own, set tie_word_embeddings in config.json (tie_embedding here) to false";

/// What is known of a second head under the name that older files of Longspan have.
inline constexpr std::string_view older = "only files of older versions of Longspan have the first";

inline constexpr std::string_view word_table = "embeddings.word_embeddings.weight";
inline constexpr OtherName roberta_unused[] = {
    {"lm_head.decoder.weight", OtherName::Kind::copy, word_table, untie},
    {"lm_head.decoder.bias", OtherName::Kind::copy, "lm_head.bias", untie},
    {"lm_head.bias", OtherName::Kind::instead, "lm_head.decoder.bias"},
    {"lm_head.weight", OtherName::Kind::copy, "lm_head.decoder.weight", older},
    {"embeddings.position_ids", OtherName::Kind::ordinals},
    "pooler.dense.weight",
    "pooler.dense.bias",
};

/// Those of the head of a BERT or BigBird.
inline constexpr NamePair bert_untied[] = {{"head.bias", "cls.predictions.decoder.bias"}};
inline constexpr OtherName bert_head_unused[] = {
    {"cls.predictions.decoder.weight", OtherName::Kind::copy, word_table, untie},
    {"cls.predictions.decoder.bias", OtherName::Kind::copy, "cls.predictions.bias", untie},
    {"cls.predictions.bias", OtherName::Kind::instead, "cls.predictions.decoder.bias"},
    {"cls.predictions.weight", OtherName::Kind::copy, "cls.predictions.decoder.weight", older},
    {"embeddings.position_ids", OtherName::Kind::ordinals},
    "cls.seq_relationship.weight",
    "cls.seq_relationship.bias",
};

/// Set and get the fields that all such encoders share.
void set_shared(const EncoderKeys& keys, EncoderConfig& config);
void get_shared(const EncoderConfig& config, EncoderKeys& keys);
/// Checks the activation of the head: gelu for a RoBERTa or Longformer, that of the layers for a
/// BERT or BigBird.
void require_mlm(const EncoderConfig& config, std::string_view model_type, bool gelu);

}  // namespace detail
}  // namespace longspan
