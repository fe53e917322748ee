#include "core/kernels/lsh.h"

#include "core/memory.h"
#include "cuda/attention/launch.h"
#include "cuda/launch.h"
#include "cuda/lsh/general.h"
#include "cuda/lsh/tensor.h"
#include "cuda/register.h"

namespace longspan::cuda {
namespace {

using kernels::LshInputs;

template <class T, bool gradients>
__global__ void __launch_bounds__(general_threads, 1)
    lsh_kernel(const __grid_constant__ LshArguments<T> x) {
  LshToken<T> token(x, reinterpret_cast<Accumulator<T>*>(block_memory()), blockIdx.x);
  if constexpr (gradients) {
    token.backward();
  } else {
    token.forward();
  }
}

/// delta[row] = dout . out - dlse.
template <class T, class A>
__global__ void __launch_bounds__(general_threads)
    lsh_delta_kernel(const __grid_constant__ LshArguments<T> x, const A* dlse, A* delta) {
  const int64_t step = int64_t{gridDim.x} * general_threads;
  for (int64_t i = int64_t{blockIdx.x} * general_threads + threadIdx.x; i < x.blocks(); i += step) {
    const int64_t bh = i / x.head.length;
    A total = delta_part<T>(x.dout, x.out, bh / x.heads, bh % x.heads, i % x.head.length, 0, 1);
    if (dlse != nullptr) total -= dlse[i];
    delta[i] = total;
  }
}

template <bool gradients, class T>
void launch_tokens(const char* name, const LshArguments<T>& x) {
  launch(name, lsh_kernel<T, gradients>, dim3(attention_grid(name, x.blocks())), general_threads,
         LshToken<T>::bytes(x.q.width, x.v.width), x);
}

template <class T>
void forward_of(const LshInputs& in, const View& out, const View& lse) {
  constexpr const char* name = "lsh_attention_forward";
  if constexpr (sizeof(T) == 2) {
    if (lsh_tensor_knows(in) && rows_fit(in.q) && rows_fit(in.v) && rows_fit(out)) {
      return lsh_forward_in_rounds<T>(
          in, out, lse, [](LshPass pass, const auto& x) { launch_lsh(name, pass, x); });
    }
  }
  LshArguments<T> x = lsh_arguments<T>(in);
  x.out = head_rows<T>(out);
  x.lse = lse.as<Accumulator<T>>();
  launch_tokens<false>(name, x);
}

template <class T>
void backward_of(const LshInputs& in, const ConstView& out, const ConstView& lse,
                 const ConstView& dout, const ConstView& dlse, const View& dq, const View& dv) {
  using A = Accumulator<T>;
  constexpr const char* name = "lsh_attention_backward";
  if constexpr (sizeof(T) == 2) {
    bool fit = lsh_tensor_knows(in);
    for (const ConstView& x : {in.q, in.v, out, dout, ConstView(dq), ConstView(dv)}) {
      fit = fit && rows_fit(x);
    }
    if (fit) {
      return lsh_backward_in_rounds<T>(
          in, out, lse, dout, dlse, dq, dv,
          [](LshPass pass, const auto& x) { launch_lsh(name, pass, x); });
    }
  }
  LshArguments<T> x = lsh_arguments<T>(in);
  x.out = head_rows<T>(out);
  x.dout = head_rows<const T>(dout);
  x.dq = head_rows<T>(dq);
  x.dv = head_rows<T>(dv);
  x.lse = const_cast<A*>(lse.as<A>());  // the backward pass only reads it
  const Scratch delta(max<int64_t>(x.blocks(), 1) * static_cast<int64_t>(sizeof(A)), in.q.device);
  launch(name, lsh_delta_kernel<T, A>, dim3(blocks_for(x.blocks(), general_threads)),
         general_threads, 0, x, dlse.as<A>(), delta.as<A>());
  x.delta = delta.as<A>();
  launch_tokens<true>(name, x);
}

void forward(const LshInputs& in, View out, View lse) {
  visit_floating(in.q.dtype,
                 [&](auto tag) { forward_of<typename decltype(tag)::type>(in, out, lse); });
}

void backward(const LshInputs& in, ConstView out, ConstView lse, ConstView dout, ConstView dlse,
              View dq, View dv) {
  visit_floating(in.q.dtype, [&](auto tag) {
    backward_of<typename decltype(tag)::type>(in, out, lse, dout, dlse, dq, dv);
  });
}

/// Hashes with one thread per token and round.
template <class T, class A>
__global__ void __launch_bounds__(general_threads)
    lsh_hash_kernel(const __grid_constant__ LshHashArguments<T, A> x) {
  const int64_t step = int64_t{gridDim.x} * general_threads;
  for (int64_t i = int64_t{blockIdx.x} * general_threads + threadIdx.x; i < x.count(); i += step) {
    x.hash(i);
  }
}

template <class T>
void hash_of(const LshHashArguments<T>& x) {
  launch("lsh_hash", lsh_hash_kernel<T, Accumulator<T>>,
         dim3(blocks_for(x.count(), general_threads)), general_threads, 0, x);
}

void hash(ConstView q, ConstView rotation, int64_t first, int64_t second, ConstView lengths,
          ConstView hidden, View ids) {
  visit_floating(q.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    hash_of(lsh_hash_arguments<T>(q, rotation, first, second, lengths, hidden, ids));
  });
}

/// Sorts with one block per row.
__global__ void __launch_bounds__(general_threads)
    lsh_sort_kernel(const int32_t* ids, int64_t rows, int64_t n, int64_t values, int32_t* work,
                    int32_t* order, int32_t* place) {
  __shared__ int32_t shared[2 * lsh_pairs];
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    lsh_sort_row(ids + r * n, n, values, work + r * (values + 1), order + r * n, place + r * n,
                 shared);
  }
}

void sort(ConstView ids, int64_t values, View work, View order, View place) {
  launch("lsh_sort", lsh_sort_kernel, dim3(blocks_for(ids.dim(0), 1)), general_threads, 0,
         ids.as<int32_t>(), ids.dim(0), ids.dim(1), values, work.as<int32_t>(), order.as<int32_t>(),
         place.as<int32_t>());
}

}  // namespace

void register_lsh() {
  kernels::lsh_hash.set(DeviceKind::cuda, hash);
  kernels::lsh_sort.set(DeviceKind::cuda, sort);
  kernels::lsh_attention_forward.set(DeviceKind::cuda, forward);
  kernels::lsh_attention_backward.set(DeviceKind::cuda, backward);
}

}  // namespace longspan::cuda
