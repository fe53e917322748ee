#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "models/model.h"
#include "models/parts.h"
#include "nn/fields.h"
#include "nn/init.h"

namespace longspan {

/// How a preset is meant to be trained on bytes; options override each.
struct TrainingDefaults {
  int64_t length = 128, batch = 16, steps = 1500;
  double lr = 1e-3;        ///< peak
  int64_t warmup = 200;    ///< steps
  double lr_floor = 0.05;  ///< end of the cosine, as a share of the peak
  double clip = 0.25;      ///< global gradient norm
  double beta2 = 0.999;    ///< of Adam
  double weight_decay = 0;
};

/// A configuration that has not been built yet.
class ModelSpec {
 public:
  virtual ~ModelSpec() = default;
  /// Every field by name; writing to them changes what build() makes.
  virtual void visit(Fields& v) = 0;
  /// Throws ValueError where the fields do not fit together or the model forgets to visit a
  /// parameter, and OutOfMemory, before it builds anything, where the device has no room for the
  /// parameters.
  std::unique_ptr<LanguageModel> build(const Init& init) const;
  virtual TrainingDefaults defaults() const = 0;
  /// Gives tables and grids of positions at least `length` places, of encoder-decoders those of
  /// sources, and returns the name of the field that says how many there are now; empty where
  /// nothing had to change. Throws ValueError where a grid's axes would have to be chosen, with
  /// some that would do.
  virtual std::string_view extend_positions(int64_t length) = 0;

  /// Number of parameters, tied ones counted once; allocates nothing of their size.
  int64_t parameters() const;

 private:
  virtual std::unique_ptr<LanguageModel> make(const Init& init) const = 0;
};

/// A ready configuration of a model.
struct Preset {
  std::string_view name;         ///< "small"
  std::string_view description;  ///< one line
};

/// A model that programs can name.
struct ModelEntry {
  std::string_view name;            ///< what --model takes, e.g. "local_transformer"
  std::string_view description;     ///< one line
  std::span<const Preset> presets;  ///< "small" comes first: the configuration without a preset
  std::unique_ptr<ModelSpec> (*make)(std::string_view preset);
};

/// The spec of a model whose constructor takes (const Config&, const Init&).
template <class Model, class Config>
class ModelSpecOf final : public ModelSpec {
 public:
  ModelSpecOf(const Config& config, const TrainingDefaults& defaults)
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
