// Construction of ETC: checks of its configuration, parameters and presets.

#include <utility>

#include "models/etc/etc.h"
#include "models/model_spec.h"

namespace longspan {
namespace {

/// Sec. B.1: relation tables have a wide initialization.
constexpr double kRelationStd = 0.5;

constexpr TrainingDefaults etc_few_steps{
    .length = 512, .batch = 4, .steps = 500, .lr = 2e-3, .warmup = 50, .clip = 1};
/// 512 and 1,024 samples a step (sec. 3.1), with LAMB; the length of the warm-up is our choice.
constexpr TrainingDefaults etc_published(int64_t batch, double rate = 2.8284271247461905e-3) {
  return {.length = 4096,
          .batch = batch,
          .steps = 63'000,
          .lr = rate,  // sqrt(8) 1e-3
          .warmup = 6'300,
          .lr_floor = 0,
          .clip = 1,
          .weight_decay = 0.01};
}

constexpr Preset etc_presets[] = {
    // Few steps learn more without dropout and with wider initialization; docs/etc.md.
    {"small", "4 layers of 128, radius 32, 16 bytes to a global; masked bytes in minutes", "",
     "dropout=0 init_std=0.05", etc_few_steps},
    // Relations up to RelationLabels::has_part().
    {"structured", "small for sentences in paragraphs: labels of a hierarchy, hidden sentences",
     "small", "cpc=true relations=22", etc_few_steps},
    {"tiny",
     "2 layers of 16, radius 4, 23 tokens; for tests",
     "",
     "vocab=23 mask_id=22 global_id=21 n_layer=2 n_head=2 d_model=16 d_ff=32 n_long=29 n_global=5 "
     "radius=4 max_distance=3 dropout=0",
     {.length = 22, .batch = 4, .steps = 200}},
    {"base", "12 layers of 768, radius 84, distances to 12, 166 million parameters", "",
     "vocab=30522 mask_id=103 global_id=1 n_layer=12 n_head=12 d_model=768 d_ff=3072 n_long=4096 "
     "n_global=230 radius=84 max_distance=12 relations=32 cpc=true",
     etc_published(512)},
    {"base_shared", "the same with one set of projections, 109 million parameters", "base",
     "share_qkv=true share_out=true", etc_published(512)},
    {"base_wide", "base with distances to 42, the released checkpoint", "base",
     "relations=0 max_distance=42", etc_published(512)},
    {"large", "24 layers of 1024, radius 169, distances to 24, 539 million parameters", "base",
     "relations=0 n_layer=24 n_head=16 d_model=1024 d_ff=4096 radius=169 max_distance=24",
     etc_published(1024)},
    {"large_roberta", "large over RoBERTa's vocabulary, 558 million parameters", "large",
     "vocab=50265 mask_id=50264", etc_published(1024, 2e-3)},
};

std::unique_ptr<ModelSpec> etc_spec(std::string_view preset) {
  return preset_spec<Etc, EtcConfig>(EtcConfig::model_name, etc_presets, preset);
}

Scheme weights_of(const EtcConfig& c) { return Scheme::truncated_normal(c.init_std); }

Normalization make_norm(const EtcConfig& c, const Init& init) {
  return {NormKind::layer, c.d_model, c.norm_eps, init};
}

constexpr const char* pieces[] = {"l2l", "l2g", "g2g", "g2l"};
constexpr const char* sides[] = {"long", "global"};

Block feed_forward(const EtcConfig& c, const Init& init) {
  const FeedForwardOptions ff{.d_model = c.d_model,
                              .d_ff = c.d_ff,
                              .activation = c.activation,
                              .weights = weights_of(c),
                              .out_weights = weights_of(c)};
  std::vector<Branch> branches;
  branches.push_back(
      {"ff", make_norm(c, init.at("norm1")), std::make_unique<FeedForward>(ff, init.at("ff"))});
  return Block(c.norm, c.dropout, std::move(branches));
}

LinkedBlock make_block(const EtcConfig& c, const Init& init) {
  std::vector<Block> ff;
  if (c.share_ff) {
    ff.push_back(feed_forward(c, init.at("feed_forward")));
  } else {
    for (const char* s : sides) ff.push_back(feed_forward(c, init.at(s)));
  }
  return {c.norm,
          c.dropout,
          std::make_unique<EtcAttention>(c, init.at("attention")),
          make_norm(c, init.at("norm_long")),
          make_norm(c, init.at("norm_global")),
          std::move(ff)};
}

}  // namespace

void require_consistent(const EtcConfig& c) {
  check_fields(EtcConfig::model_name, c);
  require(c.n_random >= 0, EtcConfig::model_name, "n_random is {}; expected 0 or more", c.n_random);
  require_heads(EtcConfig::model_name, c.d_model, c.n_head);
  require(c.relations == 0 || c.relations >= 2 * c.max_distance + 4, EtcConfig::model_name,
          "relations is {}; expected 2 max_distance + 4 = {} or more, or 0: as many", c.relations,
          2 * c.max_distance + 4);
  require(c.token_types == 0 || c.token_types >= 2, EtcConfig::model_name,
          "token_types is {}; expected 2 or more, for globals and long tokens, or 0: none",
          c.token_types);
  for (const auto& [name, id] : {std::pair{"mask_id", c.mask_id}, {"global_id", c.global_id}}) {
    require(id >= 0 && id < c.vocab, EtcConfig::model_name,
            "{} is {}; expected 0 to vocab - 1 = {}", name, id, c.vocab - 1);
  }
  require(!c.global_positions || c.n_positions > 0, EtcConfig::model_name,
          "global_positions needs n_positions > 0, the rows of their table");
}

EtcAttention::EtcAttention(const EtcConfig& config, const Init& init) : config_(config) {
  const EtcConfig& c = config_;
  const auto projection = [&](const Init& at) {
    return Linear(c.d_model, c.d_model, true, at, weights_of(c));
  };
  for (size_t s : {from_long, from_global}) {
    const Init at = init.at(sides[s]);
    if (stored_query(static_cast<Side>(s)) == s) q_[s] = projection(at.at("q"));
    if (stored_out(static_cast<Side>(s)) == s) out_[s] = projection(at.at("out"));
    if (!c.labels) continue;
    const int64_t r = c.label_count(), h = c.n_head;
    a_[s] = at.at("a").make({r, h, c.d_model / h}, Scheme::truncated_normal(kRelationStd));
    if (c.rel_bias) b_[s] = at.at("b").make({r, h}, Scheme::zeros());
  }
  for (size_t p : {l2l, l2g, g2g, g2l}) {
    if (stored(static_cast<Piece>(p)) != p) continue;
    k_[p] = projection(init.at(pieces[p]).at("k"));
    v_[p] = projection(init.at(pieces[p]).at("v"));
  }
  const RelationLabels labels{c.max_distance};
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < c.label_count(); ++i) rows.push_back(labels.label(i));
  rows_ = Tensor::from(rows, {c.label_count()}, init.device);
}

void EtcAttention::visit(Visitor& v) {
  const auto name = [](const char* part, const char* what) { return std::string(part) + what; };
  for (size_t s : {from_long, from_global}) {
    if (q_[s].weight) v(name(sides[s], ".q"), q_[s]);
    if (out_[s].weight) v(name(sides[s], ".out"), out_[s]);
    v(name(sides[s], ".relation_key"), a_[s])(name(sides[s], ".relation_bias"), b_[s]);
  }
  for (size_t p : {l2l, l2g, g2g, g2l}) {
    if (k_[p].weight) v(name(pieces[p], ".k"), k_[p])(name(pieces[p], ".v"), v_[p]);
  }
}

EtcEncoder::EtcEncoder(const EtcConfig& config, const Init& init)
    : config_(config), compute_(compute_dtype(config.precision, init.dtype)) {
  const EtcConfig& c = config_;
  const Init tables = init.at("embed");
  token_ = Embedding(c.vocab, c.width(), tables.at("token"), weights_of(c));
  if (c.token_types > 0) {
    type_ = Embedding(c.token_types, c.d_model, tables.at("type"), weights_of(c));
  }
  if (c.d_embed > 0) {
    projection_ = Linear(c.d_embed, c.d_model, true, tables.at("projection"), weights_of(c));
  }
  if (c.global_features > 0) {
    features_ = Linear(c.global_features, c.d_model, true, tables.at("features"), weights_of(c));
  }
  if (c.n_positions > 0) {
    position_ = LearnedPositions(c.n_positions, c.d_model, tables.at("position"), weights_of(c));
  }
  if (c.global_positions) {
    global_position_ =
        LearnedPositions(c.n_positions, c.d_model, tables.at("global_position"), weights_of(c));
  }
  norm_l_ = make_norm(c, tables.at("norm_long"));
  norm_g_ = make_norm(c, tables.at("norm_global"));
  std::vector<LinkedBlock> blocks;
  for (int64_t i = 0; i < c.n_layer; ++i) blocks.push_back(make_block(c, init.at("layers").at(i)));
  std::optional<Normalization> last;
  if (c.norm == NormPlace::pre && c.final_norm) last = make_norm(c, init.at("final_norm"));
  layers_ = LinkedStack(c.norm, std::move(blocks), last, c.memory, compute_);
}

void EtcEncoder::visit(Visitor& v) {
  v("embed.token", token_)("embed.type", type_)("embed.projection", projection_);
  v("embed.features", features_)("embed.position", position_);
  v("embed.global_position", global_position_);
  v("embed.norm_long", norm_l_)("embed.norm_global", norm_g_);
  layers_.visit(v);
}

Etc::Etc(const EtcConfig& config, const Init& init)
    : config_((require_consistent(config), config)), encoder_(config, init) {
  const EtcConfig& c = config_;
  const Scheme weights = weights_of(c);
  mlm_ = TokenTransform(c.d_model, c.d_model, c.activation, c.norm_eps, init.at("mlm"), weights);
  const Init head = init.at("head");
  if (c.d_embed > 0) {
    head_projection_ = Linear(c.d_model, c.d_embed, true, head.at("projection"), weights);
  }
  head_.weight = c.tie_embedding ? encoder_.tokens().weight
                                 : head.at("weight").make({c.vocab, c.width()}, weights);
  head_.bias = head.at("bias").make({c.vocab}, Scheme::zeros());
  if (c.cpc) {
    const Init at = init.at("cpc");
    if (c.cpc_encoder == CpcEncoder::separate) cpc_encoder_.emplace(c, at.at("encoder"));
    if (c.cpc_score == CpcScore::bilinear) {
      cpc_weight_ = at.at("weight").make({c.d_model, c.d_model}, weights);
    }
  }
  if (c.classes > 0) classes_ = PooledHead(c.d_model, c.classes, init, weights);
  if (c.span_head) spans_ = Linear(c.d_model, 2, true, init.at("spans"), weights);
  if (c.global_tags > 0) {
    global_tags_ = Linear(c.d_model, c.global_tags, true, init.at("global_tags"), weights);
  }
  phrases_ = PhraseHead(c.d_model, c.phrases, c.activation, init.at("phrases"), weights);
}

void Etc::visit(Visitor& v) {
  encoder_.visit(v);
  v("mlm", mlm_)("head.projection", head_projection_)("head", head_);
  v("cpc.encoder", cpc_encoder_)("cpc.weight", cpc_weight_);
  classes_.visit(v);
  v("spans", spans_)("global_tags", global_tags_)("phrases", phrases_);
}

EtcConfig etc_preset(std::string_view name) {
  return preset_of<EtcConfig>(EtcConfig::model_name, etc_presets, name);
}

const ModelEntry& etc_entry() {
  static const ModelEntry entry{
      EtcConfig::model_name,
      "encoder of long tokens in a window and of globals, with labels of relations", etc_presets,
      etc_spec};
  return entry;
}

}  // namespace longspan
