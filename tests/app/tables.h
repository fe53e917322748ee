#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "app/make_config.h"
#include "app/tasks/task_data.h"

namespace longspan::test {

/// A folder of tables that goes with the test.
class Tables {
 public:
  Tables() : path_(fmt::format("{}tables_{}", testing::TempDir(), getpid())) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Tables() { std::filesystem::remove_all(path_); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << text;
    return path_ + "/" + name;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline Setting setting(const std::string& key, const std::string& value) {
  return {key, Json(value), "--set", true};
}

/// Returns the run of a small encoder on a task with these data.
inline TrainingRun run_of(const std::string& task, const std::string& data, Settings more = {}) {
  Settings settings{setting("model.name", "blockbert:tiny"),
                    setting("task", task),
                    setting("data", task + "=" + data),
                    setting("length", "32"),
                    setting("batch", "4"),
                    setting("model.mlm_head", "false")};
  settings.insert(settings.end(), more.begin(), more.end());
  RunConfig config = make_config(settings);
  fill_sizes(config, settings);
  return TrainingRun(std::move(config), "");
}

}  // namespace longspan::test
