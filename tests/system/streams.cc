// Models with a memory between segments, through the program: a killed run goes on with the same
// bits, evaluation says how it reads, and text goes on.
#include <gtest/gtest.h>

#include <string>

#include "tests/system/program.h"

namespace longspan::test {
namespace {

std::vector<std::string> small_stream_run(const std::string& folder, const std::string& out,
                                          int steps, const std::vector<std::string>& more = {}) {
  return joined({"train",
                 "--model",
                 "transformer_xl",
                 "--data",
                 "bytes=" + folder + "text",
                 "--length",
                 "16",
                 "--batch",
                 "3",
                 "--layers",
                 "2",
                 "--set",
                 "model.d_model=16",
                 "--set",
                 "model.d_ff=24",
                 "--set",
                 "model.mem_len=24",
                 "--set",
                 "model.dropout=0.1",
                 "--steps",
                 std::to_string(steps),
                 "--out",
                 out},
                more);
}

std::string text_of_streams() {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += static_cast<char>('a' + (i * i / 7 + i / 90) % 13);
  return text;
}

TEST(Streams, GoOnWhereARunStopped) {
  const Folder folder;
  write(folder / "text", text_of_streams());
  ASSERT_EQ(run(small_stream_run(folder / "", folder / "whole", 12)).code, 0);
  ASSERT_EQ(run(small_stream_run(folder / "", folder / "parts", 12, {"--save-every", "5"})).code,
            0);
  const Outcome o =
      run({"train", "--resume", "--step", "5", "--out", folder / "parts", "--steps", "12"});
  ASSERT_EQ(o.code, 0) << o.err;
  for (const char* file : {"model", "optimizer"}) {
    const std::string name = std::string("/checkpoints/step-12/") + file + ".safetensors";
    EXPECT_FALSE(read(folder / "whole" + name).empty());
    EXPECT_EQ(read(folder / "whole" + name), read(folder / "parts" + name)) << file;
  }
  const Outcome eval = run({"eval", "--out", folder / "whole", "--set", "model.mem_len=48"});
  EXPECT_EQ(eval.code, 0) << eval.err;
  EXPECT_NE(eval.err.find("read in segments of 16 tokens after a memory of 48, in 1 stream"),
            std::string::npos)
      << eval.err;
  const Outcome text =
      run({"generate", "--out", folder / "whole", "--prompt", "abc", "--tokens", "70"});
  EXPECT_EQ(text.code, 0) << text.err;
  const Outcome other =
      run({"train", "--resume", "--out", folder / "whole", "--steps", "14", "--batch", "4"});
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_NE(other.err.find("the streams begin anew, with empty memories"), std::string::npos)
      << other.err;
}

TEST(Streams, SayWhichDataHaveNone) {
  const Folder folder;
  write(folder / "text", "short");
  const Outcome o = run(small_stream_run(folder / "", folder / "run", 2));
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find("a smaller --batch or a shorter --length"), std::string::npos) << o.err;
}

}  // namespace
}  // namespace longspan::test
