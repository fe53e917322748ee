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

/// Checkpoints of DistilBERT \cite sanh2019 and of the discriminators of ELECTRA \cite clark2020 .
extern const CheckpointFormat distilbert_format, electra_format;

/// The keys of config.json that encoders in BERT's shape share, with the defaults that the package
/// has for a file of type roberta that leaves them out: not the sizes of any published RoBERTa.
struct EncoderKeys {
  std::string model_type = "roberta", hidden_act = "gelu";
  int64_t vocab_size = 50'265, hidden_size = 768, num_hidden_layers = 12, num_attention_heads = 12,
          intermediate_size = 3072, max_position_embeddings = 512, type_vocab_size = 2;
  double hidden_dropout_prob = 0.1, attention_probs_dropout_prob = 0.1, initializer_range = 0.02,
         layer_norm_eps = 1e-12;
  double classifier_dropout = -1;  ///< -1, written as null: as hidden_dropout_prob
  bool tie_word_embeddings = true;
  int64_t pad_token_id = 1;           ///< positions of a RoBERTa or Longformer start after it
  std::vector<std::string> id2label;  ///< names of classes; empty: LABEL_0 and LABEL_1

  void visit(auto& v) {
    v("model_type", model_type)("hidden_act", hidden_act)("vocab_size", vocab_size,
                                                          range::positive);
    v("hidden_size", hidden_size, range::positive);
    v("num_hidden_layers", num_hidden_layers, range::count);
    v("num_attention_heads", num_attention_heads, range::positive);
    v("intermediate_size", intermediate_size, range::positive);
    v("max_position_embeddings", max_position_embeddings, range::positive);
    v("type_vocab_size", type_vocab_size, range::positive);
    v("hidden_dropout_prob", hidden_dropout_prob, range::probability);
    v("attention_probs_dropout_prob", attention_probs_dropout_prob, range::probability);
    v("initializer_range", initializer_range, range::not_negative);
    v("layer_norm_eps", layer_norm_eps, range::above_zero);
    v("classifier_dropout", classifier_dropout, range::as_dropout);
    v("tie_word_embeddings", tie_word_embeddings)("pad_token_id", pad_token_id)("id2label",
                                                                                id2label);
  }
};

/// The keys of config.json for BERT, with the defaults of that type.
struct BertKeys : EncoderKeys {
  BertKeys() {
    model_type = "bert";
    vocab_size = 30'522;
    pad_token_id = 0;
  }
};

/// The keys of config.json for ELECTRA, of its discriminators; their generator is not here.
struct ElectraKeys : EncoderKeys {
  ElectraKeys() {
    model_type = "electra";
    vocab_size = 30'522;
    hidden_size = 256;
    num_attention_heads = 4;
    intermediate_size = 1024;
    pad_token_id = 0;
  }

  int64_t embedding_size = 128;  ///< width of the tables

  void visit(auto& v) {
    EncoderKeys::visit(v);
    v("embedding_size", embedding_size, range::positive);
  }
};

/// The keys of config.json for DistilBERT, with the defaults of that type.
struct DistilBertKeys {
  std::string model_type = "distilbert", activation = "gelu";
  int64_t vocab_size = 30'522, dim = 768, n_layers = 6, n_heads = 12, hidden_dim = 3072,
          max_position_embeddings = 512, pad_token_id = 0;
  double dropout = 0.1, attention_dropout = 0.1, qa_dropout = 0.1, seq_classif_dropout = 0.2,
         initializer_range = 0.02;
  bool sinusoidal_pos_embds = false;  ///< how the position table begins, which the file has
  bool tie_word_embeddings = true;

  void visit(auto& v) {
    v("model_type", model_type)("activation", activation)("vocab_size", vocab_size,
                                                          range::positive);
    v("dim", dim, range::positive)("n_layers", n_layers, range::count)("n_heads", n_heads,
                                                                       range::positive);
    v("hidden_dim", hidden_dim, range::positive);
    v("max_position_embeddings", max_position_embeddings, range::positive);
    v("pad_token_id", pad_token_id)("dropout", dropout, range::probability);
    v("attention_dropout", attention_dropout, range::probability);
    v("qa_dropout", qa_dropout, range::probability);
    v("seq_classif_dropout", seq_classif_dropout, range::probability);
    v("initializer_range", initializer_range, range::not_negative);
    v("sinusoidal_pos_embds", sinusoidal_pos_embds)("tie_word_embeddings", tie_word_embeddings);
  }
};

/// Sets the fields of a RoBERTa or BERT from its keys; heads and patterns keep their values.
/// RoBERTa's positions start after row pad_token_id, and its head for masked tokens uses gelu
/// whatever hidden_act is. Throws ValueError on another model_type or hidden_act.
void set_encoder(const EncoderKeys& keys, EncoderConfig& config);
void set_encoder(const ElectraKeys& keys, EncoderConfig& config);
/// DistilBERT's norms add 1e-12, and it has no token types.
void set_encoder(const DistilBertKeys& keys, EncoderConfig& config);
/// Returns the keys of a configuration; `model_type` is "roberta" or "bert". The labels of
/// `classes`, or else of `tags`, get the default names of transformers, and a BERT's pad_token_id
/// is 0; set both if yours differ. Throws ValueError when such a model cannot have this
/// configuration.
EncoderKeys encoder_keys(const EncoderConfig& config, std::string_view model_type = "roberta");
ElectraKeys electra_keys(const EncoderConfig& config);
DistilBertKeys distilbert_keys(const EncoderConfig& config);

namespace detail {

/// Parameter names that encoders of BERT's shape share, and names of RoBERTa's heads.
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

/// Parameter names of the head of a BERT or BigBird.
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
