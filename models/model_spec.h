#pragma once

#include <memory>

#include "models/parts.h"
#include "models/registry.h"

namespace longspan {

/// The spec of a model whose constructor takes (const Config&, const Init&).
template <class Model, class Config>
class BlueprintOf final : public ModelSpec {
 public:
  BlueprintOf(const Config& config, const TrainingDefaults& defaults)
      : config_(config), defaults_(defaults) {}

  void visit(Fields& v) override { config_.visit(v); }
  TrainingDefaults defaults() const override { return defaults_; }
  std::string_view extend_positions(int64_t length) override {
    if constexpr (requires { config_.extend_positions(length); }) {
      return config_.extend_positions(length);
    }
    return {};  // a model without tables of positions
  }

 private:
  std::unique_ptr<LanguageModel> make(const Init& init) const override {
    require_count("model", "n_layer", config_.n_layer);
    return std::make_unique<Model>(config_, init);
  }

  Config config_;
  TrainingDefaults defaults_;
};

}  // namespace longspan
