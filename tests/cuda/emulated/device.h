#pragma once

#include <cstdint>
#include <functional>

/// A CUDA device that the host plays. The backend's own sources, compiled as C++ against the
/// headers of this folder, run on it: their launches, kernels, memory, stream and recordings. What
/// it holds programs to:
///
/// - Threads of a block are contexts of their own, each running until it must wait for others, in
///   turns from the first and from the last: what is read before the barrier that it needs is
///   found wrong in one of the two. Blocks run in any order, on all processors.
/// - A collective of a warp needs all 32 lanes at the same; threads that wait for what cannot come
///   are named. What moves 16 bytes must find them at multiples of 16.
/// - Launches keep the limits of a device of capability 8.6: threads, grid, shared memory,
///   parameters.
/// - Work of the stream runs when the host waits, or once there is much of it, so that what a copy
/// reads must live.
/// - Shared memory that a block asks for, new memory and the workspaces of libraries begin as NaN.
///
/// Not covered: speed, threads of a block that run at once, the order in which processors see each
/// other's writes, and kernels that are given the host's memory.
namespace longspan::emulated {

/// Appends work to the stream, or to its recording.
void submit(std::function<void()> work);

/// Launches since the start of the process.
int64_t launches();

/// Puts the device behind DeviceKind::cuda.
void enable();

/// The same without the backend's pool: every block, in 64 bytes, ends before a page that cannot
/// be touched, and is gone once what used it has run, so that a kernel that reads or writes beyond
/// it dies of a segmentation fault.
void enable_guarded();

}  // namespace longspan::emulated
