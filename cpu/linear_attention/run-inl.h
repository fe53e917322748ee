// Runs linear attention over all heads, for one SIMD target and one dtype of computation.

#if defined(LONGSPAN_CPU_LINEAR_RUN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_LINEAR_RUN_INL_H_
#undef LONGSPAN_CPU_LINEAR_RUN_INL_H_
#else
#define LONGSPAN_CPU_LINEAR_RUN_INL_H_
#endif

#include <hwy/highway.h>

#include "core/parallel.h"
#include "cpu/linear_attention/backward-inl.h"
#include "cpu/linear_attention/forward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

/// Runs make(b, h, slab).run() for every head of every sample, with a slab for each thread. On the
/// meta device the slabs are allocated, and nothing runs.
template <class T, class Make>
void for_heads(const LinearAttentionInputs& in, Make make) {
  Slab<T> size(nullptr);
  make(0, 0, size);
  const Buffer<T> memory(size.used() * num_threads(), in.q.device);
  if (in.q.device == meta_device) return;
  const int64_t heads = in.q.dim(1);
  parallel_for(in.q.dim(0) * heads, [&](int64_t i) {
    Slab<T> slab(memory.data() + size.used() * worker_index());
    make(i / heads, i % heads, slab).run();
  });
}

template <class T>
void linear_forward(const LinearAttentionInputs& in, const LinearAttentionResults& to) {
  for_heads<T>(in, [&](int64_t b, int64_t h, Slab<T>& slab) {
    return LinearForward<T>(in, to, b, h, slab);
  });
}

template <class T>
void linear_backward(const LinearGradientCall& call) {
  for_heads<T>(call.in, [&](int64_t b, int64_t h, Slab<T>& slab) {
    return LinearBackward<T>(call, b, h, slab);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
