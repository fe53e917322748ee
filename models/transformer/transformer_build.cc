// Construction of a Transformer: checks of its configuration, its parameters and their
// initialization.

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/transformer/transformer.h"
#include "nn/attention/entmax.h"

namespace longspan {
namespace {

constexpr int64_t kSinusoidRows = 1 << 16;  // at most; those of later positions are not kept

Scheme scheme_of(const TransformerConfig& c) {
  switch (c.init) {
    case Weights::xavier_uniform:
      return Scheme::xavier_uniform();
    case Weights::truncated_normal:
      return Scheme::truncated_normal(c.init_std);
    case Weights::orthogonal:
      return Scheme::orthogonal();
    case Weights::normal:
      break;
  }
  return Scheme::normal(c.init_std);
}

/// For tables that are looked up, not multiplied: with a factor sqrt(D), std D^-1/2 gives unit
/// variance.
Scheme table_scheme(const TransformerConfig& c) {
  return Scheme::normal(c.emb_scale ? 1 / std::sqrt(static_cast<double>(c.d_model)) : c.init_std);
}

Scheme token_scheme(const TransformerConfig& c) {
  return c.embed_std > 0 ? Scheme::normal(c.embed_std) : table_scheme(c);
}

void require_consistent(const TransformerConfig& c) {
  check_fields(TransformerConfig::model_name, c);
  require(c.position_offset == 0 || c.positions == Positions::learned,
          TransformerConfig::model_name, "position_offset needs positions = learned");
  require(!c.source_tables || c.wiring == Wiring::encoder_decoder, TransformerConfig::model_name,
          "source_tables needs wiring = encoder_decoder");
  require(!c.couple || c.wiring == Wiring::encoder_decoder, TransformerConfig::model_name,
          "couple needs wiring = encoder_decoder");
  require(!c.couple || c.positions != Positions::shaw, TransformerConfig::model_name,
          "couple is not for positions = shaw: what comes later has no rows in a decoder");
  require(c.alpha >= 1 && c.alpha <= 2, TransformerConfig::model_name,
          "alpha is {}; expected 1 to 2", c.alpha);
  require(!c.sparse_probabilities() || c.positions != Positions::shaw,
          TransformerConfig::model_name,
          "alpha > 1 and learn_alpha have no relative terms; set positions to sinusoid or learned");
  require(!c.sparse_probabilities() || (c.local != Locality::block && !c.couple),
          TransformerConfig::model_name,
          "alpha > 1 and learn_alpha are not for local = block and couple");
  const bool own_sizes = c.target_n_layer > 0 || c.target_n_head > 0 || c.target_d_ff > 0;
  require(!own_sizes || c.wiring == Wiring::encoder_decoder, TransformerConfig::model_name,
          "target_n_layer, target_n_head and target_d_ff need wiring = encoder_decoder");
  require(!own_sizes || !c.couple, TransformerConfig::model_name,
          "couple shares the layers of both sides; leave target_n_layer, target_n_head and "
          "target_d_ff at 0");
  require(c.d_head > 0 || c.target_n_head == 0 || c.d_model % c.target_n_head == 0,
          TransformerConfig::model_name,
          "d_model {} is not a multiple of target_n_head {}; set d_head", c.d_model,
          c.target_n_head);
  require(c.padding_id >= -1 && c.padding_id < c.vocab, TransformerConfig::model_name,
          "padding_id is {}; expected a token below vocab = {}, or -1: none", c.padding_id,
          c.vocab);
  require((c.tags == 0 && !c.span_head) || c.wiring == Wiring::decoder,
          TransformerConfig::model_name,
          "tags and span_head need wiring = decoder; encoders with such heads are blockbert's");
  require(!c.types_share_table || c.token_types == 0, TransformerConfig::model_name,
          "types_share_table needs token_types = 0");
  require(c.source_n_max == 0 || c.source_tables, TransformerConfig::model_name,
          "source_n_max needs source_tables");
  require(c.d_head > 0 || c.d_model % c.n_head == 0, TransformerConfig::model_name,
          "d_model {} is not a multiple of n_head {}; set d_head", c.d_model, c.n_head);
  require(c.local == Locality::none || c.window >= 1, TransformerConfig::model_name,
          "window is {}; expected 1 or more with local = {}", c.window, name_of_value(c.local));
  require(c.local == Locality::none || c.wiring != Wiring::encoder_decoder,
          TransformerConfig::model_name,
          "local attention is for decoders and encoders, not for encoder_decoder");
  require(c.local != Locality::block || c.wiring == Wiring::decoder, TransformerConfig::model_name,
          "local = block is causal: it needs wiring = decoder; use local = exact");
  require(!c.mlm_head || c.wiring == Wiring::encoder, TransformerConfig::model_name,
          "mlm_head needs wiring = encoder");
  require(c.source_vocab == 0 || c.wiring == Wiring::encoder_decoder, TransformerConfig::model_name,
          "source_vocab needs wiring = encoder_decoder");
  require((!c.layer_loss && c.n_target == 1) || c.wiring == Wiring::decoder,
          TransformerConfig::model_name, "layer_loss and n_target > 1 need wiring = decoder");
  require(c.cutoffs.empty() || c.wiring == Wiring::decoder, TransformerConfig::model_name,
          "cutoffs need wiring = decoder; this is wiring = {}", name_of_value(c.wiring));
  require(c.cutoffs.empty() || (!c.layer_loss && c.n_target == 1), TransformerConfig::model_name,
          "layer_loss and n_target > 1 have classifiers over all tokens; leave out cutoffs");
  require(c.cutoffs.empty() || c.label_smoothing == 0, TransformerConfig::model_name,
          "label_smoothing is for one softmax over all tokens; leave it at 0 or leave out cutoffs");
}

DecoderOptions decoder_of(const TransformerConfig& c) {
  require_consistent(c);
  DecoderOptions o = decoder_options(TransformerConfig::model_name, c);
  o.d_embed = c.d_embed;
  o.token = token_scheme(c);
  o.classifier = scheme_of(c);
  o.tie_embedding = c.tie_embedding;
  o.head_bias = c.head_bias;
  o.constant_bias = c.constant_bias;
  o.cutoffs = c.cutoffs;
  o.div_value = c.div_value;
  o.tie_projections = c.tie_projections;
  o.projections = scheme_of(c);
  return o;
}

/// The factor of q . k in layer i; 0: 1 / sqrt(d).
double scale_of(const TransformerConfig& c, int64_t d_head, int64_t i) {
  switch (c.attention_scale) {
    case AttentionScale::none:
      return 1;
    case AttentionScale::by_layer:
      return 1 / (std::sqrt(static_cast<double>(d_head)) * static_cast<double>(i + 1));
    case AttentionScale::sqrt_width:
      break;
  }
  return 0;
}

/// The blocks of a stack: how many, and their layers.
struct Blocks {
  int64_t n_layer;
  AttentionOptions attention;
  FeedForwardOptions ff;
};

/// Returns the blocks of a decoder with cross-attention (`cross`), which may have sizes of its own,
/// or of any other stack.
Blocks blocks_of(const TransformerConfig& c, bool cross) {
  const auto size = [&](int64_t target, int64_t both) {
    return cross && target > 0 ? target : both;
  };
  const int64_t branches = cross ? 3 : 2;
  const int64_t n_layer = size(c.target_n_layer, c.n_layer);
  const int64_t n_head = size(c.target_n_head, c.n_head);
  const Scheme weights = scheme_of(c);
  const double residual =
      c.init_residual_scale ? 1 / std::sqrt(static_cast<double>(branches * n_layer)) : 1.0;
  return {.n_layer = n_layer,
          .attention = {.d_model = c.d_model,
                        .n_head = n_head,
                        .d_head = c.d_head > 0 ? c.d_head : c.d_model / n_head,
                        .qkv_bias = c.qkv_bias,
                        .out_bias = c.out_bias,
                        .share_qk = c.share_qk,
                        .dropout = or_default(c.dropout_attn, c.dropout),
                        .weights = weights,
                        .out_weights = weights.scaled(residual)},
          .ff = {.d_model = c.d_model,
                 .d_ff = size(c.target_d_ff, c.d_ff),
                 .activation = c.activation,
                 .dropout = or_default(c.dropout_ffn_act, c.dropout),
                 .weights = weights,
                 .out_weights = weights.scaled(residual)}};
}

/// Attention with softmax, or with entmax where the configuration wants it.
std::unique_ptr<Layer> attention_of(const TransformerConfig& c, const AttentionOptions& options,
                                    const ShawTables& tables, const Init& init) {
  if (!c.sparse_probabilities()) return std::make_unique<MultiHead>(options, tables, init);
  const EntmaxOptions entmax{.alpha = c.alpha, .learned = c.learn_alpha};
  return std::make_unique<EntmaxAttention>(options, entmax, init);
}

/// A branch that shares the parameters of another block's branch.
template <class L>
Branch shared_branch(const Block& block, const char* name) {
  const Branch& b = block.branch(name);
  const auto* layer = dynamic_cast<const L*>(b.layer.get());
  require(layer != nullptr, TransformerConfig::model_name,
          "couple is for encoders of the Transformer's own layers");
  return {name, b.norm, std::make_unique<L>(*layer)};
}

}  // namespace

Stack Transformer::make_stack(bool causal, bool cross, ShawTables& shared, const Init& init,
                              const MakeAttention& make_attention,
                              std::vector<std::unique_ptr<Layer>> attention_layers,
                              const Stack* coupled) const {
  const TransformerConfig& c = config_;
  const auto [n_layer, attention_each, ff] = blocks_of(c, cross);
  const int64_t n_head = attention_each.n_head;
  AttentionOptions attention = attention_each, across = attention_each;
  across.cross = true;
  across.share_qk = false;
  const ShawOptions shaw{.clip = c.shaw_clip,
                         .values = c.shaw_values,
                         .per_head = c.shaw_per_head,
                         .two_sided = c.shaw_two_sided || !causal};
  const bool relative = c.positions == Positions::shaw;
  const auto tables = [&](const Init& at) {
    return ShawTables(shaw, n_head, attention.d_head, at, table_scheme(c));
  };
  if (relative && c.shaw_share_layers) shared = tables(init.at("shared"));

  std::vector<Block> blocks;
  for (int64_t i = 0; i < n_layer; ++i) {
    const Init at = init.at("layers").at(i);
    attention.scale = scale_of(c, attention.d_head, i);
    const auto norm = [&](const char* label) {
      return Normalization(NormKind::layer, c.d_model, c.norm_eps, at.at(label));
    };
    const Block* other = coupled != nullptr ? &coupled->block(i) : nullptr;
    ShawTables own = shared;
    if (relative && !c.shaw_share_layers) own = tables(at.at("attention"));
    std::vector<Branch> list;
    std::unique_ptr<Layer> own_attention;
    if (other != nullptr) {
      list.push_back(shared_branch<MultiHead>(*other, "attention"));
    } else if (!attention_layers.empty()) {
      own_attention = std::move(attention_layers[static_cast<size_t>(i)]);
    } else if (make_attention) {
      own_attention = make_attention(attention, causal, at.at("attention"));
    } else {
      own_attention = attention_of(c, attention, own, at.at("attention"));
    }
    if (other == nullptr) list.push_back({"attention", norm("norm1"), std::move(own_attention)});
    if (cross) {
      list.push_back({"cross", norm("norm2"), attention_of(c, across, {}, at.at("cross"))});
    }
    if (other != nullptr) {
      list.push_back(shared_branch<FeedForward>(*other, "ff"));
    } else {
      list.push_back({"ff", norm("norm3"), std::make_unique<FeedForward>(ff, at.at("ff"))});
    }
    LearnedPositions positions;
    if (c.positions == Positions::learned_per_layer) {
      const Scheme scheme = Scheme::normal(c.init_std);
      positions = LearnedPositions(c.n_max, c.d_model, at.at("position"), scheme);
    }
    blocks.emplace_back(c.norm, c.dropout, std::move(list), std::move(positions));
  }
  std::optional<Normalization> final_norm;
  if (c.norm == NormPlace::pre) {
    final_norm.emplace(NormKind::layer, c.d_model, c.norm_eps, init.at("final_norm"));
    if (coupled != nullptr) final_norm = coupled->final_norm();
  }
  return Stack(std::move(blocks), std::move(final_norm), c.memory);
}

Transformer::Transformer(const TransformerConfig& config, const Init& init,
                         const MakeAttention& make_attention,
                         std::vector<std::unique_ptr<Layer>> encoder_attention)
    : CausalDecoder(decoder_of(config), init), config_(config) {
  const TransformerConfig& c = config_;
  require(
      encoder_attention.empty() || (c.wiring == Wiring::encoder_decoder &&
                                    static_cast<int64_t>(encoder_attention.size()) == c.n_layer),
      TransformerConfig::model_name, "{} attention layers for an encoder of {}",
      encoder_attention.size(), c.n_layer);
  const Init embed = init.at("embed");
  const int64_t width = c.d_embed > 0 ? c.d_embed : c.d_model;
  if (c.source_vocab > 0) {
    source_ = Embedding(c.source_vocab, width, embed.at("source"), token_scheme(c));
  }
  if (c.projects()) {
    embed_projection_ = Linear(width, c.d_model, false, embed.at("projection"), scheme_of(c));
    head_projection_ =
        Linear(c.d_model, width, false, init.at("head").at("projection"), scheme_of(c));
  }
  if (c.positions == Positions::learned) {
    const auto rows = [&](const char* label, int64_t n) {
      return LearnedPositions(c.position_offset + n, c.d_model, embed.at(label),
                              Scheme::normal(c.init_std));
    };
    position_ = rows("position", c.n_max);
    if (c.source_tables) {
      source_position_ = rows("source_position", c.source_n_max > 0 ? c.source_n_max : c.n_max);
    }
  }
  if (c.positions == Positions::sinusoid && !init.meta) {
    const int64_t rows = std::min(c.n_max, kSinusoidRows);
    sinusoid_ = longspan::sinusoid(0, rows, c.d_model, c.sinusoid, init.dtype, init.device);
  }
  if (c.token_types > 0) {
    type_ = Embedding(c.token_types, c.d_model, embed.at("type"), Scheme::normal(c.init_std));
  }
  if (c.emb_norm) {
    const auto norm = [&](const char* label) {
      return Normalization(NormKind::layer, c.d_model, c.norm_eps, embed.at(label));
    };
    embed_norm_ = norm("norm");
    if (c.source_tables) source_norm_ = norm("source_norm");
  }
  if (c.wiring == Wiring::encoder_decoder) {
    encoder_ = make_stack(false, false, encoder_shared_, init.at("encoder"), make_attention,
                          std::move(encoder_attention));
    stack_ = make_stack(true, true, shared_, init.at("decoder"), make_attention, {},
                        c.couple ? &encoder_ : nullptr);
  } else {
    stack_ = make_stack(c.wiring == Wiring::decoder, false, shared_, init, make_attention);
  }
  if (c.mlm_head) {
    mlm_ = TokenTransform(c.d_model, c.d_model, c.activation, c.norm_eps, init.at("mlm"),
                          scheme_of(c));
  }
  for (int64_t layer = c.layer_loss ? 1 : c.n_layer; layer <= c.n_layer; ++layer) {
    const Init at = init.at("auxiliary").at(layer);
    const bool last = layer == c.n_layer;
    AuxiliaryHead aux;
    if (!last && c.norm == NormPlace::pre) {
      aux.norm.emplace(NormKind::layer, c.d_model, c.norm_eps, at.at("norm"));
    }
    for (int64_t further = last ? 1 : 0; further < c.n_target; ++further) {
      aux.targets.emplace_back(c.d_model, c.vocab, c.head_bias, at.at(further), scheme_of(c));
    }
    auxiliary_.push_back(std::move(aux));
  }
  const bool decoder = c.wiring == Wiring::decoder;
  if (c.classes > 0 && !decoder) {
    classes_ = PooledHead(c.d_model, c.classes, init, scheme_of(c));
  }
  if (c.classes > 0 && decoder) {
    last_classes_ = Linear(c.d_model, c.classes, false, init.at("classes"), scheme_of(c));
  }
  if (c.tags > 0) tags_ = Linear(c.d_model, c.tags, true, init.at("tags"), scheme_of(c));
  if (c.span_head) spans_ = Linear(c.d_model, 2, true, init.at("spans"), scheme_of(c));
}

void Transformer::visit(Visitor& v) {
  v("embed.token", token_)("embed.token", adaptive_)("embed.source", source_)(
      "embed.position", position_)("embed.type", type_)("embed.norm", embed_norm_)(
      "embed.projection", embed_projection_);
  if (config_.source_tables) {
    if (source_position_.weight) v("embed.source_position", source_position_);
    if (config_.emb_norm) v("embed.source_norm", source_norm_);
  }
  if (config_.wiring == Wiring::encoder_decoder) {
    v("encoder.shared", encoder_shared_)("encoder", encoder_);
    v("decoder.shared", shared_)("decoder", stack_);
  } else {
    v("shared", shared_);
    stack_.visit(v);
  }
  v("mlm", mlm_)("head.projection", head_projection_);
  v("head", head_)("head", adaptive_head_)("auxiliary", auxiliary_);
  classes_.visit(v);
  v("classes", last_classes_)("tags", tags_)("spans", spans_);
}

}  // namespace longspan
