// Compares the models with files that other implementations made, see tests/oracles/README.md.

#include <gtest/gtest.h>

#include "autograd/engine.h"
#include "models/bigbird/bigbird.h"
#include "models/blockbert/blockbert.h"
#include "models/transformer/transformer.h"
#include "tests/models/golden_file.h"

namespace longspan::test {
namespace {

/// Compares every output and every gradient of a Transformer.
void expect_transformer(const std::string& name, DType dtype, double tolerance) {
  const GoldenFile golden("golden", name);
  Transformer model = golden.build<Transformer, TransformerConfig>(dtype);
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

void expect_encoder(const std::string& name, DType dtype, double tolerance) {
  const GoldenFile golden("encoders", name);
  if (golden.model == "bigbird") {
    BigBird model = golden.build<BigBird, BigBirdConfig>(dtype);
    model.set_random_blocks(golden["input.random_blocks"]);
    expect_golden_encoder(golden, model, tolerance);
  } else {
    ASSERT_EQ(golden.model, "blockbert");
    BlockBert model = golden.build<BlockBert, BlockBertConfig>(dtype);
    expect_golden_encoder(golden, model, tolerance);
  }
}

std::vector<std::string> transformer_names() {
  std::vector<std::string> names = golden_names("golden");
  std::erase_if(names, [](const std::string& name) { return name.starts_with("optimizer_"); });
  return names;
}

class Goldens : public testing::TestWithParam<std::string> {};
TEST_P(Goldens, InF64) { expect_transformer(GetParam(), DType::f64, 1e-11); }
TEST_P(Goldens, InF32) { expect_transformer(GetParam(), DType::f32, 1e-5); }
INSTANTIATE_TEST_SUITE_P(Transformer, Goldens, testing::ValuesIn(transformer_names()), own_name);

class EncoderGoldens : public testing::TestWithParam<std::string> {};
TEST_P(EncoderGoldens, InF64) { expect_encoder(GetParam(), DType::f64, 1e-10); }
TEST_P(EncoderGoldens, InF32) { expect_encoder(GetParam(), DType::f32, 1e-5); }
INSTANTIATE_TEST_SUITE_P(BlockBertAndBigBird, EncoderGoldens,
                         testing::ValuesIn(golden_names("encoders")), own_name);

}  // namespace
}  // namespace longspan::test
