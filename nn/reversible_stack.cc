// Stacks with a reversible memory policy: the branches of their blocks are steps over two streams.

#include <utility>

#include "autograd/mode.h"
#include "core/scope.h"
#include "nn/edge_rows.h"
#include "nn/reversible.h"
#include "nn/segment.h"
#include "nn/stack.h"
#include "ops/copy.h"
#include "ops/elementwise.h"

namespace longspan {

/// One branch as a layer. The first branch of a block adds the block's positions to its input,
/// because only a function of the other stream may be added to a stream; it alone sees earlier
/// states.
struct Block::Residual final : Layer {
  Residual(const Block& b, size_t i, const Normalization* before)
      : block(b), branch(b.branches_[i]), first(i == 0) {
    if (block.place_ == NormPlace::pre) {
      norm = branch.norm;
    } else if (i > 0) {
      norm = b.branches_[i - 1].norm;
    } else if (before != nullptr) {
      norm = *before;
    }
    if (first) positions = b.positions_;
  }

  Tensor through_norm(const Tensor& x) const { return norm && x ? norm->forward(x) : x; }
  Tensor placed(const Tensor& x, const LayerContext& ctx) const {
    return first ? block.with_positions(x, ctx) : x;
  }
  /// Returns the x that the layer gets, for the stream that is read.
  Tensor input(const Tensor& x, const LayerContext& ctx) const {
    return through_norm(placed(x, ctx));
  }
  Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const override {
    const Scope scope(branch.name);
    LayerContext local = ctx;
    InputRows rows = ctx.memory.get<InputRows>();
    local.block = {x, rows.states, norm ? &*norm : nullptr};
    if (rows.states) {
      rows.states = through_norm(rows.states);
      local.memory.set(std::move(rows));
    }
    return block.branch_output(branch, norm ? &*norm : nullptr, placed(x, ctx), local,
                               pass.at(branch.name));
  }
  void visit(Visitor& v) override {
    v("norm", norm)(branch.name, *branch.layer);
    if (positions.weight) v("position", positions);
  }

  const Block& block;
  const Branch& branch;
  const bool first;
  std::optional<Normalization> norm;
  LearnedPositions positions;
};

std::vector<std::shared_ptr<Block::Residual>> Block::residuals(const Normalization* before) const {
  std::vector<std::shared_ptr<Residual>> all;
  for (size_t i = 0; i < branches_.size(); ++i) {
    all.push_back(std::make_shared<Residual>(*this, i, before));
  }
  return all;
}

namespace {

/// Passes two streams through the blocks of a stack.
class Walk {
 public:
  Walk(const Tensor& x, const MemoryPolicy& policy, size_t steps_of_a_block)
      : options_(reversible_options(policy, x.dtype(), static_cast<int64_t>(steps_of_a_block))),
        streams_(enter_reversible(x, options_), options_) {}

  /// Returns the branches of the next block as steps, with their norms.
  std::vector<std::shared_ptr<Block::Residual>> enter(const Block& block) {
    std::vector<std::shared_ptr<Block::Residual>> steps = block.residuals(before_);
    before_ = block.place() == NormPlace::post ? &block.last_norm() : nullptr;
    return steps;
  }
  Reversible& streams() { return streams_; }
  /// Does the next step, which computes only some rows of the streams: from here on there are no
  /// others. Such a step cannot be inverted, so that it saves what its ops save.
  Output step_to_rows(const Layer& f, const LayerContext& ctx, Pass pass) {
    const Halves x = streams_.finish();
    Output out = f.forward(cast(x.x2, options_.layers), ctx, pass);
    Tensor y = cast(out.y, x.x1.dtype());
    if (options_.exact) y = round_to_grid(y, options_.grid);
    const EdgeRows& rows = *ctx.own.find<EdgeContext>()->rows;
    streams_ = Reversible({rows.of(x.x2), add(rows.of(x.x1), y)}, options_);
    return out;
  }
  /// Returns the output of the stack for streams x, before the final norm.
  Tensor result(const Halves& x) const {
    const Tensor y = cast(mean_of(x), options_.layers);
    return before_ != nullptr ? before_->forward(y) : y;
  }

 private:
  ReversibleOptions options_;
  Reversible streams_;
  const Normalization* before_ = nullptr;  // of the last branch, if its norm comes after the sum
};

}  // namespace

Stack::Result Stack::forward_reversible(const Tensor& input, const LayerContext& ctx,
                                        const SegmentMemory& memory, Pass pass,
                                        std::vector<Tensor>* each) const {
  Result result;
  result.memory.layers.resize(blocks_.size());
  NewestRows newest(ctx.mem_len);
  Walk walk(input, policy_, blocks_.empty() ? 1 : blocks_[0].size());
  LayerContext local = ctx;
  local.layer_patterns.clear();
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Scope scope("layers", static_cast<long>(i));
    bool narrows = see_layer(local, ctx, static_cast<int64_t>(i));
    local.memory = memory.layers.empty() ? LayerMemory{} : memory.layers[i];
    const LayerMemory before = local.memory;
    const Tensor read = ctx.mem_len > 0 ? walk.streams().input() : Tensor{};
    std::optional<LayerMemory> kept;
    const Pass site = pass.at("layers").at(i);
    for (auto& step : walk.enter(blocks_[i])) {
      Output out = std::exchange(narrows, false)
                       ? walk.step_to_rows(*step, local, site)
                       : walk.streams().step(std::move(step), local, site);
      add_losses(result.losses, std::move(out.losses));
      add_statistics(result.statistics, std::move(out.statistics));
      if (!out.memory.empty()) local.memory = std::move(out.memory);
      if (out.kept) kept = std::move(out.kept);
      local.memory.drop<InputRows>();  // for the first branch alone
    }
    if (before.has<InputRows>()) local.memory.set(before.get<InputRows>());
    LayerMemory& next = result.memory.layers[i];
    next = kept ? std::move(*kept) : std::move(local.memory);
    if (!kept && read) next.set(newest.keep(next.get<InputRows>(), read, site));
    if (each != nullptr) each->push_back(walk.result(walk.streams().streams()));
  }
  result.y = walk.result(walk.streams().finish());
  if (final_norm_) result.y = final_norm_->forward(result.y);
  return result;
}

Tensor Stack::reversible_attention_input(int64_t layer, const Tensor& x, const LayerContext& ctx,
                                         std::string_view branch) const {
  Walk walk(x, policy_, 1);
  LayerContext local = ctx;
  local.layer_patterns.clear();
  for (int64_t i = 0;; ++i) {
    if (!ctx.layer_patterns.empty()) local.pattern = ctx.layer_patterns[static_cast<size_t>(i)];
    for (auto& step : walk.enter(block(i))) {
      if (i == layer && step->branch.name == branch) {
        return step->input(walk.streams().input(), local);
      }
      walk.streams().step(std::move(step), local, Pass{});
    }
    require(i < layer, "attention map", "layer {} has no branch \"{}\"", layer, branch);
  }
}

}  // namespace longspan
