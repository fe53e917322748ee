#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "nn/fields.h"

namespace longspan {

/// The default way to train a preset on bytes; program options override each field.
struct TrainingDefaults {
  int64_t length = 128, batch = 16, steps = 1500;
  double lr = 1e-3;        ///< peak
  int64_t warmup = 200;    ///< steps
  double lr_floor = 0.05;  ///< final rate of the cosine schedule, as a fraction of the peak
  double clip = 0.25;      ///< global gradient norm
  double beta2 = 0.999;    ///< beta2 of Adam
  double weight_decay = 0;
  double step_clip = 0;  ///< above 0: trained with Adagrad, whose steps are clipped to it
  /// From step `update_from` on, an update follows every `update_period` steps.
  int64_t update_period = 1, update_from = 0;
};

/// A named configuration of a model, as a row of its table:
///   {"large", "24 layers of 1024", "base", "n_layer=24 n_head=16 d_model=1024 d_ff=4096", {}}
struct Preset {
  std::string_view name;         ///< "small"
  std::string_view description;  ///< one line
  std::string_view like = {};    ///< the preset that it begins with; empty: the default values
  /// The fields that differ, separated by spaces, as options write their values; a list has commas,
  /// and may be empty: "window=32,64 buckets=".
  std::string_view fields = {};
  TrainingDefaults training = {};
};

/// Returns the preset of this name. Throws ValueError if the table has none.
const Preset& find_preset(std::string_view model, std::span<const Preset> presets,
                          std::string_view name);
/// Sets the fields that `visit` visits as the preset says. Throws ValueError on a field that is not
/// visited and on a value that the field cannot take.
void apply_preset(std::string_view model, std::span<const Preset> presets, std::string_view name,
                  const std::function<void(Fields&)>& visit);

/// Returns the configuration of a preset.
template <class Config>
Config preset_of(std::string_view model, std::span<const Preset> presets, std::string_view name) {
  Config config;
  apply_preset(model, presets, name, [&](Fields& v) { config.visit(v); });
  return config;
}

}  // namespace longspan
