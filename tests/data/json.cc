#include "data/io/json.h"

#include <cmath>
#include <limits>

#include "core/error.h"
#include "data/io/json_members.h"
#include "tests/harness/scratch.h"

namespace longspan {
namespace {

using test::contains;
using test::message_of;

TEST(Json, WritesAndReadsBack) {
  const Json value = Members{{"loss", 0.1},
                             {"step", 12},
                             {"large", std::numeric_limits<int64_t>::min()},
                             {"tiny", 5e-324},
                             {"third", 1.0 / 3},
                             {"name", "quote \" slash \\ newline \n \xC3\xA9"},
                             {"none", Json()},
                             {"yes", true},
                             {"list", Json::Array{1, "two", Json::Array{}}},
                             {"peak", Members{{"total", 64}, {"empty", Members{}}}}};
  EXPECT_EQ(parse_json(to_string(value)), value);
  EXPECT_EQ(to_string(Json(Members{{"a", 1.5}, {"b", Json::Array{1, 2}}})),
            R"({"a":1.5,"b":[1,2]})");
  EXPECT_EQ(to_string(Json(Json::Array{1.0, -0.0, 1e22, 1})), "[1.0,-0.0,1e+22,1]");
  EXPECT_TRUE(std::signbit(parse_json("[-0.0]").array()[0].number()));
  EXPECT_EQ(to_string(Json(std::nan(""))), "null");
  EXPECT_EQ(to_string(Json("\x01")), "\"\\u0001\"");
}

TEST(Json, ReadsMembers) {
  const Json value = parse_json(R"({"a": 3, "b": {"c": [true, null]}})");
  EXPECT_EQ(value["a"].integer(), 3);
  EXPECT_EQ(value["a"].number(), 3.0);
  EXPECT_TRUE(value["b"]["c"].array()[0].boolean());
  EXPECT_EQ(value.find("z"), nullptr);
  EXPECT_TRUE(contains(message_of<ValueError>([&] { value["z"]; }), "\"z\""));
  EXPECT_TRUE(contains(message_of<ValueError>([&] { value["a"].string(); }),
                       "expected a string, got an integer"));
}

TEST(Json, DoesNotEndAtANulByte) {
  using namespace std::string_view_literals;
  for (const std::string_view text : {"{\"a\":1}\0"sv, "{\"a\":1}\0{\"b\":2}"sv, "{\"a\":1\0}"sv,
                                      "\0{\"a\":1}"sv, "[\"a\0b\"]"sv, "1\0"sv}) {
    const std::string said = message_of<ValueError>([&] { parse_json(text); });
    EXPECT_TRUE(contains(said, fmt::format("byte {}: a NUL byte", text.find('\0') + 1))) << said;
  }
  EXPECT_EQ(parse_json("[\"a\\u0000b\"]").array()[0].string(), "a\0b"sv);
}

TEST(Json, MayBeginWithAByteOrderMark) {
  EXPECT_EQ(parse_json("\xEF\xBB\xBF{\"a\":1}")["a"], Json(1));
  EXPECT_THROW(parse_json("{\xEF\xBB\xBF\"a\":1}"), ValueError);
}

TEST(Json, RejectsWhatIsNotJson) {
  const char* bad[] = {"",
                       "{",
                       "[1,]",
                       "{\"a\":1,\"a\":2}",
                       "1 2",
                       "nul",
                       "\"\xFF\"",
                       "\"\xC0\x80\"",
                       "{a:1}",
                       "[1}",
                       "\"open",
                       "[1] // note",
                       "'x'",
                       "01",
                       "\"\xED\xA0\x80\"",
                       "[\"\n\"]"};
  for (const char* text : bad) {
    EXPECT_THROW(parse_json(text), ValueError) << text;
  }
  EXPECT_TRUE(contains(message_of<ValueError>([] { parse_json("{\"a\":1,\"a\":2}"); }), "twice"));
  EXPECT_THROW(to_string(Json("\xFF")), ValueError);
  EXPECT_THROW(to_string(Json("\xE2\x82")), ValueError);
}

TEST(Json, FindsRepeatedNamesAmongManyMembers) {
  for (const int count : {1, 15, 16, 17, 40}) {
    for (const int again : {0, count / 2, count - 1}) {
      std::string text = "{";
      for (int i = 0; i < count; ++i) text += fmt::format("\"n{}\":{{\"n{}\":1}},", i, i);
      const std::string good = text + "\"other\":1}";
      EXPECT_EQ(parse_json(good).object().size(), static_cast<size_t>(count) + 1);
      const std::string bad = text + fmt::format("\"n{}\":1}}", again);
      EXPECT_TRUE(contains(message_of<ValueError>([&] { parse_json(bad); }),
                           fmt::format("\"n{}\" is given twice", again)));
    }
  }
}

TEST(Json, PassesMembersOnOneByOne) {
  std::string seen;
  const auto parse = [&](std::string_view text, int depth = 3) {
    seen.clear();
    parse_members(
        text, depth,
        [&](const std::string& name, const Json& value) {
          seen += name + "=" + to_string(value) + ";";
        },
        "in",
        [&](const std::string& name, const Json& value) {
          seen += "in." + name + "=" + to_string(value) + ";";
        });
    return seen;
  };
  EXPECT_EQ(parse(R"({"a":1,"in":{"x":"y","z":{"a":2}},"b":{"in":{"c":3}},"d":[]})"),
            R"(a=1;in.x="y";in.z={"a":2};b={"in":{"c":3}};d=[];)");
  EXPECT_EQ(parse(R"({"in":[{"x":1}]})"), R"(in=[{"x":1}];)");
  EXPECT_EQ(parse("{}"), "");
  EXPECT_EQ(parse(R"({"in":{}})"), "");
  EXPECT_EQ(parse(R"({"a":1,"a":2})"), "a=1;a=2;");  // for the taker to find
  for (const char* bad : {"[]", "1", "null", R"({"a":{"b":1,"b":2}})", R"({"in":{},"in":{}})",
                          R"({"a":[[[1]]]})", R"({"a":1} {})"}) {
    EXPECT_THROW(parse(bad), ValueError) << bad;
  }
}

TEST(Json, DepthIsBounded) {
  EXPECT_NO_THROW(parse_json("[[[1]]]", 3));
  EXPECT_THROW(parse_json("[[[[1]]]]", 3), ValueError);
  EXPECT_THROW(parse_json(std::string(1'000'000, '[')), ValueError);
}

}  // namespace
}  // namespace longspan
