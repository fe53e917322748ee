#include "nn/reversible.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/record.h"
#include "core/deferred.h"
#include "core/graph.h"
#include "core/kernels/elementwise.h"
#include "core/kernels/loss.h"
#include "core/scope.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kReversible = "reversible";

/// Returns what a layer's result adds to a stream.
Tensor residual_of(const Tensor& y, DType dtype, const ReversibleOptions& options) {
  const Tensor r = cast(y, dtype);
  return options.exact ? round_to_grid(r, options.grid) : r;
}

/// Gives x its own node in the graph, which sums the gradients of all its readers before they join
/// others, as happens when a layer is recomputed separately.
Tensor apart(const Tensor& x) {
  if (!x) return x;
  return record("reversible_input", {x}, x.detach(), save(),
                [](const Context&, const Tensor& dy) -> Grads { return {dy}; });
}

/// Returns x without history, as a leaf if its gradient is wanted.
Tensor leaf_of(const Tensor& x, bool wanted) {
  if (!x) return x;
  Tensor leaf = x.detach();
  if (wanted) set_requires_grad(leaf);
  return leaf;
}

/// a -= b, in place.
void subtract(Tensor& a, const Tensor& b) {
  const ConstView before = a.view();
  kernels::binary(a.device(), kernels::Binary::sub, before, b.view(), a.mut());
}

double squared_sum(const Tensor& x) { return sum(square(cast(x, DType::f64))).item(); }

/// |a - b| / |a|.
double relative_error(const Tensor& a, const Tensor& b) {
  const double scale = squared_sum(a);
  const double error = squared_sum(sub(cast(a, DType::f64), cast(b, DType::f64)));
  return error == 0 ? 0 : std::sqrt(error / scale);
}

/// Returns `count` evenly spaced rows of x (-1: all).
Tensor some_rows(const Tensor& x, int64_t count) {
  const Tensor rows = x.detach().alias({x.numel() / x.dim(-1), x.dim(-1)}, {x.dim(-1), 1}, 0);
  if (count < 0 || count >= rows.dim(0)) return rows;
  return clone(slice(rows, 0, 0, count * (rows.dim(0) / count), rows.dim(0) / count));
}

ReconstructionErrorMonitor*& innermost() {
  thread_local ReconstructionErrorMonitor* watch = nullptr;
  return watch;
}

}  // namespace

ReversibleOptions reversible_options(const MemoryPolicy& policy, DType layers,
                                     int64_t steps_of_a_block) {
  ReversibleOptions o;
  o.layers = layers;
  o.exact = policy.kind == MemoryKind::reversible_exact;
  o.grid = policy.grid;
  if (!policy.segments.empty()) o.checkpoint_every = policy.segments[0] * steps_of_a_block;
  o.stored = policy.stored;
  return o;
}

ReconstructionErrorMonitor::ReconstructionErrorMonitor(int64_t rows)
    : rows_(rows), outer_(innermost()) {
  require(rows == -1 || rows >= 1, "ReconstructionErrorMonitor",
          "rows is {}; expected 1 or more, or -1: all", rows);
  innermost() = this;
}
ReconstructionErrorMonitor::~ReconstructionErrorMonitor() { innermost() = outer_; }
ReconstructionErrorMonitor* ReconstructionErrorMonitor::current() { return innermost(); }

/// The saved state of a forward pass, and the progress of backward in it.
class Reversible::Graph {
 public:
  struct Step {
    std::shared_ptr<Layer> layer;
    LayerContext ctx;  // without encoder output; `choices` below replace its choices if the first
                       // run made any
    Pass pass;
    autograd::SavedTensor context;
    std::vector<autograd::SavedTensor> choices;
    std::string scope;  // scope of the first run, under which recomputations run too
  };
  /// A recomputed step: its leaves and results.
  struct Rerun {
    Tensor x, context, residual;
    std::vector<AuxiliaryLoss> losses;
  };

  Graph(const ReversibleOptions& options, DType dtype) : options_(options), dtype_(dtype) {}

  int64_t size() const { return static_cast<int64_t>(steps_.size()); }
  void add(Step step) { steps_.push_back(std::make_unique<Step>(std::move(step))); }
  void drop(int64_t i) {
    steps_[static_cast<size_t>(i)].reset();
    kept_.erase(i + 1);
  }
  void keep(const Halves& x) {
    if (kept_.count(size()) > 0) return;
    kept_[size()] = {autograd::SavedTensor(x.x1, kReversible),
                     autograd::SavedTensor(x.x2, kReversible)};
  }
  void begin(const Halves& x) {
    // The host cannot read the error while a graph is recorded.
    if (ReconstructionErrorMonitor::current() == nullptr || longspan::graph::recording()) return;
    rows_ = ReconstructionErrorMonitor::current()->rows();
    const Tensor first = some_rows(x.x1, rows_);
    const Tensor second = x.x1.shares_storage(x.x2) ? first : some_rows(x.x2, rows_);
    begin_ = {autograd::SavedTensor(first, kReversible),
              autograd::SavedTensor(second, kReversible)};
  }

  /// Moves now() to the streams after `count` steps.
  void reach(int64_t count) {
    if (at_ < count || kept_.count(count) > 0) start(count);
    while (at_ > count) {
      const NoGrad off;
      undo(run(at_ - 1, false, false).residual);
    }
  }
  Halves& now() { return now_; }

  /// Recomputes step i, whose output streams must be now().
  Rerun run(int64_t i, bool wants_x, bool wants_context) const {
    const Step* step = steps_[static_cast<size_t>(i)].get();
    require<GradientError>(
        step != nullptr, kReversible,
        "a step that backward must undo is gone: backward ran through it before; "
        "call the first one with retain, or run forward again");
    const Replay mark;
    const ScopeAt scope(step->scope);
    Rerun r;
    r.x = leaf_of(now_.x1, wants_x);
    r.context = leaf_of(step->context.get(kReversible), wants_context);
    LayerContext ctx = step->ctx;
    ctx.encoder_output = r.context;
    for (const autograd::SavedTensor& c : step->choices) ctx.choices.push_back(c.get(kReversible));
    Output out = step->layer->forward(cast(r.x, options_.layers), ctx, step->pass);
    r.residual = residual_of(out.y, dtype_, options_);
    add_losses(r.losses, std::move(out.losses));
    return r;
  }

  /// Undoes the step whose result was `residual`.
  void undo(const Tensor& residual) {
    subtract(now_.x2, residual);
    std::swap(now_.x1, now_.x2);
    --at_;
    if (at_ == 0) arrive();
  }
  /// Drops the streams that are held.
  void forget() {
    now_ = {};
    at_ = -1;
  }

 private:
  struct Kept {
    autograd::SavedTensor x1, x2;
  };

  /// Starts from the nearest saved streams, after `count` steps or more. They are overwritten in
  /// place unless others may still use them.
  void start(int64_t count) {
    const auto found = kept_.lower_bound(count);
    require<GradientError>(found != kept_.end(), kReversible,
                           "the streams that were kept are gone: backward ran through this graph "
                           "before; call the first one with retain, or run forward again");
    forget();
    Halves x{found->second.x1.get(kReversible), found->second.x2.get(kReversible)};
    const int64_t at = found->first;
    if (at == count && !graph_is_retained()) kept_.erase(found);
    for (Tensor* h : {&x.x1, &x.x2}) {
      if (!h->unique()) *h = clone(*h);
    }
    now_ = std::move(x);
    at_ = at;
  }

  /// At the first step: measures the error of the reconstructed input.
  void arrive() {
    ReconstructionErrorMonitor* watch = ReconstructionErrorMonitor::current();
    if (rows_ == 0 || watch == nullptr) return;
    const NoGrad off;
    watch->last = std::max(relative_error(begin_.x1.get(kReversible), some_rows(now_.x1, rows_)),
                           relative_error(begin_.x2.get(kReversible), some_rows(now_.x2, rows_)));
    watch->largest = std::max(watch->largest, watch->last);
    ++watch->inversions;
  }

  const ReversibleOptions options_;
  const DType dtype_;
  std::vector<std::unique_ptr<Step>> steps_;
  std::map<int64_t, Kept> kept_;  // saved streams by the number of steps before them
  int64_t rows_ = 0;
  Kept begin_;  // rows of the input to compare with
  Halves now_;  // x1: the input of step at_
  int64_t at_ = -1;
};

/// Inputs: the stream that is added to, the one that is read, the encoder output, and the layer's
/// parameters, whose gradients are accumulated inside. Outputs: the sum, and the auxiliary losses.
struct Reversible::StepNode final : autograd::Node {
  StepNode(std::shared_ptr<Graph> g, int64_t i)
      : Node(kReversible), graph(std::move(g)), index(i) {}

  Grads backward(std::span<const Tensor> dy) override {
    graph->reach(index + 1);
    Grads grads(next.size());
    {
      const Graph::Rerun r = [&] {
        const EnableGrad on;
        return graph->run(index, wants(1), wants(2));
      }();
      graph->undo(r.residual);
      require<GradientError>(r.losses.size() + 1 == outputs.size(), kReversible,
                             "a layer returned {} auxiliary losses, and {} when it was recomputed; "
                             "expected as many",
                             outputs.size() - 1, r.losses.size());
      into_step(r, dy, grads);
    }
    // No earlier step exists or needs a gradient.
    if (index == 0 || (!wants(0) && !wants(1))) graph->forget();
    if (wants(0)) grads[0] = dy[0];
    return grads;
  }

  void release() override {
    graph->drop(index);
    Node::release();
  }

  std::shared_ptr<Graph> graph;
  int64_t index;

 private:
  static void into_step(const Graph::Rerun& r, std::span<const Tensor> dy, Grads& grads) {
    std::vector<Tensor> results, upstream, leaves;
    const auto with = [&](const Tensor& y, size_t slot) {
      if (slot >= dy.size() || !dy[slot] || !y || !requires_grad(y)) return;
      results.push_back(y);
      upstream.push_back(dy[slot]);
    };
    with(r.residual, 0);
    for (size_t i = 0; i < r.losses.size(); ++i) with(r.losses[i].value, i + 1);
    if (results.empty()) return;
    for (const Tensor& x : {r.x, r.context}) {
      if (x && requires_grad(x)) leaves.push_back(x);
    }
    std::vector<Tensor> dx = gradients_within(results, upstream, leaves);
    size_t i = 0;
    if (requires_grad(r.x)) grads[1] = std::move(dx[i++]);
    if (r.context && requires_grad(r.context)) grads[2] = std::move(dx[i]);
  }
};

Reversible::Reversible(Halves x, const ReversibleOptions& options)
    : options_(options), dtype_(x.x1.dtype()), now_(std::move(x)) {
  for (const Tensor& h : {now_.x1, now_.x2}) {
    if (h.dtype() != DType::f32 && h.dtype() != DType::f64) {
      fail_with<DTypeError>(kReversible,
                            "the streams must be in f32 or f64: in fewer bits their sums lose what "
                            "the inversion needs; layers may compute in bf16 (options.layers)",
                            {{"stream", h}});
    }
  }
  require_same_shape(kReversible, {"x1", now_.x1}, {"x2", now_.x2});
  require_same_dtype(kReversible, {"x1", now_.x1}, {"x2", now_.x2});
  require_same_device(kReversible, {"x1", now_.x1}, {"x2", now_.x2});
  require(options.grid >= 0 && options.grid <= 23, kReversible, "grid is {}; expected 0 to 23",
          options.grid);
  require(options.checkpoint_every >= 0, kReversible, "checkpoint_every is {}; expected 0 or more",
          options.checkpoint_every);
  for (Tensor* h : {&now_.x1, &now_.x2}) {
    *h = contiguous(*h);
    watch_size(*h);
  }
  if (autograd::recording() && !options.stored) {
    graph_ = std::make_shared<Graph>(options, dtype_);
    graph_->begin(now_);
  }
}

Tensor Reversible::input() const { return cast(now_.x2, options_.layers); }

Tensor Reversible::residual(const Tensor& y) const { return residual_of(y, dtype_, options_); }

void Reversible::watch_size(const Tensor& x) {
  if (!options_.exact || !autograd::recording() || x.numel() == 0) return;
  const NoGrad off;
  const Tensor size = max(flatten(max(abs(x.detach()), -1).values), 0).values;
  largest_ = largest_ ? maximum(largest_, size) : size;
}

Output Reversible::step(std::shared_ptr<Layer> f, const LayerContext& ctx, Pass pass) {
  Output out;
  Tensor sum;
  if (graph_ == nullptr) {
    LayerContext own = ctx;
    own.encoder_output = apart(ctx.encoder_output);
    out = f->forward(cast(apart(now_.x2), options_.layers), own, pass);
    sum = add(now_.x1, residual(out.y));
    out.y = out.y.detach();
  } else {
    {
      const NoGrad off;
      out = f->forward(input(), ctx, pass);
      sum = add(now_.x1, residual(out.y));
      std::vector<AuxiliaryLoss> losses;  // one of each name, as in recomputations
      add_losses(losses, std::move(out.losses));
      out.losses = std::move(losses);
    }
    std::vector<Tensor> inputs{now_.x1, now_.x2, ctx.encoder_output};
    for (const Tensor& w : parameters(*f)) inputs.push_back(w);
    std::vector<Tensor*> outputs{&sum};
    for (AuxiliaryLoss& loss : out.losses) outputs.push_back(&loss.value);
    const int64_t index = graph_->size();
    Graph::Step step{std::move(f), ctx,
                     pass,         autograd::SavedTensor(ctx.encoder_output, kReversible),
                     {},           Scope::path()};
    step.ctx.encoder_output = {};
    if (!out.choices.empty()) step.ctx.choices.clear();
    for (const Tensor& c : out.choices) step.choices.emplace_back(c, kReversible);
    graph_->add(std::move(step));
    record_node(kReversible, inputs, outputs,
                [&] { return std::make_shared<StepNode>(graph_, index); });
  }
  now_ = {now_.x2, sum};
  watch_size(sum);
  const int64_t every = options_.checkpoint_every;
  if (graph_ != nullptr && every > 0 && graph_->size() % every == 0) graph_->keep(now_);
  return out;
}

Halves Reversible::finish() {
  if (largest_) {
    const int digits = dtype_ == DType::f32 ? 24 : 53;
    const double limit = std::ldexp(1.0, digits - options_.grid);
    const ConstView largest = largest_.alias({1}, {1}, 0).view();
    deferred::check(
        largest.device,
        [&](View found) { kernels::find_outside(largest.device, largest, 0, limit, found); },
        [digits, limit, grid = options_.grid, dtype = dtype_](int64_t, int64_t bits) {
          const auto reached = std::bit_cast<double>(bits);
          if (std::isnan(reached)) return;  // the op that made the NaN reports it
          fail<ValueError>(kReversible,
                           "a stream reached {}, and multiples of 2^-{} are exact in {} up to {} "
                           "only; use a grid of at most {} bits, or the float mode",
                           reached, grid, name_of(dtype), limit,
                           std::max(0, digits - std::ilogb(reached) - 1));
        });
  }
  if (graph_ != nullptr) {
    graph_->keep(now_);
    graph_ = nullptr;
  }
  return now_;
}

ReversibleOutput reversible(std::span<const Coupling> couplings, Halves x, const LayerContext& ctx,
                            Pass pass, ReversibleOptions options) {
  if (options.layers == DType::f32) options.layers = x.x1.dtype();
  Reversible streams(std::move(x), options);
  ReversibleOutput result;
  int64_t index = 0;
  for (const Coupling& c : couplings) {
    for (Layer* layer : {c.f.get(), c.g.get()}) {
      const std::shared_ptr<Layer> unowned(std::shared_ptr<void>(), layer);
      Output out = streams.step(unowned, ctx, pass.at(index++));
      add_losses(result.losses, out.losses);
      result.outputs.push_back(std::move(out));
    }
  }
  result.y = streams.finish();
  return result;
}

Halves enter_reversible(const Tensor& x, const ReversibleOptions& options) {
  Tensor e = x.dtype() == DType::f64 ? x : cast(x, DType::f32);
  if (options.exact) e = round_to_grid(e, options.grid);
  return {e, e};
}

Tensor mean_of(const Halves& x) { return mul(add(x.x1, x.x2), 0.5); }

Tensor concat_of(const Halves& x) { return concat({x.x1, x.x2}, -1); }

}  // namespace longspan
