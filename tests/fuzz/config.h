#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/error.h"
#include "train/config.h"

namespace longspan {

/// An enum for a field with named choices.
enum class Manner : uint8_t { quick, slow };
template <>
inline constexpr std::array<std::string_view, 2> value_names<Manner>{"quick", "slow"};

/// A configuration with a field of every kind.
struct FuzzConfig {
  struct Inner {
    int64_t n_layer = 4;
    float dropout = 0.1f;
    std::vector<int64_t> windows = {1, 2};
    Manner manner = Manner::slow;
    void visit(auto& v) {
      v("n_layer", n_layer)("dropout", dropout)("windows", windows)("manner", manner);
    }
  } model;
  std::string data = "text";
  bool resume = false;
  double lr = 1e-3;
  uint64_t seed = 1;
  void visit(auto& v) { v("model", model)("data", data)("resume", resume)("lr", lr)("seed", seed); }
};

/// Applies settings. If they are valid, the configuration must survive a round trip through TOML.
inline void check_settings(const Settings& settings) {
  FuzzConfig config;
  try {
    set_fields(config, settings);
  } catch (const ValueError&) {
    return;
  }
  std::string text;
  try {
    text = to_toml(to_json(config));
  } catch (const ValueError&) {  // a text that is not UTF-8, from the command line
    return;
  }
  FuzzConfig again;
  set_fields(again, parse_toml(text, "written"));
  if (to_json(again) != to_json(config)) std::abort();
}

}  // namespace longspan
