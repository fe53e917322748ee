#pragma once

#include <string>
#include <vector>

#include "app/run_config.h"
#include "data/io/bytes.h"
#include "data/io/json.h"

namespace longspan {

/// The inputs other than the configuration that determine the bits of a run; members of state.json.
struct Provenance {
  Fingerprint data;    ///< of all files of the task; empty for generated samples
  std::string tokens;  ///< identity of the token ids
  std::string processor, build;

  Members values() const;
};

/// Returns the provenance of a run with this configuration in this process. Throws IoError.
Provenance provenance_of(const RunConfig& config);

/// Compares with the provenance in a checkpoint; checkpoints of earlier versions have none. Throws
/// ValueError if the data differ, unless that is `allowed`. Returns remarks about other
/// differences.
std::vector<std::string> compare_provenance(const Json& values, const Provenance& now,
                                            const std::string& checkpoint, bool allowed);

}  // namespace longspan
