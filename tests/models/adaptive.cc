// The adaptive embedding and softmax against PyTorch, and as the ends of a decoder.
#include "nn/adaptive.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "models/all/registry.h"
#include "models/generate.h"
#include "models/transformer/transformer.h"
#include "nn/objective.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/messages.h"
#include "tests/harness/model_info.h"
#include "tests/models/golden_file.h"
#include "train/config.h"
#include "train/optimizer.h"
#include "train/step_memory.h"

namespace longspan::test {
namespace {

const Init adaptive_init{.gen = Generator{3}, .dtype = DType::f64};

/// tests/oracles/adaptive: its layout has no projection before the first softmax, and stores that
/// of a tail as a linear layer.
TEST(AdaptiveSoftmax, AgreesWithPyTorch) {
  int files = 0;
  for (const std::string& name : golden_names("adaptive")) {
    SCOPED_TRACE(name);
    const GoldenFile golden("adaptive", name);
    AdaptiveOptions o;
    for (const Setting& s : golden.settings) {
      const int64_t value = std::stoll(s.value.string());
      (s.key == "vocab" ? o.vocab : s.key == "d_model" ? o.d_model : o.div_value) = value;
    }
    o.cutoffs = golden["input.cutoffs"].to_vector<int64_t>();
    const Tensor head_bias = golden["parameter.head.bias"];
    AdaptiveSoftmax model(o, {.bias = bool(head_bias)}, adaptive_init);
    std::vector<double> unit;
    for (int64_t i = 0; i < o.d_model * o.d_model; ++i) unit.push_back(i % (o.d_model + 1) == 0);
    assign(model.projections[0].weight, unit);
    const auto values = [](const Tensor& x) { return contiguous(x).to_vector<double>(); };
    const Tensor head = golden["parameter.head.weight"];
    assign(model.tables[0].weight, values(slice(head, 0, 0, o.size(0))));
    assign(model.cluster.weight, values(slice(head, 0, o.size(0))));
    if (head_bias) {
      assign(model.tables[0].bias, values(slice(head_bias, 0, 0, o.size(0))));
      assign(model.cluster.bias, values(slice(head_bias, 0, o.size(0))));
    }
    const auto tail = [](const char* what, int64_t c, int i) {
      return fmt::format("{}.tail.{}.{}.weight", what, c - 1, i);
    };
    for (int64_t c = 1; c < o.clusters(); ++c) {
      const auto i = static_cast<size_t>(c);
      assign(model.projections[i].weight, values(transpose(golden[tail("parameter", c, 0)])));
      assign(model.tables[i].weight, values(golden[tail("parameter", c, 1)]));
    }
    Tensor hidden = golden["input.hidden"];
    set_requires_grad(hidden);
    const Tensor targets = golden["input.targets"];
    golden.expect("output.log_probabilities", model.log_probabilities(hidden), 1e-13);
    golden.expect("output.losses", model.loss(hidden, targets, Reduction::none), 1e-13);
    const Tensor loss = model.loss(hidden, targets);
    golden.expect("output.loss", loss, 1e-13);
    backward(loss);
    golden.expect("gradient.hidden", grad(hidden), 1e-13);
    golden.expect("gradient.head.weight",
                  concat({grad(model.tables[0].weight), grad(model.cluster.weight)}, 0), 1e-13);
    if (head_bias) {
      golden.expect("gradient.head.bias",
                    concat({grad(model.tables[0].bias), grad(model.cluster.bias)}, 0), 1e-13);
    }
    for (int64_t c = 1; c < o.clusters(); ++c) {
      const auto i = static_cast<size_t>(c);
      golden.expect(tail("gradient", c, 0), transpose(grad(model.projections[i].weight)), 1e-13);
      golden.expect(tail("gradient", c, 1), grad(model.tables[i].weight), 1e-13);
    }
    ++files;
  }
  EXPECT_EQ(files, 5);
}

/// A decoder over 40 tokens in clusters of 8, 12 and 20.
TransformerConfig adaptive_decoder() {
  TransformerConfig c;
  c.vocab = 40;
  c.n_layer = 2;
  c.n_head = 2;
  c.d_model = 16;
  c.d_ff = 24;
  c.cutoffs = {8, 20};
  c.div_value = 2;
  c.init_std = 0.2;
  return c;
}

TransformerConfig adaptive_with(const std::function<void(TransformerConfig&)>& change) {
  TransformerConfig c = adaptive_decoder();
  change(c);
  return c;
}

std::vector<std::pair<const char*, TransformerConfig>> decoders() {
  return {{"untied", adaptive_decoder()},
          {"tied", adaptive_with([](auto& c) {
             c.tie_embedding = c.emb_scale = c.head_bias = true;
             c.tie_projections = {1, 2};
           })},
          {"one width", adaptive_with([](auto& c) { c.div_value = 1; })},
          {"narrow tables", adaptive_with([](auto& c) {
             c.d_embed = 8;
             c.dropout = 0.1f;
           })}};
}

TEST(AdaptiveDecoder, GradientsOfEveryParameter) {
  for (const auto& [name, c] : decoders()) {
    SCOPED_TRACE(name);
    Transformer model(c, adaptive_init);
    randomise(model, 0.3, 4);
    const Tensor tokens = some_tokens(2, 5, 40), targets = some_tokens(2, 5, 40, 2);
    const Pass pass{.training = true, .gen = Generator{2}};
    EXPECT_EQ(check_parameter_gradients(model,
                                        [&] { return model.loss(tokens, targets, {}, pass).loss; }),
              "");
  }
}

TEST(AdaptiveDecoder, DecodesTokenByTokenWhatItPredictsAtOnce) {
  for (const auto& [name, c] : decoders()) {
    SCOPED_TRACE(name);
    const Transformer model(c, adaptive_init);
    const Tensor tokens = some_tokens(2, 7, 40), targets = some_tokens(2, 7, 40, 2);
    const Tensor all = model.logits(tokens, {});  // [2, 7, 40]
    EXPECT_LT(distance(sum(exp(all), {2}), ones({2, 7}, DType::f64)), 1e-14);
    const auto state = model.start_decoding(2);
    for (int64_t t = 0; t < 7; ++t) {
      const Tensor next = model.decode(slice(tokens, 1, t, t + 1), *state);
      EXPECT_LT(distance(next, select(all, 1, t)), 1e-13) << t;
    }
    const Tensor chosen = take_along_axis(all, unsqueeze(targets, 2));
    EXPECT_NEAR(model.loss(tokens, targets, {}, {}).loss.item(), -mean(chosen).item(), 1e-13);
    const Tensor text = generate(model, slice(tokens, 1, 0, 3), 6, {}, Generator{1});
    EXPECT_EQ(text.shape(), Shape({2, 6}));
    for (const int64_t id : text.to_vector<int64_t>()) EXPECT_TRUE(id >= 0 && id < 40) << id;
  }
}

TEST(AdaptiveDecoder, LearnsTokensOfAllClusters) {
  TransformerConfig c = adaptive_decoder();
  c.tie_embedding = true;
  Transformer model(c, Init{.gen = Generator{1}});
  Adam adam(named_parameters(model));
  std::vector<int64_t> ids, next;
  for (int64_t t = 0; t < 16; ++t) {
    ids.push_back(t * 7 % 40);
    next.push_back((t + 1) * 7 % 40);
  }
  const Tensor tokens = Tensor::from(ids, {1, 16}), targets = Tensor::from(next, {1, 16});
  const auto loss = [&] { return model.loss(tokens, targets, {}, {}).loss; };
  const double before = loss().item();
  EXPECT_GT(before, 2);
  for (int step = 0; step < 60; ++step) {
    backward(loss());
    adam.step(1e-2);
  }
  EXPECT_LT(loss().item(), 0.1);
  for (const int64_t id : argmax(model.logits(tokens, {}), 2).to_vector<int64_t>()) {
    EXPECT_EQ(id, next.front());
    next.erase(next.begin());
  }
}

StepMemory step_of(const TransformerConfig& c, Device device, int64_t token, int64_t target) {
  const Usage base = memory_tracker(device).live();
  Transformer model(c, Init{Generator{1}, device});
  Adam adam(named_parameters(model));
  const auto ids = [&](int64_t id) {
    Tensor x =
        Tensor::from(std::vector<int32_t>(2 * 64, static_cast<int32_t>(id)), {2, 64}, device);
    x.set_category(Category::data);
    return x;
  };
  const Tensor tokens = ids(token), targets = ids(target);
  const auto loss = [&] {
    return model.loss(tokens, targets, {}, {.training = true, .gen = Generator{2}}).loss;
  };
  StepMemory step;
  for (int i = 0; i < 2; ++i) step = measure_step(device, adam, loss, {.clip = 1.0, .base = base});
  return step;
}

/// The prediction is that of the batch that needs most: the widest rows everywhere.
TEST(AdaptiveDecoder, PredictedBytesAreThoseOfTheWidestClusters) {
  for (const auto& [name, c] : decoders()) {
    SCOPED_TRACE(name);
    const StepMemory predicted = step_of(c, meta_device, 0, 0);
    const StepMemory measured = step_of(c, {}, 3, 9);
    EXPECT_GT(measured.saved, 0);
    EXPECT_EQ(predicted.parameter, measured.parameter);
    EXPECT_EQ(predicted.gradient, measured.gradient);
    EXPECT_EQ(predicted.optimizer, measured.optimizer);
    EXPECT_EQ(predicted.saved, measured.saved);
    EXPECT_EQ(predicted.forward_peak, measured.forward_peak);
    EXPECT_EQ(predicted.backward_peak, measured.backward_peak);
    EXPECT_EQ(predicted.update_peak, measured.update_peak);
    EXPECT_EQ(predicted.macs, measured.macs);
    for (const auto& [token, target] : {std::pair{3, 3}, {9, 25}, {25, 3}}) {
      const StepMemory other = step_of(c, {}, token, target);
      EXPECT_EQ(other.parameter, predicted.parameter);
      EXPECT_EQ(other.gradient, predicted.gradient);
      EXPECT_LE(other.saved, predicted.saved) << token << ", " << target;
      EXPECT_LE(other.peak(), predicted.peak()) << token << ", " << target;
    }
  }
}

/// The softmax over all tokens is left as it is.
TEST(AdaptiveDecoder, WithoutCutoffsThereAreTheParametersOfBefore) {
  TransformerConfig c = adaptive_decoder();
  c.cutoffs.clear();
  c.div_value = 1;
  Transformer plain(c, Init{.gen = Generator{1}});
  EXPECT_EQ(parameter(plain, "embed.token.weight").shape(), Shape({40, 16}));
  EXPECT_EQ(parameter(plain, "head.weight").shape(), Shape({40, 16}));
  Transformer model(adaptive_decoder(), Init{.gen = Generator{1}});
  EXPECT_EQ(parameter(model, "embed.token.table.2.weight").shape(), Shape({20, 4}));
  EXPECT_EQ(parameter(model, "embed.token.projection.1.weight").shape(), Shape({16, 8}));
  EXPECT_EQ(parameter(model, "head.table.1.weight").shape(), Shape({12, 8}));
  EXPECT_EQ(parameter(model, "head.projection.0.weight").shape(), Shape({16, 16}));
  EXPECT_EQ(parameter(model, "head.cluster.weight").shape(), Shape({2, 16}));
}

TEST(AdaptiveDecoder, OptionsAreFieldsOfTheTransformer) {
  const auto spec = find_model("transformer");
  const auto set = [&](const char* key, const char* value) {
    set_fields(*spec, Settings{{key, Json(value), "", true}});
  };
  set("vocab", "3000");
  const int64_t plain = spec->parameters();
  set("cutoffs", "200,1000");
  set("div_value", "4");
  EXPECT_LT(spec->parameters(), plain);
  set("tie_projections", "1,2");
  const auto model = spec->build(Init{.gen = Generator{1}});
  EXPECT_EQ(model->logits(some_tokens(1, 5, 3000), {}).shape(), Shape({1, 5, 3000}));
}

TEST(AdaptiveDecoder, OptionsThatDoNotFitAreNamed) {
  const auto error = [](const std::function<void(TransformerConfig&)>& change) {
    const TransformerConfig c = adaptive_with(change);
    return message_of<ValueError>([&] { Transformer(c, Init{.gen = Generator{1}}); });
  };
  for (const Wiring wiring : {Wiring::encoder, Wiring::encoder_decoder}) {
    EXPECT_TRUE(contains(
        error([&](auto& c) { c.wiring = wiring; }),
        fmt::format("cutoffs need wiring = decoder; this is wiring = {}", name_of_value(wiring))));
  }
  EXPECT_TRUE(contains(error([](auto& c) { c.layer_loss = true; }), "leave out cutoffs"));
  EXPECT_TRUE(contains(error([](auto& c) { c.n_target = 2; }), "leave out cutoffs"));
  EXPECT_TRUE(contains(error([](auto& c) { c.label_smoothing = 0.1; }), "label_smoothing is for"));
  EXPECT_TRUE(contains(error([](auto& c) { c.token_head.z_loss = 1; }), "z_loss and soft_cap"));
  EXPECT_TRUE(contains(error([](auto& c) { c.token_head.soft_cap = 1; }), "z_loss and soft_cap"));
  EXPECT_TRUE(contains(error([](auto& c) { c.cutoffs = {8, 40}; }), "cutoffs are [8, 40]"));
  EXPECT_TRUE(contains(error([](auto& c) { c.div_value = 0; }), "div_value is 0"));
  EXPECT_TRUE(contains(error([](auto& c) { c.div_value = 32; }), "cluster 2 has no width"));
  EXPECT_TRUE(contains(error([](auto& c) { c.tie_projections = {5}; }), "tie_projections are [5]"));
  EXPECT_TRUE(contains(error([](auto& c) { c.cutoffs.clear(); }), "div_value and tie_projections"));
  const Transformer model(adaptive_decoder(), Init{.gen = Generator{1}});
  const Tensor good = some_tokens(1, 4, 40);
  const Tensor bad = Tensor::from(std::vector<int64_t>{1, 2, 40, 3}, {1, 4});
  EXPECT_TRUE(
      contains(message_of<ValueError>([&] { model.logits(bad, {}); }), "ids holds 40 at [0, 2]"));
  EXPECT_TRUE(contains(message_of<ValueError>([&] { model.loss(good, bad, {}, {}); }),
                       "target 40 at position 2"));
}

}  // namespace
}  // namespace longspan::test
