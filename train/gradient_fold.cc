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

FoldSums::FoldSums(size_t count, int64_t batches, int64_t group)
    : batches_(batches), group_(group) {
  require(batches >= 1 && group >= 1, "gradients",
          "got {} batches in groups of {}; expected 1 or more of both", batches, group);
  for (std::vector<Tensor>& level : sums_) level.resize(count);
}

void FoldSums::add(size_t i, int64_t batch, Tensor gradient) {
  const bool ends_step = batch + 1 == batches_;
  const bool ends_group = ends_step || (batch + 1) % group_ == 0;
  auto& [batches, groups, steps] = sums_;
  add_to(batches[i], std::move(gradient));
  if (ends_group) add_to(groups[i], std::exchange(batches[i], {}));
  if (ends_step) add_to(steps[i], std::exchange(groups[i], {}));
}

namespace {

std::vector<Tensor> trained(const TensorList& parameters) {
  std::vector<Tensor> all;
  for (const NamedTensor& p : parameters) {
    if (requires_grad(p.tensor)) all.push_back(p.tensor);
  }
  return all;
}

}  // namespace

GradientFold::GradientFold(const TensorList& parameters, int64_t batches, int64_t group)
    : parameters_(trained(parameters)),
      batches_(batches),
      sums_(parameters_.size(), batches, group),
      needed_(batches > 1) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Tensor waiting = taken(parameters_[i]);
    needed_ |= static_cast<bool>(waiting);
    sums_.wait(i, std::move(waiting));
  }
}

GradientFold::~GradientFold() {
  if (done_ == batches_) return;
  for (size_t i = 0; i < parameters_.size(); ++i) set_grad(parameters_[i], sums_.taken(i));
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
  sums_.add(i, done_, taken(parameters_[i]));
  if (done_ + 1 < batches_) return;
  if (Tensor sum = sums_.taken(i)) set_grad(parameters_[i], std::move(sum));
}

int64_t GradientFold::rehearsal(int64_t batches) {
  // Whole groups before the last: a third needs no more than the second. The same holds for the
  // batches of a group.
  const int64_t groups = std::min<int64_t>((batches - 1) / default_group, 2);
  const int64_t rest = (batches - 1) % default_group + 1;
  return groups * rehearsed_group + std::min(rest, rehearsed_group);
}

}  // namespace longspan
