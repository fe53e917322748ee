#include "models/own_rows.h"

#include <algorithm>

#include "core/ranks/sequence_split.h"
#include "models/evaluate.h"
#include "ops/elementwise.h"
#include "ops/shape.h"

namespace longspan {

const Pass& undivided(std::string_view model, const Pass& pass) {
  require<NotImplemented>(pass.split == nullptr, model,
                          "heads for sequences, labels of tokens and answers read all rows, which "
                          "processes do not split; leave out Pass::split (ranks.sequence)");
  return pass;
}

OwnRows::OwnRows(const Tensor& tokens, const Pass& pass, int64_t rows) : pass_(pass) {
  if (tokens.rank() != 2) return;
  const int64_t length = tokens.dim(1);
  if (rows < 0) rows = length;
  if (pass.split == nullptr) return;
  if (tokens.dim(0) != 1) {
    fail_with<ShapeError>("ranks",
                          "processes split one sequence at a time; set batch to 1, and accumulate "
                          "to the number of sequences",
                          {{"tokens", tokens}});
  }
  const auto [first, count] = pass.split->rows(rows);
  first_ = std::min(first, length);
  count_ = std::min(first + count, length) - first_;
  pass_.row = first;
  pass_.rows = rows;
}

Tensor OwnRows::of(const Tensor& x) const {
  return pass_.split == nullptr || !x ? x : narrow(x, 1, first_, count_);
}

void OwnRows::place(LayerContext& ctx) const {
  if (pass_.split != nullptr) ctx.position += first_;
}

Tensor OwnRows::share(const Tensor& mean, const Tensor& targets) const {
  if (pass_.split == nullptr) return mean;
  if (targets.device() == meta_device) return mul(mean, 1.0 / pass_.split->size());
  const auto own = static_cast<double>(count_targets(of(targets)));
  const auto all = static_cast<double>(std::max<int64_t>(count_targets(targets), 1));
  return mul(mean, own / all);
}

std::vector<AuxiliaryLoss> OwnRows::share(std::vector<AuxiliaryLoss> losses) const {
  if (pass_.split == nullptr) return losses;
  for (AuxiliaryLoss& loss : losses) loss.value = mul(loss.value, 1.0 / pass_.split->size());
  return losses;
}

}  // namespace longspan
