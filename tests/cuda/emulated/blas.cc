#include <algorithm>
#include <cstring>
#include <vector>

#include "core/dtype.h"
#include "core/parallel.h"
#include "tests/cuda/emulated/cublasLt.h"
#include "tests/cuda/emulated/device.h"

struct cublasLtMatmulDesc {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};
struct cublasLtMatrixLayout {
  cudaDataType_t type;
  int64_t rows, columns, ld;
  int32_t batch = 1;
  int64_t step = 0;
};
struct cublasLtMatmulPreference {
  uint64_t workspace = 0;
  uint32_t alignment[4] = {256, 256, 256, 256};
  uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
};

namespace {

using longspan::bf16;
using longspan::f16;

template <class T>
cublasStatus_t take(T& to, const void* value, size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

size_t size_of(cudaDataType_t type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }

double read(cudaDataType_t type, const void* data, int64_t i) {
  switch (type) {
    case CUDA_R_64F:
      return static_cast<const double*>(data)[i];
    case CUDA_R_32F:
      return static_cast<const float*>(data)[i];
    case CUDA_R_16F:
      return static_cast<const f16*>(data)[i];
    default:
      return static_cast<const bf16*>(data)[i];
  }
}
void write(cudaDataType_t type, void* data, int64_t i, double value) {
  switch (type) {
    case CUDA_R_64F:
      static_cast<double*>(data)[i] = value;
      break;
    case CUDA_R_32F:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      break;
    case CUDA_R_16F:
      static_cast<f16*>(data)[i] = f16(static_cast<float>(value));
      break;
    default:
      static_cast<bf16*>(data)[i] = bf16(static_cast<float>(value));
  }
}

/// Rounds an element of an operand as the compute type does.
double rounded(cublasComputeType_t compute, double value) {
  const auto narrow = static_cast<float>(value);
  if (compute == CUBLAS_COMPUTE_32F_FAST_16BF) return bf16(narrow);
  if (compute != CUBLAS_COMPUTE_32F_FAST_TF32) return value;
  uint32_t bits;
  std::memcpy(&bits, &narrow, 4);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0x1000u) & ~0x1fffu;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

struct Call {
  cublasLtMatmulDesc operation;
  cublasLtMatrixLayout a, b, c, d;
  const void *a_data, *b_data, *c_data;
  void *d_data, *workspace;
  size_t workspace_bytes;
  double alpha, beta;
};

/// Computes d = alpha op(a) op(b) + beta c and adds a bias to each row. Matrices are column-major;
/// sums are in type A.
template <class A>
void run(const Call& x, int32_t matrix) {
  const bool turn_a = x.operation.a == CUBLAS_OP_T, turn_b = x.operation.b == CUBLAS_OP_T;
  const int64_t m = x.d.rows, n = x.d.columns, k = turn_a ? x.a.rows : x.a.columns;
  std::vector<A> a(static_cast<size_t>(m * k));  // [k, m]
  for (int64_t l = 0; l < k; ++l) {
    for (int64_t i = 0; i < m; ++i) {
      const int64_t at = matrix * x.a.step + (turn_a ? i * x.a.ld + l : l * x.a.ld + i);
      a[static_cast<size_t>(l * m + i)] =
          static_cast<A>(rounded(x.operation.compute, read(x.a.type, x.a_data, at)));
    }
  }
  longspan::parallel_for(n, [&](int64_t j) {
    std::vector<A> sums(static_cast<size_t>(m), A(0));
    for (int64_t l = 0; l < k; ++l) {
      const int64_t at = matrix * x.b.step + (turn_b ? l * x.b.ld + j : j * x.b.ld + l);
      const A factor = static_cast<A>(rounded(x.operation.compute, read(x.b.type, x.b_data, at)));
      const A* const from = a.data() + l * m;
      for (int64_t i = 0; i < m; ++i) sums[static_cast<size_t>(i)] += from[i] * factor;
    }
    for (int64_t i = 0; i < m; ++i) {
      A value = static_cast<A>(x.alpha) * sums[static_cast<size_t>(i)];
      if (x.beta != 0) {
        value += static_cast<A>(x.beta) *
                 static_cast<A>(read(x.c.type, x.c_data, matrix * x.c.step + j * x.c.ld + i));
      }
      if (x.operation.epilogue == CUBLASLT_EPILOGUE_BIAS) {
        value += static_cast<A>(read(x.d.type, x.operation.bias, i));
      }
      write(x.d.type, x.d_data, matrix * x.d.step + j * x.d.ld + i, static_cast<double>(value));
    }
  });
}

bool is_aligned(const void* data, size_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

/// Returns whether the layouts are consistent with one product.
bool agree(const cublasLtMatmulDesc& x, const cublasLtMatrixLayout& a,
           const cublasLtMatrixLayout& b, const cublasLtMatrixLayout& c) {
  const int64_t m = x.a == CUBLAS_OP_T ? a.columns : a.rows,
                k = x.a == CUBLAS_OP_T ? a.rows : a.columns;
  const int64_t n = x.b == CUBLAS_OP_T ? b.rows : b.columns,
                l = x.b == CUBLAS_OP_T ? b.columns : b.rows;
  const bool scaled = (x.scale == CUDA_R_64F) == (x.compute == CUBLAS_COMPUTE_64F) &&
                      (a.type == CUDA_R_64F) == (x.compute == CUBLAS_COMPUTE_64F);
  return scaled && a.type == b.type && k == l && c.rows == m && c.columns == n && m > 0 && n > 0 &&
         k > 0 && a.ld >= a.rows && b.ld >= b.rows && c.ld >= c.rows && a.batch == b.batch &&
         a.batch == c.batch && (c.type == a.type || c.type == CUDA_R_32F);
}

}  // namespace

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS         ? "success"
         : status == CUBLAS_STATUS_INVALID_VALUE ? "invalid value"
                                                 : "not supported";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  *operation = new cublasLtMatmulDesc{compute, scale};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return take(operation->a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return take(operation->b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return take(operation->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return take(operation->bias, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  *layout =
      new cublasLtMatrixLayout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), ld};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  return attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? take(layout->batch, value, bytes)
                                                         : take(layout->step, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return take(preference->workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return take(preference->schemes, value, bytes);
    default:
      return take(preference->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
                  value, bytes);
  }
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* count) {
  *count = 0;
  if (!agree(*operation, *a, *b, *c) || c != d || wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const auto& alignment = preference->alignment;
  for (int i = 0; i < 3; ++i) {
    const cublasLtMatrixLayout* const layout = i == 0 ? a : i == 1 ? b : c;
    if (alignment[i] < size_of(layout->type)) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  // Some products get a workspace, so that errors in its handling show.
  const size_t workspace = c->rows % 3 == 0 ? 0 : std::min<size_t>(preference->workspace, 1000);
  results[0] = {{alignment[0], alignment[1], alignment[2], alignment[3], workspace},
                workspace,
                CUBLAS_STATUS_SUCCESS};
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t) {
  if (!agree(*operation, *a_layout, *b_layout, *c_layout) || c != d) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!is_aligned(a, algorithm->alignment_a) || !is_aligned(b, algorithm->alignment_b) ||
      !is_aligned(c, algorithm->alignment_c) || !is_aligned(d, algorithm->alignment_d)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (workspace_bytes < algorithm->workspace || !is_aligned(workspace, 256)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (operation->epilogue == CUBLASLT_EPILOGUE_BIAS && !is_aligned(operation->bias, 16)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const bool wide = operation->scale == CUDA_R_64F;
  const auto number = [wide](const void* at) {
    return wide ? *static_cast<const double*>(at)
                : static_cast<double>(*static_cast<const float*>(at));
  };
  const Call call{
      *operation,           *a_layout,     *b_layout,   *c_layout, *d_layout, a, b, c, d, workspace,
      algorithm->workspace, number(alpha), number(beta)};
  longspan::emulated::submit([call, wide] {
    std::fill_n(static_cast<char*>(call.workspace), call.workspace_bytes, '\xff');
    for (int32_t i = 0; i < call.d.batch; ++i) {
      if (wide) {
        run<double>(call, i);
      } else {
        run<float>(call, i);
      }
    }
  });
  return CUBLAS_STATUS_SUCCESS;
}
