#pragma once

#include <gtest/gtest.h>

#include "core/memory.h"
#include "ops/attention/block_attention.h"
#include "ops/patterns/layout_work.h"
#include "tests/cuda/emulated/device.h"

/// Replaces the CPU's attention kernels by the CUDA kernels, run by the emulated device, so that
/// the tests of the op on the CPU test them.
namespace longspan::emulated {

inline constexpr Device cuda{DeviceKind::cuda, 0};

/// Returns a view of the same memory as a kernel of the device takes it.
template <class V>
V there(V view) {
  view.device = cuda;
  return view;
}

/// Number of tiles and key steps that the work lists of calls split.
inline int64_t cuts = 0;

/// A call with the work lists that a layout on a device has.
struct AttentionThere {
  LayoutWork work;
  kernels::AttentionProblem in;
  explicit AttentionThere(const kernels::AttentionProblem& given)
      : work(work_of(given.layout, given.inputs.q.dim(2), given.inputs.k[0].dim(2),
                     given.numbers.segments > 1 ? given.inputs.k[1].dim(2) : 0)),
        in(given) {
    in.layout.row_work = view_of(work.rows);
    in.layout.column_work = view_of(work.columns);
    cuts += work.rows.cuts.dim(0) + work.columns.cuts.dim(0);
    in.inputs.q = there(in.inputs.q);
  }
};

inline kernels::AttentionGradients there(kernels::AttentionGradients grads) {
  kernels::AttentionGradients::visit_tensors([](View& x) { x = there(x); }, grads);
  return grads;
}

inline void attention_forward(const kernels::AttentionProblem& given, View out, View lse) {
  const AttentionThere call(given);
  kernels::block_attention_forward(cuda, call.in, there(out), there(lse));
  wait_for_device(cuda);
}

inline void attention_backward(const kernels::AttentionProblem& given, ConstView out, ConstView lse,
                               ConstView dout, ConstView dlse,
                               const kernels::AttentionGradients& grads) {
  const AttentionThere call(given);
  kernels::block_attention_backward(cuda, call.in, out, lse, dout, dlse, there(grads));
  wait_for_device(cuda);
}

/// Registers the device's kernels in place of the CPU's. Returns true.
inline bool take_attention() {
  enable();
  kernels::block_attention_forward.set(DeviceKind::cpu, attention_forward);
  kernels::block_attention_backward.set(DeviceKind::cpu, attention_backward);
  return true;
}

/// Checks that the op runs the kernels under test.
inline void expect_attention_taken(DType dtype) {
  const int64_t before = launches();
  const Tensor x = Tensor::zeros({1, 1, 3, 8}, dtype);
  block_attention(x, x, x, patterns::causal());
  EXPECT_GT(launches(), before);
}

}  // namespace longspan::emulated
