#include "cpu/lsh.h"

#include <algorithm>
#include <vector>

#include "core/divide.h"
#include "core/parallel.h"
#include "cpu/attention_plan.h"
#include "cpu/register.h"
#include "ops/kernels/lsh_maths.h"

namespace longspan::cpu {
namespace {

constexpr int64_t kRows = 64;  // of a task

/// Rows first .. last of one head in all rounds.
template <class T>
void hash_rows(const ConstView& q, const ConstView& rotation, int64_t first, int64_t second,
               int64_t b, int64_t h, int64_t row, int64_t end, int32_t* ids) {
  const int64_t length = q.dim(2), width = q.dim(3), rounds = rotation.dim(2), n = rotation.dim(4);
  const RowSource<T> rows = head_rows<T>(q, b, h, nullptr);
  const int64_t rotations_b = rotation.dim(0) == 1 ? 0 : b,
                rotations_h = rotation.dim(1) == 1 ? 0 : h;
  const T* all =
      rotation.as<T>() + (rotations_b * rotation.dim(1) + rotations_h) * rounds * width * n;
  std::vector<T> temporary(static_cast<size_t>(width)), p(static_cast<size_t>(n));
  for (int64_t i = row; i < end; ++i) {
    const T* x = rows.row(i, temporary.data());
    for (int64_t r = 0; r < rounds; ++r) {
      const T* matrix = all + r * width * n;
      std::fill(p.begin(), p.end(), T{0});
      for (int64_t c = 0; c < width; ++c) {
        for (int64_t k = 0; k < n; ++k) p[static_cast<size_t>(k)] += x[c] * matrix[c * n + k];
      }
      ids[r * length + i] = kernels::lsh_bucket(p.data(), first, second);
    }
  }
}

void hash(ConstView q, ConstView rotation, int64_t first, int64_t second, ConstView lengths,
          ConstView hidden, View ids) {
  const int64_t heads = q.dim(1), length = q.dim(2), rounds = rotation.dim(2);
  const int64_t blocks = ceil_div(length, kRows);
  parallel_for(q.dim(0) * heads * blocks, [&](int64_t task) {
    const int64_t bh = task / blocks, b = bh / heads, h = bh % heads;
    const int64_t row = task % blocks * kRows, end = std::min(length, row + kRows);
    int32_t* to = ids.as<int32_t>() + bh * rounds * length;
    if (q.dtype == DType::f64) {
      hash_rows<double>(q, rotation, first, second, b, h, row, end, to);
    } else {
      hash_rows<float>(q, rotation, first, second, b, h, row, end, to);
    }
    const int64_t valid = lengths ? lengths.as<int64_t>()[b] : length;
    const uint8_t* hide =
        hidden ? hidden.as<uint8_t>() + (hidden.dim(0) == 1 ? 0 : b * length) : nullptr;
    for (int64_t i = row; i < end; ++i) {
      if (i < valid && (hide == nullptr || hide[i] == 0)) continue;
      for (int64_t r = 0; r < rounds; ++r)
        to[r * length + i] = static_cast<int32_t>(first * second);
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
  kernels::lsh_hash.set(DeviceKind::cpu, hash);
  kernels::lsh_sort.set(DeviceKind::cpu, sort);
  kernels::lsh_attention_forward.set(DeviceKind::cpu, forward);
  kernels::lsh_attention_backward.set(DeviceKind::cpu, backward);
}

}  // namespace longspan::cpu
