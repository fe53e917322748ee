#pragma once

// What the tests of small models have in common.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/copy.h"
#include "tests/harness/model_info.h"

namespace longspan::test {

inline const Pass training{.training = true, .gen = Generator{1}};

/// Returns symbols that repeat with period 3, so that most masked symbols also appear unmasked.
inline int64_t period_three(int64_t b, int64_t t) { return philox_word(5, b * 3 + t % 3) % 17; }
/// Returns symbols that depend only on the previous token.
inline int64_t successor(int64_t b, int64_t t) { return (b + 5 * t) % 17; }

/// Returns every third token as a target, beginning with the second, and ignores the others.
inline Tensor mlm_targets(const Tensor& tokens) {
  std::vector<int64_t> ids = tokens.to_vector<int64_t>();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i % 3 != 1) ids[i] = ignored_target;
  }
  return Tensor::from(ids, tokens.shape());
}

/// Returns the largest absolute value.
inline double largest_of(const Tensor& x) {
  double most = 0;
  for (const double v : cast(x.detach(), DType::f64).to_vector<double>()) {
    most = std::max(most, std::abs(v));
  }
  return most;
}

/// Returns a model with random parameters, see randomise().
template <class Model>
Model randomised(const auto& config, const Init& init = in_f64, double deviation = 0.3,
                 uint64_t seed = 21) {
  Model model(config, init);
  randomise(model, deviation, seed);
  return model;
}

/// Returns an entry with what makes its model, and without what the model sees and costs.
///   dropping  the configuration with dropout
template <class Model, class Config>
ModelInfo entry_of(const std::string& name, const Config& c, Config dropping) {
  ModelInfo m;
  m.name = name;
  m.make = [c](const Init& init) { return std::make_unique<Model>(c, init); };
  m.make_with_dropout = [dropping](const Init& init, const MemoryPolicy& memory) mutable {
    dropping.memory = memory;
    return std::make_unique<Model>(dropping, init);
  };
  return m;
}

/// The same with a dropout of 0.1.
template <class Model, class Config>
ModelInfo entry_of(const std::string& name, const Config& c) {
  Config dropping = c;
  dropping.dropout = 0.1f;
  return entry_of<Model>(name, c, dropping);
}

}  // namespace longspan::test
