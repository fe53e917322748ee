#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/generator.h"
#include "core/named_tensor.h"
#include "core/tensor.h"

namespace longspan {

class Visitor;

/// The end of a training step, for Module::after_step().
struct StepEnd {
  int64_t step = 0;                         ///< index of the update that has just been done
  Generator gen = {};                       ///< of this module and step
  std::span<const Tensor> statistics = {};  ///< the module's sums over all batches of the step, as
                                            ///< its forward passes returned them; empty: none did
};

/// Something with parameters. It holds them and its children by value, so a copy shares the
/// weights: weights are tied by copying. It has no other state than parameters and buffers; forward
/// passes are const.
struct Module {
  Module() = default;
  Module(const Module&) = default;
  Module(Module&&) = default;
  Module& operator=(const Module&) = default;
  Module& operator=(Module&&) = default;
  virtual ~Module() = default;
  /// Names every parameter, buffer and child to the visitor.
  virtual void visit(Visitor& v) = 0;
  /// Advances what the module learns without gradients: called once after each update of the
  /// parameters, with recording off (EndOfStep of nn/after_step.h). Writes buffers in place
  /// (write_buffer), because recorded steps read them at their addresses.
  virtual void after_step(const StepEnd& /*end*/) {}
};

/// Walks a module. Names are joined by dots: "layers.3.attention.q.weight".
class Visitor {
 public:
  Visitor() = default;
  virtual ~Visitor() = default;
  Visitor(const Visitor&) = delete;
  Visitor& operator=(const Visitor&) = delete;

  /// Visits a parameter; an undefined one (a bias that the options leave out) is skipped.
  Visitor& operator()(std::string_view name, Tensor& parameter);
  /// Visits state that is learned without gradients and saved with the parameters.
  Visitor& buffer(std::string_view name, Tensor& buffer);
  /// Visits a parameter or a child whose gradients are clipped apart from all others, by the common
  /// norm of clip group `group`: for parameters that only an auxiliary loss trains, whose gradients
  /// would otherwise shrink the steps of the others.
  template <class T>
  Visitor& clipped_apart(std::string_view group, std::string_view name, T& what) {
    const std::string outer = std::exchange(clip_group_, std::string(group));
    (*this)(name, what);
    clip_group_ = outer;
    return *this;
  }

  Visitor& operator()(std::string_view name, Module& child);
  template <std::derived_from<Module> M>
  Visitor& operator()(std::string_view name, std::vector<M>& children) {
    for (size_t i = 0; i < children.size(); ++i) numbered(name, i, children[i]);
    return *this;
  }
  template <std::derived_from<Module> M>
  Visitor& operator()(std::string_view name, std::optional<M>& child) {
    return child ? (*this)(name, static_cast<Module&>(*child)) : *this;
  }
  template <std::derived_from<Module> M>
  Visitor& operator()(std::string_view name, std::unique_ptr<M>& child) {
    return child ? (*this)(name, static_cast<Module&>(*child)) : *this;
  }

 protected:
  virtual void on_parameter(const std::string& name, Tensor& parameter) = 0;
  virtual void on_buffer(const std::string& /*name*/, Tensor& /*buffer*/) {}
  /// Called before a child is visited.
  virtual void on_module(const std::string& /*name*/, Module& /*child*/) {}
  /// The clip group of the parameters that are visited now; empty: the default.
  const std::string& clip_group() const { return clip_group_; }

 private:
  void numbered(std::string_view name, size_t i, Module& child);
  size_t enter(std::string_view name);

  std::string path_, clip_group_;
};

/// Returns every parameter once, in visiting order; a tied parameter under its first name.
TensorList named_parameters(Module& module);
TensorList named_buffers(Module& module);
/// Returns the parameters, then the buffers: what a checkpoint of the module holds.
TensorList named_state(Module& module);
/// Returns the tensors of named_parameters(), which optimisers take.
std::vector<Tensor> parameters(Module& module);
/// Number of elements in all parameters, tied ones counted once.
int64_t parameter_count(Module& module);

}  // namespace longspan
