#pragma once

#include <string>
#include <string_view>
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

/// What a run was when a checkpoint of it was written.
struct Before {
  Json values;       ///< state.json
  Json config;       ///< its configuration; null: unknown
  std::string path;  ///< of the checkpoint

  /// Reads the configuration in state.json or, if the checkpoint is of an earlier version, in
  /// `run`/config.toml.
  Before(Json values, const std::string& run, std::string path);
  /// Returns a value of the configuration, "optimizer.lr"; null: unknown.
  const Json* find(std::string_view key) const;
};

/// What a command reads of a run besides its parameters, and what its result therefore means.
enum class Reads : uint8_t {
  tokens,  ///< text that is given
  data     ///< the run's data too, in their splits
};

/// Compares what a command reads now with what the run was trained with: the tokens, and with
/// Reads::data the files, the splits and what is generated. Throws ValueError with the first
/// difference, unless differences are `allowed` (--other-data): then it returns a line for each.
/// What the checkpoint does not tell is not compared.
///   op     for messages: "--resume"
///   known  what provenance_of(now) has returned, if it was called
std::vector<std::string> compare_inputs(const Before& before, RunConfig& now, Reads reads,
                                        std::string_view op, bool allowed,
                                        const Provenance* known = nullptr);

/// Throws ValueError if a run has the files of the run before and other splits of them.
void require_same_split(const Before& before, const RunConfig& now, std::string_view op);

/// Returns a line for each difference that changes the last bits of a run that goes on.
std::vector<std::string> compare_machines(const Before& before, const Provenance& now);

/// Returns a line for each setting that differs from what it was.
std::vector<std::string> compare_settings(const Before& before, RunConfig& now);

/// Returns a line for each setting that differs and is not `asked` for, of those of the model, the
/// length and how the data are read: it was changed after the checkpoint was written.
std::vector<std::string> compare_function(const Before& before, RunConfig& now,
                                          const Settings& asked);

/// Returns the settings that differ among those on which the samples of the same training data and
/// their order depend.
std::vector<std::string> other_order(const Before& before, RunConfig& now);

}  // namespace longspan
