#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "models/model.h"
#include "models/parts.h"
#include "models/preset.h"
#include "nn/fields.h"
#include "nn/init.h"

namespace longspan {

/// A configuration from which a model can be built.
class ModelSpec {
 public:
  virtual ~ModelSpec() = default;
  /// Visits every field by name; writing to the fields changes what build() makes.
  virtual void visit(Fields& v) = 0;
  /// Throws ValueError when the fields do not fit together or the model forgets to visit a
  /// parameter. Throws OutOfMemory, before it builds anything, when the parameters do not fit into
  /// the device's memory.
  std::unique_ptr<LanguageModel> build(const Init& init) const;
  virtual TrainingDefaults defaults() const = 0;
  /// Extends position tables and grids to at least `length` positions (for encoder-decoders, those
  /// of the source) and returns the name of the field that holds the new size; empty if nothing had
  /// to change. Throws ValueError when the axes of a grid would have to be chosen; the message
  /// suggests some.
  virtual std::string_view extend_positions(int64_t length) = 0;
  /// Sets what the model would derive from the length of each sequence, to what it is for `length`
  /// tokens, so that a model which is trained on these generates and is evaluated with the same.
  /// Returns the name of the field; empty if there is none, or it is set already.
  virtual std::string_view settle_length(int64_t /*length*/) { return {}; }

  /// Returns the number of parameters, tied ones counted once, without allocating their memory.
  int64_t parameters() const;

 private:
  virtual std::unique_ptr<LanguageModel> make(const Init& init) const = 0;
};

/// A model that programs can select by name.
struct ModelEntry {
  std::string_view name;            ///< the value of --model, e.g. "local_transformer"
  std::string_view description;     ///< one line
  std::span<const Preset> presets;  ///< the first is "small", the default
  std::unique_ptr<ModelSpec> (*make)(std::string_view preset);
};

/// The spec of a model whose constructor takes (const Config&, const Init&).
template <class Model, class Config>
class ModelSpecOf final : public ModelSpec {
 public:
  ModelSpecOf(std::string_view model, const Config& config, const TrainingDefaults& defaults)
      : model_(model), config_(config), defaults_(defaults) {}

  void visit(Fields& v) override { config_.visit(v); }
  TrainingDefaults defaults() const override { return defaults_; }
  std::string_view extend_positions(int64_t length) override {
    if constexpr (requires { config_.extend_positions(length); }) {
      return config_.extend_positions(length);
    }
    return {};  // a model without position tables
  }
  std::string_view settle_length(int64_t length) override {
    if constexpr (requires { config_.settle_length(length); }) {
      return config_.settle_length(length);
    }
    return {};
  }

 private:
  std::unique_ptr<LanguageModel> make(const Init& init) const override {
    // A model of one's own need not declare ranges; each layer takes host memory.
    require(config_.n_layer <= range::count.high, model_, "n_layer is {}; expected {} or less",
            config_.n_layer, range::count.high);
    check_fields(model_, config_);
    return std::make_unique<Model>(config_, init);
  }

  std::string_view model_;  // in a table
  Config config_;
  TrainingDefaults defaults_;
};

/// Returns the spec of a preset. Throws ValueError if the table has none of that name.
template <class Model, class Config>
std::unique_ptr<ModelSpec> preset_spec(std::string_view model, std::span<const Preset> presets,
                                       std::string_view name) {
  return std::make_unique<ModelSpecOf<Model, Config>>(
      model, preset_of<Config>(model, presets, name), find_preset(model, presets, name).training);
}

}  // namespace longspan
