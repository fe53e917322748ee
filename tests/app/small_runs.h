#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "app/run_config.h"
#include "tests/harness/scratch.h"

namespace longspan::test {

/// Files of a few hundred bytes for tasks that read some: a text, and documents with summaries.
class SmallData {
 public:
  SmallData();
  std::string text() const { return folder_ / "text"; }
  const std::string& documents() const { return folder_.path(); }

 private:
  Folder folder_;
};

/// Returns a setting as a command line gives it.
Setting typed(const std::string& key, const std::string& value);

/// Returns the settings of a run of six steps of a model's preset `tiny`, on the kind of data that
/// its objective asks for, with dropout where the model has any.
Settings small_run(const SmallData& data, std::string_view model);

/// Expects a run's figures of the validation split to be the same however many samples are read at
/// a time: bits to 1e-12 of them, all others exactly. Returns these.
Members expect_figures_of_any_batch(const Settings& settings);

/// Trains into a folder, from one of its checkpoints if it is given.
void train_small(const Settings& settings, const std::string& out,
                 const std::string& checkpoint = {});

}  // namespace longspan::test
