// Compares ETC with files from a separate dense implementation, see tests/oracles/README.md.

#include "autograd/engine.h"
#include "models/etc/etc.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "tests/models/golden_file.h"

namespace longspan::test {
namespace {

class EtcGoldens : public testing::TestWithParam<std::string> {};

void expect_etc_golden(const std::string& name, DType dtype, double tolerance) {
  const GoldenFile file("etc", name);
  Etc model = file.build<Etc, EtcConfig>(dtype);

  EtcInputs in{.tokens = file["input.tokens"], .globals = file["input.globals"]};
  LinkedStructure& s = in.structure;
  for (const auto& [field, tensor] : {std::pair{"owner", &s.owner},
                                      {"example", &s.example},
                                      {"global_example", &s.global_example},
                                      {"context", &s.context},
                                      {"global_context", &s.global_context},
                                      {"g2l_all", &s.g2l_all},
                                      {"l2g_all", &s.l2g_all},
                                      {"global_labels", &s.global_labels},
                                      {"link_labels", &s.link_labels},
                                      {"link_class", &s.link_class}}) {
    *tensor = file[std::string("structure.") + field];
  }
  const LinkedStreams y = model.forward(in, Pass{});
  file.expect("output.long", y.l, tolerance);
  file.expect("output.global", y.g, tolerance);
  file.expect("output.logits", model.head(y.l), tolerance);

  std::vector<double> weights(static_cast<size_t>(y.g.numel()));
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = std::cos(static_cast<double>(i));
  const Tensor w = cast(Tensor::from(weights, y.g.shape()), dtype);
  Tensor loss =
      add(mul(model.mlm_loss(y.l, file["input.targets"]), 0.8), mul(sum(mul(y.g, w)), 0.2));
  if (const Tensor places = file["input.places"]) {
    std::vector<int64_t> example_ids = file["input.valid"].to_vector<int64_t>();
    for (int64_t& id : example_ids) id -= 1;
    const Tensor example = Tensor::from(example_ids, file["input.valid"].shape());
    const int64_t count = places.numel();
    const EtcHidden hidden{
        places,
        {.tokens = file["input.sentences"],
         .globals = full({count, 1}, static_cast<double>(model.config().global_id), DType::i64),
         .structure = {.owner = example,
                       .example = example,
                       .global_example = zeros({count, 1}, DType::i64)}}};
    const Tensor cpc = model.cpc_loss(y, hidden, Pass{});
    file.expect("output.cpc", cpc, tolerance);
    loss = add(loss, mul(cpc, 0.5));
  }
  file.expect("output.loss", loss, tolerance);
  backward(loss);
  file.expect_gradients(model, tolerance);
}

TEST_P(EtcGoldens, InF64) { expect_etc_golden(GetParam(), DType::f64, 1e-10); }
TEST_P(EtcGoldens, InF32) { expect_etc_golden(GetParam(), DType::f32, 1e-5); }

INSTANTIATE_TEST_SUITE_P(Etc, EtcGoldens, testing::ValuesIn(golden_names("etc")), own_name);

}  // namespace
}  // namespace longspan::test
