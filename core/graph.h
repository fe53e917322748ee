#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "core/device_scalar.h"
#include "core/generator.h"
#include "core/kernel.h"

namespace longspan {

/// Records the work that a function submits to a device, so that each replay() submits it again as
/// a whole. A replay costs the host one call instead of one call for each kernel.
///
/// The recording stores which kernels run and on which addresses. A replay reads the current
/// contents of the tensors that f read, and writes the tensors that f wrote and returned.
/// Therefore:
/// - The caller keeps external tensors (parameters, a batch) at their addresses while the Graph
///   lives. Memory that f allocated belongs to the Graph's replays until both the Graph and the
///   tensors that f returned are gone.
/// - Values that change from replay to replay come from live().
/// - Within f the host may not read from the device, and may upload only small or constant tensors,
///   which have the same contents in every replay. Branches of f are fixed by the recording.
/// - No other thread uses the device while f runs: its calls throw DeviceError.
/// Graphs may be dropped at any time, also while another is being recorded.
class Graph {
 public:
  /// Calls f and records its kernels on `device` without running them; replay() computes the
  /// results. The first memory request of the recording takes `bytes` from the device, if the
  /// caller knows the amount. Throws NotImplemented on a device that cannot record (the CPU) and if
  /// f does something that cannot be recorded; OutOfMemory. If f throws, the tensors that it made
  /// hold no values.
  static std::unique_ptr<Graph> record(Device device, const std::function<void()>& f,
                                       int64_t bytes = 0);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Updates the device scalars and submits the work. Throws pending errors of the previous
  /// replay's checks (core/deferred.h) that have not been raised yet.
  void replay();
  /// Returns the bytes of the device that are reserved for this graph.
  int64_t bytes() const;
  /// Returns a hash that is equal for two recordings with the same kernels, the same sizes and
  /// scalars, and the same constants. A step whose recordings differ has no fixed shape.
  uint64_t signature() const;

  struct Parts;

 private:
  explicit Graph(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

/// Returns now(). For a kernel of a recorded step, each replay calls now() again.
DeviceScalar<double> live(std::function<double()> now);
/// Returns `source`. In a recorded step, each replay reads `source` again: forks and draws have the
/// bits that `source` gives at that time. `source` must keep its address while the Graph lives.
Generator live(const Generator& source);

namespace graph {  // used by ops

/// Whether this thread is recording.
bool recording();
/// Throws NotImplemented if this thread is recording: `op` cannot be recorded, because of `reason`.
void refuse(std::string_view op, std::string_view reason);
/// Calls copy_from_host, or, in a recording, adds a copy of the data as a constant.
void upload(Device device, void* to, const void* from, int64_t bytes);
/// While it lives, this thread's work on the meta device stands for that of a step which a device
/// records: ops allocate what they need where the host does not read ids. Counts what the recording
/// would hold beside its region.
class Rehearsal {
 public:
  Rehearsal();
  ~Rehearsal();
  Rehearsal(const Rehearsal&) = delete;
  Rehearsal& operator=(const Rehearsal&) = delete;
  /// Returns the bytes of constants, numbers and outcomes of checks since restart().
  int64_t bytes() const { return bytes_; }
  void restart();

 private:
  friend void upload(Device device, void* to, const void* from, int64_t bytes);
  int64_t bytes_ = 0;
};
/// Whether a Rehearsal of this thread lives.
bool rehearsing();
/// Keeps `used` alive as long as the Graph that is being recorded; does nothing outside a
/// recording.
void keep(std::shared_ptr<const void> used);

}  // namespace graph

// Kernels of a backend that can record.

/// From this call on, kernel calls are recorded and not run.
inline constinit Kernel<void()> begin_recording{"begin_recording"};
/// Ends the recording; *recorded is the argument of the last two kernels.
inline constinit Kernel<void(void** recorded)> end_recording{"end_recording"};
/// Replaces end_recording after a failure. Must not throw.
inline constinit Kernel<void()> abandon_recording{"abandon_recording"};
/// Submits the whole recording, in order.
inline constinit Kernel<void(void* recorded)> replay_recording{"replay_recording"};
/// Frees the recording after its last run has finished, without waiting for it; also allowed while
/// another is being recorded. Must not throw.
inline constinit Kernel<void(void* recorded)> drop_recording{"drop_recording"};

}  // namespace longspan
