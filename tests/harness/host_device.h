#pragma once

namespace longspan::test {

/// Puts a second device in the place of CUDA's, for machines that have none: its kernels are the
/// CPU's, its memory is a range of its own that can be touched only while one of them runs. What
/// takes a tensor's bytes behind the kernels' backs dies of a segmentation fault, and what forgets
/// the device of a tensor is told so, as on a real device. It records and replays kernel calls
/// (core/graph.h): what is recorded is not run before a replay.
void enable_host_device();

}  // namespace longspan::test
