#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "cuda/attention_general.h"
#include "ops/block_attention.h"
#include "ops/layout_work.h"

/// The CUDA kernels of attention, run by the host in place of the CPU's.
namespace longspan::cuda::simulated {

/// Blocks of the kernels under test that have run.
inline int64_t blocks_run = 0;

/// The arguments of backward. `delta` holds what its kernels find in place of the first of them.
template <class T>
AttentionArguments<T> backward_arguments(const kernels::AttentionInputs& in, const ConstView& out,
                                         const ConstView& lse, const ConstView& dout,
                                         const ConstView& dlse,
                                         const kernels::AttentionGradients& grads,
                                         std::vector<Accumulator<T>>& delta) {
  using A = Accumulator<T>;
  AttentionArguments<T> x = arguments_of<T>(in);
  add_gradients(in, lse, dout, grads, x);
  x.out = head_rows<T>(out);
  const auto& n = x.sizes;
  delta.clear();
  for (int64_t i = 0; i < n.head_count() * n.queries; ++i) {
    const int64_t b = i / n.queries / n.heads, h = i / n.queries % n.heads, r = i % n.queries;
    A d = delta_part<T>(x.dout, x.out, b, h, r, 0, 1);
    if (dlse) d -= dlse.as<A>()[b * dlse.stride(0) + h * dlse.stride(1) + r * dlse.stride(2)];
    delta.push_back(d);
  }
  x.delta = delta.data();
  return x;
}

/// The inputs with the lists of work that a layout on a device has.
struct WithWork {
  LayoutWork work;
  kernels::AttentionInputs in;
  explicit WithWork(const kernels::AttentionInputs& without)
      : work(work_of(without.layout, without.segment[0].k.dim(2),
                     without.segments > 1 ? without.segment[1].k.dim(2) : 0)),
        in(without) {
    in.layout.row_work = work.rows.view();
    in.layout.column_work = work.columns.view();
  }
};

/// What joins the stretches of keys, where there are several.
template <class T>
void join_rows(const AttentionArguments<T>& x) {
  if (x.wide == nullptr) return;
  for (int64_t i = 0; i < x.sizes.head_count() * x.sizes.queries; ++i) {
    for (int rank = 0; rank < 32; ++rank) join_stretches(x, i, rank, 32);
  }
}
template <class T>
void add_rows(const AttentionArguments<T>& x, const HeadRows<T>& to, int64_t column) {
  if (x.wide == nullptr || to.data == nullptr) return;
  for (int64_t i = 0; i < x.sizes.head_count() * x.sizes.queries; ++i) {
    for (int rank = 0; rank < 32; ++rank) add_stretches(x, column, to, i, rank, 32);
  }
}

/// The gradients of a span and of relation tables from their sums.
template <class T>
void write_span(const AttentionArguments<T>& x, const View& to) {
  const int64_t heads = to.dim(1), keys = to.dim(2);
  for (int64_t i = 0; i < to.numel(); ++i) {
    Accumulator<T> total = 0;
    for (int rank = 0; rank < 32; ++rank) {
      total += span_part(x, i / keys / heads, i / keys % heads, i % keys, rank, 32);
    }
    to.as<T>()[i] = static_cast<T>(total);
  }
}

template <class T>
void write_tables(const AttentionArguments<T>& x, const kernels::AttentionGradients& grads) {
  using A = Accumulator<T>;
  const auto& n = x.sizes;
  const auto write = [&](const View& to, int64_t column, int64_t width, A factor) {
    if (!to) return;
    for (int64_t i = 0; i < to.numel(); ++i) {
      const int64_t h = i / width / x.ids, id = i / width % x.ids;
      to.as<T>()[i] = static_cast<T>(
          factor * table_sum(x, to.dim(0) > 1 || n.heads == 1 ? h : -1, id, column + i % width));
    }
  };
  const auto scale = static_cast<A>(n.scale);
  write(grads.relation_key, 0, n.width, scale);
  write(grads.relation_value, n.width, n.value_width, A(1));
  write(grads.relation_bias, n.width + n.value_width, 1, scale);
}

/// What the host of the device's kernels does about parts.
template <template <class> class Kernels, class T>
void forward_on_host(const kernels::AttentionInputs& in, const View& out, const View& lse) {
  if (!in.more) return Kernels<T>::forward(in, out, lse);
  const auto add = [&](const View& part_out, const View& part_lse) {
    using A = Accumulator<T>;
    for (int64_t i = 0; i < lse.numel(); ++i) {
      const JoinedParts<A> joined = join(lse.as<A>()[i], part_lse.as<A>()[i]);
      for (int rank = 0; rank < 32; ++rank) {
        join_row(head_rows<T>(out), in.q.dim(1), in.q.dim(2), joined, head_rows<const T>(part_out),
                 i, rank, 32);
      }
      lse.as<A>()[i] = joined.lse;
    }
  };
  forward_of_part(in, out, lse, Kernels<T>::forward, add);
}

template <template <class> class Kernels, class T>
void backward_on_host(const kernels::AttentionInputs& in, const ConstView& out,
                      const ConstView& lse, const ConstView& dout, const ConstView& dlse,
                      const kernels::AttentionGradients& grads) {
  if (!in.more) return Kernels<T>::backward(in, out, lse, dout, dlse, grads);
  backward_of_part(in, grads, [&](const auto& part, const auto& to) {
    Kernels<T>::backward(part, out, lse, dout, dlse, to);
  });
}

/// Puts Kernels<T>::forward and backward into the slots of the CPU, for every T.
template <template <class> class Kernels, class... T>
bool take_slots() {
  register_backends();
  kernels::block_attention_forward.set(DeviceKind::cpu, [](const kernels::AttentionInputs& given,
                                                           View out, View lse) {
    const WithWork with(given);
    const kernels::AttentionInputs& in = with.in;
    const bool served =
        (... || (in.q.dtype == dtype_of<T> && (forward_on_host<Kernels, T>(in, out, lse), true)));
    EXPECT_TRUE(served) << "not a dtype of these kernels";
  });
  kernels::block_attention_backward.set(
      DeviceKind::cpu, [](const kernels::AttentionInputs& given, ConstView out, ConstView lse,
                          ConstView dout, ConstView dlse, const kernels::AttentionGradients& g) {
        const WithWork with(given);
        const kernels::AttentionInputs& in = with.in;
        const bool served =
            (... || (in.q.dtype == dtype_of<T> &&
                     (backward_on_host<Kernels, T>(in, out, lse, dout, dlse, g), true)));
        EXPECT_TRUE(served) << "not a dtype of these kernels";
      });
  return true;
}

/// The kernels under test are what the op runs.
inline void expect_slots_taken(DType dtype) {
  const int64_t before = blocks_run;
  const Tensor x = Tensor::zeros({1, 1, 3, 2}, dtype);
  block_attention(x, x, x, patterns::causal());
  EXPECT_GT(blocks_run, before);
}

}  // namespace longspan::cuda::simulated
