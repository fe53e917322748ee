#pragma once

namespace longspan::test {

/// Installs the host-backed test device as DeviceKind::cuda, for machines without CUDA. Its kernels
/// are the CPU's; its memory is a separate range that is accessible to them alone. Code that reads
/// a tensor's bytes outside a kernel dies of a segmentation fault, and code that ignores the device
/// of a tensor gets an error, as on a real device. It records and replays kernel calls
/// (core/graph.h): recorded calls run only when they are replayed.
void enable_host_device();

}  // namespace longspan::test
