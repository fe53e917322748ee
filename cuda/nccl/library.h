#pragma once

#include <nccl.h>

#include <string>

namespace longspan::cuda {

/// The functions of NCCL that several processes need. The library is loaded when they do: one
/// process has no use for its 200 MB.
struct Nccl {
  decltype(&ncclGetUniqueId) unique_id;
  decltype(&ncclCommInitRank) init_rank;
  decltype(&ncclCommGetAsyncError) async_error;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
  decltype(&ncclGetErrorString) error_text;

  /// Returns them; null, and why, if they cannot be loaded. LONGSPAN_NCCL names the library, or is
  /// `off`; without it, libnccl.so.2 is looked up as any library is.
  static const Nccl* loaded(std::string& problem);
};

}  // namespace longspan::cuda
