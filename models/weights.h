#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/bigbird.h"
#include "models/bigbird_pegasus.h"
#include "models/encoder.h"
#include "models/led.h"
#include "models/longformer.h"
#include "models/reformer.h"
#include "models/transformer.h"
#include "nn/module.h"

namespace longspan {

/// The name of a parameter here and in another implementation, without ".weight" and ".bias"; "#"
/// stands for the index of a layer. A name that includes such an ending stands for that parameter
/// only.
struct NamePair {
  std::string_view ours, theirs;
};

/// How another implementation names the parameters of an architecture in its checkpoints. Matrices
/// are stored there in the same layout as here.
struct CheckpointFormat {
  std::string_view model_type;  ///< "roberta": the value of this key in config.json
  /// The prefix of the names of the model without its heads, e.g. "roberta."; checkpoints without
  /// heads lack it.
  std::string_view prefix;
  std::span<const NamePair> base, heads;
  /// Endings of the names of tensors that checkpoints may contain and models here do not need: tied
  /// tensors, tables of constants, pre-training heads.
  std::span<const std::string_view> unused;
};

/// Checkpoints of Reformer \cite kitaev2020 , RoBERTa \cite liu2019 , BERT \cite devlin2019 ,
/// BigBird and BigBird-Pegasus \cite zaheer2020 , Longformer and LED \cite beltagy2020 and BART
/// \cite lewis2020 in the format of the package transformers.
extern const CheckpointFormat roberta_format, bert_format, bigbird_format, bigbird_pegasus_format,
    longformer_format, led_format, bart_format, reformer_format;

/// Returns every parameter of a model under its name in the format. The tensors alias the model's
/// own, so reading into them loads the model. Throws NotImplemented on a parameter that has no name
/// in the format.
TensorList named_as(const CheckpointFormat& format, Module& model);

// Structs of the keys of config.json. Their fields have the names of the keys. Reading a file
// throws on other keys (train/pretrained.h), except on those that do not concern the model.

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

/// The keys of config.json for BigBird.
struct BigBirdKeys : EncoderKeys {
  BigBirdKeys();

  int64_t block_size = 64, num_random_blocks = 3;
  std::string attention_type = "block_sparse";
  bool use_bias = true, rescale_embeddings = false;

  void visit(auto& v) {
    EncoderKeys::visit(v);
    v("block_size", block_size)("num_random_blocks", num_random_blocks)(
        "attention_type", attention_type)("use_bias", use_bias)("rescale_embeddings",
                                                                rescale_embeddings);
  }
};

/// The keys of config.json for Longformer.
struct LongformerKeys : EncoderKeys {
  LongformerKeys();

  std::vector<int64_t> attention_window = {512};  ///< of each layer, sum of both sides

  void visit(auto& v) {
    EncoderKeys::visit(v);
    v("attention_window", attention_window);
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

/// Does the same for BigBird. As in the reference, the last block includes padding, sparse
/// attention has no dropout, and random blocks come from the first 1,024 tokens.
/// BigBird::set_random_blocks() sets the exact blocks that the reference has drawn.
BigBirdConfig bigbird_config(const BigBirdKeys& keys);
BigBirdKeys bigbird_keys(const BigBirdConfig& config);

/// The keys of config.json for BigBird-Pegasus.
struct BigBirdPegasusKeys {
  std::string model_type = "bigbird_pegasus", activation_function = "gelu_new",
              attention_type = "block_sparse";
  int64_t vocab_size = 96'103, d_model = 1024, max_position_embeddings = 4096, encoder_layers = 16,
          decoder_layers = 16, encoder_attention_heads = 16, decoder_attention_heads = 16,
          encoder_ffn_dim = 4096, decoder_ffn_dim = 4096, block_size = 64, num_random_blocks = 3,
          decoder_start_token_id = 2;
  double dropout = 0.1, attention_dropout = 0, activation_dropout = 0, init_std = 0.02;
  double label_smoothing = 0;  ///< the loss of transformers has none
  bool scale_embedding = true, use_bias = false, tie_word_embeddings = true,
       is_encoder_decoder = true;
  int64_t pad_token_id = 0;

  void visit(auto& v) {
    v("model_type", model_type)("activation_function", activation_function)(
        "attention_type", attention_type)("vocab_size", vocab_size)("d_model", d_model)(
        "max_position_embeddings", max_position_embeddings)("encoder_layers", encoder_layers)(
        "decoder_layers", decoder_layers)("encoder_attention_heads", encoder_attention_heads)(
        "decoder_attention_heads", decoder_attention_heads)("encoder_ffn_dim", encoder_ffn_dim)(
        "decoder_ffn_dim", decoder_ffn_dim)("block_size", block_size)(
        "num_random_blocks", num_random_blocks)("decoder_start_token_id", decoder_start_token_id);
    v("dropout", dropout)("attention_dropout", attention_dropout)(
        "activation_dropout", activation_dropout)("init_std", init_std)(
        "label_smoothing", label_smoothing)("scale_embedding", scale_embedding)(
        "use_bias", use_bias)("tie_word_embeddings", tie_word_embeddings)(
        "is_encoder_decoder", is_encoder_decoder)("pad_token_id", pad_token_id);
  }
};

/// Does the same for BigBird-Pegasus, with blocks as for BigBird. Both position tables have
/// max_position_embeddings rows. Throws ValueError when encoder and decoder differ in size.
BigBirdPegasusConfig bigbird_pegasus_config(const BigBirdPegasusKeys& keys);
BigBirdPegasusKeys bigbird_pegasus_keys(const BigBirdPegasusConfig& config);

/// The keys that BART and LED share.
struct SequenceKeys {
  std::string model_type, activation_function = "gelu";
  int64_t vocab_size = 50'265, d_model = 1024, encoder_layers = 12, decoder_layers = 12,
          encoder_attention_heads = 16, decoder_attention_heads = 16, encoder_ffn_dim = 4096,
          decoder_ffn_dim = 4096, pad_token_id = 1,
          decoder_start_token_id = 2;  ///< the decoder's first token
  double dropout = 0.1, attention_dropout = 0, activation_dropout = 0, init_std = 0.02;
  double label_smoothing = 0;  ///< the loss of transformers has none
  bool tie_word_embeddings = true, is_encoder_decoder = true;

  void visit(auto& v) {
    v("model_type", model_type)("activation_function", activation_function)(
        "vocab_size", vocab_size)("d_model", d_model)("encoder_layers", encoder_layers)(
        "decoder_layers", decoder_layers)("encoder_attention_heads", encoder_attention_heads)(
        "decoder_attention_heads", decoder_attention_heads)("encoder_ffn_dim", encoder_ffn_dim)(
        "decoder_ffn_dim", decoder_ffn_dim);
    v("dropout", dropout)("attention_dropout", attention_dropout)(
        "activation_dropout", activation_dropout)("init_std", init_std)(
        "label_smoothing", label_smoothing)("tie_word_embeddings", tie_word_embeddings)(
        "is_encoder_decoder", is_encoder_decoder)("pad_token_id", pad_token_id)(
        "decoder_start_token_id", decoder_start_token_id);
  }
};

/// The keys of config.json for BART.
struct BartKeys : SequenceKeys {
  BartKeys() { model_type = "bart"; }

  int64_t max_position_embeddings = 1024;
  bool scale_embedding = false;
  std::vector<std::string> id2label = {"LABEL_0", "LABEL_1", "LABEL_2"};  ///< the default of
                                                                          ///< transformers

  void visit(auto& v) {
    SequenceKeys::visit(v);
    v("max_position_embeddings", max_position_embeddings)("scale_embedding", scale_embedding)(
        "id2label", id2label);
  }
};

/// The keys of config.json for LED.
struct LedKeys : SequenceKeys {
  LedKeys() { model_type = "led"; }

  int64_t max_encoder_position_embeddings = 16'384, max_decoder_position_embeddings = 1024;
  std::vector<int64_t> attention_window = {512};  ///< of each layer, sum of both sides

  void visit(auto& v) {
    SequenceKeys::visit(v);
    v("max_encoder_position_embeddings", max_encoder_position_embeddings)(
        "max_decoder_position_embeddings", max_decoder_position_embeddings)("attention_window",
                                                                            attention_window);
  }
};

/// Does the same for BART, whose position tables begin at row 2 whatever pad_token_id is. A
/// Transformer does not store ids of special tokens: keep those of the keys. Throws ValueError when
/// encoder and decoder differ in size, or when such a model cannot have this configuration.
TransformerConfig bart_config(const BartKeys& keys);
BartKeys bart_keys(const TransformerConfig& config);

/// Does the same for LED, whose tables begin with position 0; the first token is global.
LedConfig led_config(const LedKeys& keys);
LedKeys led_keys(const LedConfig& config);

/// The keys of config.json for Reformer.
struct ReformerKeys {
  /// Keys of old files that the model never reads.
  static constexpr std::string_view passed_over[] = {"attention_probs_dropout_prob",
                                                     "intermediate_size", "num_chunks_after",
                                                     "num_chunks_before", "type_vocab_size"};
  std::string model_type = "reformer", hidden_act = "relu";
  int64_t vocab_size = 320, hidden_size = 256, feed_forward_size = 512, num_attention_heads = 12,
          attention_head_size = 64, num_hashes = 1, lsh_attn_chunk_length = 64,
          lsh_num_chunks_before = 1, lsh_num_chunks_after = 0, local_attn_chunk_length = 64,
          local_num_chunks_before = 1, local_num_chunks_after = 0, max_position_embeddings = 4096;
  std::vector<std::string> attn_layers = {"local", "lsh", "local", "lsh", "local", "lsh"};
  std::vector<int64_t> num_buckets;  ///< empty: chosen by the length
  std::vector<int64_t> axial_pos_shape = {64, 64}, axial_pos_embds_dim = {64, 192};
  bool axial_pos_embds = true, is_decoder = false, tie_word_embeddings = false;
  double hidden_dropout_prob = 0.05, lsh_attention_probs_dropout_prob = 0,
         local_attention_probs_dropout_prob = 0.05, layer_norm_eps = 1e-12, axial_norm_std = 1,
         initializer_range = 0.02;
  int64_t pad_token_id = 0;

  void visit(auto& v) {
    v("model_type", model_type)("hidden_act", hidden_act)("vocab_size", vocab_size)(
        "hidden_size", hidden_size)("feed_forward_size", feed_forward_size)(
        "num_attention_heads", num_attention_heads)("attention_head_size", attention_head_size)(
        "num_hashes", num_hashes)("lsh_attn_chunk_length", lsh_attn_chunk_length)(
        "lsh_num_chunks_before", lsh_num_chunks_before)("lsh_num_chunks_after",
                                                        lsh_num_chunks_after);
    v("local_attn_chunk_length", local_attn_chunk_length)(
        "local_num_chunks_before", local_num_chunks_before)("local_num_chunks_after",
                                                            local_num_chunks_after)(
        "max_position_embeddings", max_position_embeddings)("attn_layers", attn_layers)(
        "num_buckets", num_buckets)("axial_pos_shape", axial_pos_shape)("axial_pos_embds_dim",
                                                                        axial_pos_embds_dim);
    v("axial_pos_embds", axial_pos_embds)("is_decoder", is_decoder)(
        "tie_word_embeddings", tie_word_embeddings)("hidden_dropout_prob", hidden_dropout_prob)(
        "lsh_attention_probs_dropout_prob", lsh_attention_probs_dropout_prob)(
        "local_attention_probs_dropout_prob", local_attention_probs_dropout_prob)(
        "layer_norm_eps", layer_norm_eps)("axial_norm_std", axial_norm_std)(
        "initializer_range", initializer_range)("pad_token_id", pad_token_id);
  }
};

/// Does the same for Reformer with axial positions, as transformers computes it. The bias of the
/// head is added; newer versions of transformers keep it but do not add it. Without num_buckets
/// each length has its own number of buckets, while the reference keeps that of the first sequence;
/// the keys of such a model have that of n_max. Throws ValueError on position tables of another
/// kind and on rules that differ from reformer_variant(hf).
ReformerConfig reformer_config(const ReformerKeys& keys);
ReformerKeys reformer_keys(const ReformerConfig& config);

/// Does the same for Longformer, whose heads have no dilation, with one window for each layer.
/// Throws ValueError on a window that is odd, below 2 or missing.
LongformerConfig longformer_config(const LongformerKeys& keys);
LongformerKeys longformer_keys(const LongformerConfig& config);

}  // namespace longspan
