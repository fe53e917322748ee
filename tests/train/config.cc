#include "train/config.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "tests/harness/scratch.h"

namespace longspan {
namespace {
enum class Colour : uint8_t { red, green, blue };
}
template <>
inline constexpr std::array<std::string_view, 3> value_names<Colour>{"red", "green", "blue"};

namespace {

using test::contains;
using test::Folder;
using test::message_of;
using test::write_bytes;

struct Inner {
  int64_t n_layer = 4;
  float dropout = 0.1f;
  std::vector<int64_t> windows = {1, 2};
  Colour colour = Colour::green;
  void visit(auto& v) {
    v("n_layer", n_layer)("dropout", dropout)("windows", windows)("colour", colour);
  }
};

struct Options {
  Inner model;
  std::string data = "enwik8";
  bool resume = false;
  double lr = 1e-3;
  uint64_t seed = 1;
  int64_t save_every = 0;
  void visit(auto& v) {
    v("model", model)("data", data)("resume", resume)("lr", lr)("seed", seed)("save_every",
                                                                              save_every);
  }
};

Options parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "program");
  return parse_flags<Options>(static_cast<int>(arguments.size()), arguments.data());
}

std::string problem(std::vector<const char*> arguments) {
  return message_of<ValueError>([&] { parse(arguments); });
}

TEST(Config, Defaults) {
  const Options options = parse({});
  EXPECT_EQ(options.model.n_layer, 4);
  EXPECT_EQ(options.data, "enwik8");
}

TEST(Config, FlagsAndSettings) {
  const Options options =
      parse({"--data", "other", "--lr=0.5", "--resume", "--save-every", "10", "--model.n_layer",
             "12", "--set", "model.colour=blue", "--set", "model.windows=4,5,6", "--seed",
             "9223372036854775807", "--model.dropout", "1e-1"});
  EXPECT_EQ(options.data, "other");
  EXPECT_EQ(options.lr, 0.5);
  EXPECT_TRUE(options.resume);
  EXPECT_EQ(options.save_every, 10);
  EXPECT_EQ(options.model.n_layer, 12);
  EXPECT_EQ(options.model.colour, Colour::blue);
  EXPECT_EQ(options.model.windows, (std::vector<int64_t>{4, 5, 6}));
  EXPECT_EQ(options.seed, 9223372036854775807u);
  EXPECT_EQ(options.model.dropout, 0.1f);
  EXPECT_EQ(parse({"--save_every", "3"}).save_every, 3);
  EXPECT_EQ(parse({"--lr", "-0.5"}).lr, -0.5);
  EXPECT_EQ(parse({"--data", ""}).data, "");
  EXPECT_TRUE(parse({"--set", "model.windows=[]"}).model.windows.empty());
  EXPECT_EQ(parse({"--set", "model.windows=[ 7 , 8 ]"}).model.windows,
            (std::vector<int64_t>{7, 8}));
  EXPECT_EQ(parse({"--set", "data=a=b"}).data, "a=b");
}

TEST(Config, TheLastValueCounts) {
  EXPECT_EQ(parse({"--lr", "1", "--lr", "2"}).lr, 2);
  EXPECT_EQ(parse({"--set", "lr=1", "--lr", "2"}).lr, 2);
  EXPECT_EQ(parse({"--lr", "2", "--set", "lr=1"}).lr, 1);
  EXPECT_EQ(parse({"--lr", "1", "--seed", "4", "--set", "lr=3", "--lr", "2", "--seed", "5"}).lr, 2);
  EXPECT_FALSE(parse({"--resume", "--resume=false"}).resume);
  EXPECT_TRUE(parse({"--resume=false", "--resume"}).resume);
}

TEST(Config, FileThenCommandLine) {
  const Folder folder;
  write_bytes(
      folder / "run.toml",
      "lr = 1\ndata = 'x'\n# note\n[model]\nn_layer = 7\nwindows = [3]\ncolour = \"red\"\n");
  const std::string path = folder / "run.toml";
  const Options options = parse({"--lr", "0.25", "--config", path.c_str()});
  EXPECT_EQ(options.lr, 0.25);
  EXPECT_EQ(options.data, "x");
  EXPECT_EQ(options.model.n_layer, 7);
  EXPECT_EQ(options.model.windows, std::vector<int64_t>{3});
  EXPECT_EQ(options.model.colour, Colour::red);
  write_bytes(folder / "other.toml", "model.n_layer = 9\n");
  EXPECT_EQ(parse({"--config", path.c_str(), "--config", (folder / "other.toml").c_str()}).lr,
            1e-3);
}

TEST(Config, WritesWhatItReads) {
  Options options;
  options.model.dropout = 0.3f;
  options.model.windows = {-5, 1 << 20};
  options.data = "quote \" back \\ tab \t line \n del \x7F caf\xC3\xA9 ' # [x]";
  options.lr = 1;
  options.seed = std::numeric_limits<int64_t>::max();
  const std::string text = to_toml(to_json(options));
  Options read;
  set_fields(read, parse_toml(text, "text"));
  EXPECT_EQ(to_json(read), to_json(options));
  EXPECT_EQ(read.model.dropout, 0.3f);
  EXPECT_TRUE(contains(text, "dropout = 0.3\n")) << text;
  EXPECT_TRUE(contains(text, "lr = 1.0\n")) << text;
  EXPECT_TRUE(contains(text, "\n[model]\n")) << text;
  for (const float dropout :
       {1e-38f, 1.17549435e-38f, 3.4028235e38f, 1.0f / 3, 16777217.0f, 1e-5f}) {
    options.model.dropout = dropout;
    options.lr = std::nextafter(static_cast<double>(dropout), 1.0);
    set_fields(read, parse_toml(to_toml(to_json(options)), "text"));
    EXPECT_EQ(read.model.dropout, dropout);
    EXPECT_EQ(read.lr, options.lr);
  }
  EXPECT_EQ(to_toml(Members{{"a b", 1}, {"c", Members{{"d", Members{{"e.f", true}}}}}}),
            "\"a b\" = 1\n\n[c]\n\n[c.d]\n\"e.f\" = true\n");
  EXPECT_THROW(to_toml(Members{{"a", Json()}}), ValueError);
}

TEST(Config, CommandLineErrors) {
  const struct {
    std::vector<const char*> arguments;
    std::vector<const char*> parts;  // of the message
  } cases[] = {
      {{"--dta", "x"}, {"unknown option \"--dta\"", "\"--data\""}},
      {{"--dta=x"}, {"unknown option \"--dta\"", "\"--data\""}},
      {{"--n-layer", "3"}, {"unknown option", "--model.n_layer"}},
      {{"-x"}, {"unknown option \"-x\""}},
      {{"--completely-different"}, {"unknown option \"--completely-different\"", "--help"}},
      {{"--data"}, {"--data"}},
      {{"--lr", "--seed", "1"}, {"--lr needs a value", "--seed"}},
      {{"--data", "--save_every"}, {"--data needs a value", "--save_every"}},
      {{"word"}, {"\"word\"", "no option"}},
      {{"--set"}, {"--set"}},
      {{"--set", "lr"}, {"--set", "\"lr\"", "key=value"}},
      {{"--set", "=1"}, {"key=value"}},
      {{"--set", "model.dropot=1"}, {"unknown key \"model.dropot\" (--set)", "\"model.dropout\""}},
      {{"--set", "dropout=1"}, {"unknown key \"dropout\"", "\"model.dropout\""}},
      {{"--set", "quite_unlike_anything=1"}, {"unknown key \"quite_unlike_anything\" (--set)"}},
      {{"--set", "model=1"}, {"model is a table (--set)"}},
      {{"--lr", "fast"}, {"lr is \"fast\" (--lr)", "expected a number"}},
      {{"--lr", ""}, {"lr is \"\"", "expected a number"}},
      {{"--lr", "1x"}, {"lr is \"1x\"", "expected a number"}},
      {{"--lr", "nan"}, {"expected a number"}},
      {{"--lr", "1e999"}, {"expected a number"}},
      {{"--seed", "1.5"}, {"seed is \"1.5\"", "expected an integer"}},
      {{"--seed", "-1"}, {"seed is \"-1\"", "from 0"}},
      {{"--seed", "9223372036854775808"}, {"seed is", "9223372036854775807"}},
      {{"--save-every", "1e3"}, {"save_every is \"1e3\"", "an integer"}},
      {{"--model.dropout", "1e39"}, {"model.dropout is \"1e39\"", "3.4028236e38"}},
      {{"--resume=maybe"}, {"resume"}},
      {{"--set", "resume=1"}, {"resume is \"1\"", "true or false"}},
      {{"--set", "model.colour=pink"}, {"model.colour is \"pink\"", "red, green or blue"}},
      {{"--set", "model.windows=1,,2"}, {"model.windows", "integers"}},
      {{"--set", "model.windows="}, {"model.windows", "integers"}},
  };
  for (const auto& c : cases) {
    const std::string message = problem(c.arguments);
    for (const char* part : c.parts) {
      EXPECT_TRUE(contains(message, part)) << message << "\n  lacks " << part;
    }
  }
  EXPECT_TRUE(contains(message_of<IoError>([] {
                         parse({"--config", "/no/such.toml"});
                       }),
                       "/no/such.toml"));
}

TEST(Config, FileErrors) {
  const struct {
    const char* text;
    std::vector<const char*> parts;
  } cases[] = {
      {"lr = ", {"run.toml:1:"}},
      {"a = 1\na = 2\n", {"run.toml:2:"}},
      {"[model\n", {"run.toml:"}},
      {"\xFF", {"run.toml:"}},
      {"lr = 'slow'", {"lr is \"slow\" (run.toml:1)", "a number"}},
      {"\n\nlr = true", {"lr is true (run.toml:3)", "a number"}},
      {"lr = inf", {"a number"}},
      {"seed = 1.0", {"seed is", "an integer"}},
      {"seed = -3", {"seed is -3", "from 0"}},
      {"resume = 'true'", {"resume is \"true\"", "true or false"}},
      {"data = 3", {"data is 3", "a text in quotes"}},
      {"data = 1979-05-27", {"data", "date"}},
      {"model = 3", {"model is a table"}},
      {"[model]\ncolour = 1", {"model.colour is 1", "red, green or blue"}},
      {"[model]\nwindows = 3", {"model.windows is 3", "array of integers"}},
      {"[model]\nwindows = [1, 'x']", {"array of integers"}},
      {"[[model]]\nn_layer = 1", {"array of tables"}},
      {"[modle]\nn_layer = 1", {"unknown key \"modle.n_layer\" (run.toml:2)", "model.n_layer"}},
      {"[modle]", {"unknown key \"modle\""}},
      {"lr.x = 1", {"unknown key \"lr.x\""}},
  };
  for (const auto& c : cases) {
    const std::string message = message_of<ValueError>([&] {
      Options options;
      set_fields(options, parse_toml(c.text, "run.toml"));
    });
    for (const char* part : c.parts) {
      EXPECT_TRUE(contains(message, part)) << message << "\n  lacks " << part;
    }
  }
  Options options;
  EXPECT_NO_THROW(set_fields(options, parse_toml("[model]\n", "run.toml")));
  EXPECT_THROW(parse_toml("a = " + std::string(100'000, '['), "run.toml"), ValueError);
  const Folder folder;
  write_bytes(folder / "large.toml", std::string(2 << 20, ' '));
  EXPECT_THROW(read_toml(folder / "large.toml"), IoError);
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST(Config, DepthIsBounded) {
  const auto arrays = [](int depth) { return repeated("[", depth) + repeated("]", depth); };
  const auto refused = [](const std::string& text) {
    const std::string message = message_of<ValueError>([&] { parse_toml(text, "text"); });
    return contains(message, "text:1:") && contains(message, "nested deeper than 16");
  };
  for (const std::string& text :
       {"x = " + arrays(16), "a" + repeated(".a", 15) + " = 1", "[a" + repeated(".a", 15) + "]",
        "x = " + repeated("{a = ", 16) + "1" + repeated("}", 16),
        "x = [" + repeated("[1.5, 2.5], ", 40) + "]"}) {
    EXPECT_NO_THROW(parse_toml(text, "text")) << text;
  }
  for (const std::string& text :
       {"x = " + arrays(17), "a" + repeated(".a", 16) + " = 1", "[a" + repeated(" . 'a'", 16) + "]",
        "x = " + repeated("{a = ", 17) + "1" + repeated("}", 17),
        "x = {a" + repeated(".\"a\"", 16) + " = 1}", "x = " + repeated("[{a = ", 9)}) {
    EXPECT_TRUE(refused(text)) << text;
  }
  // Brackets and dots in strings and comments add no depth, and hide none after them.
  const std::string deep = arrays(20) + repeated(".a", 20);
  const std::string texts[] = {"\"" + deep + "\\\"" + deep + "\\\\\"",
                               "'" + deep + "\\'",
                               "\"\"\"" + deep + "\\\"\"\" " + deep + "\"\"\"\"\"",
                               "\"\"\"" + deep + "\"\"\"\"",
                               "'''" + deep + "''" + deep + "''''",
                               "\"\"",
                               "''"};
  for (const std::string& text : texts) {
    EXPECT_NO_THROW(parse_toml("x = " + text + " # " + deep, "text")) << text;
    EXPECT_NO_THROW(parse_toml("# " + deep + "\nx = [" + text + ", " + arrays(15) + "]", "text"));
    EXPECT_TRUE(refused("x = [" + text + ", " + arrays(16) + "]")) << text;
  }
  EXPECT_NO_THROW(parse_toml("x = \"\"\"\n" + deep + "\n\"\"\"\ny = 1", "text"));
}

TEST(Config, WhatCannotBeWrittenIsNamed) {
  Options options;
  options.data = "caf\xE9";
  const std::string message = message_of<ValueError>([&] { to_toml(to_json(options)); });
  EXPECT_TRUE(contains(message, "data cannot be written") && contains(message, "not UTF-8") &&
              contains(message, "symbolic link"))
      << message;
}

TEST(Config, Ranges) {
  struct Ranged {
    Options options;
    void visit(Fields& v) {
      v.enter("model");
      v("dropout", options.model.dropout, range::between(0, 0.999));
      v.leave();
      v("save_every", options.save_every, range::not_negative);
    }
  } ranged;
  Options& options = ranged.options;
  EXPECT_NO_THROW(check_ranges(ranged));
  options.model.dropout = 1.5f;
  EXPECT_TRUE(contains(message_of<ValueError>([&] { check_ranges(ranged); }),
                       "model.dropout is 1.5: expected 0 to 0.999"));
  options.model.dropout = 0;
  options.save_every = -1;
  EXPECT_TRUE(contains(message_of<ValueError>([&] { check_ranges(ranged); }),
                       "save_every is -1: expected 0 or more"));
  const std::string file = message_of<ValueError>([&] {
    check_ranges(ranged, Settings{{"save_every", -1, "config.toml:4"}});
  });
  EXPECT_TRUE(contains(file, "save_every is -1 (config.toml:4): expected 0 or more")) << file;
  options.save_every = 0;
  options.model.dropout = 2;
  EXPECT_NO_THROW(check_ranges(ranged, {}, "model"));
}

TEST(Config, FlagsWithoutKeys) {
  const std::vector<Flag> flags{{"--out", "", "folder"}, {"--batch", "batch", "rows"}};
  const char* arguments[] = {"program", "train", "--out", "a",   "--batch",
                             "3",       "--out", "b",     "more"};
  const CommandLine line = parse_command_line(9, arguments, flags);
  ASSERT_NE(line.value("--out"), nullptr);
  EXPECT_EQ(*line.value("--out"), "b");
  EXPECT_EQ(line.value("--batch"), nullptr);
  EXPECT_EQ(last_setting(line.settings, "batch")->value.string(), "3");
  EXPECT_EQ(line.others, (std::vector<std::string>{"train", "more"}));
  const std::vector<Flag> switches{{"--resume", "", "go on", true}};
  for (const char* word : {"--resume", "--resume=true", "--resume=false"}) {
    const char* given[] = {"program", word};
    const CommandLine parsed = parse_command_line(2, given, switches);
    const std::string* value = parsed.value("--resume");
    ASSERT_NE(value, nullptr) << word;
    EXPECT_EQ(*value, std::string(word) == "--resume=false" ? "false" : "true");
  }
  const char* wrong[] = {"program", "--resume=maybe"};
  EXPECT_TRUE(contains(message_of<ValueError>([&] { parse_command_line(2, wrong, switches); }),
                       "--resume is \"maybe\": expected nothing, true or false"));
  const char* help[] = {"program", "--help"};
  EXPECT_TRUE(contains(parse_command_line(2, help, flags).help, "--batch"));
  EXPECT_TRUE(contains(parse_command_line(2, help, flags).help, "rows"));
}

TEST(Config, KeysAreListedAndMeantByTheirNames) {
  const std::vector<Flag> flags{
      {"--out", "", "folder"},
      {.name = "--steps", .key = "steps", .help = "of training", .also = "epochs max_steps"}};
  const std::vector<Key> keys{{"steps", "0", ""},
                              {"accumulate", "1", "batches of a step"},
                              {"optimizer.weight_decay", "0", "times the weights"},
                              {"a.name.that.is.longer.than.the.column", "", "its meaning"}};
  const auto said = [&](const char* option) {
    const char* arguments[] = {"program", option, "3"};
    return message_of<ValueError>([&] { parse_command_line(3, arguments, flags, "about", keys); });
  };
  for (const auto& [option, part] :
       {std::pair{"--epochs", "did you mean \"--steps\"?"},
        {"--max-steps", "did you mean \"--steps\"?"},
        {"--step", "did you mean \"--steps\"?"},
        {"--accumulate", "it is a key; did you mean --set accumulate=VALUE?"},
        {"--weight-decay", "it is a key; did you mean --set optimizer.weight_decay=VALUE?"},
        {"--optimizer.weight_decay", "--set optimizer.weight_decay=VALUE?"},
        {"--acumulate", ": did you mean --set accumulate=VALUE?"},
        {"--colour-of-the-sky", "\"--colour-of-the-sky\"; see --help"}}) {
    EXPECT_TRUE(contains(said(option), part)) << said(option);
  }
  const char* help[] = {"program", "--help"};
  const std::string text = parse_command_line(2, help, flags, "about", keys).help;
  for (const char* line : {"\n  accumulate [1]              batches of a step\n",
                           "\n  optimizer.weight_decay [0]  times the weights\n",
                           "\n  a.name.that.is.longer.than.the.column [none]\n"
                           "                              its meaning\n"}) {
    EXPECT_TRUE(contains(text, line)) << text;
  }
  EXPECT_FALSE(contains(text, "\n  steps")) << text;
}

struct Decay {
  double rate = 0.5;
  void visit(auto& v) { v("rate", rate, "of decay"); }
};
struct Nested {
  int64_t n = 3;
  Decay inner;
  std::string text = "a b";
  void visit(auto& v) { v("n", n)("inner", inner)("text", text, "any"); }
};

TEST(Config, FieldsAreKeysWithTheirMeanings) {
  Nested outer;
  std::vector<std::string> all;
  for (const Key& key : keys_of(outer)) {
    all.push_back(fmt::format("{}={} ({})", key.name, key.value, key.meaning));
  }
  EXPECT_EQ(all,
            (std::vector<std::string>{"n=3 ()", "inner.rate=0.5 (of decay)", "text=a b (any)"}));
  const std::string text = to_toml(to_json(outer), keys_of(outer));
  EXPECT_EQ(text,
            "n = 3\n"
            "text = \"a b\"                     # any\n\n"
            "[inner]\n"
            "rate = 0.5                       # of decay\n");
  Nested read;
  read.n = 0;
  set_fields(read, parse_toml(text, "text"));
  EXPECT_EQ(to_toml(to_json(read)), to_toml(to_json(outer)));
}

}  // namespace
}  // namespace longspan
