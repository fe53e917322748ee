// The adaptive softmax against PyTorch.
#include "nn/adaptive.h"

#include <gtest/gtest.h>

#include "autograd/engine.h"
#include "ops/copy.h"
#include "ops/shape.h"
#include "tests/harness/model_info.h"
#include "tests/models/golden_file.h"

namespace longspan::test {
namespace {

const Init f64{.gen = Generator{3}, .dtype = DType::f64};

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
    AdaptiveSoftmax model(o, {.bias = bool(head_bias)}, f64);
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

}  // namespace
}  // namespace longspan::test
