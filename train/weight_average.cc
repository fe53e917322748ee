#include "train/weight_average.h"

#include <algorithm>

#include "autograd/mode.h"
#include "core/error.h"
#include "core/kernels/copy.h"
#include "ops/copy.h"
#include "ops/optim.h"

namespace longspan {
namespace {

void assign(Tensor to, const Tensor& from) {
  kernels::copy(to.device(), from.detach().view(), to.mut());
}

}  // namespace

WeightAverage::WeightAverage(const TensorList& parameters, double decay)
    : parameters_(parameters), decay_(decay) {
  require(decay >= 0 && decay < 1, "average", "got a decay of {}; expected 0 or more, and below 1",
          decay);
  const NoGrad off;
  for (const NamedTensor& p : parameters_) {
    averages_.push_back(clone(p.tensor.detach()));
    averages_.back().set_category(Category::optimizer);
  }
}

void WeightAverage::update(int64_t steps) {
  const NoGrad off;
  const auto t = static_cast<double>(steps);
  const double rate = 1 - std::min(decay_, (1 + t) / (10 + t));
  // a -= rate h with h = a - p.
  for (size_t i = 0; i < averages_.size(); ++i) {
    sgd_update(averages_[i], parameters_[i].tensor.detach(), {},
               {.lr = rate, .weight_decay = 1, .scale = -1});
  }
}

void WeightAverage::restart() {
  const NoGrad off;
  for (size_t i = 0; i < averages_.size(); ++i) assign(averages_[i], parameters_[i].tensor);
}

TensorList WeightAverage::state() const {
  TensorList all;
  for (size_t i = 0; i < averages_.size(); ++i) {
    all.push_back({parameters_[i].name + suffix, averages_[i]});
  }
  return all;
}

void WeightAverage::exchange() {
  const NoGrad off;
  for (size_t i = 0; i < averages_.size(); ++i) {
    const Tensor kept = clone(averages_[i]);
    assign(averages_[i], parameters_[i].tensor);
    assign(parameters_[i].tensor, kept);
  }
}

WeightAverage::Instead::Instead(std::optional<WeightAverage>& average) : average_(average) {
  if (average_) average_->exchange();
}

WeightAverage::Instead::~Instead() {
  if (average_) average_->exchange();
}

}  // namespace longspan
