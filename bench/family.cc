#include "bench/family.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "bench/harness.h"
#include "core/error.h"
#include "core/kernels/copy.h"
#include "models/bigbird/bigbird.h"
#include "models/blockbert/blockbert.h"
#include "models/etc/etc.h"
#include "models/longformer/global_tokens.h"
#include "models/longformer/longformer.h"
#include "models/sparse_transformer/sparse_transformer.h"
#include "nn/attention/multi_head.h"
#include "ops/patterns/window.h"

namespace longspan::bench {
namespace {

constexpr const char* op = "family";

constexpr Family all[] = {
    {"dense", false, 2.0},     {"causal", true, 2.0},
    {"fixed", true, 1.5},      {"strided", true, 1.5},
    {"blockbert", false, 2.0}, {"bigbird", false, 1.0},
    {"longformer", false, 1},  {"longformer_globals", false, 1},
    {"led", false, 1.0},       {"etc", false, 1.0},
};

AttentionOutline whole(AttentionPattern pattern, int64_t length, int64_t heads) {
  AttentionOutline outline{.rows = length, .columns = length, .heads = heads, .calls = {}};
  outline.calls.push_back({.pattern = std::move(pattern), .queries = length, .keys = length});
  return outline;
}

FamilyLayer dense(bool causal, int64_t length, int64_t heads) {
  return {.options = "",
          .outline = whole(causal ? patterns::causal() : patterns::dense(), length, heads),
          .pairs = heads * (causal ? length * (length + 1) / 2 : length * length)};
}

FamilyLayer band(bool causal, int64_t reach, int64_t length, int64_t heads) {
  const int64_t both = patterns::window_pairs(length, reach);
  return {.options = fmt::format("{} keys{}", reach, causal ? " before" : " a side"),
          .outline =
              whole(causal ? patterns::local(reach + 1) : patterns::local_bidirectional(2 * reach),
                    length, heads),
          .pairs = heads * (causal ? (both + length) / 2 : both)};
}

/// Returns the multiple of 16 nearest to sqrt(length), at least 16.
int64_t usual_stride(int64_t length) {
  return std::max<int64_t>(1, std::lround(std::sqrt(static_cast<double>(length)) / 16)) * 16;
}

/// 1 + 2 + ... + n.
int64_t triangle(int64_t n) { return n > 0 ? n * (n + 1) / 2 : 0; }

/// Pairs of a head of the Sparse Transformer over `length` tokens: the last l keys and every l-th
/// one before, or the own block of l keys and c summary keys of each block before.
int64_t sparse_pairs(bool strided, int64_t l, int64_t c, int64_t length) {
  const int64_t a = length / l, r = length % l, width = std::min(l, length);
  if (!strided) return a * triangle(l) + triangle(r) + c * (l * triangle(a - 1) + a * r);
  const int64_t local = length * width - triangle(width - 1);
  return local + l * triangle(a) + r * (a + 1) - length;  // each query's own key is in both
}

FamilyLayer sparse_transformer(bool strided, int64_t stride, int64_t length, int64_t heads) {
  SparseTransformerConfig c;
  c.n_layer = 1;
  c.n_head = heads;
  c.d_model = heads;
  c.n_max = length;
  c.stride = stride > 0 ? stride : usual_stride(length);
  c.columns = 16;
  c.index_sets = strided ? "local,strided" : "block,summary";
  c.integration = Integration::merged;
  return {.options = strided ? fmt::format("l = {}", c.stride)
                             : fmt::format("l = {}, c = {}", c.stride, c.columns),
          .outline = SparseTransformer(c, Init{.meta = true}).attention_outline(0, length),
          .pairs = heads * sparse_pairs(strided, c.stride, c.columns, length)};
}

template <class Config>
Config encoder(int64_t length, int64_t heads) {
  Config c;
  c.n_layer = 1;
  c.n_head = heads;
  c.d_model = heads;
  c.n_max = length;
  return c;
}

FamilyLayer blockbert(int64_t blocks, int64_t length, int64_t heads) {
  auto c = encoder<BlockBertConfig>(length, heads);
  const int64_t n = c.n_block = blocks > 0 ? blocks : 3;
  // The ratio of 8:2:2 in 12 heads: six of eight heads attend to their own block.
  const int64_t away = heads / 8;
  c.heads_per_shift = {heads - std::min<int64_t>(n - 1, 2) * away};
  for (int64_t shift = 1; shift < std::min<int64_t>(n, 3); ++shift) {
    c.heads_per_shift.push_back(away);
  }
  // Block k holds ceil((k + 1) L / n) - ceil(k L / n) tokens.
  const auto size = [&](int64_t k) {
    return ((k + 1) * length + n - 1) / n - (k * length + n - 1) / n;
  };
  int64_t pairs = 0;
  for (size_t s = 0; s < c.heads_per_shift.size(); ++s) {
    for (int64_t k = 0; k < n; ++k) {
      pairs += c.heads_per_shift[s] * size(k) * size((k + static_cast<int64_t>(s)) % n);
    }
  }
  return {.options = fmt::format("n = {}, heads {}", n, fmt::join(c.heads_per_shift, ":")),
          .outline = BlockBert(c, Init{.meta = true}).attention_outline(0, length),
          .pairs = pairs};
}

FamilyLayer bigbird(int64_t block, int64_t length, int64_t heads) {
  auto c = encoder<BigBirdConfig>(length, heads);
  c.block = block > 0 ? block : 64;
  require(length % c.block == 0, op, "bigbird: {} tokens are no whole number of blocks of {}",
          length, c.block);
  const int64_t n = length / c.block;
  const bool sparse = n >= 5 + c.n_random;
  return {.options = fmt::format("b = {}, r = {}", c.block, c.n_random),
          .outline = BigBird(c, Init{.meta = true}).attention_outline(0, length),
          .pairs = heads * (sparse ? bigbird_pairs(n, c.block, c.n_random) : length * length)};
}

FamilyLayer longformer(int64_t reach, int64_t globals, int64_t length, int64_t heads) {
  std::vector<int64_t> at(static_cast<size_t>(std::min(globals, length)));
  std::iota(at.begin(), at.end(), 0);
  std::vector<std::vector<int64_t>> samples;
  if (!at.empty()) samples.push_back(at);
  const auto g = static_cast<int64_t>(at.size());
  AttentionOutline outline =
      whole(patterns::window_and_globals(length, reach, {1}, samples), length, heads);
  outline.calls[0].side_keys = g;
  if (g > 0) {
    const std::vector<int32_t> rows(at.begin(), at.end());
    outline.calls[0].side_at = rows;
    outline.calls.push_back(
        {.pattern = patterns::dense(), .queries = g, .keys = length, .query_at = rows});
  }
  return {.options = fmt::format("{} keys a side{}", reach,
                                 g == 0   ? ""
                                 : g == 1 ? ", 1 global"
                                          : fmt::format(", {} globals", g)),
          .outline = std::move(outline),
          .pairs = heads * patterns::window_and_global_pairs(length, reach, 1, at)};
}

FamilyLayer etc(int64_t length, int64_t heads) {
  EtcConfig c = etc_preset("base");
  c.n_head = heads;
  const int64_t g = std::min(c.n_global, length), share = (length + g - 1) / g;
  std::vector<int32_t> owner, behind;
  for (int64_t j = 0; j < length; ++j) owner.push_back(static_cast<int32_t>(j / share));
  for (int64_t m = 0; m < g; ++m) behind.push_back(static_cast<int32_t>(length + m));
  const LinkedPatterns see =
      etc_patterns(c, {.owner = Tensor::from(owner, {1, length})}, 1, length, g, {});
  AttentionOutline outline{.rows = length + g, .columns = length + g, .heads = heads, .calls = {}};
  outline.calls.push_back({.pattern = see.long_side,
                           .queries = length,
                           .keys = length,
                           .side_keys = g,
                           .side_at = behind});
  outline.calls.push_back({.pattern = see.global_side,
                           .queries = g,
                           .keys = g,
                           .side_keys = length,
                           .query_at = behind,
                           .key_at = behind});
  const auto labels = [&](const AttentionPattern& p) {
    return p.mask.class_id || p.side_mask.class_id ? c.label_count() : 2 * c.max_distance + 1;
  };
  // Among globals, from long tokens to globals, from globals to the tokens that they own, and the
  // band.
  const int64_t pairs = g * g + length * g + length + patterns::window_pairs(length, c.radius);
  return {.options = fmt::format("r = {}, {} globals, k = {}", c.radius, g, c.max_distance),
          .outline = std::move(outline),
          .pairs = heads * pairs,
          .ids = {labels(see.long_side), labels(see.global_side)},
          .max_distance = c.max_distance};
}

/// Returns the index of a head's layout; heads with equal layouts share it.
int32_t member_of(const AttentionCall& call, int64_t head) {
  const AttentionPattern p = resolve(call.pattern, call.queries, call.keys, call.side_keys);
  const auto which = p.layout->layout_index.to_vector<int32_t>();
  return which[which.size() > 1 ? static_cast<size_t>(head) : 0];
}

struct Sliding {
  int64_t reach, globals;
};

/// Returns window and globals of the families with Longformer's attention.
Sliding sliding_of(std::string_view kind) {
  if (kind == "led") return {512, 1};
  return {256, kind == "longformer_globals" ? 64 : 0};
}

/// Names of the projections. Their order gives the seeds and must be the order of WEIGHTS in
/// bench/peers/sparse.py.
constexpr std::string_view projections[] = {"q",        "k",        "v",  "q_global",
                                            "k_global", "v_global", "out"};

uint32_t seed_of(const std::string& parameter) {
  const std::string_view module = std::string_view(parameter).substr(0, parameter.find('.'));
  const auto at = std::find(std::begin(projections), std::end(projections), module);
  const auto i = static_cast<uint32_t>(at - std::begin(projections));
  return 10 + 2 * i + (parameter.ends_with("bias") ? 1 : 0);
}

}  // namespace

std::span<const Family> families() { return all; }

const Family& family_of(std::string_view name) {
  for (const Family& family : all) {
    if (family.name == name) return family;
  }
  fail(op, "there is no family \"{}\"", name);
}

FamilyLayer family_layer(std::string_view name, int64_t length, int64_t heads) {
  const size_t colon = name.find(':');
  int64_t number = 0;
  if (colon != std::string_view::npos) {
    std::from_chars(name.data() + colon + 1, name.data() + name.size(), number);
    require(number > 0, op, "\"{}\": expected a number from 1 on behind the colon", name);
  }
  const std::string_view kind = name.substr(0, colon);
  const auto or_else = [&](int64_t usual) { return number > 0 ? number : usual; };
  if (kind == "dense" || kind == "causal") return dense(kind == "causal", length, heads);
  if (kind == "band" || kind == "causal_band") {
    return band(kind == "causal_band", or_else(256), length, heads);
  }
  if (kind == "fixed" || kind == "strided") {
    return sparse_transformer(kind == "strided", number, length, heads);
  }
  if (kind == "blockbert") return blockbert(number, length, heads);
  if (kind == "bigbird") return bigbird(number, length, heads);
  if (kind == "longformer" || kind == "longformer_globals" || kind == "led") {
    const Sliding s = sliding_of(kind);
    return longformer(or_else(s.reach), s.globals, length, heads);
  }
  if (kind == "etc") return etc(length, heads);
  fail(op, "there is no family \"{}\"", name);
}

OutlineCount counted_pairs(const FamilyLayer& layer) {
  OutlineCount total;
  std::map<std::vector<int32_t>, OutlineCount> known;
  for (int64_t head = 0; head < layer.outline.heads; ++head) {
    std::vector<int32_t> members;
    for (const AttentionCall& call : layer.outline.calls) {
      members.push_back(member_of(call, head));
    }
    auto found = known.find(members);
    if (found == known.end()) {
      found = known.emplace(members, count_pairs(layer.outline, head)).first;
    }
    total.attended += found->second.attended;
    total.computed += found->second.computed;
  }
  return total;
}

AttentionRun::AttentionRun(const FamilyLayer& layer, int64_t width) {
  const int64_t heads = layer.outline.heads;
  uint32_t seed = 1;
  const auto leaf = [&](const Shape& shape) {
    leaves_.push_back(values(shape, seed++, 2.0f));
    set_requires_grad(leaves_.back());
    return leaves_.back();
  };
  for (size_t i = 0; i < layer.outline.calls.size(); ++i) {
    const AttentionCall& from = layer.outline.calls[i];
    if (i > 0 && from.query_at.empty()) {  // more pairs of the same softmax as the previous call
      calls_.back().parts.push_back(from.pattern);
      continue;
    }
    BoundCall call{.parts = {from.pattern},
                   .q = leaf({1, heads, from.queries, width}),
                   .keys = {},
                   .terms = {}};
    for (const int64_t n : {from.keys, from.side_keys}) {
      if (n == 0) continue;
      const Tensor k = leaf({1, heads, n, width});
      call.keys.push_back({k, leaf({1, heads, n, width})});
    }
    if (const int64_t ids = i < layer.ids.size() ? layer.ids[i] : 0; ids > 0) {
      call.terms.id = {layer.max_distance, layer.max_distance};
      call.terms.relation_key = leaf({heads, ids, width});
      call.terms.relation_bias = leaf({heads, ids});
    }
    dy_.push_back(values({1, heads, from.queries, width}, 90));
    calls_.push_back(std::move(call));
  }
}

std::vector<Tensor> AttentionRun::forward() const {
  std::vector<Tensor> out;
  for (const BoundCall& call : calls_) {
    out.push_back(block_attention(call.q, call.keys, call.parts, call.terms).out);
  }
  return out;
}

std::vector<Tensor> AttentionRun::both() const { return gradients(forward(), dy_, leaves_); }

LayerRun::LayerRun(std::string_view family, int64_t length, int64_t heads, int64_t width) {
  const int64_t model = heads * width;
  if (family == "bigbird") {
    layer_ = std::make_unique<MultiHead>(
        AttentionOptions{.d_model = model, .n_head = heads, .qkv_bias = true, .out_bias = true},
        ShawTables{}, Init{});
    ctx_.pattern = family_layer(family, length, heads).outline.calls[0].pattern;
  } else {
    require(family == "longformer" || family == "longformer_globals" || family == "led", op,
            "there is no layer of \"{}\" to compare with", family);
    const Sliding s = sliding_of(family);
    LongformerAttentionOptions options;
    options.d_model = model;
    options.n_head = heads;
    options.one_sided_window = s.reach;
    layer_ = std::make_unique<LongformerAttention>(options, Init{});
    std::vector<int64_t> at(static_cast<size_t>(s.globals));
    std::iota(at.begin(), at.end(), 0);
    ctx_.own.set(global_tokens(global_mask(1, length, at), {}));
  }
  x_ = values({1, length, model}, 1, 2.0f);
  leaves_.push_back(set_requires_grad(x_));
  const auto* globals = ctx_.own.find<GlobalTokens>();
  const bool has_globals = globals != nullptr && *globals;
  for (NamedTensor& p : named_parameters(*layer_)) {
    if (!has_globals && p.name.find("global") != std::string::npos) continue;
    const Tensor value = values(p.tensor.shape(), seed_of(p.name), 0.15f);
    kernels::copy(p.tensor.device(), value.view(), p.tensor.mut());
    leaves_.push_back(p.tensor);
  }
  dy_.push_back(values({1, length, model}, 90));
}

std::vector<Tensor> LayerRun::both() const {
  return gradients(std::vector<Tensor>{layer_->forward(x_, ctx_, {}).y}, dy_, leaves_);
}

}  // namespace longspan::bench
