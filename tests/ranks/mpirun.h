#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "app/run_config.h"
#include "tests/system/program.h"
#include "train/state.h"

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

/// Expects the checkpoints of two runs after this step to have the same bytes of parameters and of
/// the optimizer's state.
inline void expect_same_files(const std::string& a, const std::string& b, int64_t step) {
  for (const char* file : {"/model.safetensors", "/optimizer.safetensors"}) {
    const std::string expected = read_bytes(checkpoint_path(a, step) + file);
    EXPECT_FALSE(expected.empty());
    EXPECT_TRUE(expected == read_bytes(checkpoint_path(b, step) + file)) << file;
  }
}

}  // namespace longspan::test
