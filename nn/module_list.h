#pragma once

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "nn/module.h"

namespace longspan {

/// Lists a module and those that it visits, each once, in visiting order, with its dotted name: ""
/// for the first.
class ModuleList final : public Visitor {
 public:
  explicit ModuleList(Module& first) {
    on_module("", first);
    first.visit(*this);
  }
  std::vector<std::pair<std::string, Module*>> modules;

 private:
  void on_module(const std::string& name, Module& module) override {
    if (known_.insert(&module).second) modules.emplace_back(name, &module);
  }
  void on_parameter(const std::string&, Tensor&) override {}

  std::unordered_set<const Module*> known_;
};

}  // namespace longspan
