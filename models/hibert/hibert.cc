// HIBERT, Zhang, Wei and Zhou 2019 (1905.06566): an encoder of sentences below an encoder of
// documents, pre-trained by writing whole masked sentences again.
//
//   pairs of a document    sum_i T_i^2 + S^2        for S sentences of T_i tokens
//
// Where the paper and the authors' code differ (the factor sqrt(d) of embeddings, the bias of the
// labels, the first position), an option chooses; the defaults are those of the code but for the
// first position.

#include "models/hibert/hibert.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "autograd/mode.h"
#include "core/scope.h"
#include "nn/attention/multi_head.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/patterns/segments.h"
#include "ops/random.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kHibert = "hibert";

/// The recipes of the authors' code: 256 documents a step; and 5,000 tokens, eight times.
constexpr TrainingDefaults pretraining{
    .length = 1530, .batch = 256, .steps = 1'000'000, .lr = 1e-4, .warmup = 10'000, .clip = 0};
constexpr TrainingDefaults fine_tuning{.length = 1530,
                                       .batch = 26,
                                       .steps = 20'000,
                                       .lr = 2e-5,
                                       .warmup = 4000,
                                       .clip = 0,
                                       .beta2 = 0.98};

constexpr Preset hibert_presets[] = {
    {"small",
     "2 + 2 layers of 64, a decoder of 2; sentences of 12 tokens",
     "",
     "sentence_length=12 dropout=0 smoothing=0 head_std=0.02",
     {.length = 96, .batch = 16, .steps = 2000, .lr = 1e-3, .warmup = 200, .clip = 1}},
    {"labels",
     "the same encoders, which label every sentence",
     "small",
     "labels=2",
     {.length = 96, .batch = 16, .steps = 500, .lr = 5e-4, .warmup = 50, .clip = 1}},
    {"tiny",
     "1 + 1 layers of 8, a decoder of 1, 24 tokens; for tests",
     "",
     "vocab=24 n_layer=1 document_layers=1 decoder_layers=1 n_head=2 d_model=8 d_ff=16 "
     "sentence_length=5 dropout=0",
     {.length = 15, .batch = 4, .steps = 200}},
    {"s", "HIBERT_S: 6 + 6 layers of 512, 54.6 million parameters without the decoder", "",
     "vocab=32800 n_layer=6 document_layers=6 decoder_layers=6 n_head=8 d_model=512 d_ff=2048",
     pretraining},
    {"m", "HIBERT_M: 6 + 6 layers of 768, 110.2 million parameters without the decoder", "s",
     "n_head=12 d_model=768 d_ff=3072", pretraining},
    {"s_labels", "HIBERT_S that labels every sentence", "s", "labels=2 label_bias=true",
     fine_tuning},
    {"m_labels", "HIBERT_M that labels every sentence", "m", "labels=2 label_bias=true",
     fine_tuning},
};

std::unique_ptr<ModelSpec> hibert_spec(std::string_view preset) {
  return preset_spec<Hibert, HibertConfig>(kHibert, hibert_presets, preset);
}

void check_config(const HibertConfig& c) {
  check_fields(kHibert, c);
  require_heads(kHibert, c.d_model, c.n_head);
  require(c.d_model >= 4 && c.d_model % 2 == 0, kHibert,
          "d_model is {}; expected an even number from 4 on, half of it sines", c.d_model);
  require(c.vocab >= 5, kHibert, "vocab is {}; expected 5 or more, four of which mark sentences",
          c.vocab);
  constexpr int64_t most = int64_t{1} << 20;
  require(c.sentence_length >= 2 && c.sentence_length <= most, kHibert,
          "sentence_length is {}; expected 2 to {}, a token and the end", c.sentence_length, most);
  require(c.position_offset >= 0 && c.position_offset <= most, kHibert,
          "position_offset is {}; expected 0 to {}", c.position_offset, most);
  require(c.labels != 1, kHibert, "labels is 1; expected 0, or 2 or more classes");
  require(c.smoothing >= 0 && c.smoothing <= 1, kHibert, "smoothing is {}; expected 0 to 1",
          c.smoothing);
}

/// In LayerContext::own: the row of encoder_output that belongs to each row of x, i64 [L]. Without
/// it all rows have the only one.
struct EncoderRows {
  Tensor ids;
};

/// Adds to each row the context of its sentence. One mask of a sentence's context serves all of its
/// rows.
class ContextLayer final : public Layer {
 public:
  explicit ContextLayer(float dropout) : dropout_(dropout) {}

  Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const override {
    const Tensor c = dropout(ctx.encoder_output, dropout_, pass.at("context"));
    const auto* rows = ctx.own.find<EncoderRows>();
    return rows != nullptr ? take(c, rows->ids, 1) : expand(c, x.shape());
  }
  void visit(Visitor& /*v*/) override {}

 private:
  float dropout_;
};

std::unique_ptr<Layer> attention_of(const HibertConfig& c, bool cross, const Init& init) {
  return std::make_unique<MultiHead>(
      AttentionOptions{.d_model = c.d_model,
                       .n_head = c.n_head,
                       .qkv_bias = true,
                       .out_bias = true,
                       .cross = cross,
                       .dropout = or_default(c.dropout_attn, c.dropout)},
      ShawTables{}, init);
}

FeedForwardOptions feed_forward_of(const HibertConfig& c) {
  return {.d_model = c.d_model, .d_ff = c.d_ff, .activation = c.activation, .dropout = c.dropout};
}

/// Layers of an encoder. With `cross`, their keys and values are of rows beside their own.
Stack encoder_of(const HibertConfig& c, int64_t layers, bool cross, const Init& init) {
  std::vector<std::unique_ptr<Layer>> attention;
  for (int64_t i = 0; i < layers; ++i) {
    attention.push_back(attention_of(c, cross, attention_init(init, i)));
  }
  return attention_stack({.ff = feed_forward_of(c),
                          .norm = NormPlace::post,
                          .norm_eps = c.norm_eps,
                          .dropout = c.dropout,
                          .memory = c.memory},
                         std::move(attention), init);
}

Stack decoder_of(const HibertConfig& c, const Init& init) {
  std::vector<Block> blocks;
  for (int64_t i = 0; i < c.decoder_layers; ++i) {
    const Init at = init.at("layers").at(i);
    const auto norm = [&](const char* name) {
      return Normalization(NormKind::layer, c.d_model, c.norm_eps, at.at(name));
    };
    std::vector<Branch> branches;
    branches.push_back({"attention", norm("norm1"), attention_of(c, false, at.at("attention"))});
    branches.push_back({"context", norm("norm2"), std::make_unique<ContextLayer>(c.dropout), true});
    branches.push_back(
        {"ff", norm("norm3"), std::make_unique<FeedForward>(feed_forward_of(c), at.at("ff"))});
    blocks.emplace_back(NormPlace::post, c.dropout, std::move(branches));
  }
  return Stack(std::move(blocks), std::nullopt, c.memory);
}

Tensor indices(const std::vector<int64_t>& at, Device device) {
  return Tensor::from(at, {std::ssize(at)}, device);
}

/// Calls f(document, its first sentence) for every document of a batch, alone.
template <class F>
void each_alone(const PackedDocuments& in, F&& f) {
  int64_t token = 0, sentence = 0;
  for (const int64_t count : in.documents) {
    const auto lengths = in.sentences.begin() + sentence;
    PackedDocuments one{{}, {lengths, lengths + count}, {count}};
    const int64_t end = std::accumulate(lengths, lengths + count, token);
    one.tokens.assign(in.tokens.begin() + token, in.tokens.begin() + end);
    f(one, sentence);
    token = end;
    sentence += count;
  }
}

/// Returns f(batch), or outside training the rows of f(document) for every document alone. Where a
/// sentence lies among the keys of a batch may change the last bits of its rows
/// (ops/patterns/segments.h), and results should not depend on the batch.
template <class F>
Tensor rows_by_document(const PackedDocuments& in, Pass pass, F&& f) {
  if (pass.training || in.documents.size() == 1) return f(in);
  std::vector<Tensor> rows;
  each_alone(in, [&](const PackedDocuments& one, int64_t) { rows.push_back(f(one)); });
  return concat(rows, 0);
}

/// Returns the index of the last token of each sentence.
std::vector<int64_t> last_tokens(const std::vector<int64_t>& sentences) {
  std::vector<int64_t> last(sentences.size());
  std::partial_sum(sentences.begin(), sentences.end(), last.begin());
  for (int64_t& i : last) --i;
  return last;
}

}  // namespace

Tensor hibert_positions(int64_t first, int64_t length, int64_t width, DType dtype, Device device) {
  require(width >= 4 && width % 2 == 0, kHibert, "positions of width {}; expected 4, 6, 8, ...",
          width);
  const int64_t half = width / 2;
  std::vector<double> rows(static_cast<size_t>(length * width));
  for (int64_t r = 0; r < length; ++r) {
    for (int64_t m = 0; m < half; ++m) {
      const double w = std::pow(10000.0, -static_cast<double>(m) / static_cast<double>(half - 1));
      const double angle = static_cast<double>(first + r) * w;
      rows[static_cast<size_t>(r * width + m)] = std::sin(angle);
      rows[static_cast<size_t>(r * width + half + m)] = std::cos(angle);
    }
  }
  return to_device(cast(Tensor::from(rows, {length, width}), dtype), device);
}

Hibert::Hibert(const HibertConfig& config, const Init& init)
    : config_(config), compute_(compute_dtype(config.precision, init.dtype)) {
  const HibertConfig& c = config_;
  check_config(c);
  const double deviation = 1 / std::sqrt(static_cast<double>(c.d_model));
  const Scheme tokens = Scheme::normal(deviation);
  token_ = Embedding(c.vocab, c.d_model, init.at("embed").at("token"), tokens);
  words_ = encoder_of(c, c.n_layer - 1, false, init.at("words"));
  ends_ = encoder_of(c, 1, true, init.at("ends"));
  documents_ = encoder_of(c, c.document_layers, false, init.at("documents"));
  if (c.labels > 0) {
    labels_ = Linear(c.d_model, c.labels, c.label_bias, init.at("tags"), Scheme{});
    return;
  }
  const Init side = init.at("decoder");
  written_token_ = c.share_all ? token_ : Embedding(c.vocab, c.d_model, side.at("token"), tokens);
  decoder_ = decoder_of(c, side);
  head_ = Linear(c.d_model, c.vocab, false, init.at("head"),
                 Scheme::normal(c.head_std > 0 ? c.head_std : deviation));
}

void Hibert::visit(Visitor& v) {
  v("embed.token", token_)("words", words_)("ends", ends_)("documents", documents_);
  if (config_.labels > 0) {
    v("tags", labels_);
    return;
  }
  v("decoder.token", written_token_)("decoder", decoder_)("head", head_);
}

DocumentTokens Hibert::special() const {
  const auto v = static_cast<int32_t>(config_.vocab);
  DocumentTokens t{.begin = v - 4, .end = v - 3, .sentence_end = v - 2, .mask = v - 1};
  if (config_.merge_ends) t.end = t.sentence_end;
  if (config_.merge_begin) t.begin = t.end;
  return t;
}

void Hibert::check(const PackedDocuments& in) const {
  const auto sum = [](const std::vector<int64_t>& n) {
    return std::accumulate(n.begin(), n.end(), int64_t{0});
  };
  require<ShapeError>(!in.documents.empty(), kHibert, "got no documents; expected one or more");
  require<ShapeError>(sum(in.documents) == std::ssize(in.sentences), kHibert,
                      "documents of {} sentences in all, and {} sentences; expected as many",
                      sum(in.documents), in.sentences.size());
  require<ShapeError>(sum(in.sentences) == std::ssize(in.tokens), kHibert,
                      "sentences of {} tokens in all, and {} tokens; expected as many",
                      sum(in.sentences), in.tokens.size());
  for (const int64_t n : in.documents) {
    require<ShapeError>(n >= 1, kHibert, "a document of {} sentences; expected 1 or more", n);
  }
  for (const int64_t n : in.sentences) {
    require<ShapeError>(n >= 1, kHibert, "a sentence of {} tokens; expected its end token at least",
                        n);
    require(n <= config_.sentence_length, kHibert,
            "a sentence of {} tokens; expected at most sentence_length = {}: cut it after {} and "
            "let its end token follow",
            n, config_.sentence_length, config_.sentence_length - 1);
  }
}

void Hibert::check(const PackedDocuments& in, const SentenceTargets& written) const {
  require<NotImplemented>(config_.labels == 0, kHibert,
                          "labels is {}, and such a model writes no sentences; set it to 0",
                          config_.labels);
  const int64_t sum = std::accumulate(written.lengths.begin(), written.lengths.end(), int64_t{0});
  require<ShapeError>(!written.slots.empty() && written.slots.size() == written.lengths.size() &&
                          sum == std::ssize(written.inputs) && sum == std::ssize(written.targets),
                      kHibert,
                      "{} sentences to write with {} lengths, {} tokens in all, {} inputs and {} "
                      "targets; expected a sentence, and as many of each",
                      written.slots.size(), written.lengths.size(), sum, written.inputs.size(),
                      written.targets.size());
  for (const int64_t slot : written.slots) {
    require(slot >= 0 && slot < std::ssize(in.sentences), kHibert,
            "sentence {} is to be written; expected 0 to {}", slot, in.sentences.size() - 1);
  }
}

Tensor Hibert::scaled(const Tensor& x) const {
  return config_.emb_scale ? mul(x, std::sqrt(static_cast<double>(config_.d_model))) : x;
}

Tensor Hibert::positions(const std::vector<int64_t>& lengths) const {
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<int64_t> at;
  for (const int64_t n : lengths) {
    for (int64_t j = 0; j < n; ++j) at.push_back(j);
  }
  const Tensor table = hibert_positions(config_.position_offset, longest, config_.d_model,
                                        token_.weight.dtype(), device());
  return take(table, indices(at, device()));
}

Tensor Hibert::embed(const Embedding& table, const std::vector<int32_t>& ids,
                     const std::vector<int64_t>& lengths, Pass site) const {
  const Scope scope("embed");
  const Tensor tokens = Tensor::from(ids, {std::ssize(ids)}, device());
  const Tensor x = add(scaled(table.forward(tokens)), positions(lengths));
  return unsqueeze(cast(dropout(x, config_.dropout, site), compute_), 0);  // [1, n, D]
}

Tensor Hibert::ends_input(const PackedDocuments& in, Pass pass, LayerContext& last) const {
  const std::vector<int64_t> one(in.sentences.size(), 1);
  LayerContext within;
  within.pattern = patterns::segments(in.sentences);
  const Tensor x = embed(token_, in.tokens, in.sentences, pass.at("emb"));
  last.encoder_output = words_.forward(x, within, {}, pass.at("words")).y;  // [1, tokens, D]
  last.encoder_pattern = patterns::segments(one, in.sentences);
  return take(last.encoder_output, indices(last_tokens(in.sentences), device()), 1);
}

/// h_i = the state of the end token of sentence i. The last layer computes no other state, so that
/// its queries, its sums and its feed-forward network have a row for each sentence.
Tensor Hibert::sentence_vectors(const PackedDocuments& in, Pass pass) const {
  const Scope scope(kHibert);
  check(in);
  return rows_by_document(in, pass, [&](const PackedDocuments& own) {
    LayerContext last;
    const Tensor ends = ends_input(own, pass, last);
    return select(ends_.forward(ends, last, {}, pass.at("ends")).y, 0, 0);  // [sentences, D]
  });
}

Tensor Hibert::documents_input(const PackedDocuments& in, Pass pass) const {
  Tensor h = sentence_vectors(in, pass);
  if (config_.sentence_positions) h = add(h, cast(positions(in.documents), h.dtype()));
  return unsqueeze(h, 0);
}

/// d = the document encoder of h_i + p_i.
Tensor Hibert::encode(const PackedDocuments& in, Pass pass) const {
  check(in);
  return rows_by_document(in, pass, [&](const PackedDocuments& own) {
    const Tensor x = documents_input(own, pass);
    const Scope scope(kHibert);
    LayerContext ctx;
    ctx.pattern = patterns::segments(own.documents);
    return select(documents_.forward(x, ctx, {}, pass.at("documents")).y, 0, 0);
  });
}

Tensor Hibert::write(const Tensor& d, const SentenceTargets& written, Pass pass) const {
  const Scope scope(kHibert);
  std::vector<int64_t> rows;
  for (size_t s = 0; s < written.lengths.size(); ++s) {
    rows.insert(rows.end(), static_cast<size_t>(written.lengths[s]), static_cast<int64_t>(s));
  }
  LayerContext ctx;
  ctx.pattern = patterns::causal_segments(written.lengths);
  ctx.encoder_output = unsqueeze(take(d, indices(written.slots, device())), 0);  // c, [1, n, D]
  ctx.own.set(EncoderRows{indices(rows, device())});
  const Tensor x = embed(written_token_, written.inputs, written.lengths, pass.at("decoder_emb"));
  return select(decoder_.forward(x, ctx, {}, pass.at("decoder")).y, 0, 0);
}

Tensor Hibert::written_states(const PackedDocuments& in, const SentenceTargets& written,
                              Pass pass) const {
  if (pass.training || in.documents.size() == 1) return write(encode(in, pass), written, pass);
  std::vector<int64_t> starts(written.slots.size());  // row of each sentence among those written
  std::exclusive_scan(written.lengths.begin(), written.lengths.end(), starts.begin(), int64_t{0});
  std::vector<Tensor> states;
  std::vector<int64_t> place(written.inputs.size());  // of each row among the states
  int64_t next = 0;
  each_alone(in, [&](const PackedDocuments& one, int64_t first) {
    SentenceTargets own;
    for (size_t s = 0; s < written.slots.size(); ++s) {
      const int64_t slot = written.slots[s] - first, length = written.lengths[s];
      if (slot < 0 || slot >= one.documents[0]) continue;
      own.slots.push_back(slot);
      own.lengths.push_back(length);
      for (int64_t i = starts[s]; i < starts[s] + length; ++i) {
        own.inputs.push_back(written.inputs[static_cast<size_t>(i)]);
        place[static_cast<size_t>(i)] = next++;
      }
    }
    if (!own.slots.empty()) states.push_back(write(encode(one, pass), own, pass));
  });
  return take(concat(states, 0), indices(place, device()));
}

Tensor Hibert::head(const Tensor& states) const {
  const Scope scope("head");
  return token_logits(states, head_, config_.token_head);
}

LanguageModel::Losses Hibert::sentence_loss(const PackedDocuments& in,
                                            const SentenceTargets& written, Pass pass) const {
  check(in);
  check(in, written);
  const Tensor states = written_states(in, written, pass);
  const Tensor targets = Tensor::from(written.targets, {std::ssize(written.targets)}, device());
  const Scope scope("loss");
  Losses result;
  result.loss =
      token_loss(states, head_, targets, config_.token_head, pass.training, config_.smoothing);
  return result;
}

Tensor Hibert::sentence_logits(const PackedDocuments& in, const SentenceTargets& written,
                               Pass pass) const {
  check(in);
  check(in, written);
  return head(written_states(in, written, pass));
}

Tensor Hibert::label_logits(const PackedDocuments& in, Pass pass) const {
  require<NotImplemented>(config_.labels > 0, kHibert,
                          "labels is 0, and such a model labels no sentences; set it to 2 or more");
  const Tensor d = encode(in, pass);
  const Scope scope("labels");
  return labels_.forward(
      cast(dropout(d, config_.dropout, pass.at("labels")), labels_.weight.dtype()));
}

std::unique_ptr<DecodeState> Hibert::start_writing(const PackedDocuments& in,
                                                   const std::vector<int64_t>& slots) const {
  const NoGrad off;
  check(in);
  SentenceTargets written{.slots = slots,
                          .lengths = std::vector<int64_t>(slots.size(), 0),
                          .inputs = {},
                          .targets = {}};
  check(in, written);
  auto state = std::make_unique<StreamState>(std::ssize(slots));
  state->context = unsqueeze(take(encode(in, Pass{}), indices(slots, device())), 1);  // [B, 1, D]
  return state;
}

Tensor Hibert::decode(const Tensor& tokens, DecodeState& state) const {
  const NoGrad off;
  const Scope scope(kHibert);
  StreamState& own = StreamState::of(state, kHibert, tokens);
  const int64_t n = tokens.dim(1);
  const Tensor p = hibert_positions(config_.position_offset + own.position, n, config_.d_model,
                                    token_.weight.dtype(), device());
  const Tensor x = add(scaled(written_token_.forward(tokens)), p);
  LayerContext ctx;
  ctx.pattern = patterns::causal();
  ctx.encoder_output = own.context;
  ctx.decoding = true;
  ctx.position = own.position;
  Stack::Result result = decoder_.forward(cast(x, compute_), ctx, own.memory, Pass{});
  own.memory = std::move(result.memory);
  own.position += n;
  return head(select(result.y, 1, -1));  // [B, V]
}

Tensor Hibert::attention_map(const Tensor& tokens, int64_t layer) const {
  const NoGrad off;
  require(layer >= 0 && layer < layers(), kHibert, "layer {} of {}", layer, layers());
  const CutRows row = cut(tokens);
  const PackedDocuments& in = row.documents;
  // The token of the row that a token is, as a row of the map and as a column, and a sentence.
  std::vector<int64_t> of_rows = row.from, of_columns = row.from, ends;
  for (const int64_t last : last_tokens(in.sentences)) {
    const auto at = static_cast<size_t>(last);
    if (of_columns[at] < 0) of_columns[at] = of_columns[at - 1];
    ends.push_back(of_columns[at]);
  }
  Tensor map;
  LayerContext ctx;
  const bool of_words = layer < config_.n_layer;
  if (layer < config_.n_layer - 1) {
    ctx.pattern = patterns::segments(in.sentences);
    map = words_.attention_map(layer, embed(token_, in.tokens, in.sentences, Pass{}), ctx);
  } else if (of_words) {
    map = ends_.attention_map(0, ends_input(in, Pass{}, ctx), ctx);
  } else {
    ctx.pattern = patterns::segments(in.documents);
    map = documents_.attention_map(layer - config_.n_layer, documents_input(in, Pass{}), ctx);
  }
  const std::vector<float> p = contiguous(map).to_vector<float>();
  const auto& rows = layer < config_.n_layer - 1 ? of_rows : ends;
  const auto& columns = of_words ? of_columns : ends;
  const auto length = static_cast<size_t>(tokens.dim(1)), heads = static_cast<size_t>(map.dim(0));
  std::vector<float> shares(heads * length * length, 0);
  for (size_t i = 0; i < p.size(); ++i) {
    const int64_t r = rows[i / columns.size() % rows.size()], c = columns[i % columns.size()];
    if (r < 0) continue;
    const size_t head = i / (rows.size() * columns.size());
    shares[(head * length + static_cast<size_t>(r)) * length + static_cast<size_t>(c)] += p[i];
  }
  return Tensor::from(shares, {map.dim(0), tokens.dim(1), tokens.dim(1)});
}

AttentionOutline Hibert::attention_outline(int64_t /*layer*/, int64_t /*length*/) const {
  fail<NotImplemented>(kHibert,
                       "what a row sees depends on the tokens, which say where sentences end");
}

HibertConfig hibert_preset(std::string_view name) {
  return preset_of<HibertConfig>(kHibert, hibert_presets, name);
}

const ModelEntry& hibert_entry() {
  static const ModelEntry entry{
      kHibert, "encoder of documents over an encoder of sentences, which writes masked sentences",
      hibert_presets, hibert_spec};
  return entry;
}

}  // namespace longspan
