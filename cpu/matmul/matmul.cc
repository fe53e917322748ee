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

using kernels::Epilogue;

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

/// The bias in the accumulator type, with unit stride: a view of it where it is that already.
class WideBias {
 public:
  WideBias(const ConstView& bias, DType sums, int64_t n, const Device& device)
      : packed_(bias && (bias.dtype != sums || bias.stride(0) != 1)),
        scratch_(packed_ ? n * size_of(sums) : 0, device),
        data_(packed_ ? scratch_.data() : bias.data) {
    if (!packed_ || device == meta_device) return;
    visit_floating(bias.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      auto* to = scratch_.as<Accumulator<T>>();
      for (int64_t j = 0; j < n; ++j) {
        to[j] = static_cast<Accumulator<T>>(bias.as<T>()[j * bias.stride(0)]);
      }
    });
  }
  const void* data() const { return data_; }

 private:
  bool packed_;
  Scratch scratch_;
  const void* data_;
};

/// Runs the tasks of `batch` products like g, whose operands lie as a, b and c say.
void run_tasks(const Gemm& g, const GemmPlan& plan, const ConstView& a, const ConstView& b,
               const View& c, int64_t batch, bool parallel, char* space, void* partial) {
  const int64_t tasks = plan.tasks(), bytes = memory::block_bytes(plan.scratch);
  const auto task = [&](int64_t index) {
    Gemm one = g;
    if (batch > 1) {
      const int64_t i = index / tasks;
      one.a = at(a.data, batch_offset(a.shape, a.strides, i), a.dtype);
      one.b = at(b.data, batch_offset(b.shape, b.strides, i), b.dtype);
      if (g.transposed) std::swap(one.a, one.b);
      one.c = static_cast<char*>(c.data) + batch_offset(c.shape, c.strides, i) * size_of(c.dtype);
    }
    run_gemm(one, plan, index % tasks, space + (parallel ? worker_index() : 0) * bytes, partial);
  };
  const int64_t all = batch * tasks;
  if (parallel && g.openblas && num_threads() > openblas_callers) {
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
      for (int64_t i = begin; i < end; ++i) add_partial_sums(g, plan, partial, i);
    });
  }
}

/// Adds the sums of the blocks of k, [blocks, n], in order.
void add_blocks(const void* sums, int64_t blocks, const View& y) {
  visit_floating(y.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto* from = static_cast<const Accumulator<T>*>(sums);
    const int64_t n = y.dim(0);
    for (int64_t j = 0; j < n; ++j) {
      Accumulator<T> sum = from[j];
      for (int64_t i = 1; i < blocks; ++i) sum += from[i * n + j];
      y.as<T>()[j] = T(sum);
    }
  });
}

/// Computes `batch` products of sums that are not empty. Returns whether a_sums are computed too.
bool multiply(const ConstView& a, const ConstView& b, const View& c, const Epilogue& e,
              int64_t batch) {
  const DType sums = accumulator_of(a.dtype);
  const WideBias bias(e.bias, sums, c.dim(-1), c.device);
  Gemm g{.m = c.dim(-2),
         .n = c.dim(-1),
         .k = a.dim(-1),
         .a = a.data,
         .a_row = a.stride(-2),
         .a_col = a.stride(-1),
         .b = b.data,
         .b_row = b.stride(-2),
         .b_col = b.stride(-1),
         .bias = bias.data(),
         .c = c.data,
         .c_row = c.stride(-2),
         .dtype = a.dtype,
         .c_dtype = c.dtype,
         .accumulate = e.accumulate,
         .dot = by_dot(a.dtype),
         .splits_k = batch == 1,
         .finish = e.changes_sums() ? &e : nullptr};
  g.openblas = by_openblas(g);
  const bool parallel = batch * g.m * g.n * g.k >= least_parallel;
  if (pays_to_transpose(g)) g = transposed(g);
  const int threads = parallel ? num_threads() : 1;
  const GemmPlan plan = plan_gemm(g, batch >= 4 * threads ? 1 : threads);
  const bool sums_a = e.a_sums && plan.sums_a;
  // For a small product, allocating from the arena would take a tenth of the time.
  constexpr int64_t near = 32 << 10;
  const int64_t bytes = memory::block_bytes(plan.scratch);
  const bool fits = threads == 1 && bytes <= near;
  alignas(64) char nearby[near];
  Scratch scratch(fits ? 0 : bytes * threads, c.device);
  Scratch partial(plan.partial_sums(g) * size_of(c.dtype), c.device);
  Scratch a_sums(sums_a ? plan.blocks_of(g) * g.m * size_of(sums) : 0, c.device);
  if (c.device == meta_device) return sums_a;
  if (sums_a) g.a_sums = a_sums.data();
  run_tasks(g, plan, a, b, c, batch, parallel, fits ? nearby : scratch.as<char>(), partial.data());
  if (sums_a) add_blocks(a_sums.data(), plan.blocks_of(g), e.a_sums);
  return sums_a;
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

void matmul(ConstView a, ConstView b, View c, const Epilogue& e) {
  const int64_t matrix = c.dim(-2) * c.dim(-1), batch = matrix == 0 ? 0 : c.numel() / matrix;
  bool summed = false;
  if (batch > 0 && a.dim(-1) > 0) {
    summed = multiply(a, b, c, e, batch);
  } else if (batch > 0 && c.device != meta_device) {
    for (int64_t i = 0; i < batch; ++i) {
      visit_floating(c.dtype, [&](auto tag) {
        store_empty<typename decltype(tag)::type>(e.bias, c, batch_offset(c.shape, c.strides, i),
                                                  e.accumulate);
      });
    }
    finish_apart(e, c);
  }
  if (e.a_sums && !summed) {
    ConstView columns = a;  // a^T
    std::swap(columns.shape[0], columns.shape[1]);
    std::swap(columns.strides[0], columns.strides[1]);
    sum_rows(columns, e.a_sums);
  }
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
