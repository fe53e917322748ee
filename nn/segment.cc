#include "nn/segment.h"

#include <algorithm>

#include "autograd/mode.h"
#include "ops/copy.h"
#include "ops/index.h"
#include "ops/shape.h"

namespace longspan {

Tensor latest_states(const Tensor& states, const Tensor& x, int64_t slots) {
  const NoGrad off;
  const Tensor all = states ? concat({states, cast(x, states.dtype())}, 1) : x.detach();
  const int64_t kept = std::min(slots, all.dim(1));
  Tensor newest = clone(narrow(all, 1, all.dim(1) - kept, kept));
  newest.set_category(Category::memory);
  return newest;
}

SegmentMemory take_rows(const SegmentMemory& memory, const Tensor& rows, bool context) {
  const NoGrad off;
  const auto moved = [&](Tensor& x) {
    if (!x) return;
    x = take(x, rows);
    x.set_category(Category::memory);
  };
  SegmentMemory result = memory;
  for (LayerMemory& layer : result.layers) {
    for (Tensor* x : {&layer.states, &layer.keys, &layer.values}) moved(*x);
    if (context) {
      for (Tensor* x : {&layer.context_keys, &layer.context_values}) moved(*x);
    }
  }
  return result;
}

}  // namespace longspan
