#include "nn/segment.h"

#include <algorithm>

#include "autograd/mode.h"
#include "core/kernels/copy.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/shape.h"

namespace longspan {
namespace {

/// Returns rows begin to begin + n - 1 of x [B, rows, D].
Tensor rows_of(const Tensor& x, int64_t begin, int64_t n) {
  return x.alias({x.dim(0), n, x.dim(2)}, x.strides(), n > 0 ? begin * x.strides()[1] : 0);
}

/// Copies the last `n` rows of `from` to rows `at` to at + n - 1 of `to`, in the dtype of `to`.
void copy_last(const Tensor& from, int64_t n, const Tensor& to, int64_t at) {
  if (n == 0) return;
  kernels::copy(to.device(), rows_of(from, from.dim(1) - n, n).view(), rows_of(to, at, n).mut());
}

}  // namespace

Tensor in_memory(Tensor x) {
  x.set_category(Category::memory);
  return x;
}

LayerMemory free_rows(int64_t batch, int64_t capacity, int64_t width, DType dtype, Device device) {
  LayerMemory m;
  m.states = Tensor::zeros({batch, capacity, width}, dtype, device, Category::memory);
  m.begin = in_memory(full({batch}, static_cast<double>(capacity), DType::i64, device));
  return m;
}

Tensor NewestRows::begin_after(const Tensor& begin, int64_t shift, const Tensor& x) {
  if (!begin && shift <= 0) return {};
  const bool known = after_ && shift == shift_ && begin.shares_storage(before_);
  if (!known) {
    const Tensor old = begin ? cast(begin, DType::f64) : zeros({x.dim(0)}, DType::f64, x.device());
    const Tensor moved =
        clamp(add(old, static_cast<double>(shift)), 0, static_cast<double>(capacity_));
    after_ = in_memory(cast(moved, DType::i64));
    before_ = begin;
    shift_ = shift;
  }
  return after_;
}

LayerMemory NewestRows::keep(const LayerMemory& old, const Tensor& x) {
  const NoGrad off;
  const int64_t rows = x.dim(1), newest = std::min(rows, capacity_);
  const int64_t before = old.states ? old.states.dim(1) : 0;
  const int64_t kept = std::min(capacity_ - newest, before), free = capacity_ - newest - kept;
  const DType dtype = old.states ? old.states.dtype() : x.dtype();
  const Shape shape{x.dim(0), capacity_, x.dim(2)};
  LayerMemory m = old;
  m.states = free > 0 ? Tensor::zeros(shape, dtype, x.device(), Category::memory)
                      : Tensor::empty(shape, dtype, x.device(), Category::memory);
  if (old.states) copy_last(old.states, kept, m.states, free);
  copy_last(x.detach(), newest, m.states, capacity_ - newest);
  m.begin = begin_after(old.begin, capacity_ - before - rows, x);
  return m;
}

TensorList named_tensors(SegmentMemory memory) {
  TensorList all;
  memory.visit([&](const std::string& name, const Tensor& x) { all.push_back({name, x}); });
  return all;
}

SegmentMemory replaced(SegmentMemory memory,
                       const std::function<Tensor(const std::string&, const Tensor&)>& f) {
  std::vector<std::pair<Tensor, Tensor>> done;
  memory.visit([&](const std::string& name, Tensor& x) {
    for (const auto& [before, after] : done) {
      const bool same = before.shares_storage(x) && before.shape() == x.shape() &&
                        before.view().data == x.view().data;
      if (!same) continue;
      x = after;
      return;
    }
    const Tensor before = x;
    x = f(name, before);
    done.emplace_back(before, x);
  });
  return memory;
}

Tensor first_births(int64_t capacity, Device device) {
  return unsqueeze(arange(static_cast<double>(1 - capacity), 1, 1, DType::i64, device), 0);
}

SegmentMemory forget(const SegmentMemory& memory, const Tensor& reset) {
  const NoGrad off;
  require<NotImplemented>(!memory.projected, "forget",
                          "the streams of a memory of evaluation cannot begin anew");
  int64_t capacity = -1;
  for (const LayerMemory& m : memory.layers) {  // some may have no memory, the others have as many
    if (m.keys) capacity = m.keys.dim(2);
    if (!m.keys && m.states) capacity = m.states.dim(1);
  }
  if (capacity < 0) return memory;
  const auto blank_of = [&](const std::string& name) {
    if (name.ends_with("fine_begin")) return capacity - memory.phantom_fine;
    return name.ends_with("begin") ? capacity - memory.phantom : 0;
  };
  return replaced(memory, [&](const std::string& name, const Tensor& x) {
    require_shape("forget", reset, {x.dim(0)}, "reset");
    Shape one = Shape::filled(x.rank(), 1), rows = one;
    rows[0] = x.dim(0);
    const Tensor blank = name.ends_with("births") ? first_births(capacity, x.device())
                                                  : full(one, static_cast<double>(blank_of(name)),
                                                         x.dtype(), x.device());
    return in_memory(where(reshape(reset, rows), blank, x));
  });
}

SegmentMemory take_rows(const SegmentMemory& memory, const Tensor& rows, bool context) {
  const NoGrad off;
  const auto taken = [&](const auto& /*name*/, const Tensor& x) {
    return in_memory(take(x, rows));
  };
  SegmentMemory result = replaced(memory, taken);
  for (LayerMemory& layer : result.layers) {
    if (context) layer.visit_context([&](const char* name, Tensor& x) { x = taken(name, x); });
  }
  return result;
}

}  // namespace longspan
