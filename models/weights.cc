#include "models/weights.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <utility>

namespace longspan {
namespace {

constexpr const char* kOp = "checkpoint";

constexpr NamePair encoder_names[] = {
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

/// Those and the second triple.
constexpr NamePair longformer_names[] = {
    {"embed.token", "embeddings.word_embeddings"},
    {"embed.position", "embeddings.position_embeddings"},
    {"embed.type", "embeddings.token_type_embeddings"},
    {"embed.norm", "embeddings.LayerNorm"},
    {"layers.#.attention.q", "encoder.layer.#.attention.self.query"},
    {"layers.#.attention.k", "encoder.layer.#.attention.self.key"},
    {"layers.#.attention.v", "encoder.layer.#.attention.self.value"},
    {"layers.#.attention.q_global", "encoder.layer.#.attention.self.query_global"},
    {"layers.#.attention.k_global", "encoder.layer.#.attention.self.key_global"},
    {"layers.#.attention.v_global", "encoder.layer.#.attention.self.value_global"},
    {"layers.#.attention.out", "encoder.layer.#.attention.output.dense"},
    {"layers.#.norm1", "encoder.layer.#.attention.output.LayerNorm"},
    {"layers.#.ff.in", "encoder.layer.#.intermediate.dense"},
    {"layers.#.ff.out", "encoder.layer.#.output.dense"},
    {"layers.#.norm2", "encoder.layer.#.output.LayerNorm"},
};

constexpr NamePair roberta_heads[] = {
    {"mlm.dense", "lm_head.dense"}, {"mlm.norm", "lm_head.layer_norm"},    {"head", "lm_head"},
    {"pool", "classifier.dense"},   {"classifier", "classifier.out_proj"}, {"tags", "classifier"},
    {"spans", "qa_outputs"},
};
constexpr std::string_view roberta_unused[] = {"lm_head.decoder.weight", "lm_head.decoder.bias",
                                               "embeddings.position_ids", "pooler.dense.weight",
                                               "pooler.dense.bias"};

constexpr NamePair bert_heads[] = {
    {"mlm.dense", "cls.predictions.transform.dense"},
    {"mlm.norm", "cls.predictions.transform.LayerNorm"},
    {"head", "cls.predictions"},
    {"pool", "bert.pooler.dense"},
    {"classifier", "classifier"},
    {"spans", "qa_outputs"},
};
constexpr std::string_view bert_unused[] = {"cls.predictions.decoder.weight",
                                            "cls.predictions.decoder.bias",
                                            "embeddings.position_ids",
                                            "pooler.dense.weight",
                                            "pooler.dense.bias",
                                            "cls.seq_relationship.weight",
                                            "cls.seq_relationship.bias"};

constexpr NamePair bigbird_heads[] = {
    {"mlm.dense", "cls.predictions.transform.dense"},
    {"mlm.norm", "cls.predictions.transform.LayerNorm"},
    {"head", "cls.predictions"},
};
constexpr std::string_view bigbird_unused[] = {"cls.predictions.decoder.weight",
                                               "cls.predictions.decoder.bias",
                                               "embeddings.position_ids",
                                               "pooler.weight",
                                               "pooler.bias",
                                               "cls.seq_relationship.weight",
                                               "cls.seq_relationship.bias"};

/// What encoder-decoders in BART's shape share.
constexpr NamePair sequence_names[] = {
    {"embed.token", "shared"},
    {"embed.source_position", "encoder.embed_positions"},
    {"embed.position", "decoder.embed_positions"},
    {"encoder.layers.#.norm1", "encoder.layers.#.self_attn_layer_norm"},
    {"encoder.layers.#.ff.in", "encoder.layers.#.fc1"},
    {"encoder.layers.#.ff.out", "encoder.layers.#.fc2"},
    {"encoder.layers.#.norm2", "encoder.layers.#.final_layer_norm"},
    {"decoder.layers.#.attention.q", "decoder.layers.#.self_attn.q_proj"},
    {"decoder.layers.#.attention.k", "decoder.layers.#.self_attn.k_proj"},
    {"decoder.layers.#.attention.v", "decoder.layers.#.self_attn.v_proj"},
    {"decoder.layers.#.attention.out", "decoder.layers.#.self_attn.out_proj"},
    {"decoder.layers.#.norm1", "decoder.layers.#.self_attn_layer_norm"},
    {"decoder.layers.#.cross.q", "decoder.layers.#.encoder_attn.q_proj"},
    {"decoder.layers.#.cross.k", "decoder.layers.#.encoder_attn.k_proj"},
    {"decoder.layers.#.cross.v", "decoder.layers.#.encoder_attn.v_proj"},
    {"decoder.layers.#.cross.out", "decoder.layers.#.encoder_attn.out_proj"},
    {"decoder.layers.#.norm2", "decoder.layers.#.encoder_attn_layer_norm"},
    {"decoder.layers.#.ff.in", "decoder.layers.#.fc1"},
    {"decoder.layers.#.ff.out", "decoder.layers.#.fc2"},
    {"decoder.layers.#.norm3", "decoder.layers.#.final_layer_norm"},
};

/// Those and what is a model's own.
template <size_t N>
constexpr auto with_sequence_names(const NamePair (&own)[N]) {
  std::array<NamePair, N + std::size(sequence_names)> all;
  std::copy(std::begin(own), std::end(own), all.begin());
  std::copy(std::begin(sequence_names), std::end(sequence_names), all.begin() + N);
  return all;
}

constexpr auto bigbird_pegasus_names = with_sequence_names({
    {"encoder.layers.#.attention.q", "encoder.layers.#.self_attn.self.query"},
    {"encoder.layers.#.attention.k", "encoder.layers.#.self_attn.self.key"},
    {"encoder.layers.#.attention.v", "encoder.layers.#.self_attn.self.value"},
    {"encoder.layers.#.attention.out", "encoder.layers.#.self_attn.output"},
    {"encoder.final_norm", "encoder.layernorm_embedding"},
    {"decoder.final_norm", "decoder.layernorm_embedding"},
});

constexpr auto bart_names = with_sequence_names({
    {"embed.source_norm", "encoder.layernorm_embedding"},
    {"embed.norm", "decoder.layernorm_embedding"},
    {"encoder.layers.#.attention.q", "encoder.layers.#.self_attn.q_proj"},
    {"encoder.layers.#.attention.k", "encoder.layers.#.self_attn.k_proj"},
    {"encoder.layers.#.attention.v", "encoder.layers.#.self_attn.v_proj"},
    {"encoder.layers.#.attention.out", "encoder.layers.#.self_attn.out_proj"},
});

constexpr auto led_names = with_sequence_names({
    {"embed.source_norm", "encoder.layernorm_embedding"},
    {"embed.norm", "decoder.layernorm_embedding"},
    {"encoder.layers.#.attention.q", "encoder.layers.#.self_attn.longformer_self_attn.query"},
    {"encoder.layers.#.attention.k", "encoder.layers.#.self_attn.longformer_self_attn.key"},
    {"encoder.layers.#.attention.v", "encoder.layers.#.self_attn.longformer_self_attn.value"},
    {"encoder.layers.#.attention.q_global",
     "encoder.layers.#.self_attn.longformer_self_attn.query_global"},
    {"encoder.layers.#.attention.k_global",
     "encoder.layers.#.self_attn.longformer_self_attn.key_global"},
    {"encoder.layers.#.attention.v_global",
     "encoder.layers.#.self_attn.longformer_self_attn.value_global"},
    {"encoder.layers.#.attention.out", "encoder.layers.#.self_attn.output"},
});
constexpr NamePair reformer_names[] = {
    {"embed.token", "embeddings.word_embeddings"},
    {"layers.#.norm1", "encoder.layers.#.attention.layer_norm"},
    {"layers.#.attention.qk", "encoder.layers.#.attention.self_attention.query_key"},
    {"layers.#.attention.q", "encoder.layers.#.attention.self_attention.query"},
    {"layers.#.attention.k", "encoder.layers.#.attention.self_attention.key"},
    {"layers.#.attention.v", "encoder.layers.#.attention.self_attention.value"},
    {"layers.#.attention.out", "encoder.layers.#.attention.output.dense"},
    {"layers.#.norm2", "encoder.layers.#.feed_forward.layer_norm"},
    {"layers.#.ff.in", "encoder.layers.#.feed_forward.dense.dense"},
    {"layers.#.ff.out", "encoder.layers.#.feed_forward.output.dense"},
    {"final_norm", "encoder.layer_norm"},
};
/// Tables of axial positions lie along their axis: [n1, 1, d1] and [1, n2, d2].
constexpr NamePair reformer_heads[] = {
    {"embed.position.axes.0.weight", "reformer.embeddings.position_embeddings.weights.0"},
    {"embed.position.axes.1.weight", "reformer.embeddings.position_embeddings.weights.1"},
    {"head.weight", "lm_head.decoder.weight"},
    {"head.bias", "lm_head.bias"},
};
constexpr std::string_view axial_table = "position_embeddings.weights.";
constexpr std::string_view reformer_unused[] = {"lm_head.decoder.bias"};

/// A bias of tokens that such models keep as [1, V].
constexpr std::string_view logits_bias = "final_logits_bias";
constexpr NamePair sequence_heads[] = {{"head.bias", logits_bias}};
constexpr std::string_view sequence_unused[] = {"encoder.embed_tokens.weight",
                                                "decoder.embed_tokens.weight", "lm_head.weight"};

/// "layers.3.attention.q.weight" in three parts: "layers.#.attention.q", "3", ".weight".
struct SplitName {
  std::string stem, number, kind;
};

SplitName split(const std::string& name) {
  const size_t dot = name.rfind('.');
  SplitName s{name.substr(0, dot), "", name.substr(dot)};
  for (size_t i = 0; i < s.stem.size(); ++i) {
    if (std::isdigit(static_cast<unsigned char>(s.stem[i])) == 0 || i == 0 ||
        s.stem[i - 1] != '.') {
      continue;
    }
    const size_t end = std::min(s.stem.find('.', i), s.stem.size());
    s.number = s.stem.substr(i, end - i);
    s.stem.replace(i, end - i, "#");
    break;
  }
  return s;
}

const NamePair* find(std::span<const NamePair> names, std::string_view ours) {
  for (const NamePair& pair : names) {
    if (pair.ours == ours) return &pair;
  }
  return nullptr;
}

std::string theirs(const CheckpointFormat& format, const std::string& ours) {
  if (const NamePair* whole = find(format.heads, ours)) return std::string(whole->theirs);
  const SplitName s = split(ours);
  const NamePair* base = find(format.base, s.stem);
  const NamePair* pair = base != nullptr ? base : find(format.heads, s.stem);
  require<NotImplemented>(pair != nullptr, kOp, "checkpoints of {} have no name for {}",
                          format.model_type, ours);
  std::string name(pair->theirs);
  if (const size_t place = name.find('#'); place != std::string::npos) {
    name.replace(place, 1, s.number);
  }
  return (base != nullptr ? std::string(format.prefix) : std::string()) + name + s.kind;
}

constexpr std::pair<std::string_view, Activation> activations[] = {
    {"gelu", Activation::gelu_erf},
    {"gelu_new", Activation::gelu_tanh},
    {"gelu_pytorch_tanh", Activation::gelu_tanh},
    {"gelu_fast", Activation::gelu_tanh},
    {"quick_gelu", Activation::gelu_sigmoid},
    {"relu", Activation::relu},
    {"silu", Activation::silu},
};

Activation activation_of(std::string_view name) {
  for (const auto& [theirs, ours] : activations) {
    if (theirs == name) return ours;
  }
  fail<ValueError>(
      kOp,
      "the activation is \"{}\"; expected gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, "
      "quick_gelu, relu or silu",
      name);
}

std::string name_of(Activation f) {
  for (const auto& [theirs, ours] : activations) {
    if (ours == f) return std::string(theirs);
  }
  fail<ValueError>(kOp, "activation = {} has no name in config.json", name_of_value(f));
}

void set_shared(const EncoderKeys& k, EncoderConfig& c) {
  c.vocab = k.vocab_size;
  c.n_layer = k.num_hidden_layers;
  c.n_head = k.num_attention_heads;
  c.d_model = k.hidden_size;
  c.d_ff = k.intermediate_size;
  c.n_max = k.max_position_embeddings;
  c.token_types = k.type_vocab_size;
  c.norm = NormPlace::post;
  c.norm_eps = k.layer_norm_eps;
  c.activation = activation_of(k.hidden_act);
  c.emb_norm = c.out_bias = c.qkv_bias = true;
  c.tie_embedding = k.tie_word_embeddings;
  c.dropout = static_cast<float>(k.hidden_dropout_prob);
  c.dropout_attn = static_cast<float>(k.attention_probs_dropout_prob);
  c.init_std = k.initializer_range;
}

void get_shared(const EncoderConfig& c, EncoderKeys& k) {
  require(c.norm == NormPlace::post && c.emb_norm && c.out_bias && c.token_types > 0, kOp,
          "such models have norm = post, emb_norm, out_bias and token_types > 0");
  k.vocab_size = c.vocab;
  k.num_hidden_layers = c.n_layer;
  k.num_attention_heads = c.n_head;
  k.hidden_size = c.d_model;
  k.intermediate_size = c.d_ff;
  k.max_position_embeddings = c.n_max;
  k.type_vocab_size = c.token_types;
  k.layer_norm_eps = c.norm_eps;
  k.hidden_act = name_of(c.activation);
  k.tie_word_embeddings = c.tie_embedding;
  k.hidden_dropout_prob = static_cast<double>(c.dropout);
  k.attention_probs_dropout_prob = static_cast<double>(or_default(c.dropout_attn, c.dropout));
  k.initializer_range = c.init_std;
}

/// What the configurations of encoder-decoders share.
void set_sequence(const auto& k, auto& c) {
  require(k.tie_word_embeddings, kOp, "tie_word_embeddings is false; expected one table");
  require(k.encoder_layers == k.decoder_layers &&
              k.encoder_attention_heads == k.decoder_attention_heads &&
              k.encoder_ffn_dim == k.decoder_ffn_dim,
          kOp,
          "encoder and decoder have {} and {} layers, {} and {} heads, feed-forward widths {} and "
          "{}; expected the same",
          k.encoder_layers, k.decoder_layers, k.encoder_attention_heads, k.decoder_attention_heads,
          k.encoder_ffn_dim, k.decoder_ffn_dim);
  c.vocab = k.vocab_size;
  c.n_layer = k.encoder_layers;
  c.n_head = k.encoder_attention_heads;
  c.d_model = k.d_model;
  c.d_ff = k.encoder_ffn_dim;
  c.activation = activation_of(k.activation_function);
  c.dropout = static_cast<float>(k.dropout);
  c.dropout_attn = static_cast<float>(k.attention_dropout);
  c.dropout_ffn_act = static_cast<float>(k.activation_dropout);
  c.init_std = k.init_std;
}

void get_sequence(const auto& c, auto& k) {
  k.vocab_size = c.vocab;
  k.encoder_layers = k.decoder_layers = c.n_layer;
  k.encoder_attention_heads = k.decoder_attention_heads = c.n_head;
  k.d_model = c.d_model;
  k.encoder_ffn_dim = k.decoder_ffn_dim = c.d_ff;
  k.activation_function = name_of(c.activation);
  k.dropout = static_cast<double>(c.dropout);
  k.attention_dropout = static_cast<double>(or_default(c.dropout_attn, c.dropout));
  k.activation_dropout = static_cast<double>(or_default(c.dropout_ffn_act, c.dropout));
  k.init_std = c.init_std;
}

/// One-sided windows from sums of both sides.
std::vector<int64_t> one_sided(const std::vector<int64_t>& windows) {
  require(!windows.empty(), kOp, "attention_window is empty; expected one a layer");
  std::vector<int64_t> sides;
  for (const int64_t window : windows) {
    require(window >= 2 && window % 2 == 0, kOp,
            "attention_window has {}; expected even numbers, 2 or more", window);
    sides.push_back(window / 2);
  }
  return sides;
}

/// Rows of the position table before the first position: one for padding, and those before it.
int64_t reserved_rows(std::string_view model_type) { return model_type == "bert" ? 0 : 2; }

}  // namespace

constinit const CheckpointFormat roberta_format{"roberta", "roberta.", encoder_names, roberta_heads,
                                                roberta_unused};
constinit const CheckpointFormat bert_format{"bert", "bert.", encoder_names, bert_heads,
                                             bert_unused};
constinit const CheckpointFormat bigbird_format{"big_bird", "bert.", encoder_names, bigbird_heads,
                                                bigbird_unused};
constinit const CheckpointFormat bigbird_pegasus_format{
    "bigbird_pegasus", "model.", bigbird_pegasus_names, sequence_heads, sequence_unused};
constinit const CheckpointFormat bart_format{"bart", "model.", bart_names, sequence_heads,
                                             sequence_unused};
constinit const CheckpointFormat led_format{"led", "led.", led_names, sequence_heads,
                                            sequence_unused};
constinit const CheckpointFormat reformer_format{"reformer", "reformer.", reformer_names,
                                                 reformer_heads, reformer_unused};
constinit const CheckpointFormat longformer_format{"longformer", "longformer.", longformer_names,
                                                   roberta_heads, roberta_unused};

TensorList named_as(const CheckpointFormat& format, Module& model) {
  TensorList list = named_parameters(model);
  for (NamedTensor& p : list) {
    p.name = theirs(format, p.name);
    if (p.name == logits_bias) {
      const int64_t vocab = p.tensor.dim(0);
      p.tensor = p.tensor.alias({1, vocab}, Strides{vocab, 1}, 0);
    }
    if (p.name.find(axial_table) != std::string::npos) {
      const int64_t n = p.tensor.dim(0), d = p.tensor.dim(1);
      const bool first = p.name.back() == '0';
      p.tensor = first ? p.tensor.alias({n, 1, d}, Strides{d, d, 1}, 0)
                       : p.tensor.alias({1, n, d}, Strides{n * d, d, 1}, 0);
    }
  }
  return list;
}

BigBirdKeys::BigBirdKeys() {
  model_type = "big_bird";
  hidden_act = "gelu_new";
  vocab_size = 50'358;
  max_position_embeddings = 4096;
  type_vocab_size = 2;
}

LongformerKeys::LongformerKeys() {
  model_type = "longformer";
  max_position_embeddings = 4098;
}

void set_encoder(const EncoderKeys& keys, EncoderConfig& c) {
  require(keys.model_type == "roberta" || keys.model_type == "bert", kOp,
          "model_type is \"{}\"; expected \"roberta\" or \"bert\"", keys.model_type);
  const int64_t reserved = reserved_rows(keys.model_type);
  require(keys.max_position_embeddings > reserved, kOp,
          "max_position_embeddings is {}; expected more than the {} reserved rows",
          keys.max_position_embeddings, reserved);
  set_shared(keys, c);
  c.position_offset = reserved;
  c.n_max = keys.max_position_embeddings - reserved;
  c.emb_scale = c.emb_dropout_first = false;
}

EncoderKeys encoder_keys(const EncoderConfig& c, std::string_view model_type) {
  const int64_t reserved = reserved_rows(model_type);
  require(c.position_offset == reserved, kOp,
          "position_offset is {}; a model of type {} has {} rows before the first position",
          c.position_offset, model_type, reserved);
  require(c.qkv_bias && !c.emb_scale && !c.emb_dropout_first, kOp,
          "a model of type {} has qkv_bias, and neither emb_scale nor emb_dropout_first",
          model_type);
  EncoderKeys k;
  get_shared(c, k);
  k.model_type = model_type;
  k.max_position_embeddings = c.n_max + reserved;
  return k;
}

BigBirdConfig bigbird_config(const BigBirdKeys& k) {
  require(k.model_type == "big_bird", kOp, "model_type is \"{}\"; expected \"big_bird\"",
          k.model_type);
  require(k.attention_type == "block_sparse", kOp,
          "attention_type is \"{}\"; expected \"block_sparse\"", k.attention_type);
  BigBirdConfig c;
  set_shared(k, c);
  c.block = k.block_size;
  c.n_random = k.num_random_blocks;
  c.random = RandomPlan::first_1024;
  c.global_last = GlobalLast::padded;
  c.qkv_bias = k.use_bias;
  c.emb_scale = k.rescale_embeddings;
  c.emb_dropout_first = true;
  c.dropout_attn = 0;
  return c;
}

BigBirdKeys bigbird_keys(const BigBirdConfig& c) {
  require(c.position_offset == 0 && c.emb_dropout_first, kOp,
          "a model of type big_bird has position_offset = 0 and emb_dropout_first");
  BigBirdKeys k;
  get_shared(c, k);
  k.block_size = c.block;
  k.num_random_blocks = c.n_random;
  k.use_bias = c.qkv_bias;
  k.rescale_embeddings = c.emb_scale;
  return k;
}

BigBirdPegasusConfig bigbird_pegasus_config(const BigBirdPegasusKeys& k) {
  require(k.model_type == "bigbird_pegasus", kOp,
          "model_type is \"{}\"; expected \"bigbird_pegasus\"", k.model_type);
  require(k.attention_type == "block_sparse", kOp,
          "attention_type is \"{}\"; expected \"block_sparse\"", k.attention_type);
  BigBirdPegasusConfig c;
  set_sequence(k, c);
  c.n_max = c.n_max_target = k.max_position_embeddings;
  c.block = k.block_size;
  c.n_random = k.num_random_blocks;
  c.random = RandomPlan::first_1024;
  c.global_last = GlobalLast::padded;
  c.bias = k.use_bias;
  c.emb_scale = k.scale_embedding;
  c.start_token = k.decoder_start_token_id;
  return c;
}

BigBirdPegasusKeys bigbird_pegasus_keys(const BigBirdPegasusConfig& c) {
  require(!c.couple && c.norm == NormPlace::pre && !c.emb_norm && c.n_max == c.n_max_target &&
              c.norm_eps == 1e-5,
          kOp,
          "a model of type bigbird_pegasus has norm = pre, norm_eps = 1e-5, n_max = n_max_target, "
          "and neither couple nor emb_norm");
  BigBirdPegasusKeys k;
  get_sequence(c, k);
  k.max_position_embeddings = c.n_max;
  k.block_size = c.block;
  k.num_random_blocks = c.n_random;
  k.use_bias = c.bias;
  k.scale_embedding = c.emb_scale;
  k.decoder_start_token_id = c.start_token;
  return k;
}

TransformerConfig bart_config(const BartKeys& k) {
  require(k.model_type == "bart", kOp, "model_type is \"{}\"; expected \"bart\"", k.model_type);
  TransformerConfig c = transformer_preset("bart");
  set_sequence(k, c);
  c.n_max = k.max_position_embeddings;
  c.emb_scale = k.scale_embedding;
  return c;
}

BartKeys bart_keys(const TransformerConfig& c) {
  require(c.wiring == Wiring::encoder_decoder && c.norm == NormPlace::post && c.norm_eps == 1e-5 &&
              c.positions == Positions::learned && c.position_offset == 2 && c.source_tables &&
              (c.source_n_max == 0 || c.source_n_max == c.n_max),
          kOp,
          "a model of type bart has wiring = encoder_decoder, norm = post, norm_eps = 1e-5, "
          "positions = learned, position_offset = 2 and source_tables of n_max rows");
  require(c.tie_embedding && c.emb_norm && c.qkv_bias && c.out_bias && c.head_bias &&
              c.d_embed == 0 && c.source_vocab == 0 && !c.couple,
          kOp,
          "a model of type bart has tie_embedding, emb_norm, qkv_bias, out_bias and head_bias, and "
          "none of d_embed, source_vocab and couple");
  BartKeys k;
  get_sequence(c, k);
  k.max_position_embeddings = c.n_max;
  k.scale_embedding = c.emb_scale;
  return k;
}

LedConfig led_config(const LedKeys& k) {
  require(k.model_type == "led", kOp, "model_type is \"{}\"; expected \"led\"", k.model_type);
  LedConfig c = led_preset("base");
  set_sequence(k, c);
  c.n_max = k.max_encoder_position_embeddings;
  c.n_max_target = k.max_decoder_position_embeddings;
  c.one_sided_window = one_sided(k.attention_window);
  c.start_token = k.decoder_start_token_id;
  return c;
}

LedKeys led_keys(const LedConfig& c) {
  require(c.position_offset == 0 && c.norm_eps == 1e-5, kOp,
          "a model of type led has position_offset = 0 and norm_eps = 1e-5, not {} and {}",
          c.position_offset, c.norm_eps);
  require(c.dilation == std::vector<int64_t>{1} || c.dilated_heads == 0, kOp,
          "a model of type led has no dilation");
  require(!c.one_sided_window.empty(), kOp,
          "one_sided_window is empty; expected an entry for each layer, or one for all");
  LedKeys k;
  get_sequence(c, k);
  k.max_encoder_position_embeddings = c.n_max;
  k.max_decoder_position_embeddings = c.n_max_target;
  k.attention_window.clear();
  for (int64_t i = 0; i < c.n_layer; ++i) {
    const auto last = static_cast<int64_t>(c.one_sided_window.size()) - 1;
    k.attention_window.push_back(2 * c.one_sided_window[static_cast<size_t>(std::min(i, last))]);
  }
  k.decoder_start_token_id = c.start_token;
  return k;
}

ReformerConfig reformer_config(const ReformerKeys& k) {
  require(k.model_type == "reformer", kOp, "model_type is \"{}\"; expected \"reformer\"",
          k.model_type);
  require(k.axial_pos_embds && k.axial_pos_shape.size() == 2 && !k.tie_word_embeddings, kOp,
          "expected axial positions of two axes, and tables that are not tied");
  ReformerConfig c = reformer_variant({}, ReformerVariant::hf);
  c.vocab = k.vocab_size;
  c.n_layer = static_cast<int64_t>(k.attn_layers.size());
  c.n_head = k.num_attention_heads;
  c.d_model = k.hidden_size;
  c.d_ff = k.feed_forward_size;
  c.d_head = k.attention_head_size;
  c.n_max = k.max_position_embeddings;
  c.causal = k.is_decoder;
  c.layers.clear();
  for (const std::string& layer : k.attn_layers) {
    c.layers += (c.layers.empty() ? "" : ",") + layer;
  }
  c.rounds = k.num_hashes;
  c.chunk = k.lsh_attn_chunk_length;
  c.look_back = k.lsh_num_chunks_before;
  c.look_ahead = k.lsh_num_chunks_after;
  c.buckets = k.num_buckets;
  c.local_chunk = k.local_attn_chunk_length;
  c.local_back = k.local_num_chunks_before;
  c.local_ahead = k.local_num_chunks_after;
  c.position_shape = k.axial_pos_shape;
  c.position_widths = k.axial_pos_embds_dim;
  c.activation = activation_of(k.hidden_act);
  c.norm_eps = k.layer_norm_eps;
  c.head_bias = true;
  c.dropout = static_cast<float>(k.hidden_dropout_prob);
  c.dropout_attn = static_cast<float>(k.lsh_attention_probs_dropout_prob);
  c.dropout_local = static_cast<float>(k.local_attention_probs_dropout_prob);
  c.init_std = c.embed_std = k.initializer_range;
  c.position_std = k.axial_norm_std;
  return c;
}

ReformerKeys reformer_keys(const ReformerConfig& c) {
  const bool by_hf_rule = !c.buckets.empty() || c.bucket_rule == BucketRule::hf;
  require(!c.same_bucket && c.duplicates == LshDuplicates::off && c.wrap == LshWrap::global &&
              c.whole_chunks && c.full_below == 0 && by_hf_rule &&
              c.logit_scale == LshScale::official && c.self_logit == -1e5 && !c.mean_exit &&
              c.axes().size() == 2 && c.head_bias,
          kOp,
          "such models attend as reformer_variant(hf), with head_bias and a position_shape of two "
          "axes");
  ReformerKeys k;
  k.vocab_size = c.vocab;
  k.num_attention_heads = c.n_head;
  k.hidden_size = c.d_model;
  k.feed_forward_size = c.d_ff;
  k.attention_head_size = c.d_head > 0 ? c.d_head : c.d_model / c.n_head;
  k.max_position_embeddings = c.n_max;
  k.is_decoder = c.causal;
  k.attn_layers.clear();
  for (int64_t i = 0; i < c.n_layer; ++i) k.attn_layers.emplace_back(name_of_value(c.layer(i)));
  k.num_hashes = c.rounds;
  k.lsh_attn_chunk_length = c.chunk;
  k.lsh_num_chunks_before = c.look_back;
  k.lsh_num_chunks_after = c.look_ahead;
  const LshBuckets by_rule = lsh_auto_buckets_hf(c.n_max, c.chunk, c.n_max);
  k.num_buckets = c.buckets;
  if (c.buckets.empty()) k.num_buckets = {by_rule.first};
  if (c.buckets.empty() && by_rule.second > 1) k.num_buckets.push_back(by_rule.second);
  k.local_attn_chunk_length = c.local_chunk > 0 ? c.local_chunk : c.chunk;
  k.local_num_chunks_before = c.local_back;
  k.local_num_chunks_after = c.local_ahead;
  k.axial_pos_shape = c.axes();
  k.axial_pos_embds_dim = c.axis_widths();
  k.hidden_act = name_of(c.activation);
  k.layer_norm_eps = c.norm_eps;
  k.hidden_dropout_prob = static_cast<double>(c.dropout);
  k.lsh_attention_probs_dropout_prob = static_cast<double>(c.dropout_attn);
  k.local_attention_probs_dropout_prob = static_cast<double>(c.dropout_local);
  k.initializer_range = c.init_std;
  k.axial_norm_std = c.position_std;
  return k;
}

LongformerConfig longformer_config(const LongformerKeys& k) {
  require(k.model_type == "longformer", kOp, "model_type is \"{}\"; expected \"longformer\"",
          k.model_type);
  EncoderKeys shared = k;
  shared.model_type = "roberta";  // whose tables these are
  LongformerConfig c;
  set_encoder(shared, c);
  c.one_sided_window = one_sided(k.attention_window);
  return c;
}

LongformerKeys longformer_keys(const LongformerConfig& c) {
  require(c.dilation == std::vector<int64_t>{1} || c.dilated_heads == 0, kOp,
          "a model of type longformer has no dilation");
  LongformerKeys k;
  static_cast<EncoderKeys&>(k) = encoder_keys(c, "roberta");
  k.model_type = "longformer";
  k.attention_window.clear();
  for (int64_t i = 0; i < c.n_layer; ++i) {
    k.attention_window.push_back(2 * longformer_attention(c, i).one_sided_window);
  }
  return k;
}

}  // namespace longspan
