#pragma once

#include <string>
#include <utility>
#include <vector>

#include "app/run_config.h"
#include "tests/system/program.h"

namespace longspan::test {

/// Returns how to start `longspan` in so many processes, as root too, on any number of processors.
inline Start on_ranks(int ranks, std::vector<std::string> arguments) {
  Start start{std::move(arguments)};
  if (ranks == 1) return start;
  start.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}};
  start.launcher = {"mpirun", "--oversubscribe", "--bind-to", "none", "-np", std::to_string(ranks)};
  return start;
}

/// Returns `train --out FOLDER` with these settings.
inline std::vector<std::string> train_words(const Settings& settings, const std::string& out) {
  std::vector<std::string> words{"train", "--out", out};
  for (const Setting& s : settings) {
    words.insert(words.end(), {"--set", s.key + "=" + s.value.string()});
  }
  return words;
}

}  // namespace longspan::test
