#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/ranks/communicator.h"
#include "nn/after_step.h"
#include "nn/module_list.h"
#include "train/log.h"

namespace longspan {

/// What the other processes of a run learn of a batch that one of them has computed.
struct BatchReport {
  double loss = 0;              ///< in nats
  NamedNumbers auxiliary = {};  ///< values of the auxiliary losses
  int64_t tokens = 0, counted = 0;
  int64_t peak = 0;  ///< bytes that the process has needed so far
  std::vector<Statistics> statistics = {};
};

/// Returns the reports of all ranks, in their order. Statistics name their modules by their places
/// in `modules`, and lie on `device` then.
std::vector<BatchReport> exchanged(Communicator& ranks, BatchReport own, const ModuleList& modules,
                                   Device device);

/// Returns the report of a batch that several processes have computed together, from the reports of
/// its parts: losses and statistics add up, but every part has counted all tokens.
BatchReport sum_of_shares(std::span<BatchReport> shares);

/// Returns tensors of each rank on rank 0, in order of ranks, and nothing on others.
std::vector<TensorList> to_first(Communicator& ranks, const TensorList& mine,
                                 const std::string& what);

}  // namespace longspan
