#include "nn/auxiliary_loss.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "ops/copy.h"
#include "ops/elementwise.h"

namespace longspan {
namespace {

constexpr const char* kAuxiliaryLoss = "auxiliary loss";

void check(const AuxiliaryLoss& loss) {
  const bool plain = std::all_of(loss.name.begin(), loss.name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
  require(plain && !loss.name.empty(), kAuxiliaryLoss,
          "got the name \"{}\"; expected lower-case letters, digits and _", loss.name);
  require(static_cast<bool>(loss.value), kAuxiliaryLoss,
          "\"{}\" is undefined; expected a scalar, or no loss of that name", loss.name);
  require_rank_is(kAuxiliaryLoss, loss.value, 0, loss.name);
}

}  // namespace

void add_losses(std::vector<AuxiliaryLoss>& all, std::vector<AuxiliaryLoss> more) {
  for (AuxiliaryLoss& loss : more) {
    check(loss);
    const auto same = [&](const AuxiliaryLoss& known) { return known.name == loss.name; };
    const auto known = std::find_if(all.begin(), all.end(), same);
    if (known == all.end()) {
      all.push_back(std::move(loss));
    } else {
      known->value = add(known->value, loss.value);
    }
  }
}

Tensor total_loss(const Tensor& loss, const std::vector<AuxiliaryLoss>& auxiliary) {
  Tensor total = loss;
  for (const AuxiliaryLoss& a : auxiliary) total = add(total, cast(a.value, loss.dtype()));
  return total;
}

}  // namespace longspan
