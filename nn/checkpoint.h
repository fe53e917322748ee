#pragma once

#include <array>
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/checkpoint_scope.h"
#include "autograd/mode.h"
#include "nn/layer.h"
#include "nn/memory_policy.h"

namespace longspan {

/// Runs layer.forward(x, ctx, pass), but saves x and ctx.encoder_output for the backward pass
/// instead of the tensors that the layer's ops save: backward recomputes the layer, up to the last
/// saved tensor that it needs. Gradients are bit for bit those without checkpointing, dropout
/// included. If nothing is recorded, this is a plain forward. The layer must outlive the graph; a
/// second backward through a retained graph does not recompute. \cite chen2016
///   kept    results of products and attention to save, which the recomputation reuses
///   throws  GradientError in backward if the recomputation differs from the first run, or if a
///           parameter was written in between
Output checkpoint(const Layer& layer, const Tensor& x, const LayerContext& ctx, Pass pass,
                  autograd::Results kept = autograd::Results::none);

/// Runs one of several layers: replaces the streams by its outputs. `again` is true in a
/// recomputation, for which only the streams matter. It is copied, and must outlive the graph.
using LayerStep = std::function<void(int64_t layer, std::vector<Tensor>& streams, bool again)>;

/// Runs layers 0 to count - 1 in sequence and saves what a non-reversible policy says: segments of
/// layers are checkpoint scopes, as in checkpoint(), and segments may be nested. Streams may be
/// undefined.
void run_layers(int64_t count, std::vector<Tensor>& streams, const MemoryPolicy& policy,
                const LayerStep& step);

/// Stores the integer decisions (buckets, clusters) of a layer's first run, and passes them to its
/// recomputations. They count as saved tensors.
class Choices {
 public:
  Output run(const Layer& layer, const Tensor& x, LayerContext ctx, Pass pass);

 private:
  std::vector<autograd::SavedTensor> kept_;
};

namespace detail {

/// An argument of a recomputed function: its data, and whether it requires grad.
class Argument {
 public:
  explicit Argument(const Tensor& x) : data_(x, "checkpoint"), wanted_(requires_grad(x)) {}

  /// Returns the same data as a leaf of a separate graph.
  Tensor again() const;

 private:
  autograd::SavedTensor data_;
  bool wanted_;
};

/// A checkpoint scope whose computation depends only on what the closure holds.
class ReplayedPart final : public autograd::CheckpointScope {
 public:
  ReplayedPart(autograd::Results kept, std::function<void()> again)
      : CheckpointScope(kept), again_(std::move(again)) {}

  template <class F>
  void first(F run) {
    const Guard inside(this);
    run();
    forget_last();
  }

 private:
  void replay() override { again_(); }

  std::function<void()> again_;
};

}  // namespace detail

/// A function of tensors that checkpoint() can copy and call again.
template <class F, class... Inputs>
concept Replayable = std::copy_constructible<F> && std::invocable<const F&, const Inputs&...>;

/// Returns f(inputs...), but saves the inputs for the backward pass instead of the tensors that the
/// ops in f save: backward calls a copy of f again, up to the last saved tensor that it needs.
/// Gradients are bit for bit those without checkpointing; they reach the inputs and all parameters
/// and other tensors that f captures.
///   f        a function of the inputs, such as a lambda, that may be called as const and does the
///            same each time: what is random in it comes from a Generator or a Pass that it
///            captures. It is copied. What it captures by reference must outlive the graph;
///            intermediate results should be inputs, since what f captures stays in memory until
///            the backward pass has run
///   inputs   any tensors, undefined ones too
///   returns  what f returns: a tensor, or several in a vector, a pair or a structure
///   throws   GradientError in backward if the second call differs from the first (the tensors that
///            its ops save differ in number, op, shape or dtype, and with autograd::CheckReplays in
///            value), or if a tensor that it reads was written in between
/// If nothing is recorded, this is a plain call. \cite chen2016
template <class F, std::same_as<Tensor>... Inputs>
requires Replayable<F, Inputs...>
auto checkpoint(F f, const Inputs&... inputs) {
  using Result = std::decay_t<std::invoke_result_t<const F&, const Inputs&...>>;
  static_assert(!std::is_void_v<Result>, "checkpoint: f must return its results");
  if (!autograd::recording()) return Result(std::as_const(f)(inputs...));
  using Arguments = std::array<detail::Argument, sizeof...(Inputs)>;
  const auto arguments = std::make_shared<Arguments>(Arguments{detail::Argument(inputs)...});
  const auto part = std::make_shared<detail::ReplayedPart>(autograd::Results::none, [f, arguments] {
    std::apply([&f](const auto&... x) { static_cast<void>(f(x.again()...)); }, *arguments);
  });
  std::optional<Result> result;
  part->first([&] { result.emplace(std::as_const(f)(inputs...)); });
  return Result(*std::move(result));
}

}  // namespace longspan
