#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

/// A CUDA device that is emulated on the host. The backend's own sources, compiled as C++ against
/// the headers of this folder, run on it: their launches, kernels, memory, stream and recordings.
/// It holds programs to these rules:
///
/// - Each thread of a block has its own context and runs until it must wait for others. Launches of
///   a kernel start from the first and from the last thread in turn, so that a read before the
///   barrier that it needs gives a wrong result in one of the two. Blocks run in any order, on all
///   processors.
/// - A collective of a warp needs all 32 lanes at the same collective. The device stops and names a
///   thread if threads wait for something that cannot happen. An access of 16 bytes must be at a
///   multiple of 16.
/// - Launches obey the limits of a device of capability 8.6: threads, grid, shared memory,
///   parameters.
/// - Work of the stream runs when the host waits, or once there is much of it, so that memory that
///   a copy reads must stay alive.
/// - Dynamic shared memory, new memory and the workspaces of libraries start as NaN.
///
/// Not covered: speed, the order of work in different streams, threads of a block that run at the
/// same time, the order in which processors see each other's writes, and kernels that get pointers
/// to the host's memory.
namespace longspan::emulated {

/// Appends work to the stream, or to its recording.
void submit(std::function<void()> work);

/// Exchanges with other processes that are under way, on a stream of their own (nccl/sockets.cc).
inline std::atomic<int> exchanges = 0;

/// Returns the number of launches since the start of the process.
int64_t launches();

/// Registers the device for DeviceKind::cuda.
void enable();

/// Registers the device without the backend's pool. Every block, in units of 64 bytes, ends before
/// an inaccessible page and is unmapped once the work that uses it has run, so that a kernel that
/// reads or writes beyond it dies of a segmentation fault.
void enable_guarded();

}  // namespace longspan::emulated
