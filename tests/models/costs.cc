#include "tests/models/costs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/divide.h"
#include "models/capabilities.h"
#include "nn/outline.h"
#include "ops/patterns/tree.h"
#include "ops/patterns/window.h"

namespace longspan::test {
namespace {

/// The feed-forward network of l rows; a gated one has a third matrix.
int64_t feed_forward(int64_t l, int64_t d, int64_t d_ff, Activation f) {
  return (is_gated(f) ? 3 : 2) * l * d * d_ff;
}

/// Pairs of one head of a Transformer's self-attention, by the definition of its windows.
int64_t pairs_of(const TransformerConfig& c, bool causal, int64_t l) {
  int64_t n = 0;
  for (int64_t i = 0; i < l; ++i) {
    for (int64_t j = 0; j < (causal ? i + 1 : l); ++j) {
      switch (c.local) {
        case Locality::exact:
          n += causal ? i - j < c.window : std::abs(i - j) <= c.window / 2;
          break;
        case Locality::block:
          n += i / c.window - j / c.window <= 1;
          break;
        case Locality::none:
          ++n;
          break;
      }
    }
  }
  return n;
}

/// Projections and pairs of LongformerAttention over one sample with g global tokens: their rows
/// and columns are beside the windows; those within are hidden by masks, which do not change the
/// count.
int64_t attention_of(const LongformerAttentionOptions& o, int64_t l, int64_t g) {
  const int64_t d = o.d_model, dilated = o.dilation > 1 ? o.dilated_heads : 0;
  const auto windows = [&](int64_t s) {
    return patterns::window_and_global_pairs(l, o.one_sided_window, s, {});
  };
  const int64_t pairs =
      dilated * windows(o.dilation) + (o.n_head - dilated) * windows(1) + o.n_head * 2 * l * g;
  return 4 * l * d * d + (g > 0 ? (2 * l + g) * d * d : 0) + 2 * (d / o.n_head) * pairs;
}

/// An encoder-decoder in the shape of BART, whose encoder's attention costs `encoder`.
int64_t bart_of(int64_t n_layer, int64_t d, int64_t d_ff, int64_t vocab, int64_t encoder,
                int64_t l) {
  const int64_t projections = 4 * l * d * d;
  const int64_t decoder = 2 * projections + l * (l + 1) * d + 2 * l * l * d;
  return encoder + n_layer * (decoder + 2 * 2 * l * d * d_ff) + l * d * vocab;
}

int64_t local_width(const SparseTransformerConfig& c) {
  return c.paper_window ? c.stride + 1 : c.stride;
}
bool has_set(const std::vector<IndexSet>& sets, IndexSet set) {
  return std::find(sets.begin(), sets.end(), set) != sets.end();
}

/// 1 + 2 + ... + n.
int64_t triangle(int64_t n) { return n > 0 ? n * (n + 1) / 2 : 0; }

/// Pairs of one head, with L = a l + r.
int64_t pairs_of(const SparseTransformerConfig& c, IndexSet set, int64_t sub_block,
                 int64_t length) {
  const int64_t l = c.stride, a = length / l, r = length % l;
  switch (set) {
    case IndexSet::local: {
      const int64_t width = std::min(local_width(c), length);
      return length * width - triangle(width - 1);
    }
    case IndexSet::strided:
      return l * triangle(a) + r * (a + 1);
    case IndexSet::block:
      return a * triangle(l) + triangle(r);
    case IndexSet::summary: {
      const int64_t first = l - (sub_block + 1) * c.columns;
      const auto own = [&](int64_t rows) {  // pairs of the first rows of a block within it
        const int64_t beyond = std::max<int64_t>(0, rows - first - c.columns);
        return triangle(rows - first - beyond) + beyond * c.columns;
      };
      return c.columns * (l * triangle(a - 1) + a * r) + a * own(l) + own(r);
    }
    case IndexSet::dense:
      break;
  }
  return triangle(length);
}

int64_t merged_pairs(const SparseTransformerConfig& c, const std::vector<IndexSet>& sets,
                     int64_t sub_block, int64_t length) {
  if (sets.size() == 1) return pairs_of(c, sets[0], sub_block, length);
  const int64_t l = c.stride, a = length / l, r = length % l;
  if (has_set(sets, IndexSet::block)) {
    return pairs_of(c, IndexSet::block, 0, length) + c.columns * (l * triangle(a - 1) + a * r);
  }
  const int64_t both = length + (c.paper_window ? std::max<int64_t>(0, length - l) : 0);
  return pairs_of(c, IndexSet::local, 0, length) + pairs_of(c, IndexSet::strided, 0, length) - both;
}

/// Layers over a tree of l tokens, with `cross` pairs of a source in each.
int64_t tree_layers_of(const TreeLayersConfig& c, bool causal, int64_t l, int64_t cross = 0) {
  const Tree tree{l};
  const int64_t d = c.d_model, nodes = tree.nodes(), all = tree_pairs(l, c.tree(causal));
  // Pairs of spans: each token is in one span of every level, and spans may see themselves.
  const int64_t spans = l * (tree.levels() - 1) + (c.span_self_loop ? nodes - l : 0);
  int64_t macs = 0;
  for (int64_t i = 0; i < c.n_layer; ++i) {
    const bool last = i + 1 == c.n_layer;
    const int64_t rows = last ? l : nodes;
    macs += 2 * nodes * d * d + 2 * rows * d * d;  // k, v; q, out
    macs += 3 * d * (last ? all - spans : all);    // q k, q r, p v
    macs += 2 * rows * d * c.d_ff;
    if (cross > 0) macs += 4 * l * d * d + 2 * d * cross;
  }
  return macs;
}

}  // namespace

int64_t attended_pairs(const SparseTransformerConfig& c, int64_t layer, int64_t length) {
  const std::vector<IndexSet> sets = c.sets();
  const auto turns = static_cast<int64_t>(sets.size());
  int64_t pairs = 0;
  for (int64_t h = 0; h < c.n_head; ++h) {
    switch (c.integration) {
      case Integration::interleave:
        pairs += pairs_of(c, sets[static_cast<size_t>(layer % turns)], c.sub_block(h), length);
        break;
      case Integration::merged:
        pairs += merged_pairs(c, sets, c.sub_block(h), length);
        break;
      case Integration::multihead:
        pairs += pairs_of(c, sets[static_cast<size_t>(h % turns)], c.sub_block(h / turns), length);
        break;
    }
  }
  return pairs;
}

int64_t macs_of(const TransformerConfig& c, int64_t l) {
  const int64_t d = c.d_model, width = c.d_embed > 0 ? c.d_embed : d;
  const int64_t inner = c.n_head * (c.d_head > 0 ? c.d_head : d / c.n_head);
  const auto self = [&](bool causal) {
    return (c.share_qk ? 3 : 4) * l * d * inner + 2 * pairs_of(c, causal, l) * inner;
  };
  const int64_t ff = feed_forward(l, d, c.d_ff, c.activation);
  int64_t n = c.n_layer * (self(c.wiring != Wiring::encoder) + ff);
  if (c.wiring == Wiring::encoder_decoder) {
    n += c.n_layer * (self(false) + ff + 4 * l * d * inner + 2 * l * l * inner);
    if (c.d_embed > 0) n += l * d * width;
  }
  if (c.d_embed > 0) n += 2 * l * d * width;
  return n + (c.mlm_head ? l * d * d : 0) + l * width * c.vocab;
}

int64_t macs_of(const PerformerConfig& c, int64_t l) {
  const int64_t width = c.d_head > 0 ? c.d_head : c.d_model / c.n_head;
  const bool causal = c.wiring != Wiring::encoder;
  const int64_t halves = kernels::feature_halves(c.features);
  const int64_t wanted = c.n_features > 0 ? c.n_features : default_features(width);
  const int64_t m = c.projected ? wanted / halves : width, features = halves * m;
  const int64_t pairs = causal ? l / 64 * triangle(64) + triangle(l % 64) : 0;
  const int64_t projected = c.projected ? 2 * l * m * width : 0;
  const int64_t sums = 2 * l * features * width + pairs * (features + width);
  return macs_of(static_cast<const TransformerConfig&>(c), l) +
         c.n_layer * c.n_head * (projected + sums - 2 * pairs_of(c, causal, l) * width);
}

int64_t macs_of(const EncoderConfig& c, int64_t pairs, int64_t l) {
  const int64_t d = c.d_model;
  return c.n_layer * (4 * l * d * d + feed_forward(l, d, c.d_ff, c.activation)) +
         2 * pairs * (d / c.n_head) + (c.mlm_head ? l * d * (d + c.vocab) : 0);
}

int64_t macs_of(const HibertConfig& c, int64_t l) {
  const int64_t d = c.d_model, whole = c.sentence_length - 1;
  int64_t sentences = 0, n = 0, square = 0, causal = 0;  // n: tokens with the ends of sentences,
                                                         // which the decoder does not write
  for (int64_t left = l; left > 0; left -= whole) {
    const int64_t t = std::min(left, whole) + 1;
    ++sentences;
    n += t;
    square += t * t;
    causal += triangle(t - 1);
  }
  const auto layer = [&](int64_t rows, int64_t pairs) {
    return 4 * rows * d * d + feed_forward(rows, d, c.d_ff, c.activation) + 2 * d * pairs;
  };
  // Only end tokens are queries of the last layer of the sentence encoder.
  const int64_t last = layer(sentences, n) + 2 * (n - sentences) * d * d;
  return (c.n_layer - 1) * layer(n, square) + last +
         c.document_layers * layer(sentences, sentences * sentences) +
         c.decoder_layers * layer(l, causal) + l * d * c.vocab;
}

int64_t macs_of(const LinformerConfig& c, int64_t l) {
  const int64_t d = c.d_model, width = d / c.n_head;
  const bool one = c.sharing == ProjectionSharing::kv || c.sharing == ProjectionSharing::layerwise;
  const bool input = c.projection_order == ProjectionOrder::input;
  const bool learned = c.projection == RowProjection::linear || c.projection == RowProjection::conv;
  const bool by_head = learned && c.sharing == ProjectionSharing::none;
  int64_t n = c.mlm_head ? l * d * (d + c.vocab) : 0;
  for (int64_t i = 0; i < c.n_layer; ++i) {
    const LinformerOptions o = linformer_options(c, i);
    const int64_t rows = o.rows(l);
    // Keys and values are made of `rows` rows, if these are projected before.
    n += 2 * l * d * d + 2 * (input && !by_head ? rows : l) * d * d + 2 * l * rows * d;
    const int64_t times = one && input ? 1 : 2;  // E x once for both
    if (c.projection == RowProjection::linear) n += times * rows * l * d;
    const int64_t taken = input && !by_head ? d : width;  // channels of an output of a convolution
    if (c.projection == RowProjection::conv) n += times * rows * d * o.window() * taken;
    n += feed_forward(l, d, c.d_ff, c.activation);
  }
  return n;
}

int64_t macs_of(const LongformerConfig& c, int64_t l) {
  const int64_t globals = c.globals == GlobalDefault::first ? 1 : 0;
  int64_t n = c.mlm_head ? l * c.d_model * (c.d_model + c.vocab) : 0;
  for (int64_t i = 0; i < c.n_layer; ++i) {
    n += attention_of(longformer_attention("test", c, i), l, globals);
    n += feed_forward(l, c.d_model, c.d_ff, c.activation);
  }
  return n;
}

/// Each layer also projects the sinusoids of the distances that its window has, once for the whole
/// batch: (min(w s, l - 1) + 1) D^2.
int64_t macs_of(const LongformerLMConfig& c, int64_t l, int64_t batch) {
  const int64_t d = c.d_model, dilated = dilated_of("test", c.dilated_heads, c.n_head);
  const auto of_layer = [](const std::vector<int64_t>& values, int64_t i) {
    return values[std::min(static_cast<size_t>(i), values.size() - 1)];
  };
  int64_t n = l * d * c.vocab, once = 0;
  for (int64_t layer = 0; layer < c.n_layer; ++layer) {
    const int64_t w = of_layer(c.window, layer), s = of_layer(c.dilation, layer);
    const int64_t reach = w * (dilated > 0 ? s : 1);
    int64_t pairs = 0;
    for (int64_t i = 0; i < l; ++i) {
      pairs += dilated * (std::min(i / s, w) + 1) + (c.n_head - dilated) * (std::min(i, w) + 1);
    }
    n += 4 * l * d * d + 2 * l * d * c.d_ff + 2 * (d / c.n_head) * pairs;
    once += (std::min(reach, l - 1) + 1) * d * d;
  }
  return batch * n + once;
}

int64_t macs_of(const TransformerXLConfig& c, int64_t l) {
  const int64_t d = c.d_model, wide = c.n_head * (c.d_head > 0 ? c.d_head : d / c.n_head);
  const int64_t keys = c.mem_len + l, window = c.window > 0 ? c.window : keys;
  int64_t pairs = 0;
  for (int64_t i = 0; i < l; ++i) pairs += std::min(c.mem_len + 1 + i, window);
  int64_t distances = std::min(window, keys);
  if (c.clamp > 0) distances = std::min(distances, c.clamp + 1);
  const int64_t projections = 2 * l * d * wide + 2 * keys * d * wide + distances * d * wide;
  return c.n_layer * (projections + 2 * l * d * c.d_ff + 2 * wide * pairs) + l * d * c.vocab;
}

namespace {

/// Those of a layer, with its memories or without.
int64_t layer_macs(const CompressiveConfig& c, int64_t l, bool remembers) {
  const int64_t d = c.d_model, width = c.d_head > 0 ? c.d_head : d / c.n_head;
  const int64_t wide = c.n_head * width, carried = c.eviction == Eviction::carry ? c.rate - 1 : 0;
  const int64_t before = remembers ? c.compressed_len + c.mem_len + carried : 0, keys = before + l;
  const int64_t pairs = l * before + l * (l + 1) / 2;
  const int64_t distances = c.clamp > 0 ? std::min(keys, c.clamp + 1) : keys;
  const int64_t projections = 2 * l * d * wide + 2 * keys * d * wide + distances * d * wide;
  int64_t compression = 0;
  const int64_t groups = remembers ? (l + carried) / c.rate : 0;
  if (c.compression == Compression::conv || c.compression == Compression::dilated) {
    compression = groups * c.rate * d * d;
  } else if (remembers && c.compression == Compression::most_used) {
    compression = c.n_head * (width + 1) * pairs;
  }
  return projections + 2 * l * d * c.d_ff + 2 * wide * pairs + compression;
}

}  // namespace

int64_t macs_of(const CompressiveConfig& c, int64_t l) {
  int64_t n = l * c.d_model * c.vocab;
  for (int64_t i = 0; i < c.n_layer; ++i) n += layer_macs(c, l, c.remembers(i));
  return n;
}

int64_t macs_of(const AdaptiveSpanConfig& c, const std::vector<std::vector<int64_t>>& spans,
                int64_t l) {
  const int64_t d = c.d_model, width = c.d_head > 0 ? c.d_head : d / c.n_head;
  int64_t n = l * d * c.vocab;
  for (const std::vector<int64_t>& heads : spans) {
    const int64_t keys = *std::max_element(heads.begin(), heads.end()) + l;
    n += 2 * (l + keys) * d * c.n_head * width;
    n += 2 * l * (c.persistent > 0 ? c.persistent * c.n_head * width : d * c.d_ff);
    n += 2 * width * l * std::accumulate(heads.begin(), heads.end(), int64_t{0});
    if (c.dynamic) n += l * d * (c.span_scope == SpanScope::head ? c.n_head : 1);
  }
  return n;
}

int64_t macs_of(const ExpireSpanConfig& c, int64_t l) {
  const int64_t d = c.d_model, wide = c.n_head * (c.d_head > 0 ? c.d_head : d / c.n_head);
  const auto living = static_cast<int64_t>(std::ceil(double(c.span_max) + c.span_ramp)) - 1;
  const int64_t rows =
      c.max_memory > 0 ? c.max_memory : std::max({living, c.positions, c.always_keep});
  const int64_t pairs = l * rows + l * (l - 1) / 2;
  const int64_t layer = 2 * l * d * wide + (rows + l) * (2 * d * wide + d) + 2 * wide * pairs;
  return c.n_layer * (layer + 2 * l * d * c.d_ff) + l * d * c.vocab;
}

int64_t macs_of(const SparseTransformerConfig& c, int64_t l) {
  const int64_t d = c.d_model;
  const auto qk = static_cast<int64_t>(static_cast<double>(d) * c.qk_ratio);
  int64_t n = c.n_layer * l * d * (2 * qk + 2 * d + 2 * c.d_ff) + l * d * c.vocab;
  for (int64_t i = 0; i < c.n_layer; ++i) {
    n += attended_pairs(c, i, l) * (qk + d) / c.n_head;
  }
  return n;
}

int64_t macs_of(const ReformerConfig& c, int64_t l) {
  const int64_t d = c.d_model, width = c.n_head * c.head_width();
  int64_t unit = 1, least = l;  // of sequences padded to whole chunks
  for (const ReformerLayer kind : c.layer_kinds()) {
    if (!c.whole_chunks) break;
    const int64_t m = kind == ReformerLayer::lsh ? c.chunk : c.local_keys();
    unit = std::lcm(unit, m);
    least = std::min(least, m);
  }
  const int64_t rows = l > least ? round_up(l, unit) : l;
  int64_t n = l * c.vocab * (c.mean_exit ? d : 2 * d);
  for (const ReformerLayer kind : c.layer_kinds()) {
    n += feed_forward(rows, d, c.d_ff, c.activation);
    if (kind == ReformerLayer::local) {
      const int64_t m = c.local_keys();
      int64_t pairs = 0;
      for (int64_t q = 0; q < rows; ++q) {
        for (int64_t k = 0; k < (c.causal ? q + 1 : rows); ++k) {
          const int64_t apart = q / m - k / m;
          pairs += apart <= c.local_back && -apart <= c.local_ahead;
        }
      }
      n += rows * d * 4 * width + pairs * 2 * width;
      continue;
    }
    n += rows * d * 3 * width;
    if (rows <= c.full_up_to()) {
      n += rows * rows * 2 * width;
      continue;
    }
    const int64_t window = std::min(rows, c.chunk * (1 + c.look_back + c.look_ahead));
    const LshBuckets buckets =
        !c.buckets.empty() ? LshBuckets{c.buckets[0], c.buckets.size() > 1 ? c.buckets[1] : 1}
                           : lsh_auto_buckets(rows, c.chunk);
    n += c.rounds * rows * (window * 2 + buckets.projections()) * width;
  }
  return n;
}

int64_t macs_of(const RoutingConfig& c, int64_t l) {
  const int64_t d = c.head_width(), w = std::min(c.window, l), size = c.d_model;
  int64_t near = 0, recent = 0;
  for (int64_t q = 0; q < l; ++q) {
    recent += std::min(q + 1, w);
    for (int64_t k = 0; k <= q; ++k) near += q / c.local_block - k / c.local_block <= 1;
  }
  const int64_t own = c.mask_self ? 1 : 0;  // pairs of each token that are not computed
  int64_t groups = c.clusters * (c.share_qk ? w * (w + 1) / 2 - own * w : w * w);
  if (c.select == RoutingSelect::argmax_recent) groups = recent - own * l;
  const int64_t kinds = c.share_qk ? 1 : 2;
  const int64_t table = c.d_embed > 0 ? c.d_embed : size;
  int64_t n = l * table * c.vocab + (c.d_embed > 0 ? l * table * size : 0) +
              (table != size ? l * table * size : 0);
  for (int64_t i = 0; i < c.n_layer; ++i) {
    const int64_t routing = c.routes(i) ? c.routing_heads : 0, local = c.heads() - routing;
    n += l * size * d * (2 * c.heads() + 2 * local + kinds * routing);
    n += c.head_mix ? l * c.heads() * d * d : 0;
    n += 2 * d * (local * near + routing * groups) + kinds * routing * l * c.clusters * d;
    n += feed_forward(l, size, c.d_ff, c.activation);
  }
  return n;
}

int64_t macs_of(const EtcConfig& c, int64_t random, int64_t l) {
  const int64_t share = ceil_div(c.n_long, c.n_global), n_g = ceil_div(l, share);
  const int64_t d = c.d_model, n = l + n_g,
                pairs = patterns::window_pairs(l, c.radius) + 2 * l * n_g + n_g * n_g;
  const int64_t layer =
      (c.share_qkv ? 4 : 6) * n * d * d + 2 * pairs * d + feed_forward(n, d, c.d_ff, c.activation);
  const int64_t tables = c.d_embed > 0 ? (n + l) * d * c.d_embed : 0;
  return c.n_layer * layer + 2 * random * (d / c.n_head) + tables +
         l * (d * d + c.width() * c.vocab);
}

int64_t macs_of(const LedConfig& c, int64_t l) {
  const int64_t globals = c.globals != GlobalDefault::none ? 1 : 0;
  int64_t attention = 0;
  for (int64_t i = 0; i < c.n_layer; ++i) {
    attention += attention_of(longformer_attention("test", c, i), l, globals);
  }
  return bart_of(c.n_layer, c.d_model, c.d_ff, c.vocab, attention, l);
}

int64_t macs_of(const BigBirdPegasusConfig& c, int64_t pairs, int64_t l) {
  const int64_t d = c.d_model;
  const int64_t attention = c.n_layer * 4 * l * d * d + 2 * pairs * (d / c.n_head);
  return bart_of(c.n_layer, d, c.d_ff, c.vocab, attention, l);
}

int64_t outlined_pairs(const LanguageModel& model, int64_t l) {
  int64_t n = 0;
  for (int64_t i = 0; i < model.layers(); ++i) {
    const AttentionOutline outline = need<ShowsAttention>(model).attention_outline(i, l);
    for (int64_t head = 0; head < outline.heads; ++head) {
      n += count_pairs(outline, head).attended;
    }
  }
  return n;
}

int64_t macs_of(const BpTransformerConfig& c, int64_t l) {
  const bool projects = c.d_embed > 0 && c.d_embed != c.d_model;
  return tree_layers_of(c, true, l) + l * c.d_model * c.vocab +
         (projects ? l * c.d_embed * c.d_model : 0);
}

int64_t macs_of(const BpEncoderConfig& c, int64_t l) {
  return tree_layers_of(c, c.causal, l) + l * c.d_model * c.vocab;
}

int64_t macs_of(const BpTranslatorConfig& c, int64_t l) {
  return tree_layers_of(c, false, l) + tree_layers_of(c, true, l, l * l) + l * c.d_model * c.vocab;
}

}  // namespace longspan::test
