#include "models/causal_decoder.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "models/encoder.h"
#include "models/transformer/encoder_decoder.h"
#include "nn/attention/decoding_memory.h"
#include "nn/attention/multi_head.h"
#include "ops/copy.h"
#include "ops/shape.h"
#include "tests/harness/clusters.h"
#include "tests/harness/messages.h"
#include "tests/harness/model_info.h"

namespace longspan::test {
namespace {

constexpr int64_t kVocab = 17, kLayers = 2, kHeads = 2, kWidth = 16, kInner = 24, kWindow = 4;

/// The smallest model: its attention, which rows see which, and nothing else.
class Windowed final : public CausalDecoder {
 public:
  explicit Windowed(const Init& init, float dropout = 0, const MemoryPolicy& memory = {},
                    int64_t n_max = 0)
      : CausalDecoder({.model = "windowed",
                       .vocab = kVocab,
                       .n_layer = kLayers,
                       .n_head = kHeads,
                       .d_model = kWidth,
                       .n_max = n_max,
                       .token = Scheme::normal(0.3),
                       .classifier = Scheme::normal(0.3),
                       .head_bias = true,
                       .emb_scale = true,
                       .dropout = dropout},
                      init) {
    const Scheme weights = Scheme::normal(0.3);
    std::vector<std::unique_ptr<Layer>> attention;
    for (int64_t i = 0; i < kLayers; ++i) {
      attention.push_back(std::make_unique<MultiHead>(
          AttentionOptions{
              .d_model = kWidth, .n_head = kHeads, .dropout = dropout, .weights = weights},
          ShawTables{}, attention_init(init, i)));
    }
    stack_ = attention_stack({.ff = {.d_model = kWidth, .d_ff = kInner, .weights = weights},
                              .dropout = dropout,
                              .memory = memory},
                             std::move(attention), init);
  }

 private:
  LayerContext layer_context(int64_t, int64_t, int64_t) const override {
    LayerContext ctx;
    ctx.pattern = patterns::local(kWindow);
    return ctx;
  }
  int64_t first_visible(int64_t position) const override {
    return std::max<int64_t>(0, position - (kWindow - 1));
  }
};

const RegisteredModel causal_decoder = [] {
  ModelInfo m;
  m.name = "causal_decoder";
  m.make = [](const Init& init) { return std::make_unique<Windowed>(init); };
  m.make_with_dropout = [](const Init& init, const MemoryPolicy& memory) {
    return std::make_unique<Windowed>(init, 0.1f, memory);
  };
  m.sees = [](int64_t i, int64_t j) { return j <= i && i - j < kWindow; };
  m.macs = [](int64_t l) {
    const int64_t pairs = kHeads * (kWindow * l - kWindow * (kWindow - 1) / 2);
    return kLayers *
               (4 * l * kWidth * kWidth + 2 * pairs * (kWidth / kHeads) + 2 * l * kWidth * kInner) +
           l * kWidth * kVocab;
  };
  m.task = [](int64_t b, int64_t t) { return (b + 5 * t) % kVocab; };  // needs no positions
  m.counted_from = 1;
  return m;
}();

TEST(CausalDecoder, RefusesWhatItCannotTake) {
  const Windowed model(Init{}, 0, {}, 8);
  const auto message = [](const std::function<void()>& f) { return message_of<Error>(f); };
  EXPECT_EQ(model.max_length(), 8);
  EXPECT_EQ(Windowed(Init{}).max_length(), std::numeric_limits<int64_t>::max());
  EXPECT_TRUE(contains(message([&] { model.logits(some_tokens(2, 9, kVocab), Pass{}); }),
                       "position 8 is beyond n_max = 8"));
  EXPECT_THROW(model.logits(reshape(some_tokens(2, 4, kVocab), {8}), Pass{}), ShapeError);
  SegmentMemory memory;
  memory.layers.resize(2);
  const Tensor tokens = some_tokens(2, 4, kVocab);
  EXPECT_TRUE(contains(message([&] { model.loss(tokens, tokens, memory, Pass{}); }),
                       "windowed: got a memory of 2 layers; this model keeps none"));
  EXPECT_THROW(model.loss(model.forward(tokens, Pass{}), some_tokens(2, 3, kVocab)), ShapeError);
  DecodeState other;
  EXPECT_TRUE(contains(message([&] { model.decode(tokens, other); }), "another model's"));
  const auto state = model.start_decoding(3);
  EXPECT_THROW(model.decode(tokens, *state), ShapeError);
}

TEST(CausalDecoder, DecodingKeepsOnlyWhatItsRowsSee) {
  const Windowed model(Init{});
  const auto state = model.start_decoding(1);
  for (int64_t t = 0; t < 40; ++t) model.decode(some_tokens(1, 1, kVocab), *state);
  const KeyValues layer = dynamic_cast<StreamState&>(*state).memory.layers.front().get<KeyValues>();
  EXPECT_EQ(layer.first + layer.count, 40);
  EXPECT_LT(layer.count, 40);
}

/// A decoder and an encoder whose layers return losses and statistics in place of attention.
std::vector<std::unique_ptr<Layer>> cluster_layers(const Init& init) {
  std::vector<std::unique_ptr<Layer>> layers;
  for (int64_t i = 0; i < kLayers; ++i) {
    layers.push_back(std::make_unique<Clusters>(kWidth, 0, attention_init(init, i)));
  }
  return layers;
}

class ClusterDecoder final : public CausalDecoder {
 public:
  explicit ClusterDecoder(const Init& init)
      : CausalDecoder({.model = "clusters",
                       .vocab = kVocab,
                       .n_layer = kLayers,
                       .n_head = 1,
                       .d_model = kWidth},
                      init) {
    stack_ =
        attention_stack({.ff = {.d_model = kWidth, .d_ff = kInner}}, cluster_layers(init), init);
  }

 private:
  LayerContext layer_context(int64_t, int64_t, int64_t) const override { return {}; }
};

class ClusterEncoder final : public Encoder {
 public:
  explicit ClusterEncoder(const Init& init)
      : Encoder("clusters", config(), cluster_layers(init), init) {}

 private:
  static EncoderConfig config() {
    EncoderConfig c;
    c.vocab = kVocab;
    c.n_layer = kLayers;
    c.n_head = 1;
    c.d_model = kWidth;
    c.d_ff = kInner;
    return c;
  }
  LayerContext layer_context(const EncoderInputs&, Pass) const override { return {}; }
};

TransformerConfig small_bart() {
  TransformerConfig c = transformer_preset("bart");
  c.vocab = kVocab;
  c.n_layer = kLayers;
  c.n_head = kHeads;
  c.d_model = kWidth;
  c.d_ff = kInner;
  c.n_max = 16;
  return c;
}

class ClusterSequences final : public EncoderDecoder {
 public:
  explicit ClusterSequences(const Init& init)
      : EncoderDecoder("clusters", small_bart(), init, cluster_layers(init)) {}

 private:
  LayerContext layer_context(const SequenceInputs&, Pass) const override { return {}; }
};

void expect_all_of_clusters(const LanguageModel::Losses& losses) {
  std::vector<std::string> names;
  for (const AuxiliaryLoss& a : losses.auxiliary) names.push_back(a.name);
  EXPECT_EQ(names, (std::vector<std::string>{"commitment", "copy"}));
  EXPECT_EQ(losses.statistics.size(), static_cast<size_t>(kLayers));
  EXPECT_GT(losses.total().item(), losses.loss.item());
}

TEST(Shells, PassOnWhatLayersReturnBesideTheirResult) {
  const ClusterDecoder decoder(Init{});
  const ClusterEncoder encoder(Init{});
  const Tensor tokens = some_tokens(2, 6, kVocab);
  for (const LanguageModel* model :
       {static_cast<const LanguageModel*>(&decoder), static_cast<const LanguageModel*>(&encoder)}) {
    expect_all_of_clusters(
        model->loss(tokens, tokens, {}, {.training = true, .gen = Generator{1}}));
  }
}

// Both ways to run a source: a Transformer with layers of its own, and the shell around it.
TEST(Shells, PassOnWhatTheLayersOfAnEncoderReturn) {
  const Init init;
  Transformer transformer(small_bart(), init, cluster_layers(init));
  ClusterSequences shell(init);
  const Tensor source = some_tokens(2, 9, kVocab), tokens = some_tokens(2, 6, kVocab);
  for (LanguageModel* model :
       {static_cast<LanguageModel*>(&transformer), static_cast<LanguageModel*>(&shell)}) {
    const auto& writer = need<WritesSequences>(*model);
    const auto losses =
        writer.sequence_loss({source}, tokens, tokens, {.training = true, .gen = Generator{1}});
    expect_all_of_clusters(losses);
    backward(losses.total());
    int64_t trained = 0;
    for (const NamedTensor& p : named_parameters(*model)) {
      trained += p.clip_group == "copy" && grad(p.tensor) ? 1 : 0;
    }
    EXPECT_EQ(trained, 2 * kLayers) << "weights and biases that only an auxiliary loss trains";
    EXPECT_TRUE(writer.sequence_loss({source}, tokens, tokens, Pass{}).auxiliary.empty());
  }
}

// A beam search reorders all that a state holds; the source of a sample stays unless told.
TEST(StreamState, TakesRows) {
  const auto numbers = [](std::initializer_list<int64_t> x) {
    return Tensor::from(std::vector<int64_t>(x), {static_cast<int64_t>(x.size())});
  };
  for (const bool same_context : {true, false}) {
    StreamState state(3);
    state.choices = {numbers({1, 2, 3}), Tensor{}};
    state.lengths = numbers({4, 5, 6});
    state.context = numbers({7, 8, 9});
    state.take_rows(numbers({2, 0}), same_context);
    EXPECT_EQ(state.batch, 2);
    EXPECT_EQ(state.choices[0].to_vector<int64_t>(), (std::vector<int64_t>{3, 1}));
    EXPECT_FALSE(state.choices[1]);
    EXPECT_EQ(state.lengths.numel(), same_context ? 3 : 2);
    EXPECT_EQ(state.context.numel(), same_context ? 3 : 2);
  }
}

}  // namespace
}  // namespace longspan::test
