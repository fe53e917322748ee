#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "models/encoder.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/shape.h"
#include "tests/models/small_models.h"
#include "train/config.h"
#include "train/state.h"

namespace longspan::test {

/// Returns the sorted names of the files in tests/oracles/FOLDER, so that no file can be forgotten.
inline std::vector<std::string> golden_names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(LONGSPAN_SOURCE_DIR) +
                                                               "/tests/oracles/" + folder)) {
    if (entry.path().extension() == ".safetensors") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Returns the tensors of a file by name.
inline std::map<std::string, Tensor> tensors_of(const std::string& path) {
  std::map<std::string, Tensor> all;
  for (NamedTensor& t : read_tensors(path)) all[t.name] = t.tensor;
  return all;
}

/// Holds one training example of a model: configuration, inputs, parameters, outputs and gradients.
class GoldenFile {
 public:
  GoldenFile(const std::string& folder, const std::string& name) {
    const std::string path =
        std::string(LONGSPAN_SOURCE_DIR) + "/tests/oracles/" + folder + "/" + name + ".safetensors";
    for (const auto& [key, value] : read_tensor_header(path).metadata) {
      if (key == "model") {
        model = value;
      } else {
        settings.push_back({key, Json(value), name, true});
      }
    }
    tensors_ = tensors_of(path);
  }

  std::string model;  ///< the model's name, if the folder has several models
  Settings settings;  ///< of the model's configuration

  /// Returns a tensor by name, undefined if the file has none of that name.
  Tensor operator[](const std::string& name) const {
    const auto at = tensors_.find(name);
    return at == tensors_.end() ? Tensor{} : at->second;
  }

  /// Sets every parameter of the module. Fails if the file and the module have different
  /// parameters.
  void set_parameters(Module& module) const {
    TensorList parameters = named_parameters(module);
    const auto given = std::count_if(tensors_.begin(), tensors_.end(), [](const auto& t) {
      return t.first.starts_with("parameter.");
    });
    ASSERT_EQ(static_cast<int64_t>(parameters.size()), given);
    for (NamedTensor& p : parameters) {
      const Tensor value = (*this)["parameter." + p.name];
      ASSERT_TRUE(value) << p.name;
      ASSERT_EQ(to_string(p.tensor.shape()), to_string(value.shape())) << p.name;
      assign(p.tensor, value.to_vector<double>());
    }
  }

  /// Returns the configuration of the file.
  template <class Config>
  Config config() const {
    Config c;
    set_fields(c, settings);
    return c;
  }

  /// Returns a model with the configuration and the parameters of the file.
  template <class Model, class Config>
  Model build(DType dtype) const {
    Model built(config<Config>(), Init{.gen = Generator{1}, .dtype = dtype});
    set_parameters(built);
    return built;
  }

  /// Expects x within tolerance times the largest absolute value of the expected tensor, or times 1
  /// if that is larger.
  void expect(const std::string& what, const Tensor& x, double tolerance) const {
    const Tensor expected = (*this)[what];
    ASSERT_TRUE(expected) << what;
    double scale = 1;
    for (const double v : expected.to_vector<double>()) scale = std::max(scale, std::abs(v));
    EXPECT_LE(distance(x, expected), tolerance * scale) << what;
  }

  /// Compares the gradients of a backward pass with "PREFIXgradient.NAME".
  void expect_gradients(Module& module, double tolerance, const std::string& prefix = "") const {
    for (const NamedTensor& p : named_parameters(module)) {
      expect(prefix + "gradient." + p.name,
             grad(p.tensor) ? grad(p.tensor) : zeros_like(p.tensor.detach()), tolerance);
    }
  }

 private:
  std::map<std::string, Tensor> tensors_;
};

/// Names the tests of a file after it.
inline std::string own_name(const testing::TestParamInfo<std::string>& file) { return file.param; }

/// Zeroes the rows beyond each sample's length, as the files do.
inline Tensor without_padding(const Tensor& x, const Tensor& lengths) {
  if (!lengths) return x;
  const Tensor place = iota(x.dim(1));                      // [L]
  const Tensor valid = less(place, unsqueeze(lengths, 1));  // [B, L]
  return where(unsqueeze(valid, 2), x.detach(), zeros_like(x.detach()));
}

/// Compares every output and every gradient of a BERT-shaped encoder with the file's.
///   prefix  of the names of what is expected
inline void expect_golden_encoder(const GoldenFile& golden, Encoder& model, double tolerance,
                                  const std::string& prefix = "") {
  const Tensor lengths = golden["input.lengths"];
  const Tensor hidden = model.forward({.tokens = golden["input.tokens"],
                                       .lengths = lengths,
                                       .types = golden["input.types"],
                                       .global = golden["input.global"]},
                                      training);
  golden.expect(prefix + "output.hidden", without_padding(hidden, lengths), tolerance);
  golden.expect(prefix + "output.logits", without_padding(model.head(hidden), lengths), tolerance);
  const Tensor loss = model.loss(hidden, golden["input.targets"]);
  golden.expect(prefix + "output.loss", loss, tolerance);
  backward(loss);
  golden.expect_gradients(model, tolerance, prefix);
}

}  // namespace longspan::test
