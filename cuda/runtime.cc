#include "cuda/runtime.h"

#include <map>
#include <mutex>

#include "core/error.h"

namespace longspan::cuda {
namespace {

struct Opened {
  cudaStream_t stream = nullptr;
  Limits limits;

  Opened() {
    require<DeviceError>(devices() > 0, "cuda", "no device can be used here; use cpu");
    check(cudaSetDevice(0), "cudaSetDevice");
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    const auto ask = [](cudaDeviceAttr attribute, int& value) {
      check(cudaDeviceGetAttribute(&value, attribute, 0), "cudaDeviceGetAttribute");
    };
    ask(cudaDevAttrMultiProcessorCount, limits.multiprocessors);
    ask(cudaDevAttrMaxSharedMemoryPerBlockOptin, limits.shared_bytes);
    ask(cudaDevAttrComputeCapabilityMajor, limits.major);
    ask(cudaDevAttrComputeCapabilityMinor, limits.minor);
    require<DeviceError>(limits.major >= 8, "cuda",
                         "the device has compute capability {}.{}, 8.0 is the least; use cpu",
                         limits.major, limits.minor);
  }
};

const Opened& opened() {
  static const auto* instance = new Opened;  // outlives every static tensor
  return *instance;
}

}  // namespace

cudaStream_t stream() { return opened().stream; }
const Limits& limits() { return opened().limits; }

void allow_shared(const char* name, const void* kernel, int64_t bytes) {
  static std::mutex mutex;
  static auto* allowed = new std::map<const void*, int64_t>;
  const std::lock_guard lock(mutex);
  int64_t& most = (*allowed)[kernel];
  if (bytes <= most) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        name);
  most = bytes;
}

int devices() {
  static const int count = [] {
    int found = 0;
    if (cudaGetDeviceCount(&found) != cudaSuccess) {
      cudaGetLastError();  // clears the error of a missing driver
      found = 0;
    }
    return found > 0 ? 1 : 0;
  }();
  return count;
}

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  fail<CudaError>(what, "{} ({})", cudaGetErrorString(status), cudaGetErrorName(status));
}

void wait(const char* what) { check(cudaStreamSynchronize(stream()), what); }

}  // namespace longspan::cuda
