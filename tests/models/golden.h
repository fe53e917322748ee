#pragma once

#include <map>
#include <string>

#include "models/transformer.h"

namespace longspan::test {

/// A file of tests/oracles/golden: its README says what it holds.
struct Golden {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> options;
};

Golden read_golden(const std::string& name);
/// The configuration that the options describe.
TransformerConfig config_of(const Golden& golden);

}  // namespace longspan::test
