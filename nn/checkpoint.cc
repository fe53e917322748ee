#include "nn/checkpoint.h"

#include <algorithm>
#include <memory>

#include "autograd/mode.h"
#include "autograd/node.h"

namespace longspan {
namespace {

using detail::Argument;
using detail::ReplayedPart;

/// Sizes of segments, outermost first, and the results that their checkpoint scopes save.
struct Plan {
  std::vector<int64_t> segments;
  autograd::Results kept = autograd::Results::none;
};

Plan plan_of(const MemoryPolicy& policy) {
  switch (policy.kind) {
    case MemoryKind::lean:
      return {{1}, autograd::Results::all};
    case MemoryKind::selective:
      return {{1}, autograd::Results::inner};
    default:
      return {policy.segments};
  }
}

/// Runs layers [begin, end), with the segment sizes from `level` on.
void run_range(int64_t begin, int64_t end, size_t level, std::vector<Tensor>& streams,
               const Plan& plan, const LayerStep& step, bool again) {
  if (level == plan.segments.size()) {
    for (int64_t i = begin; i < end; ++i) step(i, streams, again);
    return;
  }
  for (int64_t i = begin, stop = begin; i < end; i = stop) {
    stop = i + std::min(end - i, plan.segments[level]);
    const auto arguments = std::make_shared<std::vector<Argument>>();
    for (const Tensor& x : streams) arguments->emplace_back(x);
    const auto part = std::make_shared<ReplayedPart>(plan.kept, [=] {
      std::vector<Tensor> x;
      for (const Argument& a : *arguments) x.push_back(a.again());
      run_range(i, stop, level + 1, x, plan, step, true);
    });
    part->first([&] { run_range(i, stop, level + 1, streams, plan, step, again); });
  }
}

}  // namespace

Tensor detail::Argument::again() const {
  Tensor x = data_.get("checkpoint");
  if (wanted_) set_requires_grad(x);
  return x;
}

Output Choices::run(const Layer& layer, const Tensor& x, LayerContext ctx, Pass pass) {
  const bool first = kept_.empty();
  if (!first) ctx.choices.clear();
  for (const autograd::SavedTensor& c : kept_) ctx.choices.push_back(c.get("choices"));
  Output out = layer.forward(x, ctx, pass);
  const autograd::CheckpointScope::Guard outside(
      nullptr);  // else an enclosing scope would have to recompute to get these back
  if (first) {
    for (const Tensor& c : out.choices) kept_.emplace_back(c, "choices");
  }
  return out;
}

void run_layers(int64_t count, std::vector<Tensor>& streams, const MemoryPolicy& policy,
                const LayerStep& step) {
  if (!autograd::recording()) return run_range(0, count, 0, streams, {}, step, false);
  if (policy.cut.empty()) return run_range(0, count, 0, streams, plan_of(policy), step, false);
  int64_t begin = 0;
  for (const int64_t size : policy.cut) {
    const int64_t end = begin + std::min(count - begin, size);
    if (begin < end) run_range(begin, end, 0, streams, {{size}}, step, false);
    begin = end;
  }
  run_range(begin, count, 0, streams, {}, step, false);
}

Output checkpoint(const Layer& layer, const Tensor& x, const LayerContext& ctx, Pass pass,
                  autograd::Results kept) {
  if (!autograd::recording()) return layer.forward(x, ctx, pass);
  struct Whole {
    Argument x, context;
    LayerContext ctx;
    Choices choices;
  };
  const auto all =
      std::make_shared<Whole>(Whole{Argument(x), Argument(ctx.encoder_output), ctx, {}});
  all->ctx.encoder_output = {};
  const auto part = std::make_shared<ReplayedPart>(kept, [all, &layer, pass] {
    LayerContext again = all->ctx;
    again.encoder_output = all->context.again();
    all->choices.run(layer, all->x.again(), again, pass);
  });
  Output out;
  part->first([&] { out = all->choices.run(layer, x, ctx, pass); });
  return out;
}

}  // namespace longspan
