#include <gtest/gtest.h>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/shape.h"
#include "tests/harness/model_info.h"
#include "tests/models/golden.h"
#include "train/state.h"

namespace longspan::test {

Golden read_golden(const std::string& name) {
  const std::string path =
      fmt::format("{}/tests/oracles/golden/{}.safetensors", LONGSPAN_SOURCE_DIR, name);
  Golden g;
  for (NamedTensor& t : read_tensors(path)) g.tensors[t.name] = t.tensor;
  for (auto& [key, value] : read_tensor_header(path).metadata) g.options[key] = value;
  return g;
}

TransformerConfig config_of(const Golden& golden) {
  const auto text = [&](const char* key) { return golden.options.at(key); };
  const auto integer = [&](const char* key) { return std::stoll(text(key)); };
  const auto flag = [&](const char* key) { return text(key) == "true"; };
  const auto choice = [&](const char* key, auto& value) {
    using E = std::remove_reference_t<decltype(value)>;
    for (size_t i = 0; i < value_names<E>.size(); ++i) {
      if (value_names<E>[i] == text(key)) {
        value = static_cast<E>(i);
        return;
      }
    }
    FAIL() << key << " = " << text(key);
  };
  TransformerConfig c;
  choice("kind", c.wiring);
  choice("norm", c.norm);
  choice("activation", c.activation);
  choice("position", c.positions);
  choice("sinusoid_layout", c.sinusoid);
  choice("local", c.local);
  c.n_layer = integer("layers");
  c.d_model = integer("model");
  c.n_head = integer("heads");
  c.d_head = integer("head_width");
  c.d_ff = integer("inner");
  c.vocab = integer("vocabulary");
  c.n_max = integer("max_length");
  c.norm_eps = std::stod(text("norm_eps"));
  c.shaw_clip = integer("shaw_clip");
  c.shaw_values = flag("shaw_values");
  c.shaw_share_layers = flag("shaw_share_layers");
  c.shaw_per_head = flag("shaw_per_head");
  c.shaw_two_sided = true;
  c.window = integer("window");
  c.qkv_bias = flag("qkv_bias");
  c.out_bias = flag("out_bias");
  c.head_bias = flag("head_bias");
  c.share_qk = flag("share_qk");
  c.tie_embedding = flag("tie_embedding");
  c.emb_scale = flag("embedding_scale");
  c.emb_norm = flag("embedding_norm");
  c.token_types = integer("token_types");
  c.mlm_head = flag("mlm_head");
  c.label_smoothing = std::stod(text("label_smoothing"));
  return c;
}

namespace {

class Goldens : public testing::TestWithParam<const char*> {};

/// Rows beyond a sample's length are written as zero in the files.
Tensor without_padding(const Tensor& x, const Tensor& lengths) {
  if (!lengths) return x;
  const std::vector<int64_t> valid = lengths.to_vector<int64_t>();
  std::vector<double> mask;
  for (int64_t b = 0; b < x.dim(0); ++b) {
    for (int64_t i = 0; i < x.dim(1); ++i) {
      mask.push_back(i < valid[static_cast<size_t>(b)] ? 1.0 : 0.0);
    }
  }
  return mul(x.detach(), Tensor::from(mask, {x.dim(0), x.dim(1), 1}));
}

TEST_P(Goldens, OutputsAndGradients) {
  const Golden golden = read_golden(GetParam());
  const TransformerConfig config = config_of(golden);
  Transformer model(config, Init{.gen = Generator{1}, .dtype = DType::f64});

  TensorList parameters = named_parameters(model);
  size_t given = 0;
  for (const auto& [key, value] : golden.tensors) given += key.starts_with("parameter.") ? 1 : 0;
  ASSERT_EQ(parameters.size(), given);
  for (NamedTensor& p : parameters) {
    const Tensor& value = golden.tensors.at(fmt::format("parameter.{}", p.name));
    ASSERT_EQ(to_string(p.tensor.shape()), to_string(value.shape())) << p.name;
    assign(p.tensor, value.to_vector<double>());
  }

  const auto input = [&](const char* name) {
    const auto at = golden.tensors.find(fmt::format("input.{}", name));
    return at == golden.tensors.end() ? Tensor{} : at->second;
  };
  const TransformerInputs in{input("tokens"), input("lengths"), input("types"), input("source")};
  const Pass pass{.training = true, .gen = Generator{1}};
  const Tensor hidden = model.forward(in, pass);
  const Tensor loss = model.loss(hidden, input("targets"), pass);
  const Tensor padded = config.wiring == Wiring::encoder ? in.lengths : Tensor{};
  EXPECT_LT(distance(without_padding(hidden, padded), golden.tensors.at("output.hidden")), 1e-11);
  EXPECT_LT(
      distance(without_padding(model.head(hidden), padded), golden.tensors.at("output.logits")),
      1e-11);
  EXPECT_LT(distance(loss, golden.tensors.at("output.loss")), 1e-12);

  backward(loss);
  for (const NamedTensor& p : parameters) {
    const Tensor dx = grad(p.tensor) ? grad(p.tensor) : zeros_like(p.tensor.detach());
    EXPECT_LT(distance(dx, golden.tensors.at(fmt::format("gradient.{}", p.name))), 1e-11) << p.name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Spec00, Goldens,
    testing::Values("decoder_none_pre_relu", "decoder_sinusoid_interleaved_post_relu",
                    "decoder_sinusoid_halves_pre_gelu_erf", "decoder_learned_pre_gelu_tanh_tied",
                    "decoder_learned_per_layer_post_gelu_sigmoid", "decoder_shaw_pre_geglu",
                    "decoder_shaw_keys_only_post", "decoder_shaw_shared_layers_per_head",
                    "decoder_narrow_heads", "decoder_wide_heads_label_smoothing",
                    "decoder_shared_qk", "decoder_one_token", "local_exact_shaw",
                    "local_exact_learned_one_key", "local_block_shaw_geglu",
                    "local_block_sinusoid_post", "encoder_bert", "encoder_pre_shaw",
                    "encoder_local_exact", "encoder_decoder_post", "encoder_decoder_pre_learned",
                    "package_gpt2", "package_bert"),
    [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace longspan::test
