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

/// The same names and the global projections.
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

/// The names that encoder-decoders in BART's shape share.
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

/// Concatenates a model's own names and sequence_names.
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
/// Tables of axial positions have shapes [n1, 1, d1] and [1, n2, d2].
constexpr NamePair reformer_heads[] = {
    {"embed.position.axes.0.weight", "reformer.embeddings.position_embeddings.weights.0"},
    {"embed.position.axes.1.weight", "reformer.embeddings.position_embeddings.weights.1"},
    {"head.weight", "lm_head.decoder.weight"},
    {"head.bias", "lm_head.bias"},
};
constexpr std::string_view axial_table = "position_embeddings.weights.";
constexpr std::string_view reformer_unused[] = {"lm_head.decoder.bias"};

/// The token bias, which such models store as [1, V].
constexpr std::string_view logits_bias = "final_logits_bias";
constexpr NamePair sequence_heads[] = {{"head.bias", logits_bias}};
constexpr std::string_view sequence_unused[] = {"encoder.embed_tokens.weight",
                                                "decoder.embed_tokens.weight", "lm_head.weight"};

/// Splits "layers.3.attention.q.weight" into "layers.#.attention.q", "3" and ".weight".
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

}  // namespace longspan
