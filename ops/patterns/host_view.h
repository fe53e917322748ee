#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "autograd/mode.h"
#include "ops/copy.h"
#include "ops/patterns/pattern.h"

// Patterns as the host reads them, where it counts or compares pairs.
namespace longspan::detail {

/// The masks of one key segment in host memory.
class HostMasks {
 public:
  HostMasks(const PairMask& masks, int64_t keys) {
    const NoGrad off;
    const auto on_host = [](Tensor& to, const Tensor& from) {
      if (from) to = contiguous(to_device(from, Device{}));
    };
    PairMask::visit_tensors(on_host, masks_, masks);
    kernels::PairMasks<ConstView> views;
    PairMask::visit_tensors([](ConstView& to, const Tensor& from) { to = from.view(); }, views,
                            masks_);
    tables_ = {views, keys};
  }

  kernels::SampleMasks of(int64_t sample) const { return tables_.of(sample); }
  /// Whether every query sees all keys.
  bool empty() const { return !masks_.k_valid && !tables_.hides_any(); }

 private:
  PairMask masks_;
  kernels::MaskTables tables_;
};

/// Returns row `number` of orders [orders, places]; empty for the identity.
inline std::vector<int32_t> order_of(const Tensor& orders, int32_t number) {
  if (number < 0) return {};
  const std::vector<int32_t> all = orders.to_vector<int32_t>();
  const auto places = static_cast<int64_t>(all.size()) / orders.dim(0);
  return {all.begin() + number * places, all.begin() + (number + 1) * places};
}

/// Returns the rule that a member of a layout chooses.
inline const Rule& choose(const std::vector<Rule>& rules, int32_t number) {
  return rules[rules.size() > 1 ? static_cast<size_t>(number) : 0];
}

/// Returns the period of the distances that a rule allows.
inline int64_t period_of(const Rule& rule) {
  const int64_t a = rule.window.dilation, b = std::max<int64_t>(1, rule.stride);
  const int64_t more = b / std::gcd(a, b);
  return more > kUnlimited / a ? kUnlimited : a * more;
}

/// Returns entry `at` of lengths of samples, of which one may serve all; `all` without lengths.
inline int64_t length_of(const std::vector<int64_t>& lengths, int64_t at, int64_t all) {
  if (lengths.empty()) return all;
  return lengths[lengths.size() > 1 ? static_cast<size_t>(at) : 0];
}

}  // namespace longspan::detail
