#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/run.h"

namespace longspan {

/// Copies the parameters of the newest checkpoint of the run in config.start.from, or of the hub
/// folder there, into the model, by name (start_from() of models/convert.h). Returns the step of
/// that checkpoint and the names of new heads and buffers. Throws IoError if there is no
/// checkpoint; throws ValueError or ShapeError if the models have different parameters or the runs
/// different tokens.
struct Started {
  int64_t step = 0;
  std::vector<std::string> heads;
};
Started start_from_run(const TrainingRun& run);

}  // namespace longspan
