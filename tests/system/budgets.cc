// A budget is what the system says: what `longspan memory` finds for it runs in a control group of
// that much memory, and a token more is refused.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "data/io/json.h"
#include "tests/system/program.h"
#include "train/state.h"

namespace longspan::test {
namespace {

namespace fs = std::filesystem;
/// A control group with a limit of memory, of version 1 or 2, for as long as it lives.
class MemoryGroup {
 public:
  explicit MemoryGroup(int64_t bytes) {
    const std::string name = fmt::format("longspan-test-{}", getpid());
    const bool second = fs::exists("/sys/fs/cgroup/cgroup.controllers");
    folder_ = (second ? "/sys/fs/cgroup/" : "/sys/fs/cgroup/memory/") + name;
    std::error_code error;
    if (!fs::exists(second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory/memory.limit_in_bytes") ||
        !fs::create_directory(folder_, error)) {
      folder_.clear();
      return;
    }
    const bool limited = second ? put("memory.max", bytes) : put("memory.limit_in_bytes", bytes);
    if (second) {
      put("memory.swap.max", 0);
    } else {
      put("memory.memsw.limit_in_bytes", bytes);
    }
    if (!limited) leave();
  }
  ~MemoryGroup() { leave(); }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  bool is_there() const { return !folder_.empty(); }
  /// What starts a program in it.
  Words launcher() const {
    return {"/bin/sh", "-c", "echo $$ >\"$0\" && exec \"$@\"", folder_ + "/cgroup.procs"};
  }

 private:
  bool put(const char* file, int64_t value) const {
    std::ofstream out(folder_ + "/" + file);
    out << value << std::flush;
    return static_cast<bool>(out);
  }
  void leave() {
    if (!folder_.empty()) rmdir(folder_.c_str());
    folder_.clear();
  }
  std::string folder_;
};

struct BudgetCase {
  const char* model;
  const char* policy;
  int64_t mebibytes;
  Words options;
};
std::ostream& operator<<(std::ostream& out, const BudgetCase& c) {
  return out << c.model << " " << c.policy << " in " << c.mebibytes;
}

class Edges : public testing::TestWithParam<BudgetCase> {};

TEST_P(Edges, RunAndATokenMoreIsRefused) {
  const BudgetCase& c = GetParam();
  const std::string budget = std::to_string(c.mebibytes << 20);
  Words shape{"--model", c.model,    "--batch", "1",        "--threads",
              "1",       "--memory", c.policy,  "--budget", budget};
  shape.insert(shape.end(), c.options.begin(), c.options.end());
  const auto with = [&](Words words, const Words& more) {
    words.insert(words.end(), shape.begin(), shape.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const Outcome told = run(with({"memory", "--json", "--length", "1"}, {}));
  ASSERT_EQ(told.code, 0) << told.err;
  int64_t longest = 0;
  std::istringstream rows(told.out);
  for (std::string line; std::getline(rows, line);) {
    const Json row = parse_json(line);
    if (row["memory"] == Json(c.policy)) longest = row["longest"].integer();
  }
  ASSERT_GT(longest, 64);
  const Folder folder;
  write(folder / "text", some_text(200'000));
  const auto start = [&](int64_t length, const char* out, const Words& launcher) {
    return run(
        Start{.arguments = with({"train", "--data", "bytes=" + folder / "text", "--split",
                                 "90/10/0", "--steps", "2", "--eval-every", "1", "--eval-tokens",
                                 "4000", "--out", folder / out, "--length", std::to_string(length)},
                                {}),
              .launcher = launcher});
  };
  const MemoryGroup group(c.mebibytes << 20);
  const Outcome o = start(longest, "run", group.is_there() ? group.launcher() : Words{});
  EXPECT_EQ(o.code, 0) << o.signal << o.err;
  EXPECT_TRUE(exists(folder / "run/pictures/attention.png"));
  const Outcome more = start(longest + 1, "refused", {});
  EXPECT_EQ(more.code, 1);
  EXPECT_EQ(more.err.find("--budget: a step needs"), 0u) << more.err;
  EXPECT_FALSE(exists(folder / "refused"));
  if (!group.is_there()) GTEST_SKIP() << "no control group of memory can be made here";
}

const Words kNarrow{"--set", "model.d_model=64", "--layers", "2"};

INSTANTIATE_TEST_SUITE_P(Budgets, Edges,
                         testing::Values(BudgetCase{"transformer", "standard", 64, kNarrow},
                                         BudgetCase{"transformer", "checkpoint", 112, kNarrow},
                                         BudgetCase{"local_transformer", "standard", 64, kNarrow},
                                         BudgetCase{"local_transformer", "reversible", 96, kNarrow},
                                         BudgetCase{"transformer_xl", "standard", 72, kNarrow},
                                         BudgetCase{"transformer_xl", "checkpoint", 96, kNarrow},
                                         BudgetCase{"longformer_lm", "standard", 72, kNarrow},
                                         BudgetCase{"longformer_lm", "lean", 96, kNarrow},
                                         BudgetCase{"performer", "standard", 64, kNarrow},
                                         BudgetCase{"performer", "selective", 112, kNarrow}),
                         [](const auto& of) {
                           return fmt::format("{}_{}_{}", of.param.model, of.param.policy,
                                              of.param.mebibytes);
                         });

}  // namespace
}  // namespace longspan::test
