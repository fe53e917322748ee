// Which parameters are trained, and how fast (train/parameter_groups.h).
#include "train/parameter_groups.h"

#include <gtest/gtest.h>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "core/error.h"
#include "models/transformer/transformer.h"
#include "ops/copy.h"

namespace longspan::test {
namespace {

TEST(Matches, StarsStandForAnyCharacters) {
  EXPECT_TRUE(matches("layers.0.weight", "layers.0.weight"));
  EXPECT_TRUE(matches("layers.0.weight", "layers.*"));
  EXPECT_TRUE(matches("layers.0.weight", "*weight"));
  EXPECT_TRUE(matches("layers.0.weight", "*.0.*"));
  EXPECT_TRUE(matches("layers.0.weight", "l*r*s*t"));
  EXPECT_TRUE(matches("aab", "*ab"));
  EXPECT_TRUE(matches("", "*"));
  EXPECT_TRUE(matches("", ""));
  EXPECT_FALSE(matches("layers.0.weight", "layers"));
  EXPECT_FALSE(matches("layers.0.weight", "ayers.*"));
  EXPECT_FALSE(matches("layers.0.weight", "*bias"));
  EXPECT_FALSE(matches("", "a*"));
}

class ParameterGroups : public testing::Test {
 protected:
  static TransformerConfig config() {
    TransformerConfig c = transformer_preset("tiny");
    c.vocab = 16;
    c.n_layer = 2;
    return c;
  }
  std::vector<ParameterGroup> groups(ParameterChoice choice, bool matrices_only = false) {
    return parameter_groups(named_parameters(model), choice, matrices_only);
  }
  static size_t count(const std::vector<ParameterGroup>& all) {
    size_t n = 0;
    for (const ParameterGroup& g : all) n += g.parameters.size();
    return n;
  }

  Transformer model{config(), Init{.gen = Generator{1}}};
  size_t all = named_parameters(model).size();
};

TEST_F(ParameterGroups, AreThoseOfTheOptimizersWithoutAChoice) {
  EXPECT_EQ(groups({}).size(), 1u);
  EXPECT_EQ(groups({}, true).size(), 2u);
  EXPECT_EQ(count(groups({}, true)), all);
}

TEST_F(ParameterGroups, FrozenOnesGetNoGradientAndKeepTheirValues) {
  const auto trained = groups({.freeze = {"layers.0.*"}});
  EXPECT_LT(count(trained), all);
  for (const NamedTensor& p : trained[0].parameters) {
    EXPECT_FALSE(p.name.starts_with("layers.0.")) << p.name;
  }
  Sgd sgd(trained);
  std::vector<std::vector<float>> before;
  for (const NamedTensor& p : named_parameters(model))
    before.push_back(p.tensor.to_vector<float>());
  const Tensor ids = Tensor::from(std::vector<int32_t>{1, 2, 3, 4}, {1, 4});
  backward(model.loss(ids, ids, {}, {}).loss);
  size_t i = 0;
  for (const NamedTensor& p : named_parameters(model)) {
    EXPECT_EQ(static_cast<bool>(grad(p.tensor)), !p.name.starts_with("layers.0.")) << p.name;
  }
  sgd.step(0.1);
  for (const NamedTensor& p : named_parameters(model)) {
    EXPECT_EQ(p.tensor.to_vector<float>() == before[i++], p.name.starts_with("layers.0."))
        << p.name;
  }
}

TEST_F(ParameterGroups, TrainNamesTheOnlyOnes) {
  const auto trained = groups({.train = {"layers.1.*"}, .freeze = {"*.bias"}});
  for (const ParameterGroup& group : trained) {
    for (const NamedTensor& p : group.parameters) {
      EXPECT_TRUE(p.name.starts_with("layers.1.") && !p.name.ends_with(".bias")) << p.name;
    }
  }
  EXPECT_GT(count(trained), 0u);
}

TEST_F(ParameterGroups, RatesAreFactors) {
  const auto trained = groups({.rates = {"*=0.5", "layers.1.*=2"}}, true);
  EXPECT_EQ(count(trained), all);
  for (const ParameterGroup& group : trained) {
    for (const NamedTensor& p : group.parameters) {
      EXPECT_EQ(group.lr_scale, p.name.starts_with("layers.1.") ? 2 : 0.5) << p.name;
      EXPECT_EQ(group.weight_decay, p.tensor.rank() >= 2) << p.name;
    }
  }
}

TEST_F(ParameterGroups, SayWhatIsWrong) {
  const auto refusal = [&](ParameterChoice choice) -> std::string {
    try {
      groups(std::move(choice));
      return {};
    } catch (const ValueError& error) {
      return error.what();
    }
  };
  EXPECT_NE(refusal({.freeze = {"layer.0.*"}}).find("no parameter is called layer.0.*"),
            std::string::npos);
  EXPECT_NE(refusal({.freeze = {"*"}}).find("frozen"), std::string::npos);
  EXPECT_NE(refusal({.rates = {"*"}}).find("NAMES=FACTOR"), std::string::npos);
  EXPECT_NE(refusal({.rates = {"*=fast"}}).find("NAMES=FACTOR"), std::string::npos);
  EXPECT_NE(refusal({.rates = {"*=-1"}}).find("NAMES=FACTOR"), std::string::npos);
}

}  // namespace
}  // namespace longspan::test
