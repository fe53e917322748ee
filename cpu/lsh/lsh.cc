#include "cpu/lsh/lsh.h"

#include <algorithm>

#include "core/parallel.h"
#include "cpu/register.h"

namespace longspan::cpu {
namespace {

void hash(ConstView q, ConstView rotation, int64_t first, int64_t second, ConstView lengths,
          ConstView hidden, View ids) {
  lsh_hash({q, rotation, first, second, ids});
  if (q.device == meta_device || (!lengths && !hidden)) return;
  const int64_t heads = q.dim(1), length = q.dim(2), rounds = rotation.dim(2);
  const auto absent = static_cast<int32_t>(first * second);
  parallel_for(q.dim(0) * heads * rounds, [&](int64_t row) {
    const int64_t b = row / rounds / heads;
    const int64_t valid = lengths ? lengths.as<int64_t>()[b] : length;
    const uint8_t* hide =
        hidden ? hidden.as<uint8_t>() + (hidden.dim(0) == 1 ? 0 : b * length) : nullptr;
    int32_t* const to = ids.as<int32_t>() + row * length;
    for (int64_t i = 0; i < length; ++i) {
      if (i >= valid || (hide != nullptr && hide[i] != 0)) to[i] = absent;
    }
  });
}

void sort(ConstView ids, int64_t values, View work, View order, View place) {
  const int64_t n = ids.dim(1);
  parallel_for(ids.dim(0), [&](int64_t row) {
    const int32_t* id = ids.as<int32_t>() + row * n;
    int32_t* start = work.as<int32_t>() + row * (values + 1);
    std::fill(start, start + values + 1, 0);
    for (int64_t i = 0; i < n; ++i) ++start[id[i] + 1];
    for (int64_t v = 0; v < values; ++v) start[v + 1] += start[v];
    int32_t *to = order.as<int32_t>() + row * n, *at = place.as<int32_t>() + row * n;
    for (int64_t i = 0; i < n; ++i) {
      const int32_t p = start[id[i]]++;
      to[p] = static_cast<int32_t>(i);
      at[i] = p;
    }
  });
}

void forward(const kernels::LshInputs& in, View out, View lse) {
  (in.q.dtype == DType::f64 ? lsh_forward_f64 : lsh_forward_f32)(in, out, lse);
}

void backward(const kernels::LshInputs& in, ConstView out, ConstView lse, ConstView dout,
              ConstView dlse, View dq, View dv) {
  (in.q.dtype == DType::f64 ? lsh_backward_f64 : lsh_backward_f32)(in, out, lse, dout, dlse, dq,
                                                                   dv);
}

}  // namespace

void register_lsh() {
  kernels::lsh_sort.set(DeviceKind::cpu, sort);
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::meta}) {
    kernels::lsh_hash.set(kind, hash);
    kernels::lsh_attention_forward.set(kind, forward);
    kernels::lsh_attention_backward.set(kind, backward);
  }
}

}  // namespace longspan::cpu
