#pragma once

#include <array>
#include <concepts>
#include <initializer_list>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include "autograd/checkpoint_scope.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/scope.h"

namespace longspan {

/// The inputs of an op's backward function besides dy.
class Context {
 public:
  explicit Context(const autograd::Node& node) : node_(node) {}

  /// Returns the tensors passed to save(), in order. Throws GradientError if there were fewer.
  template <size_t N>
  std::array<Tensor, N> saved() const {
    return get(std::make_index_sequence<N>{});
  }
  /// Whether the gradient of input i is required; for other inputs an undefined one may be
  /// returned.
  bool wants(int i) const { return node_.wants(i); }
  /// Returns the sum of the gradients that other ops have given input i, row-major and in its
  /// shape; null if there is none. An op may add its gradient to the sum and then returns an
  /// undefined gradient for i. Null also for a leaf, which receives the gradient of each op as a
  /// whole.
  Tensor* add_to(int i) const { return autograd::sum_of_input(node_, i); }

 private:
  template <size_t... I>
  std::array<Tensor, sizeof...(I)> get(std::index_sequence<I...>) const {
    return {node_.saved(static_cast<int>(I))...};
  }
  const autograd::Node& node_;
};

/// A backward function that captures only plain values: tensors must pass through save().
template <class F>
concept PlainBackward = std::is_trivially_copyable_v<F> &&
    std::is_invocable_r_v<Grads, const F&, const Context&, const Tensor&>;

/// The tensors that record() saves, if it records at all.
struct SaveList {
  std::array<Tensor, 8> tensors;
  int count = 0;
};

/// save(x, y): at most 8 tensors; undefined ones keep their position.
template <class... T>
SaveList save(const T&... tensors) {
  static_assert(sizeof...(T) <= 8);
  return {{tensors...}, static_cast<int>(sizeof...(T))};
}

namespace autograd {

/// Returns the `count` results of an expensive op: the saved results, if a checkpoint scope is
/// being recomputed and saved them, or else computed ones. A recomputation that needs nothing
/// beyond what the op saves stops here. For this last case, `saved` lists what the op's node will
/// save, if that is known before the results.
template <class Many, class Compute>
Many reuse_or_recompute(std::string_view op, std::span<const Tensor> inputs, const SaveList& saved,
                        size_t count, Compute compute) {
  CheckpointScope* const scope = CheckpointScope::current();
  if (scope == nullptr || !wants_graph(inputs)) return compute();
  const auto saves = std::span(saved.tensors).first(static_cast<size_t>(saved.count));
  scope->offer(op, saves);
  Many results;
  if constexpr (requires { results.resize(count); }) results.resize(count);
  for (Tensor& y : results) y = scope->recall(op);
  if (results[0]) return results;
  results = compute();
  for (const Tensor& y : results) scope->remember(op, y, saves);
  return results;
}
template <size_t N, class Compute>
std::array<Tensor, N> reuse_or_recompute(std::string_view op, std::span<const Tensor> inputs,
                                         const SaveList& saved, Compute compute) {
  return reuse_or_recompute<std::array<Tensor, N>>(op, inputs, saved, N, compute);
}

/// The node of an op whose backward is a plain function.
template <class F>
struct PlainNode final : Node {
  PlainNode(std::string_view op, F f) : Node(op), function(f) {}
  Grads backward(std::span<const Tensor> dy) override { return function(Context(*this), dy[0]); }
  F function;
};

}  // namespace autograd

namespace autograd {
/// Says to a profile that an op has ended, unless its result is a view: then it ran no kernel, and
/// may be a part of another op.
struct OpEnd {
  std::string_view op;
  Shape shape = {};
  bool view = false;
  ~OpEnd() {
    Watch* const watch = Watch::of_thread();
    if (watch != nullptr && !view) watch->op_ends(op, {shape.begin(), shape.end()});
  }
};
}  // namespace autograd

/// Returns `output` with history: backward(context, dy) computes the gradients of `inputs`, one
/// each. Records and saves nothing if recording is off or no input requires a gradient.
template <PlainBackward F>
Tensor record(std::string_view op, std::initializer_list<Tensor> inputs, Tensor output,
              const SaveList& saved, F backward) {
  const autograd::OpEnd end{op, output.shape(),
                            inputs.size() > 0 && inputs.begin()->shares_storage(output)};
  if (autograd::anomaly_mode()) autograd::check_finite(op, "forward", output);
  const std::span<const Tensor> in(inputs.begin(), inputs.size());
  if (!autograd::wants_graph(in)) return output;
  try {
    auto node = std::make_shared<autograd::PlainNode<F>>(op, backward);
    node->save(std::span(saved.tensors).first(static_cast<size_t>(saved.count)));
    Tensor* const made[] = {&output};
    autograd::attach(node, in, made);
  } catch (const std::bad_alloc&) {
    fail_for_memory(op);
  }
  return output;
}

/// For ops with several results or more state: derive from autograd::Node, and pass a function that
/// creates the node. It is called only if the graph is needed.
template <class Make>
void record_node(std::string_view op, std::span<const Tensor> inputs,
                 std::span<Tensor* const> outputs, Make make) {
  const autograd::OpEnd end{op, outputs.empty() ? Shape{} : outputs[0]->shape()};
  if (autograd::anomaly_mode()) {
    for (const Tensor* y : outputs) {
      if (*y && is_floating(y->dtype())) autograd::check_finite(op, "forward", *y);
    }
  }
  if (!autograd::wants_graph(inputs)) return;
  try {
    autograd::attach(make(), inputs, outputs);
  } catch (const std::bad_alloc&) {
    fail_for_memory(op);
  }
}
template <class Make>
void record_node(std::string_view op, std::initializer_list<Tensor> inputs,
                 std::initializer_list<Tensor*> outputs, Make make) {
  record_node(op, std::span(inputs.begin(), inputs.size()),
              std::span(outputs.begin(), outputs.size()), make);
}

}  // namespace longspan
