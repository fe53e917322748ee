// Compares the models with files that other implementations made, see tests/oracles/README.md.

#include <gtest/gtest.h>

#include "autograd/engine.h"
#include "models/bigbird/bigbird.h"
#include "models/blockbert/blockbert.h"
#include "models/transformer/transformer.h"
#include "tests/models/golden_file.h"

namespace longspan::test {
namespace {

const Pass training{.training = true, .gen = Generator{1}};

/// Compares every output and every gradient of a Transformer.
void compare(const std::string& name, DType dtype, double tolerance) {
  const GoldenFile golden("golden", name);
  TransformerConfig config;
  set_fields(config, golden.settings);
  Transformer model(config, Init{.gen = Generator{1}, .dtype = dtype});
  golden.set_parameters(model);

  const TransformerInputs in{golden["input.tokens"], golden["input.lengths"], golden["input.types"],
                             golden["input.source"]};
  const Tensor hidden = model.forward(in, training);
  const Tensor lengths = in.source ? Tensor{} : in.lengths;
  golden.expect("output.hidden", without_padding(hidden, lengths), tolerance);
  golden.expect("output.logits", without_padding(model.head(hidden), lengths), tolerance);

  Tensor total;
  if (golden["output.auxiliary"]) {
    const auto losses = model.loss(in.tokens, golden["input.targets"], {}, training);
    golden.expect("output.loss", losses.loss, tolerance);
    golden.expect("output.auxiliary", losses.auxiliary.at(0).value, tolerance);
    total = losses.total();
  } else {
    total = model.loss(hidden, golden["input.targets"], training);
    golden.expect("output.loss", total, tolerance);
  }
  backward(total);
  golden.expect_gradients(model, tolerance);
}

/// Compares every output and every gradient of a BERT-shaped encoder.
void compare(const GoldenFile& golden, Encoder& model, double tolerance) {
  golden.set_parameters(model);
  const Tensor lengths = golden["input.lengths"];
  const Tensor hidden = model.forward(
      {.tokens = golden["input.tokens"], .lengths = lengths, .types = golden["input.types"]},
      training);
  golden.expect("output.hidden", without_padding(hidden, lengths), tolerance);
  golden.expect("output.logits", without_padding(model.head(hidden), lengths), tolerance);
  const Tensor loss = model.loss(hidden, golden["input.targets"]);
  golden.expect("output.loss", loss, tolerance);
  backward(loss);
  golden.expect_gradients(model, tolerance);
}

void compare_encoder(const std::string& name, DType dtype, double tolerance) {
  const GoldenFile golden("encoders", name);
  const Init init{.gen = Generator{1}, .dtype = dtype};
  if (golden.model == "bigbird") {
    BigBirdConfig config;
    set_fields(config, golden.settings);
    BigBird model(config, init);
    model.set_random_blocks(golden["input.random_blocks"]);
    compare(golden, model, tolerance);
  } else {
    ASSERT_EQ(golden.model, "blockbert");
    BlockBertConfig config;
    set_fields(config, golden.settings);
    BlockBert model(config, init);
    compare(golden, model, tolerance);
  }
}

std::vector<std::string> transformer_names() {
  std::vector<std::string> names = golden_names("golden");
  std::erase_if(names, [](const std::string& name) { return name.starts_with("optimizer_"); });
  return names;
}

const auto own_name = [](const auto& param) { return param.param; };

class Goldens : public testing::TestWithParam<std::string> {};
TEST_P(Goldens, InF64) { compare(GetParam(), DType::f64, 1e-11); }
TEST_P(Goldens, InF32) { compare(GetParam(), DType::f32, 1e-5); }
INSTANTIATE_TEST_SUITE_P(Transformer, Goldens, testing::ValuesIn(transformer_names()), own_name);

class EncoderGoldens : public testing::TestWithParam<std::string> {};
TEST_P(EncoderGoldens, InF64) { compare_encoder(GetParam(), DType::f64, 1e-10); }
TEST_P(EncoderGoldens, InF32) { compare_encoder(GetParam(), DType::f32, 1e-5); }
INSTANTIATE_TEST_SUITE_P(BlockBertAndBigBird, EncoderGoldens,
                         testing::ValuesIn(golden_names("encoders")), own_name);

}  // namespace
}  // namespace longspan::test
