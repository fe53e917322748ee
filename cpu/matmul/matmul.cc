#include "core/kernels/matmul.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

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
using kernels::Product;

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

/// A product, or `batch` of them, of sums that are not empty: planned, with room for the sums that
/// its tasks leave.
class Planned {
 public:
  /// Plans tasks for so many threads.
  Planned(const ConstView& a, const ConstView& b, const View& c, const Epilogue& e, int64_t batch,
          int threads, bool splits_k)
      : a_(a),
        b_(b),
        c_(c),
        a_sums_(e.a_sums),
        batch_(batch),
        bias_(e.bias, accumulator_of(a.dtype), c.dim(-1), c.device),
        gemm_(gemm(e, splits_k)),
        plan_(plan_gemm(gemm_, batch >= 4 * threads ? 1 : threads)),
        partial_(plan_.partial_sums(gemm_) * size_of(c.dtype), c.device),
        block_sums_(
            sums_a() ? plan_.blocks_of(gemm_) * gemm_.m * size_of(accumulator_of(a.dtype)) : 0,
            c.device) {
    if (sums_a()) gemm_.a_sums = block_sums_.data();
  }

  int64_t tasks() const { return batch_ * plan_.tasks(); }
  /// The bytes that a task needs for itself.
  int64_t scratch() const { return memory::block_bytes(plan_.scratch); }
  bool openblas() const { return gemm_.openblas; }
  /// Whether a_sums are computed too.
  bool sums_a() const { return a_sums_ && plan_.sums_a; }
  /// Whether task i of both sets the same elements of c, for every i.
  bool divided_as(const Planned& other) const {
    const auto division = [](const Planned& p) {
      const GemmPlan& plan = p.plan_;
      return std::tuple(p.gemm_.m, p.gemm_.n, p.gemm_.transposed, p.gemm_.openblas, plan.row_unit,
                        plan.column_unit, plan.down, plan.beside, plan.segments);
    };
    return division(*this) == division(other);
  }

  void run(int64_t index, void* scratch) const {
    Gemm one = gemm_;
    const int64_t tasks = plan_.tasks();
    if (batch_ > 1) {
      const int64_t i = index / tasks;
      one.a = at(a_.data, batch_offset(a_.shape, a_.strides, i), a_.dtype);
      one.b = at(b_.data, batch_offset(b_.shape, b_.strides, i), b_.dtype);
      if (gemm_.transposed) std::swap(one.a, one.b);
      one.c =
          static_cast<char*>(c_.data) + batch_offset(c_.shape, c_.strides, i) * size_of(c_.dtype);
    }
    run_gemm(one, plan_, index % tasks, scratch, partial_.data());
  }

  /// Adds the sums that the tasks left, when all have run.
  void add_sums() const {
    if (plan_.segments > 1) {
      parallel_ranges(gemm_.m, 16, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) add_partial_sums(gemm_, plan_, partial_.data(), i);
      });
    }
    if (sums_a()) add_blocks(block_sums_.data(), plan_.blocks_of(gemm_), a_sums_);
  }

 private:
  Gemm gemm(const Epilogue& e, bool splits_k) const {
    Gemm g{.m = c_.dim(-2),
           .n = c_.dim(-1),
           .k = a_.dim(-1),
           .a = a_.data,
           .a_row = a_.stride(-2),
           .a_col = a_.stride(-1),
           .b = b_.data,
           .b_row = b_.stride(-2),
           .b_col = b_.stride(-1),
           .bias = bias_.data(),
           .c = c_.data,
           .c_row = c_.stride(-2),
           .dtype = a_.dtype,
           .c_dtype = c_.dtype,
           .accumulate = e.accumulate,
           .dot = by_dot(a_.dtype),
           .splits_k = splits_k,
           .finish = e.changes_sums() ? &e : nullptr};
    g.openblas = by_openblas(g);
    return pays_to_transpose(g) ? transposed(g) : g;
  }

  const ConstView &a_, &b_;
  const View &c_, &a_sums_;
  int64_t batch_;
  WideBias bias_;
  Gemm gemm_;
  GemmPlan plan_;
  Scratch partial_, block_sums_;
};

/// Runs the tasks of all products, of which there is at least one.
template <class Many>
void run(const Many& all, bool parallel, const Device& device) {
  int64_t tasks = 0, bytes = 0;
  bool openblas = false;
  for (const auto& p : all) {
    tasks += p.tasks();
    bytes = std::max(bytes, p.scratch());
    openblas |= p.openblas();
  }
  // For a small product, allocating from the arena would take a tenth of the time.
  constexpr int64_t near = 32 << 10;
  const int threads = parallel ? num_threads() : 1;
  const bool fits = threads == 1 && bytes <= near;
  alignas(64) char nearby[near];
  Scratch scratch(fits ? 0 : bytes * threads, device);
  if (device == meta_device) return;
  char* const space = fits ? nearby : scratch.as<char>();
  const auto task = [&](int64_t index) {
    auto p = all.begin();
    for (; index >= p->tasks(); ++p) index -= p->tasks();
    p->run(index, space + (parallel ? worker_index() : 0) * bytes);
  };
  if (parallel && openblas && threads > openblas_callers) {
    parallel_for(openblas_callers, [&](int64_t first) {
      for (int64_t i = first; i < tasks; i += openblas_callers) task(i);
    });
  } else if (parallel) {
    parallel_for(tasks, task);
  } else {
    for (int64_t i = 0; i < tasks; ++i) task(i);
  }
  for (const auto& p : all) p.add_sums();
}

/// Computes `batch` products of sums that are not empty. Returns whether a_sums are computed too.
bool multiply(const ConstView& a, const ConstView& b, const View& c, const Epilogue& e,
              int64_t batch) {
  const bool parallel = batch * c.dim(-2) * c.dim(-1) * a.dim(-1) >= least_parallel;
  const std::array one{Planned(a, b, c, e, batch, parallel ? num_threads() : 1, batch == 1)};
  run(one, parallel, c.device);
  return one[0].sums_a();
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

/// Sets a_sums by a kernel of its own.
void sum_apart(const ConstView& a, const View& a_sums) {
  ConstView columns = a;  // a^T
  std::swap(columns.shape[0], columns.shape[1]);
  std::swap(columns.strides[0], columns.strides[1]);
  sum_rows(columns, a_sums);
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
  if (e.a_sums && !summed) sum_apart(a, e.a_sums);
}

/// Matmuls into one c; a task computes its part of each in turn.
struct Chain {
  std::span<const std::unique_ptr<Planned>> links;

  int64_t tasks() const { return links[0]->tasks(); }
  int64_t scratch() const {
    int64_t most = 0;
    for (const auto& p : links) most = std::max(most, p->scratch());
    return most;
  }
  bool openblas() const { return links[0]->openblas(); }
  void run(int64_t index, void* scratch) const {
    for (const auto& p : links) p->run(index, scratch);
  }
  void add_sums() const {
    for (const auto& p : links) p->add_sums();
  }
};

/// Computes the matmuls in one parallel region if none is batched or empty, and all matmuls into
/// one c are divided in the same way; otherwise one by one.
void products(std::span<const Product> all) {
  int64_t multiplications = 0;
  bool together = !all.empty();
  for (const Product& p : all) {
    const int64_t n = p.c.numel() * p.a.dim(-1);
    together = together && p.c.rank() == 2 && n > 0;
    multiplications += n;
  }
  const bool parallel = multiplications >= least_parallel;
  const int threads = parallel ? num_threads() : 1;
  const auto linked = [&](size_t i) {  // whether matmul i has the c of the one before
    return i > 0 && i < all.size() && all[i].c.data == all[i - 1].c.data;
  };
  std::vector<std::unique_ptr<Planned>> planned;
  for (size_t i = 0; together && i < all.size(); ++i) {
    const Product& p = all[i];
    planned.push_back(std::make_unique<Planned>(p.a, p.b, p.c, p.epilogue, 1, threads,
                                                !linked(i) && !linked(i + 1)));
    together = !linked(i) || planned[i]->divided_as(*planned[i - 1]);
  }
  if (!together) {
    planned.clear();
    for (const Product& p : all) matmul(p.a, p.b, p.c, p.epilogue);
    return;
  }
  std::vector<Chain> chains;
  for (size_t first = 0, i = 1; i <= all.size(); ++i) {
    if (linked(i)) continue;
    chains.push_back({std::span(planned).subspan(first, i - first)});
    first = i;
  }
  run(chains, parallel, all[0].c.device);
  for (size_t i = 0; i < all.size(); ++i) {
    const Epilogue& e = all[i].epilogue;
    if (e.a_sums && !planned[i]->sums_a()) sum_apart(all[i].a, e.a_sums);
  }
}

}  // namespace

void register_matmul() {
  set_openblas_description(openblas_name());
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::meta}) {
    kernels::matmul.set(kind, matmul);
    kernels::products.set(kind, products);
    kernels::sum_rows.set(kind, sum_rows);
  }
}

}  // namespace longspan::cpu
