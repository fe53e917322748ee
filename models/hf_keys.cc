#include "models/hf_keys.h"

#include <utility>

#include "core/error.h"

namespace longspan::detail {
namespace {

constexpr std::pair<std::string_view, Activation> activations[] = {
    {"gelu", Activation::gelu_erf},
    {"gelu_python", Activation::gelu_erf},
    {"gelu_new", Activation::gelu_tanh},
    {"gelu_pytorch_tanh", Activation::gelu_tanh},
    {"gelu_python_tanh", Activation::gelu_tanh},
    {"gelu_fast", Activation::gelu_tanh},
    {"gelu_accurate", Activation::gelu_tanh},
    {"quick_gelu", Activation::gelu_sigmoid},
    {"relu", Activation::relu},
    {"silu", Activation::silu},
    {"swish", Activation::silu},
};

}  // namespace

Activation activation_of(std::string_view name, std::string_view member) {
  for (const auto& [theirs, ours] : activations) {
    if (theirs == name) return ours;
  }
  fail<ValueError>(
      checkpoint_op,
      "{} is \"{}\"; expected gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, quick_gelu, relu or "
      "silu",
      member, name);
}

std::string activation_name(Activation f) {
  for (const auto& [theirs, ours] : activations) {
    if (ours == f) return std::string(theirs);
  }
  fail<ValueError>(checkpoint_op, "activation = {} has no name in config.json", name_of_value(f));
}

std::vector<int64_t> one_sided(const std::vector<int64_t>& windows) {
  require(!windows.empty(), checkpoint_op, "attention_window is empty; expected one a layer");
  std::vector<int64_t> sides;
  for (const int64_t window : windows) {
    require(window >= 2 && window % 2 == 0, checkpoint_op,
            "attention_window has {}; expected even numbers, 2 or more", window);
    sides.push_back(window / 2);
  }
  return sides;
}

}  // namespace longspan::detail
