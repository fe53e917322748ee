#pragma once

#include <string>
#include <vector>

#include "app/run_config.h"
#include "data/io/bytes.h"
#include "data/io/json.h"

namespace longspan {

/// What the bits of a run depend on besides its configuration; members of state.json.
struct Provenance {
  Fingerprint data;    ///< of all files of the task; nothing where samples are made
  std::string tokens;  ///< what their numbers stand for
  std::string processor, build;

  Members values() const;
};

/// That of a run with this configuration, in this process. Throws IoError.
Provenance provenance_of(const RunConfig& config);

/// Compares with what a checkpoint says; one of an earlier version says nothing. Throws ValueError
/// where the data are others, unless that is `allowed`. Returns what is to be said of the rest.
std::vector<std::string> compare_provenance(const Json& values, const Provenance& now,
                                            const std::string& checkpoint, bool allowed);

}  // namespace longspan
