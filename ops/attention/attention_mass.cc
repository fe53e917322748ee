#include "ops/attention/attention_mass.h"

#include <utility>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "ops/copy.h"
#include "ops/shape.h"

namespace longspan {
namespace {

/// While it lives, what this thread saves is kept as usual, and not by a checkpoint scope: a graph
/// that is used up at once need not be recomputed.
class SavedAtOnce {
 public:
  SavedAtOnce() : outer_(std::exchange(autograd::SaveSlots::current(), nullptr)) {}
  ~SavedAtOnce() { autograd::SaveSlots::current() = outer_; }
  SavedAtOnce(const SavedAtOnce&) = delete;
  SavedAtOnce& operator=(const SavedAtOnce&) = delete;

 private:
  autograd::SaveSlots* outer_;
};

}  // namespace

Tensor attention_mass(const Tensor& q, const Tensor& k, const AttentionPattern& pattern,
                      const ScoreTerms& terms) {
  require_rank_is("attention_mass", k, 4, "k");
  const SavedAtOnce at_once;
  const EnableGrad on;
  const auto constant = [](const Tensor& x) { return x ? x.detach() : Tensor{}; };
  ScoreTerms t = terms;
  for (Tensor* x : {&t.relation_key, &t.relation_bias, &t.relation_query, &t.span, &t.query_span}) {
    *x = constant(*x);
  }
  t.relation_value = {};
  Tensor v = zeros({k.dim(0), k.dim(1), k.dim(2), 1}, k.dtype(), k.device());
  set_requires_grad(v);
  const Tensor out = block_attention(constant(q), constant(k), v, pattern, t).out;
  const Tensor one = ones(out.shape(), out.dtype(), out.device());
  const std::vector<Tensor> sums = gradients({&out, 1}, {&one, 1}, {&v, 1});
  return squeeze(sums[0].detach(), 3);
}

}  // namespace longspan
