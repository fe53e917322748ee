#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/all/registry.h"
#include "tests/system/program.h"

namespace longspan::test {
namespace {

bool is_picture(const std::string& path) { return read(path).substr(0, 8) == "\x89PNG\r\n\x1a\n"; }

TEST(Draw, CountsAndDrawsAPattern) {
  const Folder folder;
  const Outcome o = run({"draw", "--model", "sparse_transformer:enwik8", "--length", "12288",
                         "--layer", "29", "--out", folder / "drawn"});
  EXPECT_EQ(o.code, 0) << o.err;
  // Merged fixed attention, l = 128, c = 32: block + c (l a (a - 1) / 2), a = 96; eight heads.
  EXPECT_NE(o.out.find("   29    0 to 7        19470336 "), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("  all                 155762688 "), std::string::npos) << o.out;
  EXPECT_TRUE(is_picture(folder / "drawn/pictures/pattern.png"));
}

TEST(Draw, ShowsTheEncoderOfAnEncoderDecoder) {
  const Folder folder;
  const Outcome o = run({"draw", "--model", "led", "--length", "100", "--out", folder / "drawn"});
  EXPECT_EQ(o.code, 0) << o.err;
  // L (2 w + 1) - w (w + 1) pairs of the window, and the pairs of the first token outside the
  // window.
  EXPECT_NE(o.out.find("    1    0 to 3            " + std::to_string(100 * 65 - 32 * 33 + 2 * 67)),
            std::string::npos)
      << o.out;
  EXPECT_TRUE(is_picture(folder / "drawn/pictures/pattern.png"));
  EXPECT_EQ(run({"draw", "--model", "transformer:base", "--out", folder / "other"}).code, 0);
  const Outcome beyond = run({"draw", "--model", "led", "--length", "513", "--set",
                              "model.n_max=512", "--out", folder / "no"});
  EXPECT_NE(beyond.err.find("led takes at most 512 tokens"), std::string::npos) << beyond.err;
}

/// Returns the width and the height in the header of a PNG file.
std::pair<int64_t, int64_t> size_of(const std::string& path) {
  const std::string header = read(path).substr(0, 24);
  const auto number = [&](size_t at) {
    int64_t n = 0;
    for (size_t i = at; i < at + 4; ++i) n = 256 * n + static_cast<unsigned char>(header.at(i));
    return n;
  };
  return {number(16), number(20)};
}

// The panels of layers with fewer keys than queries are as wide as the layer with most keys.
TEST(Draw, ShowsMapsThatAreNotSquare) {
  const Folder folder;
  write(folder / "text", std::string(3000, 'a'));
  const auto drawn = [&](const std::string& name, const std::string& r) {
    const Outcome o = run({"train", "--model", "linformer", "--data", "bytes=" + (folder / "text"),
                           "--length", "200", "--batch", "1", "--steps", "1", "--layers", "2",
                           "--set", "model.r=" + r, "--out", folder / name});
    EXPECT_EQ(o.code, 0) << o.err;
    return size_of(folder / (name + "/pictures/attention.png"));
  };
  const auto narrow = drawn("narrow", "[60,3]"), wide = drawn("wide", "[3,80]");
  EXPECT_EQ(narrow.second, wide.second);
  EXPECT_GE(wide.first - narrow.first, 4 * (80 - 60));  // of four heads
}

// Without a run the model is built without the memory of its parameters.
TEST(Draw, ShowsEveryModelWhoseAttentionIsKnownWithoutTokens) {
  const Folder folder;
  for (const ModelEntry& entry : models()) {
    const std::string name(entry.name);
    const Outcome o =
        run({"draw", "--model", name, "--layer", "0", "--out", folder / ("of_" + name)});
    if (o.code != 0) {
      EXPECT_NE(o.err.find("depends on the tokens"), std::string::npos) << name << ": " << o.err;
    } else {
      EXPECT_TRUE(is_picture(folder / ("of_" + name + "/pictures/pattern.png"))) << name;
    }
  }
}

TEST(Draw, ShowsARun) {
  const Folder folder;
  write(folder / "text", std::string(4000, 'a'));
  const std::string out = folder / "run";
  ASSERT_EQ(run({"train", "--model", "bigbird", "--layers", "1", "--length", "128", "--batch", "1",
                 "--steps", "1", "--data", "bytes=" + (folder / "text"), "--out", out})
                .code,
            0);
  ASSERT_EQ(remove((out + "/pictures/attention.png").c_str()), 0);
  const Outcome o = run({"draw", "--out", out});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.out.find("bigbird over 128 tokens"), std::string::npos) << o.out;
  EXPECT_TRUE(is_picture(out + "/pictures/pattern.png"));
  EXPECT_TRUE(is_picture(out + "/pictures/attention.png"));
}

/// Returns the ends of the names of a run's pictures whose names begin so, and that are what these
/// ends say.
std::vector<std::string> formats_of(const std::string& run, const std::string& name) {
  std::vector<std::string> formats;
  for (const std::string end : {"pdf", "png", "svg"}) {
    const std::string path = run + "/pictures/" + name + "." + end;
    if (!exists(path)) continue;
    const std::string begin = end == "pdf" ? "%PDF-" : end == "svg" ? "<?xml" : "\x89PNG";
    EXPECT_EQ(read(path).substr(0, begin.size()), begin) << path;
    formats.push_back(end);
  }
  return formats;
}

// Layers whose pairs depend on the tokens have a map, and no pattern.
TEST(Draw, ShowsARunOfEveryKindOfModel) {
  const Folder folder;
  write(folder / "text", some_text(4000));
  for (const std::string name : {"reformer", "reformer:duplication_small", "routing", "performer",
                                 "compressive", "linformer", "etc", "bp_encoder", "expire_span"}) {
    const std::string out = folder / name;
    std::vector<std::string> words = {"train",
                                      "--model",
                                      name,
                                      "--length",
                                      "64",
                                      "--batch",
                                      "2",
                                      "--steps",
                                      "1",
                                      "--data",
                                      "bytes=" + (folder / "text"),
                                      "--out",
                                      out};
    if (name.ends_with("_small")) words.insert(words.end(), {"--set", "model.vocab=256"});
    const Outcome trained = run(words);
    ASSERT_EQ(trained.code, 0) << name << trained.err;
    ASSERT_EQ(remove((out + "/pictures/attention.png").c_str()), 0) << name;
    const Outcome o = run({"draw", "--out", out});
    EXPECT_EQ(o.code, 0) << name << o.err;
    EXPECT_TRUE(is_picture(out + "/pictures/attention.png")) << name;
    const bool hidden = name.starts_with("reformer") || name == "routing";
    EXPECT_EQ(o.out.find("depends on the tokens: see pictures/attention") != std::string::npos,
              hidden)
        << name << o.out;
    EXPECT_EQ(exists(out + "/pictures/pattern.png"), name != "reformer:duplication_small") << name;
  }
}

TEST(Draw, WritesTheFormatsThatAreAskedFor) {
  const Folder folder;
  write(folder / "text", std::string(4000, 'a'));
  const std::string out = folder / "run";
  using Formats = std::vector<std::string>;
  const Outcome trained = run(
      {"train", "--model", "bigbird", "--layers", "1", "--length", "128", "--batch", "1", "--steps",
       "1", "--data", "bytes=" + (folder / "text"), "--out", out, "--pictures", "svg,pdf"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(formats_of(out, "loss"), (Formats{"pdf", "svg"}));
  EXPECT_EQ(formats_of(out, "attention"), (Formats{"pdf", "svg"}));
  const Outcome own = run({"draw", "--out", out});  // those of the run
  EXPECT_EQ(own.code, 0) << own.err;
  EXPECT_EQ(formats_of(out, "pattern"), (Formats{"pdf", "svg"}));
  EXPECT_NE(own.err.find("/pattern.svg, "), std::string::npos) << own.err;
  EXPECT_EQ(run({"draw", "--out", out, "--pictures", "png"}).code, 0);
  EXPECT_EQ(formats_of(out, "pattern"), (Formats{"pdf", "png", "svg"}));
  const std::string drawn = folder / "drawn";
  EXPECT_EQ(run({"draw", "--model", "bigbird", "--out", drawn, "--pictures", "pdf"}).code, 0);
  EXPECT_EQ(formats_of(drawn, "pattern"), (Formats{"pdf"}));
  EXPECT_EQ(run({"draw", "--model", "bigbird", "--out", drawn}).code, 0);  // its own folder
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"draw", "--out", out, "--pictures", "gif"}, "expected png, svg or pdf"},
      {{"draw", "--out", out, "--format", "pdf"}, "--pictures"},
      {{"generate", "--out", out, "--pictures", "pdf"}, "generate has no use for it"}};
  for (const auto& [arguments, part] : cases) {
    const Outcome o = run(arguments);
    EXPECT_EQ(o.code, 1);
    EXPECT_NE(o.err.find(part), std::string::npos) << o.err;
  }
}

TEST(Draw, ShowsSpans) {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 1000; ++i) text += i % 7 == 0 ? " one" : " two";
  write(folder / "text", text);
  for (const bool dynamic : {false, true}) {
    const std::string out = folder / (dynamic ? "dynamic" : "adaptive");
    const std::string set = dynamic ? "model.dynamic=true" : "model.dynamic=false";
    const Outcome trained = run({"train", "--model", "adaptive_span:tiny", "--set",
                                 "model.vocab=256", "--set", set, "--steps", "2", "--length", "32",
                                 "--data", "bytes=" + (folder / "text"), "--out", out});
    ASSERT_EQ(trained.code, 0) << trained.err;
    EXPECT_TRUE(is_picture(out + "/pictures/spans.png"));
    EXPECT_EQ(dynamic, exists(out + "/pictures/spans_along_text.png"));
    ASSERT_EQ(remove((out + "/pictures/spans.png").c_str()), 0);
    const Outcome o = run({"draw", "--out", out});
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_NE(o.err.find("/pictures/spans.png"), std::string::npos) << o.err;
    EXPECT_TRUE(is_picture(out + "/pictures/spans.png"));
  }
}

TEST(Draw, ShowsThePairsThatTrainingLeft) {
  const Folder folder;
  write(folder / "text", std::string(4000, 'a'));
  const std::string out = folder / "run";
  const std::vector<std::string> options = {
      "--model", "adaptive_span:tiny", "--length", "32",
      "--set",   "model.vocab=256",    "--set",    "model.span_max=16",
      "--set",   "model.span_init=1",  "--set",    "model.span_penalty=10"};
  const auto with = [&](std::vector<std::string> all, const std::vector<std::string>& more) {
    all.insert(all.end(), options.begin(), options.end());
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  };
  const auto pairs = [](const Outcome& o) {
    return std::stol(o.out.substr(o.out.find("  all ") + 6));
  };
  const Outcome before = with({"draw"}, {"--out", folder / "before"});
  ASSERT_EQ(before.code, 0) << before.err;
  EXPECT_EQ(pairs(before), 2 * 2 * (16 * 15 / 2 + 16 * 16));  // 16 keys, and fewer at first
  const Outcome trained = with({"train"}, {"--steps", "30", "--lr", "0.1", "--data",
                                           "bytes=" + (folder / "text"), "--out", out});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Outcome after = run({"draw", "--out", out});
  ASSERT_EQ(after.code, 0) << after.err;
  EXPECT_LT(pairs(after), pairs(before));
}

TEST(Draw, SaysWhichKeysCount) {
  const Folder folder;
  write(folder / "text", some_text(4000));
  for (const std::string alpha : {"1", "2"}) {
    const std::string out = folder / alpha;
    const Outcome trained = run({"train", "--model", "transformer:tiny", "--set", "model.vocab=256",
                                 "--set", "model.positions=sinusoid", "--set", "model.init_std=0.3",
                                 "--set", "model.alpha=" + alpha, "--length", "32", "--steps", "1",
                                 "--data", "bytes=" + (folder / "text"), "--out", out});
    ASSERT_EQ(trained.code, 0) << trained.err;
    const Outcome o = run({"draw", "--out", out});
    ASSERT_EQ(o.code, 0) << o.err;
    const std::string line = "keys that layer 1 uses, of those that each head sees: ";
    EXPECT_EQ(o.err.find(line) != std::string::npos, alpha == "2") << o.err;
  }
}

TEST(Draw, SaysWhatIsWrong) {
  const Folder folder;
  const std::string out = folder / "drawn";
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--model", "bigbird"}, "--out: no folder given; expected --out DIR"},
      {{"--out", out}, "there is no run folder"},
      {{"--model", "bigbird", "--out", out, "--layer", "4"},
       "--layer: got 4; bigbird has layers 0 to 3"},
      {{"--model", "bigbird", "--out", out, "--length", "1025", "--set", "model.n_max=1024"},
       "length: got 1025; bigbird takes at most 1024 tokens"},
      {{"--model", "bigbrid", "--out", out}, "did you mean"},
  };
  for (const auto& [arguments, message] : cases) {
    std::vector<std::string> all{"draw"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Outcome o = run(all);
    EXPECT_EQ(o.code, 1);
    EXPECT_NE(o.err.find(message), std::string::npos) << o.err;
  }
}

}  // namespace
}  // namespace longspan::test
