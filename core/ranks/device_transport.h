#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/kernel.h"

namespace longspan {

class Communicator;

/// A part of an exchange between ranks.
struct SentPart {
  int to;
  const void* data;
  int64_t bytes;
};
struct ReceivedPart {
  int from;
  void* data;
  int64_t bytes;
};

/// Moves bytes between the memories of devices of several processes without the host: NCCL
/// (cuda/nccl/). All processes start the same exchanges in the same order.
class DeviceTransport {
 public:
  virtual ~DeviceTransport() = default;
  /// Starts an exchange, which begins once the device has done what it was given so far, and
  /// returns a request. Parts between two ranks are matched in order.
  virtual void* start(std::span<const SentPart> out, std::span<const ReceivedPart> in) = 0;
  /// Never blocks, and returns whether the request has ended; it is gone then. Throws Error if it
  /// failed.
  virtual bool ended(void* request) = 0;
};

namespace kernels {

/// Opens the transport between this device and the devices of the other ranks. All ranks call it
/// together. Leaves *transport empty and sets *problem, in all ranks, if one of them cannot.
inline constinit Kernel<void(Communicator* ranks, std::unique_ptr<DeviceTransport>* transport,
                             std::string* problem)>
    open_device_transport{"open_device_transport", true};

}  // namespace kernels

}  // namespace longspan
