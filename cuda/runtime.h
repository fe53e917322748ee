#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace longspan::cuda {

/// The stream that all work of this process is submitted to, in order. The first call opens the
/// device and throws DeviceError where there is none.
cudaStream_t stream();

/// Throws CudaError with `what` and the driver's words unless `status` is a success.
void check(cudaError_t status, const char* what);

/// Waits until everything submitted has finished; throws CudaError where something of it failed.
void wait(const char* what);

/// What launches are sized by. Throws as stream() does.
struct Limits {
  int multiprocessors = 0;
  int shared_bytes = 0;      ///< that one block may ask for
  int major = 0, minor = 0;  ///< compute capability
};
const Limits& limits();

/// Lets launches of a kernel ask for so many bytes of shared memory. What it was let have before
/// stays: other threads may be about to launch it, and recordings hold launches.
void allow_shared(const char* name, const void* kernel, int64_t bytes);

/// How many devices this process can use: 1, or 0 where there is no driver or no device.
int devices();

}  // namespace longspan::cuda
