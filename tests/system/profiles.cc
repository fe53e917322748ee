// longspan profile and train --profile: tables whose parts add up, files, and what is refused.
#include <gtest/gtest.h>

#include <cmath>

#include "data/io/json.h"
#include "tests/system/program.h"

namespace longspan::test {
namespace {

/// Expects the parts of a profile to be its time, within 3 %.
void expect_whole(const Json& p) {
  double kernels = 0, phases = 0;
  for (const Json& row : p["ops"].array()) kernels += row["seconds"].number();
  for (const Json& row : p["phases"].array()) phases += row["seconds"].number();
  const double all = p["seconds"].number();
  EXPECT_NEAR(kernels + p["between_kernels"].number() + p["outside"].number(), all, 0.03 * all);
  EXPECT_NEAR(phases + p["outside"].number(), all, 0.03 * all);
}

TEST(Profiles, OfModelsTasksAndPolicies) {
  const std::vector<std::vector<std::string>> cases = {
      {"--model", "transformer:tiny"},
      {"--model", "transformer:tiny", "--memory", "reversible", "--set", "accumulate=2"},
      {"--model", "reformer:tiny"},
      {"--model", "transformer_xl:tiny"},
      {"--model", "blockbert:tiny", "--task", "classes"},
      {"--model", "led:tiny"}};
  for (const std::vector<std::string>& words : cases) {
    SCOPED_TRACE(words[1]);
    const Folder folder;
    std::vector<std::string> all = {"profile", "--json", "--profile", "2", "--out", folder / "p"};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome o = run(all);
    ASSERT_EQ(o.code, 0) << o.err;
    const Json p = parse_json(o.last_line());
    expect_whole(p);
    EXPECT_GT(p["peak_macs_per_second"].number(), 1e8);
    EXPECT_EQ(names_in(folder / "p"),
              (std::vector<std::string>{"layers.csv", "ops.csv", "profile.txt", "trace.json"}));
    const Outcome again = run(all);
    EXPECT_NE(again.code, 0);
    EXPECT_NE(again.err.find("is there already; choose another folder"), std::string::npos)
        << again.err;
  }
}

TEST(Profiles, OfARunThatTrains) {
  const Folder folder;
  write(folder / "text", some_text(20'000));
  const std::vector<std::string> train = {
      "train", "--model",     "transformer:tiny", "--data", "bytes=" + folder / "text",
      "--out", folder / "run"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = train;
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  };
  const Outcome o = with({"--steps", "6", "--profile", "3"});
  ASSERT_EQ(o.code, 0) << o.err;
  const std::string text = o.out + o.err;
  EXPECT_NE(text.find("profile of 3 steps: " + (folder / "run") + "/profile-5"), std::string::npos)
      << text;
  for (const char* phase : {"\ndata ", "\nforward ", "\nbackward ", "\nupdate "}) {
    EXPECT_NE(text.find(phase), std::string::npos) << phase << text;
  }
  EXPECT_TRUE(exists(folder / "run/profile-5/trace.json"));
  // The run ends before the last of the steps, and before the first.
  const Outcome fewer = with({"--resume", "--steps", "10", "--profile", "100"});
  ASSERT_EQ(fewer.code, 0) << fewer.err;
  EXPECT_NE((fewer.out + fewer.err).find("profile of 2 steps: "), std::string::npos);
  const Outcome none = with({"--resume", "--steps", "11", "--profile", "2"});
  EXPECT_NE((none.out + none.err).find("no step was profiled: the first 2 of a process"),
            std::string::npos);
  const Outcome odd = with({"--resume", "--steps", "20", "--profile", "many"});
  EXPECT_NE(odd.code, 0);
  EXPECT_NE(odd.err.find("--profile: got many; expected a number of steps from 1 to 1000"),
            std::string::npos)
      << odd.err;
  const Outcome recorded =
      with({"--resume", "--steps", "20", "--profile", "2", "--set", "graph=true"});
  EXPECT_NE(recorded.err.find("--profile: recorded steps (graph) run as a whole"),
            std::string::npos)
      << recorded.err;
}

}  // namespace
}  // namespace longspan::test
