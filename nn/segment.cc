#include "nn/segment.h"

#include <algorithm>

#include "autograd/mode.h"
#include "core/kernels/copy.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/exchange.h"
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

InputRows free_rows(int64_t batch, int64_t capacity, int64_t width, DType dtype, Device device) {
  InputRows m;
  m.states = Tensor::zeros({batch, capacity, width}, dtype, device, Category::memory);
  m.begin = in_memory(full({batch}, static_cast<double>(capacity), DType::i64, device));
  m.begin_of_stream = capacity;
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

InputRows NewestRows::keep(const InputRows& old, const Tensor& own, const Pass& pass) {
  const NoGrad off;
  const Tensor x = pass.split != nullptr ? rows_of_all(own, *pass.split, pass.rows) : own;
  const int64_t rows = x.dim(1), newest = std::min(rows, capacity_);
  const int64_t before = old.states ? old.states.dim(1) : 0;
  const int64_t kept = std::min(capacity_ - newest, before), free = capacity_ - newest - kept;
  const DType dtype = old.states ? old.states.dtype() : x.dtype();
  const Shape shape{x.dim(0), capacity_, x.dim(2)};
  InputRows m;
  m.begin_of_stream = capacity_;
  m.states = free > 0 ? Tensor::zeros(shape, dtype, x.device(), Category::memory)
                      : Tensor::empty(shape, dtype, x.device(), Category::memory);
  if (old.states) copy_last(old.states, kept, m.states, free);
  copy_last(x.detach(), newest, m.states, capacity_ - newest);
  m.begin = begin_after(old.begin, capacity_ - before - rows, x);
  return m;
}

namespace {

/// Calls f(name, tensor) for the tensors of all layers whose rows belong to samples.
template <class F>
void visit_samples(SegmentMemory& memory, const F& f) {
  for (size_t i = 0; i < memory.layers.size(); ++i) {
    const std::string path = "layers." + std::to_string(i) + ".";
    memory.layers[i].visit([&](const StateTensor& t) {
      if (t.kind == StateKind::samples) f(path + t.name, t);
    });
  }
}

/// replaced(), where f takes the StateTensor too.
template <class F>
SegmentMemory replaced_by(SegmentMemory memory, const F& f) {
  std::vector<std::pair<Tensor, Tensor>> done;
  visit_samples(memory, [&](const std::string& name, const StateTensor& t) {
    for (const auto& [before, after] : done) {
      const bool same = before.shares_storage(t.x) && before.shape() == t.x.shape() &&
                        before.view().data == t.x.view().data;
      if (!same) continue;
      t.x = after;
      return;
    }
    const Tensor before = t.x;
    t.x = f(name, t);
    done.emplace_back(before, t.x);
  });
  return memory;
}

}  // namespace

TensorList named_tensors(SegmentMemory memory) {
  TensorList all;
  visit_samples(memory, [&](const std::string& name, const StateTensor& t) {
    all.push_back({name, t.x});
  });
  return all;
}

SegmentMemory replaced(SegmentMemory memory,
                       const std::function<Tensor(const std::string&, const Tensor&)>& f) {
  return replaced_by(std::move(memory),
                     [&](const std::string& name, const StateTensor& t) { return f(name, t.x); });
}

SegmentMemory forget(const SegmentMemory& memory, const Tensor& reset) {
  const NoGrad off;
  require<NotImplemented>(!memory.projected, "forget",
                          "the streams of a memory of evaluation cannot begin anew");
  return replaced_by(memory, [&](const std::string& /*name*/, const StateTensor& t) {
    const Tensor& x = t.x;
    require_shape("forget", reset, {x.dim(0)}, "reset");
    const Shape one = Shape::filled(x.rank(), 1);
    Shape rows = one;
    rows[0] = x.dim(0);
    const Tensor blank = t.blanks ? t.blanks() : full(one, t.blank, x.dtype(), x.device());
    return in_memory(where(reshape(reset, rows), blank, x));
  });
}

SegmentMemory take_rows(const SegmentMemory& memory, const Tensor& rows, bool source) {
  const NoGrad off;
  SegmentMemory result = replaced(
      memory, [&](const auto& /*name*/, const Tensor& x) { return in_memory(take(x, rows)); });
  for (LayerMemory& layer : result.layers) {
    layer.visit([&](const StateTensor& t) {
      if (source && t.kind == StateKind::source) t.x = in_memory(take(t.x, rows));
    });
  }
  return result;
}

}  // namespace longspan
