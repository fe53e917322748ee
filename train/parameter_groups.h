#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "train/optimizer.h"

namespace longspan {

/// Which parameters are trained, and how fast. Patterns are names in which * stands for any
/// characters, also for none: "layers.0.*", "*.bias".
struct ParameterChoice {
  std::vector<std::string> train = {};   ///< only these; empty: all
  std::vector<std::string> freeze = {};  ///< not these
  std::vector<std::string> rates =
      {};  ///< PATTERN=FACTOR on the learning rate; the last match counts

  void visit(auto& v) {
    v("train", train, "train only parameters with these names; * stands for any characters");
    v("freeze", freeze, "do not train parameters with these names");
    v("rates", rates, "NAMES=FACTOR: learning rates of parameters, as factors on lr");
  }
};

/// Whether a name matches a pattern.
bool matches(std::string_view name, std::string_view pattern);

/// Returns the parameters that are trained in groups of equal learning rate and weight decay, which
/// `matrices_only` has for parameters of rank 2 and more, and freezes the others: they require no
/// gradient. Throws ValueError on a pattern without a parameter, which lists some names, a factor
/// that is no number of 0 or more, and if nothing is left to train.
std::vector<ParameterGroup> parameter_groups(const TensorList& parameters, ParameterChoice choice,
                                             bool matrices_only);

}  // namespace longspan
