#include "nn/stack.h"

#include "autograd/mode.h"
#include "core/scope.h"
#include "nn/checkpoint.h"
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

Tensor Block::with_positions(const Tensor& x, const Given& given) const {
  if (!positions_.weight) return x;
  return add(x, cast(positions_.forward(given.position, x.dim(1)), x.dtype()));
}

Tensor Block::normed(const Branch& b, const Tensor& x) const {
  return place_ == NormPlace::pre && x ? b.norm.forward(x) : x;
}

Output Block::forward(const Tensor& input, const Given& given, Pass pass) const {
  Output result(with_positions(input, given));
  Tensor& x = result.y;
  Given local = given;
  local.memory.states = normed(branches_.front(), given.memory.states);
  for (const Branch& b : branches_) {
    const Scope scope(b.name);
    const Pass site = pass.at(b.name);
    Output out = b.layer->forward(normed(b, x), local, site);
    const Tensor sum = add(x, longspan::dropout(out.y, dropout_, site.at("resid")));
    x = place_ == NormPlace::pre ? sum : b.norm.forward(sum);
    if (out.loss) result.loss = result.loss ? add(result.loss, out.loss) : out.loss;
    if (out.state) result.state = out.state;
    for (Tensor& c : out.choices) result.choices.push_back(std::move(c));
    if (out.memory.keys || out.memory.context_keys) local.memory = std::move(out.memory);
    local.memory.states = {};
  }
  result.memory = std::move(local.memory);
  result.memory.states = given.memory.states;
  return result;
}

const Branch& Block::branch(std::string_view name) const {
  for (const Branch& b : branches_) {
    if (b.name == name) return b;
  }
  fail<ValueError>("block", "there is no branch \"{}\"", name);
}

Tensor Block::branch_input(std::string_view name, const Tensor& input, const Given& given) const {
  Tensor x = with_positions(input, given);
  for (const Branch& b : branches_) {
    Tensor in = normed(b, x);
    if (b.name == name) return in;
    const Tensor sum = add(x, b.layer->forward(in, given, Pass{}).y);
    x = place_ == NormPlace::pre ? sum : b.norm.forward(sum);
  }
  fail<ValueError>("block", "there is no branch \"{}\"", name);
}

Stack::Stack(std::vector<Block> blocks, std::optional<Normalization> final_norm,
             MemoryPolicy policy)
    : blocks_(std::move(blocks)), final_norm_(std::move(final_norm)), policy_(std::move(policy)) {
  require<NotImplemented>(policy_.kind == MemoryKind::standard || two_streams() ||
                              policy_.segments == std::vector<int64_t>{1},
                          "stack",
                          "memory policy \"{}\" is not available; use \"standard\", "
                          "\"checkpoint\" or \"reversible\"",
                          policy_.text());
  require(policy_.chunks >= 1, "stack", "chunks is {}; expected 1 or more", policy_.chunks);
  require<NotImplemented>(policy_.chunks == 1, "stack",
                          "layers in {} chunks are not available; use 1", policy_.chunks);
}

void Stack::visit(Visitor& v) { v("layers", blocks_)("final_norm", final_norm_); }

void Stack::check_numbers(const Given& given, const SegmentMemory& memory) const {
  require(memory.layers.empty() || memory.layers.size() == blocks_.size(), "stack",
          "memory of {} layers for {} layers", memory.layers.size(), blocks_.size());
  require(given.layer_patterns.empty() || given.layer_patterns.size() == blocks_.size(), "stack",
          "{} patterns for {} layers", given.layer_patterns.size(), blocks_.size());
}

Stack::Result Stack::forward(const Tensor& input, const Given& given, const SegmentMemory& memory,
                             Pass pass, std::vector<Tensor>* each) const {
  check_numbers(given, memory);
  if (two_streams()) return forward_reversible(input, given, memory, pass, each);
  Result result;
  result.y = input;
  result.memory.layers.resize(blocks_.size());
  Given local = given;
  local.layer_patterns.clear();  // blocks need their own only, and copy what they are given
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Scope scope("layers", static_cast<long>(i));
    if (!given.layer_patterns.empty()) local.pattern = given.layer_patterns[i];
    local.memory = memory.layers.empty() ? LayerMemory{} : memory.layers[i];
    const Pass site = pass.at("layers").at(i);
    Output out = policy_.kind == MemoryKind::checkpoint
                     ? checkpoint(blocks_[i], result.y, local, site)
                     : blocks_[i].forward(result.y, local, site);
    result.memory.layers[i] = std::move(out.memory);
    if (given.mem_len > 0) {
      result.memory.layers[i].states = latest_states(local.memory.states, result.y, given.mem_len);
    }
    result.y = std::move(out.y);
    if (each != nullptr) each->push_back(result.y);
    if (out.loss) result.loss = result.loss ? add(result.loss, out.loss) : out.loss;
    if (out.state) {
      result.states.resize(blocks_.size());
      result.states[i] = std::move(out.state);
    }
  }
  if (final_norm_) result.y = final_norm_->forward(result.y);
  return result;
}

Tensor Stack::attention_map(int64_t layer, const Tensor& input, const Given& given) const {
  const NoGrad off;
  require(layer >= 0 && layer < size(), "attention map", "layer {} of {}", layer, size());
  Given local = given;
  const auto see = [&](int64_t i) {
    if (!given.layer_patterns.empty()) local.pattern = given.layer_patterns[static_cast<size_t>(i)];
  };
  Tensor x = input;
  for (int64_t i = 0; i < layer && !two_streams(); ++i) {
    see(i);
    x = block(i).forward(x, local, Pass{}).y;
  }
  see(layer);
  const Layer& attention = *block(layer).branch("attention").layer;
  const Tensor in = two_streams() ? reversible_attention_input(layer, input, given)
                                  : block(layer).branch_input("attention", x, local);
  const Tensor p = attention.probabilities(in, local);
  return cast(select(p, 0, 0), DType::f32);  // [H, L, T]
}

}  // namespace longspan
