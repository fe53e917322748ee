#include <cuda.h>

#include <cstring>
#include <mutex>

#include "core/best_fit.h"
#include "core/error.h"
#include "core/memory.h"
#include "cuda/register.h"
#include "cuda/runtime.h"

namespace longspan::cuda {
namespace {

/// Driver functions, looked up at run time. The library is not linked, because machines without a
/// device do not have it.
struct Driver {
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemMap) map;
  decltype(&cuMemSetAccess) set_access;
  decltype(&cuMemGetAllocationGranularity) granularity;

  Driver() {
    stream();  // opens the device; throws if there is none
    find("cuMemAddressReserve", reserve);
    find("cuMemCreate", create);
    find("cuMemRelease", release);
    find("cuMemMap", map);
    find("cuMemSetAccess", set_access);
    find("cuMemGetAllocationGranularity", granularity);
  }

  template <class F>
  static void find(const char* name, F& function) {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    check(cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found), name);
#else
    check(cudaGetDriverEntryPoint(name, &address, cudaEnableDefault, &found), name);
#endif
    require<DeviceError>(found == cudaDriverEntryPointSuccess && address != nullptr, "cuda",
                         "the driver has no {}; install a newer one", name);
    function = reinterpret_cast<F>(address);
  }
};

/// One address range, backed with memory from its start as needed. All work is in one stream, so a
/// released block can be reused at once: its previous users run before the next ones.
struct Pool {
  Driver driver;
  CUmemAllocationProp property{};
  int64_t granularity = int64_t{32} << 20, total = 0;
  char *begin = nullptr, *backed = nullptr;
  BestFit blocks;

  Pool() {
    size_t available = 0, all = 0;
    check(cudaMemGetInfo(&available, &all), "cudaMemGetInfo");
    total = static_cast<int64_t>(all);
    property.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    property.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    property.location.id = 0;
    size_t least = 0;
    check(driver.granularity(&least, &property, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
          "cuMemGetAllocationGranularity");
    granularity = (granularity + static_cast<int64_t>(least) - 1) / static_cast<int64_t>(least) *
                  static_cast<int64_t>(least);
    const int64_t range = (4 * total + granularity - 1) / granularity * granularity;
    CUdeviceptr address = 0;
    check(driver.reserve(&address, static_cast<size_t>(range), 0, 0, 0), "cuMemAddressReserve");
    begin = backed = reinterpret_cast<char*>(address);
    blocks.open(begin, range, total, [](char*, char* to) { return pool().back(to); });
  }

  static Pool& pool() {
    static auto* instance = new Pool;  // outlives every static tensor
    return *instance;
  }

 private:
  static void check(CUresult status, const char* what) {
    require<CudaError>(status == CUDA_SUCCESS, what, "the driver refuses with error {}",
                       static_cast<int>(status));
  }
  static void check(cudaError_t status, const char* what) { cuda::check(status, what); }

  /// Backs the addresses up to `to`, in steps of the granularity.
  bool back(char* to) {
    while (backed < to) {
      const int64_t bytes = (to - backed + granularity - 1) / granularity * granularity;
      const auto size = static_cast<size_t>(bytes);
      const auto address = reinterpret_cast<CUdeviceptr>(backed);
      CUmemGenericAllocationHandle handle = 0;
      if (driver.create(&handle, size, &property, 0) != CUDA_SUCCESS) return false;
      const bool mapped = driver.map(address, size, 0, handle, 0) == CUDA_SUCCESS;
      driver.release(handle);  // the mapping keeps it alive
      if (!mapped) return false;
      CUmemAccessDesc access{};
      access.location = property.location;
      access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      check(driver.set_access(address, size, &access, 1), "cuMemSetAccess");
      backed += bytes;
    }
    return true;
  }
};

void copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind, const char* name) {
  check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream()), name);
}

/// Pinned memory that stages copies of batches and per-step values to the device. The bytes are
/// taken immediately, and the host does not wait for earlier work. Each half is filled from its
/// start and reused once the copies from it have completed.
class Staging {
 public:
  static constexpr int64_t half = int64_t{4} << 20;

  static Staging& staging() {
    static auto* instance = new Staging;
    return *instance;
  }

  void copy(void* to, const void* from, int64_t bytes, const char* name) {
    const std::lock_guard lock(mutex_);
    if (used_ + bytes > half) {
      check(cudaEventRecord(copied_[now_], stream()), name);
      now_ = 1 - now_;
      used_ = 0;
      check(cudaEventSynchronize(copied_[now_]), name);
    }
    char* const here = memory_ + now_ * half + used_;
    std::memcpy(here, from, static_cast<size_t>(bytes));
    cuda::copy(to, here, bytes, cudaMemcpyHostToDevice, name);
    used_ += memory::block_bytes(bytes);
  }

 private:
  Staging() {
    stream();  // opens the device
    check(cudaHostAlloc(reinterpret_cast<void**>(&memory_), 2 * half, cudaHostAllocDefault),
          "cudaHostAlloc");
    for (cudaEvent_t& event : copied_) {
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    }
  }

  std::mutex mutex_;
  char* memory_ = nullptr;
  int64_t used_ = 0;
  int now_ = 0;
  cudaEvent_t copied_[2] = {};
};

}  // namespace

void register_memory() {
  memory::set_source(
      DeviceKind::cuda,
      {.allocate = [](int64_t bytes) -> void* { return Pool::pool().blocks.allocate(bytes); },
       .release = [](void* at,
                     int64_t bytes) { Pool::pool().blocks.release(static_cast<char*>(at), bytes); },
       .shrink =
           [](void* at, int64_t bytes, int64_t kept) {
             return Pool::pool().blocks.shrink(static_cast<char*>(at), bytes, kept);
           },
       .held_free = [] { return devices() > 0 ? Pool::pool().blocks.held_free() : 0; },
       .set_limit =
           [](int64_t bytes) {
             Pool& pool = Pool::pool();
             pool.blocks.set_limit(bytes > 0 ? bytes : pool.total);
           },
       .limit = [] { return devices() > 0 ? Pool::pool().blocks.limit() : 0; }});
  count_devices.set(DeviceKind::cuda, [](int* count) { *count = devices(); });
  copy_to_host.set(DeviceKind::cuda, [](void* to, const void* from, int64_t bytes) {
    copy(to, from, bytes, cudaMemcpyDeviceToHost, "copy_to_host");
    wait("copy_to_host");
  });
  // For copies of more than Staging::half bytes from pageable memory, the call returns once the
  // driver has taken the bytes.
  copy_from_host.set(DeviceKind::cuda, [](void* to, const void* from, int64_t bytes) {
    if (bytes <= Staging::half) {
      Staging::staging().copy(to, from, bytes, "copy_from_host");
    } else {
      copy(to, from, bytes, cudaMemcpyHostToDevice, "copy_from_host");
    }
  });
  copy_within.set(DeviceKind::cuda, [](void* to, const void* from, int64_t bytes) {
    copy(to, from, bytes, cudaMemcpyDeviceToDevice, "copy_within");
  });
  set_zero.set(DeviceKind::cuda, [](void* to, int64_t bytes) {
    check(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), stream()), "set_zero");
  });
  wait_for_device.set(DeviceKind::cuda, [] { wait("wait_for_device"); });
}

}  // namespace longspan::cuda
