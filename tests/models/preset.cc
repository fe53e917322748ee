#include "models/preset.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "data/io/json.h"
#include "models/all/registry.h"
#include "models/etc/etc.h"
#include "models/reformer/reformer.h"
#include "nn/memory_policy.h"
#include "tests/harness/messages.h"
#include "train/config.h"

namespace longspan {
namespace {

using test::contains;
using test::message_of;

enum class Colour : uint8_t { red, blue };

}  // namespace

template <>
inline constexpr std::array<std::string_view, 2> value_names<Colour>{"red", "blue"};

namespace {

struct Configuration {
  bool flag = false;
  int64_t count = 1;
  uint64_t seed = 2;
  float rate = 0.5f;
  double scale = 0.25;
  std::string text = "a";
  std::vector<int64_t> numbers = {1};
  std::vector<std::string> words = {"x"};
  Colour colour = Colour::red;
  MemoryPolicy memory = {};
  void visit(auto& v) {
    v("flag", flag)("count", count)("seed", seed)("rate", rate)("scale", scale)("text", text);
    v("numbers", numbers)("words", words)("colour", colour)("memory", memory);
  }
};

constexpr Preset presets[] = {
    {"plain", "the default values"},
    {"all", "a value for each field", "",
     "flag=true count=-3 seed=18446744073709551615 rate=0.1 scale=1e-12 text=b,c numbers=4,-5,6 "
     "words=y,z colour=blue memory=checkpoint:2"},
    {"less", "all with other values", "all", "flag=false numbers= text="},
    {"no_field", "", "", "count=1 colours=red"},
    {"no_value", "", "", "flag"},
    {"no_number", "", "", "count=1.5"},
    {"no_list", "", "", "numbers=1,,2"},
    {"no_choice", "", "", "colour=green"},
    {"no_switch", "", "", "flag=1"},
    {"no_policy", "", "", "memory=some"},
};

TEST(Preset, SetsFieldsOfEveryKind) {
  const auto plain = preset_of<Configuration>("model", presets, "plain");
  EXPECT_EQ(plain.count, 1);
  EXPECT_EQ(plain.numbers, std::vector<int64_t>{1});
  auto c = preset_of<Configuration>("model", presets, "all");
  EXPECT_TRUE(c.flag);
  EXPECT_EQ(c.count, -3);
  EXPECT_EQ(c.seed, UINT64_MAX);
  EXPECT_EQ(c.rate, 0.1f);
  EXPECT_EQ(c.scale, 1e-12);
  EXPECT_EQ(c.text, "b,c");
  EXPECT_EQ(c.numbers, (std::vector<int64_t>{4, -5, 6}));
  EXPECT_EQ(c.words, (std::vector<std::string>{"y", "z"}));
  EXPECT_EQ(c.colour, Colour::blue);
  EXPECT_EQ(c.memory.text(), "checkpoint:2");
  c = preset_of<Configuration>("model", presets, "less");
  EXPECT_FALSE(c.flag);
  EXPECT_EQ(c.count, -3);
  EXPECT_EQ(c.text, "");
  EXPECT_TRUE(c.numbers.empty());
}

TEST(Preset, NamesWhatIsWrong) {
  const auto message = [](std::string_view name) {
    return message_of<ValueError>([&] { preset_of<Configuration>("model", presets, name); });
  };
  EXPECT_TRUE(contains(message("none"), "model: there is no preset \"none\""));
  EXPECT_TRUE(contains(message("no_field"), "preset no_field sets colours, which is no field"));
  EXPECT_TRUE(contains(message("no_value"), "preset no_value: \"flag\" sets nothing"));
  EXPECT_TRUE(contains(message("no_number"), "preset no_number: count cannot be \"1.5\""));
  EXPECT_TRUE(contains(message("no_list"), "numbers cannot be \"1,,2\""));
  EXPECT_TRUE(contains(message("no_choice"), "colour cannot be \"green\""));
  EXPECT_TRUE(contains(message("no_switch"), "flag cannot be \"1\""));
  EXPECT_TRUE(contains(message("no_policy"), "memory cannot be \"some\""));
}

// Values in the tables that follow from others.
TEST(Preset, ValuesThatOthersDetermine) {
  const auto text = [](ReformerConfig c) { return to_string(to_json(c)); };
  for (const auto& [name, variant] : {std::pair{"small_trax2", ReformerVariant::trax2},
                                      {"small_hf", ReformerVariant::hf},
                                      {"small_lucid", ReformerVariant::lucid}}) {
    EXPECT_EQ(text(reformer_preset(name)),
              text(reformer_variant(reformer_preset("small"), variant)));
  }
  for (const char* name : {"trax_enwik8", "trax_imagenet64", "trax_copy"}) {
    const ReformerConfig c = reformer_preset(name);
    EXPECT_EQ(text(reformer_variant(c, ReformerVariant::trax2)), text(c));
  }
  EXPECT_EQ(text(reformer_variant(reformer_preset("hf"), ReformerVariant::hf)),
            text(reformer_preset("hf")));
  const EtcConfig etc = etc_preset("structured");
  EXPECT_EQ(etc.relations, RelationLabels{etc.max_distance}.has_part() + 1);
  EXPECT_EQ(find_model("etc:base")->defaults().lr, std::sqrt(8.0) * 1e-3);
}

}  // namespace
}  // namespace longspan
