#pragma once

#include <cstddef>

#include "cuda_runtime.h"

/// The subset of NCCL that the CUDA backend uses, between processes that each have an emulated
/// device (device.h). Names and meanings are the library's.

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5
};
enum ncclDataType_t { ncclInt8 = 0 };
struct ncclUniqueId {
  char internal[128];
};
struct ncclComm;
using ncclComm_t = ncclComm*;

extern "C" {
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRank(ncclComm_t* ranks, int size, ncclUniqueId id, int rank);
ncclResult_t ncclCommGetAsyncError(ncclComm_t ranks, ncclResult_t* found);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int to, ncclComm_t ranks,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int from, ncclComm_t ranks,
                      cudaStream_t stream);
const char* ncclGetErrorString(ncclResult_t status);
}
