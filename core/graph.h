#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "core/device_scalar.h"
#include "core/generator.h"
#include "core/kernel.h"

namespace longspan {

/// The work that a function submits to a device, recorded once and submitted again as a whole by
/// each replay(), which costs the host one call in place of one for every kernel.
///
/// What is recorded is which kernels run, on which addresses: a replay reads what then lies in the
/// tensors that f read, and writes the tensors that f wrote and returned. So
/// - who records keeps tensors of outside (parameters, a batch) where they are while the Graph
///   lives. Memory that f asked for stays the Graph's, for its replays, until both it and the
///   tensors that f returned are gone;
/// - numbers that change from replay to replay come from live();
/// - the host may not read from the device in f, nor give it more than small or constant tensors,
///   which are taken to be the same in every replay. f's decisions are those of the recording;
/// - no other thread uses the device while f runs: what it calls throws DeviceError.
/// Graphs may be dropped at any time, in a recording of another too.
class Graph {
 public:
  /// Calls f; its kernels on `device` are recorded and not run, so replay() to have results. Its
  /// first request for memory takes `bytes`, where that is known. Throws NotImplemented on a device
  /// that has no recordings (the CPU), and where f does what cannot be recorded; OutOfMemory. What
  /// tensors f has made before it threw then hold no numbers.
  static std::unique_ptr<Graph> record(Device device, const std::function<void()>& f,
                                       int64_t bytes = 0);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Gives live numbers their present values and submits the work. Throws what checks of the replay
  /// before have found (core/deferred.h), where nobody has looked since.
  void replay();
  /// Bytes of the device that are set apart for it.
  int64_t bytes() const;
  /// What two recordings have in common where they hold the same kernels, with the same sizes and
  /// numbers, and the same constants: a step whose recordings differ is none of fixed shape.
  uint64_t signature() const;

  struct Parts;

 private:
  explicit Graph(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

/// now(); for a kernel of a recorded step, asked again by each replay.
DeviceScalar<double> live(std::function<double()> now);
/// `source`; in a recorded step, read again by each replay: what is forked and drawn from it has
/// the bits that `source` gives then. It stays where it is while the Graph lives.
Generator live(const Generator& source);

namespace graph {  // what ops stand on

/// Whether this thread is recording.
bool recording();
/// Throws NotImplemented where this thread is recording: `op` cannot be recorded, because `reason`.
void refuse(std::string_view op, std::string_view reason);
/// copy_from_host, or, in a recording, a constant of it.
void upload(Device device, void* to, const void* from, int64_t bytes);
/// Keeps `used` while the Graph lives that is being recorded, if one is.
void keep(std::shared_ptr<const void> used);

}  // namespace graph

// Of a backend that has recordings.

/// From here on calls are recorded, and not run.
inline constinit Kernel<void()> begin_recording{"begin_recording"};
/// Up to here; *recorded is what the last two are given.
inline constinit Kernel<void(void** recorded)> end_recording{"end_recording"};
/// In place of end_recording, after a failure: must not throw.
inline constinit Kernel<void()> abandon_recording{"abandon_recording"};
/// Submits all that was recorded, in order.
inline constinit Kernel<void(void* recorded)> replay_recording{"replay_recording"};
/// Gives it back, once it does not run any more, without waiting for that; while others are
/// recorded, too. Must not throw.
inline constinit Kernel<void(void* recorded)> drop_recording{"drop_recording"};

}  // namespace longspan
