#include "ops/kernels/matmul.h"

#include <algorithm>

#include "core/memory.h"
#include "core/parallel.h"
#include "cpu/gemm.h"
#include "cpu/register.h"

namespace longspan::cpu {
namespace {

/// Offset of matrix `index` among the leading axes of v.
int64_t batch_offset(const Shape& shape, const Strides& strides, int64_t index) {
  int64_t offset = 0;
  for (int i = shape.rank() - 3; i >= 0; --i) {
    offset += index % shape[i] * strides[i];
    index /= shape[i];
  }
  return offset;
}

const void* at(const void* base, int64_t offset, DType dtype) {
  return static_cast<const char*>(base) + offset * size_of(dtype);
}

/// c = 0, or bias, or c: what an empty sum leaves.
template <class T>
void store_empty(const ConstView& bias, const View& c, int64_t offset, bool accumulate) {
  for (int64_t i = 0; i < c.dim(-2); ++i) {
    T* row = c.as<T>() + offset + i * c.stride(-2);
    for (int64_t j = 0; j < c.dim(-1); ++j) {
      const auto before = accumulate ? static_cast<Accumulator<T>>(row[j]) : Accumulator<T>{0};
      row[j] = T(before + (bias ? static_cast<Accumulator<T>>(bias.as<T>()[j * bias.stride(0)])
                                : Accumulator<T>{0}));
    }
  }
}

void matmul(ConstView a, ConstView b, ConstView bias, View c, bool accumulate) {
  const int64_t M = c.dim(-2), N = c.dim(-1), K = a.dim(-1);
  const int64_t batch = M * N == 0 ? 0 : c.numel() / (M * N);
  if (batch == 0) return;
  if (K == 0) {
    for (int64_t i = 0; i < batch; ++i) {
      visit_floating(c.dtype, [&](auto tag) {
        store_empty<typename decltype(tag)::type>(bias, c, batch_offset(c.shape, c.strides, i),
                                                  accumulate);
      });
    }
    return;
  }

  const DType sums = a.dtype == DType::f64 ? DType::f64 : DType::f32;
  const bool narrow = c.dtype != sums;  // f16, bf16: sums go through an f32 copy of c
  const int64_t c_row = narrow ? N : c.stride(-2);
  Scratch wide(narrow ? M * N * 4 : 0);
  const bool packed_bias = bias && (bias.dtype != sums || bias.stride(0) != 1);
  Scratch wide_bias(packed_bias ? N * size_of(sums) : 0);
  if (packed_bias) {
    visit_floating(bias.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      auto* to = wide_bias.as<Accumulator<T>>();
      for (int64_t j = 0; j < N; ++j) {
        to[j] = static_cast<Accumulator<T>>(bias.as<T>()[j * bias.stride(0)]);
      }
    });
  }
  const auto product = [&](int64_t i) {
    Gemm g{M,
           N,
           K,
           at(a.data, batch_offset(a.shape, a.strides, i), a.dtype),
           a.stride(-2),
           a.stride(-1),
           at(b.data, batch_offset(b.shape, b.strides, i), b.dtype),
           b.stride(-2),
           b.stride(-1),
           packed_bias ? wide_bias.data() : bias.data,
           nullptr,
           c_row,
           a.dtype,
           accumulate};
    g.c = static_cast<char*>(c.data) + batch_offset(c.shape, c.strides, i) * size_of(c.dtype);
    return g;
  };

  // Small products of a batch run one on each thread; a large one is shared by all.
  if (!narrow && batch >= 4 && M * N * K <= int64_t{1} << 24) {
    const int64_t bytes = memory::block_bytes(gemm_scratch_bytes(product(0), 1));
    Scratch scratch(bytes * num_threads());
    parallel_for(batch, [&](int64_t i) {
      gemm(product(i), static_cast<char*>(scratch.data()) + worker_index() * bytes, false);
    });
    return;
  }
  const bool parallel = M * N * K > int64_t{1} << 16;
  Scratch scratch(gemm_scratch_bytes(product(0), parallel ? num_threads() : 1));
  for (int64_t i = 0; i < batch; ++i) {
    Gemm g = product(i);
    if (!narrow) {
      gemm(g, scratch.data(), parallel);
      continue;
    }
    visit_floating(c.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      auto* to = static_cast<T*>(g.c);
      auto* sum = wide.as<float>();
      g.c = sum;
      const auto rows = [&](auto&& f) {
        parallel_ranges(M, std::max<int64_t>(1, 16384 / N), [&](int64_t r, int64_t end) {
          for (; r < end; ++r) {
            for (int64_t j = 0; j < N; ++j) f(to[r * c.stride(-2) + j], sum[r * N + j]);
          }
        });
      };
      if (accumulate) rows([](const T& y, float& s) { s = static_cast<float>(y); });
      gemm(g, scratch.data(), parallel);
      rows([](T& y, float s) { y = T(s); });
    });
  }
}

constexpr int64_t rows_of_partial = 256;

template <class T>
void sum_rows_as(const ConstView& x, const View& y) {
  using A = Accumulator<T>;
  const int64_t rows = x.dim(0), n = x.dim(1);
  const int64_t parts = std::max<int64_t>(1, (rows + rows_of_partial - 1) / rows_of_partial);
  Scratch scratch(parts * n * static_cast<int64_t>(sizeof(A)));
  parallel_for(parts, [&](int64_t part) {
    A* sum = scratch.as<A>() + part * n;
    std::fill(sum, sum + n, A{0});
    const int64_t end = std::min(rows, (part + 1) * rows_of_partial);
    for (int64_t i = part * rows_of_partial; i < end; ++i) {
      const T* row = x.as<T>() + i * x.stride(0);
      if (x.stride(1) == 1) {
        for (int64_t j = 0; j < n; ++j) sum[j] += static_cast<A>(row[j]);
      } else {
        for (int64_t j = 0; j < n; ++j) sum[j] += static_cast<A>(row[j * x.stride(1)]);
      }
    }
  });
  for (int64_t j = 0; j < n; ++j) {
    A sum{0};
    for (int64_t part = 0; part < parts; ++part) sum += scratch.as<A>()[part * n + j];
    y.as<T>()[j] = T(sum);
  }
}

void sum_rows(ConstView x, View y) {
  visit_floating(x.dtype, [&](auto tag) { sum_rows_as<typename decltype(tag)::type>(x, y); });
}

}  // namespace

void register_matmul() {
  kernels::matmul.set(DeviceKind::cpu, matmul);
  kernels::sum_rows.set(DeviceKind::cpu, sum_rows);
}

}  // namespace longspan::cpu
