// Several processes with a device each: the law holds there as on the host, whether what they
// exchange goes by way of the host or by NCCL.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/app/small_runs.h"
#include "tests/ranks/mpirun.h"

namespace longspan::test {
namespace {

struct Kind {
  const char* device;         // LONGSPAN_TEST_DEVICE
  const char* nccl;           // LONGSPAN_NCCL
  const char* bus = nullptr;  // LONGSPAN_TEST_BUS: that of all processes
};

/// Trains in so many processes with a device each, and returns what the first says.
std::string train_on(const Kind& kind, int ranks, int64_t batches, Settings settings,
                     const std::string& out) {
  settings.push_back(typed("device", "cuda"));
  settings.push_back(typed("steps", "3"));
  settings.push_back(typed("accumulate", std::to_string(batches)));
  Start start = on_ranks(ranks, train_words(settings, out));
  start.with_device = true;
  start.environment.emplace_back("LONGSPAN_TEST_DEVICE", kind.device);
  start.environment.emplace_back("LONGSPAN_NCCL", kind.nccl);
  if (kind.bus != nullptr) start.environment.emplace_back("LONGSPAN_TEST_BUS", kind.bus);
  const Outcome o = run(start);
  EXPECT_EQ(o.code, 0) << o.err;
  return o.out + o.err;
}

void expect_law_on(const Kind& kind, const std::string& model, const std::string& said) {
  SCOPED_TRACE(model);
  const SmallData data;
  const Folder folder;
  train_on(kind, 1, 2, small_run(data, model), folder / "one");
  const std::string text = train_on(kind, 2, 1, small_run(data, model), folder / "two");
  expect_same_files(folder / "one", folder / "two", 3);
  EXPECT_EQ(text.find("by way of the host") != std::string::npos, !said.empty()) << text;
  EXPECT_NE(text.find(said), std::string::npos) << text;
}

/// A run of six steps in two processes, and one that goes on from its third step: with streams, an
/// average of the weights, and updates of two steps.
void expect_resume_on(const Kind& kind, const std::string& model) {
  SCOPED_TRACE(model);
  const SmallData data;
  const Folder folder;
  Settings settings = small_run(data, model);
  settings.push_back(typed("optimizer.average", "0.9"));
  settings.push_back(typed("optimizer.update_period", "2"));
  settings.push_back(typed("device", "cuda"));
  const auto train = [&](const std::string& out, std::vector<std::string> more, bool resumes) {
    std::vector<std::string> words = {"train", "--out", out, "--resume"};
    if (!resumes) words = train_words(settings, out);
    words.insert(words.end(), more.begin(), more.end());
    Start start = on_ranks(2, words);
    start.with_device = true;
    start.environment.emplace_back("LONGSPAN_TEST_DEVICE", kind.device);
    start.environment.emplace_back("LONGSPAN_NCCL", kind.nccl);
    const Outcome o = run(start);
    ASSERT_EQ(o.code, 0) << o.err;
  };
  train(folder / "whole", {"--steps", "6"}, false);
  train(folder / "parts", {"--steps", "6", "--until", "3"}, false);
  train(folder / "parts", {}, true);
  expect_same_files(folder / "whole", folder / "parts", 6);
}

/// Two sequences a step that two processes compute together, and four in two groups.
void expect_groups_on(const Kind& kind) {
  const SmallData data;
  const Folder folder;
  Settings settings = small_run(data, "transformer");
  settings.push_back(typed("batch", "1"));
  settings.push_back(typed("ranks.sequence", "2"));
  train_on(kind, 2, 2, settings, folder / "two");
  train_on(kind, 4, 1, settings, folder / "four");
  expect_same_files(folder / "two", folder / "four", 3);
}

constexpr Kind by_host{"host", "off"};

TEST(Devices, ExchangeByWayOfTheHost) {
  const char* const said = "the devices exchange by way of the host: this build has no NCCL";
  expect_law_on(by_host, "transformer", said);
  expect_law_on(by_host, "transformer_xl", said);
  expect_law_on(by_host, "routing", said);
  expect_groups_on(by_host);
  expect_resume_on(by_host, "transformer_xl");
  expect_resume_on(by_host, "routing");
}

#ifdef LONGSPAN_EMULATED_NCCL
constexpr Kind by_nccl{"emulated", LONGSPAN_EMULATED_NCCL};

TEST(EmulatedDevices, ExchangeByNccl) {
  expect_law_on(by_nccl, "transformer", "");
  expect_law_on(by_nccl, "routing", "");
  expect_groups_on(by_nccl);
}

TEST(EmulatedDevices, SayWhyTheyGoByWayOfTheHost) {
  expect_law_on({"emulated", "off"}, "transformer", "by way of the host: LONGSPAN_NCCL is off");
  expect_law_on({"emulated", "/nowhere/libnccl.so"}, "transformer",
                "by way of the host: NCCL cannot be loaded (/nowhere/libnccl.so: cannot open");
  expect_law_on({"emulated", LONGSPAN_EMULATED_NCCL, "0000:17:00.0"}, "transformer",
                "by way of the host: processes share a device");
}
#endif

}  // namespace
}  // namespace longspan::test
