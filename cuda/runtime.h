#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace longspan::cuda {

/// The stream to which the process submits all work, in order. The first call opens the device and
/// throws DeviceError if there is none.
cudaStream_t stream();

/// Throws CudaError with `what` and the driver's message unless `status` is success.
void check(cudaError_t status, const char* what);

/// Waits for all submitted work; throws CudaError if any of it failed.
void wait(const char* what);

/// Device limits that launches depend on. limits() throws as stream() does.
struct Limits {
  int multiprocessors = 0;
  int shared_bytes = 0;      ///< maximum per block
  int major = 0, minor = 0;  ///< compute capability
};
const Limits& limits();

/// Lets launches of a kernel use `bytes` of shared memory. The limit of a kernel never shrinks:
/// other threads may be about to launch it, and recorded graphs contain launches.
void allow_shared(const char* name, const void* kernel, int64_t bytes);

/// Number of devices that this process can use: 1, or 0 without a driver or a device.
int devices();

}  // namespace longspan::cuda
