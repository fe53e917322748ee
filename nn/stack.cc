#include "nn/stack.h"

#include <algorithm>

#include "autograd/checkpoint_scope.h"
#include "autograd/mode.h"
#include "core/graph.h"
#include "core/scope.h"
#include "nn/checkpoint.h"
#include "nn/chunked.h"
#include "nn/edge_rows.h"
#include "nn/segment.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/shape.h"

namespace longspan {

Block::Block(NormPlace place, float dropout, std::vector<Branch> branches,
             LearnedPositions positions)
    : place_(place),
      dropout_(dropout),
      branches_(std::move(branches)),
      positions_(std::move(positions)) {}

void Block::visit(Visitor& v) {
  for (size_t i = 0; i < branches_.size(); ++i) {
    v("norm" + std::to_string(i + 1), branches_[i].norm);
    v(branches_[i].name, *branches_[i].layer);
  }
  if (positions_.weight) v("position", positions_);
}

Tensor Block::with_positions(const Tensor& x, const LayerContext& ctx) const {
  if (!positions_.weight) return x;
  return add(x, cast(positions_.forward(ctx.position, x.dim(1)), x.dtype()));
}

Tensor Block::normed(const Branch& b, const Tensor& x) const {
  return place_ == NormPlace::pre && x ? b.norm.forward(x) : x;
}

Tensor Block::computed_rows(const Branch& b, const Tensor& x, const LayerContext& ctx) const {
  const auto* edges = ctx.own.find<EdgeContext>();
  const bool narrows = edges != nullptr && edges->rows != nullptr && &b == &branches_.front();
  return narrows ? edges->rows->of(x) : x;
}

Output Block::branch_output(const Branch& b, const Normalization* norm, const Tensor& x,
                            const LayerContext& ctx, Pass pass, const Tensor& onto) const {
  if (chunks_ > 1 && b.layer->position_wise()) {
    const auto own = norm != nullptr ? std::optional(*norm) : std::nullopt;
    return added(onto, chunked(x, chunks_, pass, [this, &b, own](const Tensor& rows, Pass site) {
                   Output out = b.layer->forward(own ? own->forward(rows) : rows, {}, site);
                   out.y = longspan::dropout(out.y, dropout_, site.at("resid"));
                   return out;
                 }));
  }
  require_splits(*b.layer, pass);
  const Tensor in = norm != nullptr ? norm->forward(x) : x;
  const bool drops = !b.own_dropout && dropout_ > 0 && pass.training;
  if (onto && !drops && autograd::CheckpointScope::current() == nullptr) {
    return b.layer->forward_onto(onto, in, ctx, pass);
  }
  Output out = b.layer->forward(in, ctx, pass);
  autograd::CheckpointScope::end_branch();
  if (!b.own_dropout) out.y = longspan::dropout(out.y, dropout_, pass.at("resid"));
  return added(onto, std::move(out));
}

LayerContext Block::inner_context(const Tensor& x, const LayerContext& ctx) const {
  LayerContext local = ctx;
  InputRows rows = ctx.memory.get<InputRows>();
  local.block = {x, rows.states, place_ == NormPlace::pre ? &branches_.front().norm : nullptr};
  if (rows.states) {
    rows.states = normed(branches_.front(), rows.states);
    local.memory.set(std::move(rows));
  }
  return local;
}

Output Block::left_out(const Tensor& x, const LayerContext& ctx, Pass pass) const {
  const Branch& first = branches_.front();
  const Scope scope(first.name);
  Output result = first.layer->left_out(normed(first, with_positions(x, ctx)),
                                        inner_context(x, ctx), pass.at(first.name));
  result.y = x;
  result.memory = ctx.memory;
  return result;
}

Output Block::forward(const Tensor& input, const LayerContext& ctx, Pass pass) const {
  Output result(with_positions(input, ctx));
  Tensor& x = result.y;
  LayerContext local = inner_context(input, ctx);
  for (const Branch& b : branches_) {
    const Scope scope(b.name);
    const Normalization* const norm = place_ == NormPlace::pre ? &b.norm : nullptr;
    Output out = branch_output(b, norm, x, local, pass.at(b.name), computed_rows(b, x, ctx));
    x = place_ == NormPlace::pre ? out.y : b.norm.forward(out.y);
    add_losses(result.losses, std::move(out.losses));
    add_statistics(result.statistics, std::move(out.statistics));
    for (Tensor& c : out.choices) result.choices.push_back(std::move(c));
    if (!out.memory.empty()) local.memory = std::move(out.memory);
    if (out.kept) result.kept = std::move(out.kept);
    local.memory.drop<InputRows>();  // for the first branch alone
  }
  result.memory = std::move(local.memory);
  if (ctx.memory.has<InputRows>()) result.memory.set(ctx.memory.get<InputRows>());
  return result;
}

bool Block::set_chunks(int64_t chunks) {
  require(chunks >= 1, "block", "chunks is {}; expected 1 or more", chunks);
  chunks_ = chunks;
  return std::any_of(branches_.begin(), branches_.end(),
                     [](const Branch& b) { return b.layer->position_wise(); });
}

const Branch& Block::branch(std::string_view name) const {
  for (const Branch& b : branches_) {
    if (b.name == name) return b;
  }
  fail<ValueError>("block", "there is no branch \"{}\"", name);
}

Tensor Block::branch_input(std::string_view name, const Tensor& input,
                           const LayerContext& ctx) const {
  Tensor x = with_positions(input, ctx);
  for (const Branch& b : branches_) {
    Tensor in = normed(b, x);
    if (b.name == name) return in;
    const Tensor sum = add(computed_rows(b, x, ctx), b.layer->forward(in, ctx, Pass{}).y);
    x = place_ == NormPlace::pre ? sum : b.norm.forward(sum);
  }
  fail<ValueError>("block", "there is no branch \"{}\"", name);
}

Stack::Stack(std::vector<Block> blocks, std::optional<Normalization> final_norm,
             MemoryPolicy policy)
    : blocks_(std::move(blocks)), final_norm_(std::move(final_norm)), policy_(std::move(policy)) {
  bool any = policy_.chunks == 1 || blocks_.empty();
  for (Block& b : blocks_) any = b.set_chunks(policy_.chunks) || any;
  require(any, "stack", "chunks is {}, but no layer works position by position; use 1",
          policy_.chunks);
}

void Stack::visit(Visitor& v) { v("layers", blocks_)("final_norm", final_norm_); }

void Stack::check_numbers(const LayerContext& ctx, const SegmentMemory& memory) const {
  require(memory.layers.empty() || memory.layers.size() == blocks_.size(), "stack",
          "memory of {} layers for {} layers", memory.layers.size(), blocks_.size());
  require(ctx.layer_patterns.empty() || ctx.layer_patterns.size() == blocks_.size(), "stack",
          "{} patterns for {} layers", ctx.layer_patterns.size(), blocks_.size());
}

bool Stack::see_layer(LayerContext& ctx, const LayerContext& all, int64_t layer) const {
  if (!all.layer_patterns.empty()) ctx.pattern = all.layer_patterns[static_cast<size_t>(layer)];
  const auto* edges = all.own.find<EdgeContext>();
  const bool narrows = layer + 1 == size() && edges != nullptr && edges->last_rows != nullptr;
  if (narrows) ctx.own.set(EdgeContext{edges->last_rows, nullptr, edges->encoder_rows});
  return narrows;
}

namespace {

/// Draws, on the host, whether a block with the input x is left out; on the meta device none is.
bool is_left_out(double share, const Tensor& x, Pass pass) {
  if (share == 0 || !pass.training || x.device() == meta_device) return false;
  graph::refuse("stack", "the host draws which blocks are left out (layer_drop)");
  return to_uniform(philox_word(pass.at("layer_drop").gen.key, 0)) >= 1 - share;
}

}  // namespace

Stack::Result Stack::forward(const Tensor& input, const LayerContext& ctx,
                             const SegmentMemory& memory, Pass pass,
                             std::vector<Tensor>* each) const {
  check_numbers(ctx, memory);
  require<NotImplemented>(layer_drop_ == 0 || !pass.training || !two_streams(), "stack",
                          "reversible layers are never left out; set layer_drop to 0 or choose "
                          "another memory policy");
  if (two_streams()) return forward_reversible(input, ctx, memory, pass, each);
  Result result;
  result.memory.layers.resize(blocks_.size());
  NewestRows newest(ctx.mem_len);
  // Checkpoint scopes share it for their recomputations.
  struct Shared {
    LayerContext ctx, of_layers;
    SegmentMemory memory;
    std::vector<Choices> choices;
  };
  const auto all =
      std::make_shared<Shared>(Shared{ctx, ctx, memory, std::vector<Choices>(blocks_.size())});
  all->of_layers.layer_patterns.clear();  // blocks need only their own pattern, and copy their ctx
  const auto step = [this, all, pass, each, &result, &newest](
                        int64_t layer, std::vector<Tensor>& streams, bool again) {
    const auto i = static_cast<size_t>(layer);
    const Scope scope("layers", static_cast<long>(layer));
    LayerContext local = all->of_layers;
    see_layer(local, all->ctx, layer);
    local.memory = all->memory.layers.empty() ? LayerMemory{} : all->memory.layers[i];
    local.encoder_output = streams[1];
    const Tensor x = streams[0];
    const Pass own = pass.at("layers").at(i);
    Output out = is_left_out(layer_drop_, x, own)
                     ? blocks_[i].left_out(x, local, own)
                     : all->choices[i].run(blocks_[i], x, std::move(local), own);
    streams[0] = out.y;
    if (again) return;
    LayerMemory& next = result.memory.layers[i];
    next = out.kept ? std::move(*out.kept) : std::move(out.memory);
    if (!out.kept && all->ctx.mem_len > 0) next.set(newest.keep(next.get<InputRows>(), x, own));
    if (each != nullptr) each->push_back(out.y);
    add_losses(result.losses, std::move(out.losses));
    add_statistics(result.statistics, std::move(out.statistics));
  };
  std::vector<Tensor> streams{input, ctx.encoder_output};
  run_layers(size(), streams, policy_, step);
  result.y = streams[0];
  if (final_norm_) result.y = final_norm_->forward(result.y);
  return result;
}

Tensor Stack::attention_input(int64_t layer, const Tensor& input, LayerContext& ctx,
                              std::string_view branch) const {
  const NoGrad off;
  require(layer >= 0 && layer < size(), "attention map", "layer {} of {}", layer, size());
  const LayerContext all = ctx;
  Tensor x = input;
  for (int64_t i = 0; i < layer && !two_streams(); ++i) {
    see_layer(ctx, all, i);
    x = block(i).forward(x, ctx, Pass{}).y;
  }
  see_layer(ctx, all, layer);
  return two_streams() ? reversible_attention_input(layer, input, all, branch)
                       : block(layer).branch_input(branch, x, ctx);
}

Tensor Stack::attention_map(int64_t layer, const Tensor& input, const LayerContext& ctx,
                            std::string_view branch) const {
  const NoGrad off;
  LayerContext local = ctx;
  const Tensor in = attention_input(layer, input, local, branch);
  const Tensor p = block(layer).branch(branch).layer->probabilities(in, local);
  return cast(select(p, 0, 0), DType::f32);  // [H, L, T]
}

}  // namespace longspan
