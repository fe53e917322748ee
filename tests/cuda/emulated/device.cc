#include "tests/cuda/emulated/device.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "core/kernel.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "tests/cuda/emulated/block.h"
#include "tests/cuda/emulated/cuda.h"
#include "tests/cuda/emulated/cuda_runtime.h"

namespace longspan::cuda {
void register_kernels();
}

namespace longspan::emulated {
namespace {

constexpr size_t memory_bytes = size_t{2} << 30;
constexpr int multiprocessors = 3;
constexpr int shared_bytes = 99 * 1024;  // capability 8.6 and 8.9, the smallest supported
constexpr size_t granularity = size_t{2} << 20;
constexpr size_t parameter_limit = 4096;
constexpr size_t queue_limit = 4096;

using Work = std::function<void()>;
using Recording = std::vector<Work>;

/// The whole state of the device, behind one lock.
struct State {
  std::recursive_mutex mutex;
  Recording queue;
  std::unique_ptr<Recording> recording;
  bool invalidated = false;  // the recording, by a call that cannot be recorded
  cudaError_t last = cudaSuccess;
  std::map<const char*, const char*> pinned;  // begin -> end
  std::map<const void*, int> shared_allowed, runs;
  size_t backed = 0;
  std::vector<std::pair<char*, size_t>> retired;  // guarded blocks that work may still use
  int64_t launches = 0;
};

State& state() {
  static auto* instance = new State;
  return *instance;
}

cudaError_t noted(cudaError_t status) {
  const std::lock_guard lock(state().mutex);
  if (status != cudaSuccess) state().last = status;
  return status;
}

/// Runs all submitted work, then unmaps the retired blocks.
void drain() {
  State& s = state();
  Recording work = std::exchange(s.queue, {});
  for (const Work& w : work) w();
  for (const auto& [memory, bytes] : std::exchange(s.retired, {})) munmap(memory, bytes);
}

/// Allocates blocks between two inaccessible pages; each block ends at the second of them.
class Guarded {
 public:
  static Guarded& guarded() {
    static auto* instance = new Guarded;
    return *instance;
  }

  void* allocate(int64_t bytes) {
    const size_t room = (static_cast<size_t>(bytes) + page - 1) / page * page;
    void* const memory =
        mmap(nullptr, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    char* const begin = static_cast<char*>(memory) + page;
    if (mprotect(begin, room, PROT_READ | PROT_WRITE) != 0) return nullptr;
    std::memset(begin, 0xff, room);
    char* const block = begin + room - bytes;
    const std::lock_guard lock(state().mutex);
    blocks_[block] = {static_cast<char*>(memory), room + 2 * page, bytes};
    return block;
  }
  /// Releases a block, or the end of one, which then is shorter.
  void release(void* at, int64_t bytes) {
    const std::lock_guard lock(state().mutex);
    const auto block = std::prev(blocks_.upper_bound(static_cast<char*>(at)));
    block->second.bytes -= bytes;
    if (block->second.bytes > 0) return;
    state().retired.emplace_back(block->second.memory, block->second.all);
    blocks_.erase(block);
  }

 private:
  static constexpr size_t page = 4096;
  struct Block {
    char* memory;
    size_t all;
    int64_t bytes;
  };
  std::map<char*, Block> blocks_;
};

/// Runs all submitted work. During a recording it invalidates the recording and returns an error.
cudaError_t wait_for_all() {
  const std::lock_guard lock(state().mutex);
  if (state().recording) {
    state().invalidated = true;
    return noted(cudaErrorStreamCaptureUnsupported);
  }
  drain();
  return cudaSuccess;
}

bool is_pinned(const void* data) {
  const auto& pinned = state().pinned;
  const auto* at = static_cast<const char*>(data);
  const auto after = pinned.upper_bound(at);
  return after != pinned.begin() && at < std::prev(after)->second;
}

void run_launch(const dim3& grid, int threads, size_t shared, bool reverse, const Work& thread) {
  const int64_t blocks = int64_t{grid.x} * grid.y * grid.z;
  parallel_for(blocks, [&](int64_t index) {
    const int64_t i = reverse ? blocks - 1 - index : index;
    gridDim = grid;
    blockDim = dim3(static_cast<unsigned>(threads));
    blockIdx = dim3(static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                    static_cast<unsigned>(i / grid.x / grid.y));
    run_block(threads, shared, reverse, thread);
  });
}

}  // namespace

void submit(Work work) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.recording) {
    s.recording->push_back(std::move(work));
    return;
  }
  s.queue.push_back(std::move(work));
  if (s.queue.size() >= queue_limit) drain();
}

int64_t launches() { return state().launches; }

cudaError_t submit_kernel(const cudaLaunchConfig_t& config, const void* kernel, size_t parameters,
                          Work thread) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const dim3 grid = config.gridDim, block = config.blockDim;
  const auto known = s.shared_allowed.find(kernel);
  const size_t allowed =
      known == s.shared_allowed.end() ? 48 * 1024 : static_cast<size_t>(known->second);
  const bool fits = grid.x > 0 && grid.x <= INT32_MAX && grid.y > 0 && grid.y <= 65535 &&
                    grid.z > 0 && grid.z <= 65535 && block.x > 0 && block.x <= 1024 &&
                    block.y == 1 && block.z == 1 && config.dynamicSmemBytes <= allowed &&
                    parameters <= parameter_limit;
  if (!fits) return noted(cudaErrorInvalidConfiguration);
  const bool reverse = s.runs[kernel]++ % 2 != 0;
  ++s.launches;
  submit([grid, threads = static_cast<int>(block.x), shared = config.dynamicSmemBytes, reverse,
          thread = std::move(thread)] { run_launch(grid, threads, shared, reverse, thread); });
  return cudaSuccess;
}

void enable() {
  register_backends();
  cuda::register_kernels();
}

void enable_guarded() {
  enable();
  memory::set_source(
      DeviceKind::cuda,
      {.allocate = [](int64_t bytes) -> void* {
         if (bytes > int64_t{memory_bytes}) return nullptr;
         return Guarded::guarded().allocate(bytes);
       },
       .release = [](void* at, int64_t bytes) { Guarded::guarded().release(at, bytes); },
       .held_free = [] { return int64_t{0}; },
       .set_limit = [](int64_t) {}});
}

}  // namespace longspan::emulated

using namespace longspan::emulated;

const char* cudaGetErrorName(cudaError_t status) {
  switch (status) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorIllegalState:
      return "cudaErrorIllegalState";
  }
  return "unknown";
}
const char* cudaGetErrorString(cudaError_t status) { return cudaGetErrorName(status); }
cudaError_t cudaGetLastError() {
  const std::lock_guard lock(state().mutex);
  return std::exchange(state().last, cudaSuccess);
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return noted(device == 0 ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = multiprocessors;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = shared_bytes;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 8;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 6;
      break;
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* name, int bytes, int) {
  const char* const given = std::getenv("LONGSPAN_TEST_BUS");
  const std::string own = given != nullptr ? given : std::to_string(getpid());
  std::snprintf(name, static_cast<size_t>(bytes), "%s", own.c_str());
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  *total = memory_bytes;
  *available = memory_bytes - state().backed;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(&state());
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return wait_for_all(); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(&state());
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return wait_for_all(); }
cudaError_t cudaEventQuery(cudaEvent_t) {
  return longspan::emulated::exchanges == 0 ? wait_for_all() : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }

cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  *memory = std::malloc(bytes);
  if (*memory == nullptr) return noted(cudaErrorMemoryAllocation);
  const std::lock_guard lock(state().mutex);
  state().pinned[static_cast<char*>(*memory)] = static_cast<char*>(*memory) + bytes;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  if (value > shared_bytes) return noted(cudaErrorInvalidValue);
  const std::lock_guard lock(state().mutex);
  state().shared_allowed[kernel] = value;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto copy = [=] { std::memmove(to, from, bytes); };
  if (kind == cudaMemcpyDeviceToHost && !is_pinned(to)) {
    if (const cudaError_t status = wait_for_all(); status != cudaSuccess) return status;
    copy();
  } else if (kind == cudaMemcpyHostToDevice && !is_pinned(from) && !s.recording) {
    std::vector<char> taken(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
    submit([to, taken = std::move(taken)] { std::memcpy(to, taken.data(), taken.size()); });
  } else {
    submit(copy);  // pinned memory, and sources of a recorded copy, are read when it runs
  }
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t) {
  submit([=] { std::memset(to, byte, bytes); });
  return cudaSuccess;
}

struct CUgraph_st {
  Recording work;
};
struct CUgraphExec_st {
  std::shared_ptr<const Recording> work;
};

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.recording) return noted(cudaErrorIllegalState);
  s.recording = std::make_unique<Recording>();
  s.invalidated = false;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  *graph = nullptr;
  if (!s.recording) return noted(cudaErrorIllegalState);
  const std::unique_ptr<Recording> recorded = std::exchange(s.recording, nullptr);
  if (s.invalidated) return noted(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st{std::move(*recorded)};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* runnable, cudaGraph_t graph, unsigned long long) {
  if (graph == nullptr) return noted(cudaErrorInvalidValue);
  *runnable = new CUgraphExec_st{std::make_shared<Recording>(graph->work)};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t runnable, cudaStream_t) {
  const std::lock_guard lock(state().mutex);
  if (state().recording) {
    state().invalidated = true;
    return noted(cudaErrorStreamCaptureUnsupported);
  }
  submit([work = runnable->work] {
    for (const Work& w : *work) w();
  });
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t runnable) {
  delete runnable;
  return cudaSuccess;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr,
                             unsigned long long) {
  void* const range = mmap(nullptr, bytes + granularity, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = (reinterpret_cast<CUdeviceptr>(range) + granularity - 1) / granularity * granularity;
  return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp*,
                     unsigned long long) {
  if (state().backed + bytes > memory_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  state().backed += bytes;
  *handle = bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle) { return CUDA_SUCCESS; }
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long) {
  return address % granularity == 0 && bytes == handle && offset == 0 ? CUDA_SUCCESS
                                                                      : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc*, size_t) {
  auto* const memory = reinterpret_cast<void*>(address);
  if (mprotect(memory, bytes, PROT_READ | PROT_WRITE) != 0) return CUDA_ERROR_INVALID_VALUE;
  std::memset(memory, 0xff, bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  *bytes = granularity;
  return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const std::map<std::string_view, void*> known = {
      {"cuMemAddressReserve", reinterpret_cast<void*>(cuMemAddressReserve)},
      {"cuMemCreate", reinterpret_cast<void*>(cuMemCreate)},
      {"cuMemRelease", reinterpret_cast<void*>(cuMemRelease)},
      {"cuMemMap", reinterpret_cast<void*>(cuMemMap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(cuMemSetAccess)},
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(cuMemGetAllocationGranularity)}};
  const auto at = known.find(name);
  *function = at == known.end() ? nullptr : at->second;
  *found = at == known.end() ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
