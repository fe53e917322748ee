#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/ranks/communicator.h"
#include "cuda/nccl/library.h"
#include "cuda/register.h"
#include "cuda/runtime.h"

namespace longspan::cuda {
namespace {

/// Messages of a group call that a rank sends, and that it receives: NCCL takes 2,048 of both.
constexpr size_t kMessages = 1000;

void check(const Nccl& nccl, ncclResult_t status, const char* call) {
  require(status == ncclSuccess, "ranks", "{}: {}; NCCL_DEBUG=WARN has it say more", call,
          nccl.error_text(status));
}

/// Parts with one peer, in order.
template <class Part>
std::vector<Part> parts_with(std::span<const Part> all, int peer) {
  std::vector<Part> found;
  for (const Part& part : all) {
    int with = 0;
    if constexpr (requires { part.to; }) {
      with = part.to;
    } else {
      with = part.from;
    }
    if (with == peer && part.bytes > 0) found.push_back(part);
  }
  return found;
}

/// Sends and receives of one communicator of NCCL, on a stream of their own.
class NcclTransport : public DeviceTransport {
 public:
  /// All ranks call it together, with the identity that the first has made.
  NcclTransport(const Nccl& nccl, const ncclUniqueId& id, int rank, int size)
      : nccl_(nccl), rank_(rank), size_(size) {
    cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    check(nccl_, nccl_.init_rank(&ranks_, size, id, rank), "ncclCommInitRank");
  }
  // The communicator stays: to destroy it is an exchange too, and a process that ends by an error
  // has no one to exchange with.

  void* start(std::span<const SentPart> out, std::span<const ReceivedPart> in) override {
    auto own = std::make_unique<cudaEvent_t>(event());
    // What is sent, and who used the memory of what is received, comes first.
    cuda::check(cudaEventRecord(*own, cuda::stream()), "cudaEventRecord");
    cuda::check(cudaStreamWaitEvent(stream_, *own, 0), "cudaStreamWaitEvent");
    // In turn `distance`, each rank sends to the rank `distance` after it, so the group calls of
    // all ranks match in each turn.
    for (int distance = 1; distance < size_; ++distance) {
      const int to = (rank_ + distance) % size_, from = (rank_ + size_ - distance) % size_;
      exchange(parts_with(out, to), parts_with(in, from));
    }
    cuda::check(cudaEventRecord(*own, stream_), "cudaEventRecord");
    return own.release();
  }

  bool ended(void* request) override {
    auto* const event = static_cast<cudaEvent_t*>(request);
    const cudaError_t status = cudaEventQuery(*event);
    if (status == cudaErrorNotReady) {
      ncclResult_t found = ncclSuccess;
      check(nccl_, nccl_.async_error(ranks_, &found), "ncclCommGetAsyncError");
      check(nccl_, found, "an exchange");
      return false;
    }
    cuda::check(status, "cudaEventQuery");
    free_.push_back(*event);
    delete event;
    return true;
  }

 private:
  cudaEvent_t event() {
    cudaEvent_t event = nullptr;
    if (free_.empty()) {
      cuda::check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    } else {
      event = free_.back();
      free_.pop_back();
    }
    return event;
  }

  void exchange(const std::vector<SentPart>& out, const std::vector<ReceivedPart>& in) {
    for (size_t first = 0; first < std::max(out.size(), in.size()); first += kMessages) {
      check(nccl_, nccl_.group_start(), "ncclGroupStart");
      for (size_t i = first; i < std::min(first + kMessages, in.size()); ++i) {
        check(nccl_,
              nccl_.receive(in[i].data, static_cast<size_t>(in[i].bytes), ncclInt8, in[i].from,
                            ranks_, stream_),
              "ncclRecv");
      }
      for (size_t i = first; i < std::min(first + kMessages, out.size()); ++i) {
        check(nccl_,
              nccl_.send(out[i].data, static_cast<size_t>(out[i].bytes), ncclInt8, out[i].to,
                         ranks_, stream_),
              "ncclSend");
      }
      check(nccl_, nccl_.group_end(), "ncclGroupEnd");
    }
  }

  const Nccl& nccl_;
  int rank_, size_;
  cudaStream_t stream_ = nullptr;
  ncclComm_t ranks_ = nullptr;
  std::vector<cudaEvent_t> free_;
};

/// Returns where the device of this process is plugged in.
std::string device_name() {
  char name[64] = {};
  cuda::stream();  // opens the device
  cuda::check(cudaDeviceGetPCIBusId(name, sizeof name, 0), "cudaDeviceGetPCIBusId");
  return name;
}

void open_transport(Communicator* of, std::unique_ptr<DeviceTransport>* transport,
                    std::string* problem) {
  Communicator& ranks = *of;
  std::string own;
  const Nccl* const nccl = Nccl::loaded(own);
  for (const std::string& of_rank : ranks.gather(own, "the start of NCCL")) {
    *problem = of_rank;
    if (!of_rank.empty()) return;
  }
  std::vector<std::string> all = ranks.gather(ranks.host() + device_name(), "the names of devices");
  std::sort(all.begin(), all.end());
  if (std::adjacent_find(all.begin(), all.end()) != all.end()) {
    *problem = "processes share a device, which NCCL does not take";
    return;
  }
  ncclUniqueId id{};
  ncclResult_t made = ncclSuccess;
  if (ranks.rank() == 0) made = nccl->unique_id(&id);
  // An empty answer of the first: there is none.
  const std::string_view mine(reinterpret_cast<const char*>(&id),
                              made == ncclSuccess ? sizeof id : 0);
  const std::string first = ranks.from_first(mine, "the identity for NCCL");
  if (first.size() != sizeof id) {
    *problem = "ncclGetUniqueId fails in the first process; NCCL_DEBUG=WARN has it say why";
    return;
  }
  std::memcpy(&id, first.data(), sizeof id);
  *transport = std::make_unique<NcclTransport>(*nccl, id, ranks.rank(), ranks.size());
}

}  // namespace

void register_nccl() { kernels::open_device_transport.set(DeviceKind::cuda, open_transport); }

}  // namespace longspan::cuda
