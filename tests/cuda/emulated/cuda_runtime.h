#pragma once

#include <math.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

/// The subset of the CUDA runtime that the CUDA backend uses, for a device that is emulated on the
/// host (device.h). The backend's sources compile against it as plain C++. Names and meanings are
/// the toolkit's.

#define __host__
#define __device__
#define __global__
#define __shared__ static thread_local  // a host thread runs one block at a time
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned along_x = 1, unsigned along_y = 1, unsigned along_z = 1)
      : x(along_x), y(along_y), z(along_z) {}
};

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

inline constinit thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

// Collectives. A collective of a warp needs all its 32 lanes, whatever the mask; any other use is
// an error.
void __syncthreads();
int __syncthreads_or(int value);
void __syncwarp(unsigned mask = 0xffffffffu);
int __any_sync(unsigned mask, int value);

namespace longspan::emulated {

/// Replaces the value by that of lane source(lane) of the warp; -1 keeps the lane's own value.
void exchange(void* value, size_t bytes, const std::function<int(int)>& source);

template <class T>
T exchanged(T value, const std::function<int(int)>& source) {
  static_assert(std::is_trivially_copyable_v<T>);
  exchange(&value, sizeof(T), source);
  return value;
}

}  // namespace longspan::emulated

template <class T>
T __shfl_sync(unsigned, T value, int from) {
  return longspan::emulated::exchanged(value, [from](int) { return from % 32; });
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned by) {
  return longspan::emulated::exchanged(value, [by](int lane) {
    return lane < static_cast<int>(by) ? -1 : lane - static_cast<int>(by);
  });
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int bits) {
  return longspan::emulated::exchanged(value, [bits](int lane) { return lane ^ bits; });
}

template <class T>
T atomicAdd(T* to, T value) {
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
template <class T>
T atomicMin(T* to, T value) {
  T before = __atomic_load_n(to, __ATOMIC_RELAXED);
  while (value < before && !__atomic_compare_exchange_n(to, &before, value, true, __ATOMIC_RELAXED,
                                                        __ATOMIC_RELAXED)) {
  }
  return before;
}

inline double __dmul_rn(double a, double b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline long long __double_as_longlong(double x) { return __builtin_bit_cast(long long, x); }

enum cudaError_t {
  cudaSuccess,
  cudaErrorInvalidValue,
  cudaErrorMemoryAllocation,
  cudaErrorInvalidConfiguration,
  cudaErrorNotReady,
  cudaErrorStreamCaptureUnsupported,
  cudaErrorStreamCaptureInvalidated,
  cudaErrorIllegalState
};
const char* cudaGetErrorName(cudaError_t status);
const char* cudaGetErrorString(cudaError_t status);
cudaError_t cudaGetLastError();

enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor
};
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
/// Each process has a device of its own, or that which LONGSPAN_TEST_BUS names.
cudaError_t cudaDeviceGetPCIBusId(char* name, int bytes, int device);
cudaError_t cudaMemGetInfo(size_t* available, size_t* total);

struct CUstream_st;
using cudaStream_t = CUstream_st*;
inline constexpr unsigned cudaStreamNonBlocking = 1;
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);

struct CUevent_st;
using cudaEvent_t = CUevent_st*;
inline constexpr unsigned cudaEventDisableTiming = 2;
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);

inline constexpr unsigned cudaHostAllocDefault = 0;
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags);
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream);

struct CUgraph_st;
struct CUgraphExec_st;
using cudaGraph_t = CUgraph_st*;
using cudaGraphExec_t = CUgraphExec_st*;
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed };
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* runnable, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphLaunch(cudaGraphExec_t runnable, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t runnable);

#define CUDART_VERSION 13000
inline constexpr unsigned long long cudaEnableDefault = 0;
enum cudaDriverEntryPointQueryResult {
  cudaDriverEntryPointSuccess,
  cudaDriverEntryPointSymbolNotFound
};
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* found);

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);

namespace longspan::emulated {

/// Returns the bytes of the kernel's parameters, each at a multiple of its alignment.
template <class... Parameters>
constexpr size_t parameter_bytes() {
  size_t bytes = 0;
  ((bytes = (bytes + alignof(Parameters) - 1) / alignof(Parameters) * alignof(Parameters) +
            sizeof(Parameters)),
   ...);
  return bytes;
}

cudaError_t submit_kernel(const cudaLaunchConfig_t& config, const void* kernel, size_t parameters,
                          std::function<void()> thread);

}  // namespace longspan::emulated

template <class... Parameters, class... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Args&&... args) {
  return longspan::emulated::submit_kernel(
      *config, reinterpret_cast<const void*>(kernel),
      longspan::emulated::parameter_bytes<Parameters...>(),
      [kernel, kept = std::tuple<Parameters...>(std::forward<Args>(args)...)] {
        std::apply(kernel, kept);
      });
}
