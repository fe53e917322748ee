#include "core/kernels/matmul.h"

#include <algorithm>

#include "core/matmul_library.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "core/precision.h"
#include "cpu/bf16_dot.h"
#include "cpu/matmul/gemm.h"
#include "cpu/matmul/gemm_openblas.h"
#include "cpu/register.h"

namespace longspan::cpu {
namespace {

/// Returns the offset of matrix `index` among the leading axes of v.
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

constexpr int64_t least_parallel = int64_t{1}
                                   << 18;  // multiplications from which waking threads pays off

/// Stores the result for an empty sum: c = 0, or bias, or c, or c + bias.
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

/// Whether products of operands in `dtype` run as dot products of bf16.
bool by_dot(DType dtype) {
  const bool rounded = dtype == DType::f32 && matmul_precision() == MatmulPrecision::bf16;
  return (dtype == DType::bf16 || rounded) && bf16_dot();
}

/// Whether a product runs on OpenBLAS. The device is not checked: the meta device allocates what
/// the CPU does.
bool by_openblas(const Gemm& g) {
  if (matmul_library() != MatmulLibrary::openblas) return false;
  const bool rounded = g.dtype == DType::f32 && matmul_precision() != MatmulPrecision::f32;
  return !rounded && fits_openblas(g);
}

void matmul(ConstView a, ConstView b, ConstView bias, View c, bool accumulate) {
  const int64_t M = c.dim(-2), N = c.dim(-1), K = a.dim(-1);
  const int64_t batch = M * N == 0 ? 0 : c.numel() / (M * N);
  if (batch == 0) return;
  if (K == 0) {
    if (c.device == meta_device) return;
    for (int64_t i = 0; i < batch; ++i) {
      visit_floating(c.dtype, [&](auto tag) {
        store_empty<typename decltype(tag)::type>(bias, c, batch_offset(c.shape, c.strides, i),
                                                  accumulate);
      });
    }
    return;
  }

  const DType sums = accumulator_of(a.dtype);
  const bool packed_bias = bias && (bias.dtype != sums || bias.stride(0) != 1);
  const bool runs = c.device != meta_device;  // on the meta device only the workspace is allocated
  Scratch wide_bias(packed_bias ? N * size_of(sums) : 0, c.device);
  if (packed_bias && runs) {
    visit_floating(bias.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      auto* to = wide_bias.as<Accumulator<T>>();
      for (int64_t j = 0; j < N; ++j) {
        to[j] = static_cast<Accumulator<T>>(bias.as<T>()[j * bias.stride(0)]);
      }
    });
  }
  Gemm g{M,
         N,
         K,
         a.data,
         a.stride(-2),
         a.stride(-1),
         b.data,
         b.stride(-2),
         b.stride(-1),
         packed_bias ? wide_bias.data() : bias.data,
         c.data,
         c.stride(-2),
         a.dtype,
         c.dtype,
         accumulate,
         by_dot(a.dtype)};
  g.openblas = by_openblas(g);
  if (pays_to_transpose(g)) g = transposed(g);
  const bool parallel = batch * M * N * K >= least_parallel;
  const int threads = parallel ? num_threads() : 1;
  g.splits_k = batch == 1;
  const GemmPlan plan = plan_gemm(g, batch >= 4 * threads ? 1 : threads);
  const int64_t tasks = plan.tasks(), bytes = memory::block_bytes(plan.scratch);
  // For a small product, allocating from the arena would take a tenth of the time.
  constexpr int64_t near = 32 << 10;
  const bool fits = threads == 1 && bytes <= near;
  alignas(64) char nearby[near];
  Scratch scratch(fits ? 0 : bytes * threads, c.device);
  Scratch partial(plan.partial_sums(g) * size_of(c.dtype), c.device);
  if (!runs) return;
  char* space = fits ? nearby : scratch.as<char>();
  const auto task = [&](int64_t index) {
    Gemm one = g;
    if (batch > 1) {
      const int64_t i = index / tasks;
      one.a = at(a.data, batch_offset(a.shape, a.strides, i), a.dtype);
      one.b = at(b.data, batch_offset(b.shape, b.strides, i), b.dtype);
      if (g.transposed) std::swap(one.a, one.b);
      one.c = static_cast<char*>(c.data) + batch_offset(c.shape, c.strides, i) * size_of(c.dtype);
    }
    run_gemm(one, plan, index % tasks, space + (parallel ? worker_index() : 0) * bytes,
             partial.data());
  };
  const int64_t all = batch * tasks;
  if (parallel && g.openblas && threads > openblas_callers) {
    parallel_for(openblas_callers, [&](int64_t first) {
      for (int64_t i = first; i < all; i += openblas_callers) task(i);
    });
  } else if (parallel) {
    parallel_for(all, task);
  } else {
    for (int64_t i = 0; i < all; ++i) task(i);
  }
  if (plan.segments > 1) {
    parallel_ranges(g.m, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) add_partial_sums(g, plan, partial.data(), i);
    });
  }
}

constexpr int64_t rows_of_partial = 256;

template <class T>
void sum_rows_as(const ConstView& x, const View& y) {
  using A = Accumulator<T>;
  const int64_t rows = x.dim(0), n = x.dim(1);
  const int64_t parts = std::max<int64_t>(1, (rows + rows_of_partial - 1) / rows_of_partial);
  Scratch scratch(parts * n * static_cast<int64_t>(sizeof(A)), x.device);
  if (x.device == meta_device) return;
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
  set_openblas_description(openblas_name());
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::meta}) {
    kernels::matmul.set(kind, matmul);
    kernels::sum_rows.set(kind, sum_rows);
  }
}

}  // namespace longspan::cpu
