// longspan profile and train --profile: tables whose parts add up, files, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

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

/// The sum of a member over JSON lines.
int64_t sum_of(const std::string& text, const char* member) {
  int64_t sum = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) sum += parse_json(line)[member].integer();
  return sum;
}

TEST(Summary, AddsUpToTheModel) {
  for (const char* model :
       {"transformer:tiny", "reformer:tiny", "bigbird:tiny", "led:tiny", "hibert:tiny"}) {
    SCOPED_TRACE(model);
    const Outcome parts = run({"summary", "--model", model, "--json"});
    const Outcome layers = run({"summary", "--model", model, "--json", "--all"});
    const Outcome plan = run({"memory", "--model", model, "--json", "--memory", "standard"});
    ASSERT_EQ(parts.code, 0) << parts.err;
    ASSERT_EQ(plan.code, 0) << plan.err;
    const Json step = parse_json(plan.out.substr(0, plan.out.find('\n')));
    for (const Outcome* o : {&parts, &layers}) {
      const int64_t bytes = 4 * sum_of(o->out, "parameters");  // without the rounding of blocks
      EXPECT_LE(bytes, step["parameter"].integer());
      EXPECT_GT(bytes, step["parameter"].integer() * 9 / 10);
      if (std::string_view(model) == "transformer:tiny") {  // whole blocks
        EXPECT_EQ(bytes, step["parameter"].integer());
      }
      EXPECT_EQ(sum_of(o->out, "saved"), step["saved"].integer());
      EXPECT_GT(sum_of(o->out, "macs"), 1000);
    }
  }
  const Outcome table = run({"summary", "--model", "transformer:tiny"});
  EXPECT_NE(table.out.find("transformer.layers.*.attention"), std::string::npos) << table.out;
}

TEST(Info, SaysWhatAPathHolds) {
  const Folder folder;
  write(folder / "text", some_text(20'000));
  const std::string out = folder / "run";
  ASSERT_EQ(run({"train", "--model", "transformer:tiny", "--data", "bytes=" + folder / "text",
                 "--steps", "2", "--out", out})
                .code,
            0);
  const Outcome whole = run({"info", out + "/"});
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_NE(whole.out.find("a run of transformer:tiny"), std::string::npos) << whole.out;
  EXPECT_NE(whole.out.find("checkpoints: 2"), std::string::npos) << whole.out;
  const std::string checkpoint = out + "/checkpoints/step-2";
  const Outcome one = run({"info", checkpoint, "--tensors"});
  EXPECT_NE(one.out.find("head.weight"), std::string::npos) << one.out;
  EXPECT_NE(one.out.find("step: 2"), std::string::npos) << one.out;
  EXPECT_NE(run({"info", checkpoint + "/model.safetensors"}).out.find(" tensors, "),
            std::string::npos);
  const Outcome hub = run({"info", LONGSPAN_SOURCE_DIR "/tests/oracles/hub_folders/bert_classes"});
  EXPECT_EQ(hub.code, 0) << hub.err;
  EXPECT_NE(hub.out.find("a checkpoint of the package transformers, \"bert\""), std::string::npos)
      << hub.out;
  for (const std::string& path : {folder / "nothing", folder / "text", folder.path()}) {
    const Outcome bad = run({"info", path});
    EXPECT_NE(bad.code, 0) << path;
    EXPECT_FALSE(bad.err.empty());
  }
}

}  // namespace
}  // namespace longspan::test
