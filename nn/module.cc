#include "nn/module.h"

#include <unordered_set>

namespace longspan {
namespace {

class Collector final : public Visitor {
 public:
  TensorList parameters, buffers;

 private:
  void on_parameter(const std::string& name, Tensor& t) override { add(name, t, parameters); }
  void on_buffer(const std::string& name, Tensor& t) override { add(name, t, buffers); }
  void add(const std::string& name, const Tensor& t, TensorList& list) {
    require<ValueError>(!names_.contains(name), "module", "two tensors are named {}", name);
    if (!storages_.insert(&t.storage()).second) return;
    names_.insert(name);
    list.push_back({name, t, clip_group()});
  }

  std::unordered_set<std::string> names_;
  std::unordered_set<const Storage*> storages_;
};

}  // namespace

size_t Visitor::enter(std::string_view name) {
  const size_t before = path_.size();
  if (!path_.empty()) path_ += '.';
  path_ += name;
  return before;
}

Visitor& Visitor::operator()(std::string_view name, Tensor& parameter) {
  if (!parameter) return *this;
  const size_t before = enter(name);
  on_parameter(path_, parameter);
  path_.resize(before);
  return *this;
}

Visitor& Visitor::buffer(std::string_view name, Tensor& tensor) {
  if (!tensor) return *this;
  const size_t before = enter(name);
  on_buffer(path_, tensor);
  path_.resize(before);
  return *this;
}

Visitor& Visitor::operator()(std::string_view name, Module& child) {
  const size_t before = enter(name);
  on_module(path_, child);
  child.visit(*this);
  path_.resize(before);
  return *this;
}

void Visitor::numbered(std::string_view name, size_t i, Module& child) {
  const size_t before = enter(name);
  (*this)(std::to_string(i), child);
  path_.resize(before);
}

TensorList named_parameters(Module& module) {
  Collector c;
  module.visit(c);
  return std::move(c.parameters);
}

TensorList named_buffers(Module& module) {
  Collector c;
  module.visit(c);
  return std::move(c.buffers);
}

TensorList named_state(Module& module) {
  Collector c;
  module.visit(c);
  TensorList all = std::move(c.parameters);
  all.insert(all.end(), c.buffers.begin(), c.buffers.end());
  return all;
}

std::vector<Tensor> parameters(Module& module) {
  std::vector<Tensor> tensors;
  for (NamedTensor& p : named_parameters(module)) tensors.push_back(std::move(p.tensor));
  return tensors;
}

int64_t parameter_count(Module& module) {
  int64_t n = 0;
  for (const Tensor& p : parameters(module)) n += p.numel();
  return n;
}

}  // namespace longspan
