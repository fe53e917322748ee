#include "app/run_folder.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "tests/harness/scratch.h"
#include "train/state.h"

namespace longspan::test {
namespace {

// What reads a checkpoint while the run goes on takes the next one, unless the user has named it.
TEST(RunFolder, ACheckpointThatIsRemovedMeanwhileIsReplacedByTheNext) {
  const Folder folder;
  const Tensor x = Tensor::zeros({3});
  const auto save = [&](int64_t step) { return write_state(folder.path(), step, {{"x", x}}, {}); };
  const std::string first = save(1);
  std::vector<std::string> tried;
  const auto read = [&](const std::string& path) {
    tried.push_back(path);
    if (tried.size() < 3) {  // the run goes on, with --keep 1
      save(1 + static_cast<int64_t>(tried.size()));
      prune_checkpoints(folder.path(), 1);
    }
    read_parameters(path, {{"x", x}});
  };
  const auto step = [&](int64_t n) { return checkpoint_path(folder.path(), n); };
  EXPECT_EQ(read_checkpoint(folder.path(), first, false, read), step(3));
  EXPECT_EQ(tried, (std::vector<std::string>{step(1), step(2), step(3)}));
  tried.clear();
  const std::string chosen = step(3);
  EXPECT_THROW(read_checkpoint(folder.path(), chosen, true,
                               [&](const std::string& path) {
                                 tried.push_back(path);
                                 save(4);
                                 prune_checkpoints(folder.path(), 1);
                                 read_parameters(path, {{"x", x}});
                               }),
               IoError);
  EXPECT_EQ(tried.size(), 1u);
  // One that is there and damaged is no reason to read another.
  save(5);
  write_bytes(step(5) + "/model.safetensors", "damaged");
  EXPECT_THROW(read_checkpoint(folder.path(), step(5), false,
                               [&](const std::string& path) {
                                 read_parameters(path, {{"x", x}});
                               }),
               IoError);
}

}  // namespace
}  // namespace longspan::test
