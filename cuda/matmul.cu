#include "core/kernels/matmul.h"

#include <cublasLt.h>

#include <map>
#include <mutex>
#include <span>
#include <tuple>
#include <utility>

#include "core/divide.h"
#include "core/error.h"
#include "core/kernels/copy.h"
#include "core/kernels/gradient.h"
#include "core/memory.h"
#include "core/precision.h"
#include "cuda/elementwise.cuh"
#include "cuda/grid.h"
#include "cuda/register.h"

namespace longspan::cuda {
namespace {

constexpr const char* name = "matmul";

void check_blas(cublasStatus_t status, const char* what) {
  require<CudaError>(status == CUBLAS_STATUS_SUCCESS, what, "cuBLAS: {}",
                     cublasLtGetStatusString(status));
}

cublasLtHandle_t handle() {
  static const cublasLtHandle_t instance = [] {
    cublasLtHandle_t h = nullptr;
    check_blas(cublasLtCreate(&h), "cublasLtCreate");
    return h;  // outlives every static tensor
  }();
  return instance;
}

constexpr cudaDataType_t data_type(DType t) {
  return t == DType::f64   ? CUDA_R_64F
         : t == DType::f32 ? CUDA_R_32F
         : t == DType::f16 ? CUDA_R_16F
                           : CUDA_R_16BF;
}

/// Selects the compute type for operands of dtype `in`, following the process-wide matmul
/// precision.
cublasComputeType_t compute_type(DType in) {
  if (in == DType::f64) return CUBLAS_COMPUTE_64F;
  if (in != DType::f32) return CUBLAS_COMPUTE_32F;
  switch (matmul_precision()) {
    case MatmulPrecision::tf32:
      return CUBLAS_COMPUTE_32F_FAST_TF32;
    case MatmulPrecision::bf16:
      return CUBLAS_COMPUTE_32F_FAST_16BF;
    case MatmulPrecision::f32:
      break;
  }
  return CUBLAS_COMPUTE_32F;
}

/// A matrix as column-major cuBLAS sees it: one axis contiguous, the other with stride `ld`.
struct Operand {
  bool transposed = false;
  int64_t ld = 0;
  bool fits = false;  ///< false if neither axis has stride 1

  /// Describes a matrix from the rows and columns that cuBLAS sees, and their strides.
  static Operand of(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
    const auto apart = [](int64_t stride, int64_t count, int64_t least) {
      return count == 1 ? std::max<int64_t>(least, 1) : stride;
    };
    if ((row_stride == 1 || rows == 1) && (column_stride >= rows || columns == 1)) {
      return {false, apart(column_stride, columns, rows), true};
    }
    if ((column_stride == 1 || columns == 1) && (row_stride >= columns || rows == 1)) {
      return {true, apart(row_stride, rows, columns), true};
    }
    return {};
  }
};

/// Largest power of two that divides an address, at most 64, to which every block is aligned: the
/// address of a block must not affect the choice of the algorithm, and thereby the bits.
int alignment_of(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  int bytes = 64;
  while (bytes > 1 && address % static_cast<uintptr_t>(bytes) != 0) bytes /= 2;
  return bytes;
}

/// Workspace of an algorithm, aligned to the 256 bytes that cublasLtMatmul requires.
class Workspace {
 public:
  Workspace(size_t bytes, Device device)
      : workspace_(bytes > 0 ? static_cast<int64_t>(bytes + multiple - 1) : 0, device) {}
  void* data() const {
    const auto address = reinterpret_cast<uintptr_t>(workspace_.data());
    return reinterpret_cast<void*>((address + multiple - 1) / multiple * multiple);
  }

 private:
  static constexpr uintptr_t multiple = 256;
  Scratch workspace_;
};

/// The properties that select an algorithm.
struct Problem {
  int64_t m = 0, n = 0, k = 0, batch = 1;  // as cuBLAS sees them: m = N, n = M
  Operand a, b;
  int64_t ldc = 0, a_step = 0, b_step = 0, c_step = 0;
  DType in = DType::f32, out = DType::f32;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  bool bias = false, accumulate = false;
  int a_alignment = 1, b_alignment = 1, c_alignment = 1;

  auto key() const {
    return std::make_tuple(m, n, k, batch, a.transposed, a.ld, b.transposed, b.ld, ldc, a_step,
                           b_step, c_step, in, out, compute, bias, accumulate, a_alignment,
                           b_alignment, c_alignment);
  }
};

/// The descriptors of a problem and the algorithm that cuBLAS selects for it.
struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  size_t workspace = 0;
  bool found = false;

  explicit Plan(const Problem& p) {
    const cudaDataType_t scale = p.in == DType::f64 ? CUDA_R_64F : CUDA_R_32F;
    check_blas(cublasLtMatmulDescCreate(&operation, p.compute, scale), name);
    const cublasOperation_t op_a = p.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_b = p.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    set(CUBLASLT_MATMUL_DESC_TRANSA, op_a);
    set(CUBLASLT_MATMUL_DESC_TRANSB, op_b);
    if (p.bias) set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    layout(a, p.in, p.a.transposed ? p.k : p.m, p.a.transposed ? p.m : p.k, p.a.ld, p.batch,
           p.a_step);
    layout(b, p.in, p.b.transposed ? p.n : p.k, p.b.transposed ? p.k : p.n, p.b.ld, p.batch,
           p.b_step);
    layout(c, p.out, p.m, p.n, p.ldc, p.batch, p.c_step);

    cublasLtMatmulPreference_t preference = nullptr;
    check_blas(cublasLtMatmulPreferenceCreate(&preference), name);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check_blas(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
                 name);
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{32} << 20);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(p.a_alignment));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(p.b_alignment));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(p.c_alignment));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(p.c_alignment));
    // Atomic additions would give different bits in each run.
    prefer(
        CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_MASK & ~CUBLASLT_REDUCTION_SCHEME_INPLACE));
    cublasLtMatmulHeuristicResult_t result{};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle(), operation, a, b, c, c,
                                                                 preference, 1, &result, &count);
    cublasLtMatmulPreferenceDestroy(preference);
    found = status == CUBLAS_STATUS_SUCCESS && count == 1 && result.state == CUBLAS_STATUS_SUCCESS;
    algorithm = result.algo;
    workspace = result.workspaceSize;
  }

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) const {
    check_blas(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value), name);
  }

 private:
  static void layout(cublasLtMatrixLayout_t& to, DType dtype, int64_t rows, int64_t columns,
                     int64_t ld, int64_t batch, int64_t step) {
    check_blas(cublasLtMatrixLayoutCreate(&to, data_type(dtype), static_cast<uint64_t>(rows),
                                          static_cast<uint64_t>(columns), ld),
               name);
    const auto count = static_cast<int32_t>(batch);
    check_blas(cublasLtMatrixLayoutSetAttribute(to, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                sizeof count),
               name);
    check_blas(cublasLtMatrixLayoutSetAttribute(to, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                &step, sizeof step),
               name);
  }
};

/// Returns the plan of a problem. Plans are cached, because the same shapes recur every step.
const Plan& plan_for(const Problem& problem) {
  static std::mutex mutex;
  static auto* plans = new std::map<decltype(problem.key()), Plan>;
  const std::lock_guard lock(mutex);
  const auto key = problem.key();
  const auto known = plans->find(key);
  return known != plans->end() ? known->second : plans->emplace(key, Plan(problem)).first->second;
}

constexpr int tile = 16;  // rows and columns of a block of the plain kernel

/// Fallback for matrices that cuBLAS cannot take: any strides, no tensor cores. Sums run over k in
/// order. Tasks are numbered by tile of columns, then tile of rows, then matrix.
template <class T, class C>
__global__ void __launch_bounds__(tile* tile)
    plain_kernel(const T* a, int64_t a_row, int64_t a_k, const T* b, int64_t b_k, int64_t b_column,
                 C* c, int64_t c_row, int64_t M, int64_t N, int64_t K, bool accumulate,
                 const __grid_constant__ kernels::Offsets<3, int64_t> matrices, int64_t tasks) {
  using A = Accumulator<T>;
  __shared__ A left[tile][tile], right[tile][tile + 1];
  const int x = static_cast<int>(threadIdx.x) % tile, y = static_cast<int>(threadIdx.x) / tile;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const GridPlace place(task, ceil_div(N, tile), ceil_div(M, tile));
    int64_t offset[3];
    matrices.at(place.z, offset);
    const int64_t row = place.y * tile + y, column = place.x * tile + x;
    A sum = 0;
    for (int64_t k = 0; k < K; k += tile) {
      left[y][x] =
          row < M && k + x < K ? static_cast<A>(a[offset[0] + row * a_row + (k + x) * a_k]) : A(0);
      right[y][x] = column < N && k + y < K
                        ? static_cast<A>(b[offset[1] + (k + y) * b_k + column * b_column])
                        : A(0);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < tile; ++i) sum += left[y][i] * right[i][x];
      __syncthreads();
    }
    if (row >= M || column >= N) continue;
    C& to = c[offset[2] + row * c_row + column];
    to = C(accumulate ? static_cast<A>(to) + sum : sum);
  }
}

template <class T, class C>
void run_plain(const ConstView& a, const ConstView& b, const View& c, bool accumulate,
               const kernels::Layouts<3>& matrices) {
  const int64_t M = c.dim(-2), N = c.dim(-1);
  const int64_t tasks = ceil_div(N, tile) * ceil_div(M, tile) * matrices.numel;
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(tasks, INT32_MAX)));
  launch(name, plain_kernel<T, C>, grid, tile * tile, 0, a.as<T>(), a.stride(-2), a.stride(-1),
         b.as<T>(), b.stride(-2), b.stride(-1), c.as<C>(), c.stride(-2), M, N, a.dim(-1),
         accumulate, kernels::Offsets<3, int64_t>(matrices), tasks);
}

void run_plain(const ConstView& a, const ConstView& b, const View& c, bool accumulate,
               const kernels::Layouts<3>& matrices) {
  visit_floating(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (c.dtype == a.dtype) {
      run_plain<T, T>(a, b, c, accumulate, matrices);
    } else {
      run_plain<T, float>(a, b, c, accumulate, matrices);
    }
  });
}

/// Returns the axes before the last two.
Dims leading(const Dims& dims) {
  Dims d;
  for (int i = 0; i + 2 < dims.rank(); ++i) d.push_back(dims[i]);
  return d;
}

template <class V>
V moved(V view, int64_t offset) {
  using Byte = std::conditional_t<std::is_same_v<V, View>, char, const char>;
  view.data = static_cast<Byte*>(view.data) + offset * size_of(view.dtype);
  return view;
}

/// Sets every row of c to bias, or adds bias to it if `accumulate`.
void begin_with(const ConstView& bias, const View& c, bool accumulate) {
  const Scratch converted(bias.dtype == c.dtype ? 0 : bias.dim(0) * size_of(c.dtype), c.device);
  ConstView rows = bias;
  if (bias.dtype != c.dtype) {
    const View same{converted.data(), c.dtype, c.device, bias.shape, {1}};
    kernels::copy(c.device, bias, same);
    rows = same;
  }
  const int64_t step = rows.strides[0];
  rows.shape = c.shape;
  rows.strides = Strides::filled(c.rank(), 0);
  rows.strides[c.rank() - 1] = step;
  if (accumulate) {
    kernels::accumulate(c.device, rows, c);
  } else {
    kernels::copy(c.device, rows, c);
  }
}

/// The products of one call as cuBLAS calls, each of which is batched over the last axis of the
/// matrices.
class Products {
 public:
  Products(const ConstView& a, const ConstView& b, const View& c,
           const kernels::Layouts<3>& matrices, bool bias, bool accumulate)
      : a_(a), b_(b), c_(c), offsets_(outer(matrices)) {
    const int64_t M = c.dim(-2), N = c.dim(-1), K = a.dim(-1);
    const int last = matrices.rank - 1;
    // cuBLAS sees c^T = b^T a^T.
    problem_.m = N;
    problem_.n = M;
    problem_.k = K;
    problem_.a = Operand::of(N, K, b.stride(-1), b.stride(-2));
    problem_.b = Operand::of(K, M, a.stride(-1), a.stride(-2));
    problem_.ldc = M == 1 ? N : c.stride(-2);
    problem_.in = a.dtype;
    problem_.out = c.dtype;
    problem_.compute = compute_type(a.dtype);
    problem_.bias = bias;
    problem_.accumulate = accumulate;
    problem_.batch = matrices.size[last];
    problem_.a_step = matrices.stride[1][last];
    problem_.b_step = matrices.stride[0][last];
    problem_.c_step = matrices.stride[2][last];
    calls_ = matrices.numel / problem_.batch;
  }

  /// Whether cuBLAS takes all products. Must be checked before anything is written.
  bool fit() {
    if (!problem_.a.fits || !problem_.b.fits || problem_.ldc < problem_.m) return false;
    for (int64_t i = 0; i < calls_; ++i) {
      if (!plan_for(of(i).problem).found) return false;
    }
    return true;
  }
  void run(const ConstView& bias) {
    for (int64_t i = 0; i < calls_; ++i) {
      const SliceProblem part = of(i);
      const Plan& plan = plan_for(part.problem);
      static std::mutex mutex;  // a plan holds the bias pointer of one call at a time
      const std::lock_guard lock(mutex);
      if (problem_.bias) plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.data);
      const Workspace workspace(plan.workspace, c_.device);
      const double one = 1, zero = 0;
      const float one_f = 1, zero_f = 0;
      const bool wide = a_.dtype == DType::f64;
      const void* alpha = wide ? static_cast<const void*>(&one) : &one_f;
      const void* none = wide ? static_cast<const void*>(&zero) : &zero_f;
      const void* beta = problem_.accumulate ? alpha : none;
      check_blas(cublasLtMatmul(handle(), plan.operation, alpha, part.b, plan.a, part.a, plan.b,
                                beta, part.c, plan.c, part.c, plan.c, &plan.algorithm,
                                workspace.data(), plan.workspace, stream()),
                 name);
    }
  }

 private:
  struct SliceProblem {
    const void *a, *b;
    void* c;
    Problem problem;
  };

  static kernels::Layouts<3> outer(kernels::Layouts<3> matrices) {
    matrices.size[matrices.rank - 1] = 1;
    return matrices;
  }
  SliceProblem of(int64_t i) const {
    int64_t offset[3];
    offsets_.at(i, offset);
    SliceProblem part{moved(a_, offset[0]).data, moved(b_, offset[1]).data,
                      moved(c_, offset[2]).data, problem_};
    part.problem.a_alignment = alignment_of(part.b);
    part.problem.b_alignment = alignment_of(part.a);
    part.problem.c_alignment = alignment_of(part.c);
    return part;
  }

  ConstView a_, b_;
  View c_;
  kernels::Offsets<3, int64_t> offsets_;
  Problem problem_;
  int64_t calls_ = 0;
};

/// c = a b (+ bias) (+ c).
void multiply(const ConstView& a, const ConstView& b, const ConstView& bias, const View& c,
              bool accumulate) {
  const int64_t K = a.dim(-1);
  if (c.numel() == 0) return;
  const Dims a_lead = leading(a.strides), b_lead = leading(b.strides), c_lead = leading(c.strides);
  const kernels::Layouts<3> matrices(leading(c.shape), {&a_lead, &b_lead, &c_lead});
  const bool fused = bias && bias.dtype == c.dtype && c.dtype == a.dtype && a.dtype != DType::f64 &&
                     bias.stride(0) == 1 && alignment_of(bias.data) >= 16 && !accumulate && K > 0;
  if (fused) {
    Products products(a, b, c, matrices, true, false);
    if (products.fit()) return products.run(bias);
  }
  if (bias) {  // write the bias to c first, then add the product
    begin_with(bias, c, accumulate);
    accumulate = true;
  }
  if (K == 0) {
    if (!accumulate) kernels::fill(c.device, c, 0);
    return;
  }
  Products products(a, b, c, matrices, false, accumulate);
  if (products.fit()) return products.run({});
  run_plain(a, b, c, accumulate, matrices);
}

void matmul(ConstView a, ConstView b, View c, const kernels::Epilogue& e) {
  multiply(a, b, e.bias, c, e.accumulate);
  if (c.numel() > 0) kernels::finish_apart(e, c);
  if (e.a_sums) {
    ConstView columns = a;  // a^T
    std::swap(columns.shape[0], columns.shape[1]);
    std::swap(columns.strides[0], columns.strides[1]);
    kernels::sum_rows(c.device, columns, e.a_sums);
  }
}

void products(std::span<const kernels::Product> all) {
  for (const kernels::Product& p : all) matmul(p.a, p.b, p.c, p.epilogue);
}

}  // namespace

void register_matmul() {
  kernels::matmul.set(DeviceKind::cuda, matmul);
  kernels::products.set(DeviceKind::cuda, products);
}

}  // namespace longspan::cuda
