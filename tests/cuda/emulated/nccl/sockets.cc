// NCCL's sends and receives for processes on one host with an emulated device each: over sockets,
// in a thread for each communicator, after all work that the device had been given.
#include "tests/cuda/emulated/nccl.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cuda/emulated/device.h"

struct ncclComm {
  int rank = 0;
  std::vector<int> sockets;  // of each rank; -1: this one
  std::atomic<ncclResult_t> failed = ncclSuccess;
  std::mutex mutex;
  std::condition_variable more;
  std::deque<std::function<void()>> groups;  // what its thread runs, in order
};

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(60);

/// A send or a receive, or what is left of it.
struct Part {
  ncclComm* ranks;
  int peer;
  char* data;
  size_t left;
};
struct Group {
  int depth = 0;
  ncclComm* ranks = nullptr;
  std::vector<Part> sends, receives;
};
thread_local Group group;

/// Moves what the socket takes or has; returns whether the peer is there.
bool move(Part& part, bool out) {
  const int socket = part.ranks->sockets[static_cast<size_t>(part.peer)];
  const ssize_t moved = out ? send(socket, part.data, part.left, MSG_DONTWAIT | MSG_NOSIGNAL)
                            : recv(socket, part.data, part.left, MSG_DONTWAIT);
  if (moved > 0) {
    part.data += moved;
    part.left -= static_cast<size_t>(moved);
  }
  return moved > 0 || (moved < 0 && (errno == EAGAIN || errno == EINTR));
}

/// Runs the parts of a group, those with one peer in order and those with different peers at once.
void run(std::vector<Part> sends, std::vector<Part> receives) {
  const auto begin = Clock::now();
  while (!sends.empty() || !receives.empty()) {
    for (const bool out : {true, false}) {
      std::vector<Part>& parts = out ? sends : receives;
      std::vector<int> busy;  // peers that are not done with an earlier part
      for (Part& part : parts) {
        if (std::find(busy.begin(), busy.end(), part.peer) != busy.end()) continue;
        if (!move(part, out) || Clock::now() - begin > kPatience) {
          part.ranks->failed = ncclSystemError;
          return;
        }
        if (part.left > 0) busy.push_back(part.peer);
      }
      std::erase_if(parts, [](const Part& part) { return part.left == 0; });
    }
  }
}

std::string path_of(const ncclUniqueId& id, int rank) {
  return std::string(id.internal) + "." + std::to_string(rank);
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  return address;
}

}  // namespace

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> made = 0;
  std::snprintf(id->internal, sizeof id->internal, "/tmp/longspan-nccl-%d-%d", getpid(), made++);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* ranks, int size, ncclUniqueId id, int rank) {
  auto* const all = new ncclComm;
  all->rank = rank;
  all->sockets.assign(static_cast<size_t>(size), -1);
  const std::string own = path_of(id, rank);
  const int listening = socket(AF_UNIX, SOCK_STREAM, 0);
  const sockaddr_un here = address_of(own);
  if (listening < 0 ||
      bind(listening, reinterpret_cast<const sockaddr*>(&here), sizeof here) != 0 ||
      listen(listening, size) != 0) {
    return ncclSystemError;
  }
  // Each connects to those before it, and says who it is to them.
  for (int peer = 0; peer < rank; ++peer) {
    const int to = socket(AF_UNIX, SOCK_STREAM, 0);
    const sockaddr_un there = address_of(path_of(id, peer));
    const auto begin = Clock::now();
    while (connect(to, reinterpret_cast<const sockaddr*>(&there), sizeof there) != 0) {
      if (Clock::now() - begin > kPatience) return ncclSystemError;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (send(to, &rank, sizeof rank, MSG_NOSIGNAL) != sizeof rank) return ncclSystemError;
    all->sockets[static_cast<size_t>(peer)] = to;
  }
  for (int peer = rank + 1; peer < size; ++peer) {
    pollfd waiting{listening, POLLIN, 0};
    if (poll(&waiting, 1, 60'000) != 1) return ncclSystemError;
    const int from = accept(listening, nullptr, nullptr);
    int who = -1;
    if (recv(from, &who, sizeof who, MSG_WAITALL) != sizeof who) return ncclSystemError;
    all->sockets[static_cast<size_t>(who)] = from;
  }
  close(listening);
  unlink(own.c_str());
  std::thread([all] {
    while (true) {
      std::unique_lock lock(all->mutex);
      all->more.wait(lock, [all] { return !all->groups.empty(); });
      const std::function<void()> next = std::move(all->groups.front());
      all->groups.pop_front();
      lock.unlock();
      next();
    }
  }).detach();
  *ranks = all;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t ranks, ncclResult_t* found) {
  *found = ranks->failed;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) return ncclInvalidUsage;
  if (--group.depth > 0) return ncclSuccess;
  if (group.sends.size() + group.receives.size() > 2048) return ncclInvalidUsage;
  Group all = std::exchange(group, {});
  if (all.ranks == nullptr) return ncclSuccess;
  if (cudaStreamSynchronize(nullptr) != cudaSuccess) return ncclUnhandledCudaError;
  ++longspan::emulated::exchanges;
  ncclComm* const ranks = all.ranks;
  const std::lock_guard lock(ranks->mutex);
  ranks->groups.push_back([all = std::move(all)] {
    run(all.sends, all.receives);
    if (all.ranks->failed == ncclSuccess) --longspan::emulated::exchanges;
  });
  ranks->more.notify_one();
  return ncclSuccess;
}

namespace {

ncclResult_t add(std::vector<Part>& parts, ncclComm_t ranks, int peer, void* data, size_t bytes) {
  if (peer < 0 || peer >= std::ssize(ranks->sockets) || peer == ranks->rank) {
    return ncclInvalidArgument;
  }
  if (group.depth == 0) return ncclInvalidUsage;  // that would wait for the peer
  group.ranks = ranks;
  parts.push_back({ranks, peer, static_cast<char*>(data), bytes});
  return ncclSuccess;
}

}  // namespace

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t, int to, ncclComm_t ranks,
                      cudaStream_t) {
  return add(group.sends, ranks, to, const_cast<void*>(data), count);
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t, int from, ncclComm_t ranks,
                      cudaStream_t) {
  return add(group.receives, ranks, from, data, count);
}

const char* ncclGetErrorString(ncclResult_t status) {
  return status == ncclSuccess       ? "no error"
         : status == ncclSystemError ? "system error"
                                     : "invalid usage";
}
