// The models against files that other implementations made; tests/oracles/README.md.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "models/transformer.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/shape.h"
#include "tests/harness/model_info.h"
#include "train/config.h"
#include "train/state.h"

namespace longspan::test {
namespace {

const std::string folder = std::string(LONGSPAN_SOURCE_DIR) + "/tests/oracles/golden/";

/// Every file of a model, so that none can be forgotten.
std::vector<std::string> model_files() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().stem().string();
    if (entry.is_regular_file() && !name.starts_with("optimizer_")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// One training example of a model: inputs, parameters, outputs and gradients.
struct Golden {
  TransformerConfig config;
  std::map<std::string, Tensor> tensors;

  explicit Golden(const std::string& name) {
    const std::string path = folder + name + ".safetensors";
    Settings settings;
    for (const auto& [key, value] : read_tensor_header(path).metadata) {
      settings.push_back({key, Json(value), name, true});
    }
    set_fields(config, settings);
    for (NamedTensor& t : read_tensors(path)) tensors[t.name] = t.tensor;
  }

  /// Undefined where the file has none of that name.
  Tensor operator[](const std::string& name) const {
    const auto at = tensors.find(name);
    return at == tensors.end() ? Tensor{} : at->second;
  }
};

/// Rows beyond a sample's length are written as zero in the files.
Tensor without_padding(const Tensor& x, const Tensor& lengths) {
  if (!lengths) return x;
  const Tensor place = iota(x.dim(1));                      // [L]
  const Tensor valid = less(place, unsqueeze(lengths, 1));  // [B, L]
  return where(unsqueeze(valid, 2), x.detach(), zeros_like(x.detach()));
}

/// Every output and every gradient, computed in dtype, within tolerance of the largest number of
/// the tensor (or of 1, where all are smaller).
void compare(const std::string& name, DType dtype, double tolerance) {
  const Golden golden(name);
  const auto expect = [&](const std::string& what, const Tensor& x) {
    const Tensor expected = golden[what];
    ASSERT_TRUE(expected) << what;
    double scale = 1;
    for (const double v : expected.to_vector<double>()) scale = std::max(scale, std::abs(v));
    EXPECT_LE(distance(x, expected), tolerance * scale) << what;
  };

  Transformer model(golden.config, Init{.gen = Generator{1}, .dtype = dtype});
  TensorList parameters = named_parameters(model);
  const auto given = std::count_if(golden.tensors.begin(), golden.tensors.end(),
                                   [](const auto& t) { return t.first.starts_with("parameter."); });
  ASSERT_EQ(static_cast<int64_t>(parameters.size()), given);
  for (NamedTensor& p : parameters) {
    const Tensor value = golden["parameter." + p.name];
    ASSERT_TRUE(value) << p.name;
    ASSERT_EQ(to_string(p.tensor.shape()), to_string(value.shape())) << p.name;
    assign(p.tensor, value.to_vector<double>());
  }

  const TransformerInputs in{golden["input.tokens"], golden["input.lengths"], golden["input.types"],
                             golden["input.source"]};
  const Pass pass{.training = true, .gen = Generator{1}};
  const Tensor hidden = model.forward(in, pass);
  const Tensor lengths = in.source ? Tensor{} : in.lengths;
  expect("output.hidden", without_padding(hidden, lengths));
  expect("output.logits", without_padding(model.head(hidden), lengths));

  Tensor total;
  if (golden["output.auxiliary"]) {
    const auto losses = model.loss(in.tokens, golden["input.targets"], {}, pass);
    expect("output.loss", losses.loss);
    expect("output.auxiliary", losses.auxiliary);
    total = add(losses.loss, losses.auxiliary);
  } else {
    total = model.loss(hidden, golden["input.targets"], pass);
    expect("output.loss", total);
  }
  backward(total);
  for (const NamedTensor& p : parameters) {
    expect("gradient." + p.name, grad(p.tensor) ? grad(p.tensor) : zeros_like(p.tensor.detach()));
  }
}

class Goldens : public testing::TestWithParam<std::string> {};

TEST_P(Goldens, InF64) { compare(GetParam(), DType::f64, 1e-11); }
TEST_P(Goldens, InF32) { compare(GetParam(), DType::f32, 1e-5); }

INSTANTIATE_TEST_SUITE_P(Spec00, Goldens, testing::ValuesIn(model_files()),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace longspan::test
