#include "train/gradient_fold.h"

#include <algorithm>
#include <utility>

#include "autograd/engine.h"
#include "autograd/leaf_watch.h"
#include "autograd/node.h"
#include "core/error.h"
#include "core/kernels/gradient.h"
#include "ops/copy.h"

namespace longspan {
namespace {

/// Adds a gradient to a sum, which may be undefined; moves it there if so.
void add_to(Tensor& sum, Tensor gradient) {
  if (!gradient) return;
  if (!sum) {
    sum = std::move(gradient);
    return;
  }
  if (!sum.unique() || !sum.contiguous()) {  // a caller's own: it is never written
    sum = clone(sum);
    sum.set_category(Category::gradient);
  }
  kernels::accumulate(sum.device(), gradient.view(), sum.mut());
}

Tensor taken(const Tensor& parameter) {
  Tensor gradient = grad(parameter);
  if (gradient) set_grad(parameter, {});
  return gradient;
}

}  // namespace

GradientFold::GradientFold(const TensorList& parameters, int64_t batches, int64_t group)
    : batches_(batches), group_(group) {
  require(batches >= 1 && group >= 1, "gradients",
          "got {} batches in groups of {}; expected 1 or more of both", batches, group);
  for (const NamedTensor& p : parameters) {
    if (requires_grad(p.tensor)) parameters_.push_back(p.tensor);
  }
  for (std::vector<Tensor>& level : sums_) level.resize(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    sums_.back()[i] = taken(parameters_[i]);
    needed_ |= static_cast<bool>(sums_.back()[i]);
  }
  needed_ |= batches > 1;
}

GradientFold::~GradientFold() {
  if (done_ == batches_) return;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    set_grad(parameters_[i], std::move(sums_.back()[i]));
  }
}

void GradientFold::backward(const Tensor& loss) {
  require(done_ < batches_, "gradients", "got another batch; expected {}", batches_);
  if (needed_) {
    const LeafWatch watch(parameters_, [this](size_t i) { fold(i); });
    longspan::backward(loss);
  } else {
    longspan::backward(loss);
  }
  ++done_;
}

void GradientFold::fold(size_t i) {
  const bool ends_step = done_ + 1 == batches_;
  const bool ends_group = ends_step || (done_ + 1) % group_ == 0;
  auto& [batches, groups, steps] = sums_;
  add_to(batches[i], taken(parameters_[i]));
  if (ends_group) add_to(groups[i], std::exchange(batches[i], {}));
  if (!ends_step) return;
  add_to(steps[i], std::exchange(groups[i], {}));
  if (steps[i]) set_grad(parameters_[i], std::exchange(steps[i], {}));
}

int64_t GradientFold::rehearsal(int64_t batches) {
  // Whole groups before the last: a third needs no more than the second. The same holds for the
  // batches of a group.
  const int64_t groups = std::min<int64_t>((batches - 1) / default_group, 2);
  const int64_t rest = (batches - 1) % default_group + 1;
  return groups * rehearsed_group + std::min(rest, rehearsed_group);
}

}  // namespace longspan
