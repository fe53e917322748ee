#include "data/tokenizers/hub_tokenizer.h"

#include <algorithm>
#include <set>
#include <thread>

#include "core/error.h"
#include "data/io/base64.h"
#include "data/tokenizers/hub_normalizer.h"
#include "data/tokenizers/hub_pre_tokenizer.h"
#include "data/unicode/unicode.h"
#include "tests/harness/scratch.h"

namespace longspan {
namespace {

using test::contains;
using test::Folder;
using test::message_of;
using test::read_bytes;
using test::write_bytes;

std::string hub_golden(const std::string& name) {
  return LONGSPAN_SOURCE_DIR "/tests/oracles/golden/hub/" + name;
}

const Json& hub_cases() {
  static const Json json = parse_json(read_bytes(hub_golden("cases.json")));
  return json;
}

/// The tokenizers of the goldens, by name.
const std::map<std::string, std::unique_ptr<HubTokenizer>>& hub_tokenizers() {
  static const auto all = [] {
    std::map<std::string, std::unique_ptr<HubTokenizer>> t;
    for (const JsonMember& one : hub_cases()["expected"].object()) {
      t[one.name] = open_hub_tokenizer(hub_golden(one.name));
    }
    return t;
  }();
  return all;
}

std::string text_hash(std::string_view text) {
  uint64_t h = 0xCBF29CE484222325u;
  for (const char c : text) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return fmt::format("{:016x}", h);
}

template <class T>
std::string joined_numbers(const std::vector<T>& values) {
  std::string text;
  for (const auto& value : values) text += (text.empty() ? "" : " ") + fmt::format("{}", value);
  return text;
}

/// A row as the oracle writes it; `texts` are those that the spans refer to, by sequence or word.
std::string shown(const HubEncoding& row, const std::vector<std::string>& texts,
                  bool by_word = false) {
  std::vector<int64_t> spans;
  for (size_t i = 0; i < row.ids.size(); ++i) {
    TextSpan span;
    const int32_t text = by_word ? row.words[i] : row.sequences[i];
    if (text >= 0)
      span = in_code_points(texts.at(static_cast<size_t>(text)), {&row.spans[i], 1})[0];
    spans.insert(spans.end(), {span.begin, span.end});
  }
  return joined_numbers(row.ids) + ";" + joined_numbers(row.types) + ";" + joined_numbers(spans) +
         ";" + joined_numbers(row.words);
}

std::vector<std::string> split_at_spaces(const std::string& text) {
  std::vector<std::string> words = {""};
  for (const char c : text) {
    if (c == ' ') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  return words;
}

TEST(HubTokenizer, MakesTheRowsOfThePackage) {
  int compared = 0;
  for (const auto& [name, t] : hub_tokenizers()) {
    const Json& expected = hub_cases()["expected"][name];
    for (size_t i = 0; i < hub_cases()["texts"].array().size(); ++i) {
      const std::string& text = hub_cases()["texts"].array()[i].string();
      const auto hash = [&](const char* kind) { return expected[kind].array().at(i).string(); };
      const HubEncoding row = t->encode_text(text, {.special = false}),
                        whole = t->encode_text(text);
      EXPECT_EQ(text_hash(shown(row, {text})), hash("texts")) << name << ": " << text << "\n"
                                                              << shown(row, {text});
      EXPECT_EQ(text_hash(shown(whole, {text})), hash("template")) << name << ": " << text;
      EXPECT_EQ(t->encode(text), row.ids) << name << ": " << text;
      EXPECT_EQ(text_hash(t->text(whole.ids, false)), hash("decoded"))
          << name << ": " << t->text(whole.ids, false);
      EXPECT_EQ(text_hash(t->text(whole.ids)), hash("skipped"))
          << name << ": " << t->text(whole.ids);
      const HubEncoding words = t->encode_words(split_at_spaces(text));
      EXPECT_EQ(text_hash(shown(words, split_at_spaces(text), true)), hash("words"))
          << name << ": " << text;
      ++compared;
    }
  }
  EXPECT_GE(compared, 400);
}

TEST(HubTokenizer, MakesThePairsOfThePackage) {
  for (const auto& [name, t] : hub_tokenizers()) {
    const Json& expected = hub_cases()["expected"][name];
    for (size_t i = 0; i < hub_cases()["pairs"].array().size(); ++i) {
      const std::string a = hub_cases()["pairs"].array()[i].array()[0].string();
      const std::string b = hub_cases()["pairs"].array()[i].array()[1].string();
      EXPECT_EQ(text_hash(shown(t->encode_pair(a, b), {a, b})),
                expected["pairs"].array().at(i).string())
          << name << ": " << a << " | " << b;
    }
  }
}

TEST(HubTokenizer, TruncatesAndPadsAsThePackage) {
  for (const auto& [name, t] : hub_tokenizers()) {
    const Json& expected = hub_cases()["expected"][name];
    size_t at = 0;
    for (const int64_t length : {8, 9, 10, 12}) {
      for (size_t i = 3; i < 5; ++i, ++at) {
        const Json& pair = hub_cases()["pairs"].array()[i];
        HubEncoding row = t->encode_pair(pair.array()[0].string(), pair.array()[1].string(),
                                         {.max_length = length, .pad_to = 14, .pad_left = true});
        for (size_t k = 0; k < row.ids.size(); ++k) {
          if (row.mask[k] == 0) row.ids[k] = 1;
        }
        EXPECT_EQ(text_hash(joined_numbers(row.ids)), expected["truncated"].array().at(at).string())
            << name << ": " << length << ": " << joined_numbers(row.ids);
      }
    }
  }
}

TEST(HubTokenizer, MakesTheWindowsOfThePackage) {
  std::string context;
  for (size_t i = 5; i < 9; ++i)
    context += (i == 5 ? "" : " ") + hub_cases()["texts"].array()[i].string();
  for (const auto& [name, t] : hub_tokenizers()) {
    for (const bool left : {false, true}) {
      std::vector<HubEncoding> rows = t->windows("short", context,
                                                 {.max_length = 60,
                                                  .truncation = HubTruncation::only_second,
                                                  .stride = 3,
                                                  .truncate_left = left});
      const Json& expected = hub_cases()["expected"][name]["windows"].array().at(left ? 1 : 0);
      ASSERT_EQ(rows.size(), expected.array().size()) << name;
      EXPECT_GE(rows.size(), 2u) << name;
      std::set<int32_t> types;  // of the second text
      for (size_t i = 0; i < rows.size(); ++i) {
        const auto second = std::find(rows[i].sequences.begin(), rows[i].sequences.end(), 1);
        types.insert(rows[i].types.at(static_cast<size_t>(second - rows[i].sequences.begin())));
        rows[i].types.clear();
        EXPECT_EQ(text_hash(shown(rows[i], {"short", context})), expected.array()[i].string())
            << name << i;
      }
      EXPECT_EQ(types.size(), 1u) << name;
    }
  }
}

TEST(HubTokenizer, ReadsWhatItWrites) {
  for (const auto& [name, t] : hub_tokenizers()) {
    const HubTokenizer again(parse_json(to_string(t->json())), {}, name);
    EXPECT_EQ(again.hash(), t->hash()) << name;
    for (const Json& text : hub_cases()["texts"].array()) {
      EXPECT_EQ(again.encode_text(text.string()), t->encode_text(text.string())) << name;
    }
  }
}

TEST(HubTokenizer, LeavesNamesOfSpecialTokensInTextsIfAsked) {
  const auto t = open_hub_tokenizer(hub_golden("wordpiece"), {.special_in_text = false});
  const HubTokenizer& all = *hub_tokenizers().at("wordpiece");
  EXPECT_EQ(all.encode("[MASK]"), std::vector<int32_t>{all.find("[MASK]")});
  EXPECT_GT(t->encode("[MASK]").size(), 2u);
  EXPECT_EQ(t->encode("newword"),
            std::vector<int32_t>{t->find("newword")});  // which is not special
  EXPECT_NE(t->hash(), all.hash());
}

TEST(HubTokenizer, TakesAnyBytes) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>((i * 7919 + i * i * 31) >> 3 & 0xFF);
  for (const auto& [name, t] : hub_tokenizers()) {
    int64_t last = 0;
    for (const Piece& piece : t->pieces(text)) {
      EXPECT_GE(piece.begin, last) << name;
      EXPECT_LE(piece.end, static_cast<int64_t>(text.size())) << name;
      EXPECT_LT(piece.id, t->vocabulary()) << name;
      last = piece.begin;
    }
    t->text(t->encode(text));
  }
  const HubTokenizer& bytes = *hub_tokenizers().at("roberta");
  EXPECT_EQ(bytes.decode(bytes.encode(text)), text);
}

TEST(HubTokenizer, GivesEqualIdsToSeveralThreads) {
  const HubTokenizer& t = *hub_tokenizers().at("unigram");
  std::string text;
  for (const Json& one : hub_cases()["texts"].array()) text += one.string() + " ";
  const std::vector<int32_t> expected = t.encode(text);
  std::vector<std::thread> threads;
  std::vector<int> equal(4, 0);
  for (size_t k = 0; k < equal.size(); ++k) {
    threads.emplace_back([&, k] {
      for (int i = 0; i < 20; ++i) equal[k] += t.encode(text) == expected ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, (std::vector<int>{20, 20, 20, 20}));
}

/// The rules for characters that replace whatever begins with any byte but 0 by b.
std::string every_byte_rules() {
  std::vector<uint32_t> units(768);
  units[0] = 256u << 10;
  for (uint32_t byte = 1; byte < 256; ++byte) {
    const uint32_t at = 256 ^ byte;
    units[at] = byte | 1u << 8 | (at ^ 512) << 10;
  }
  const auto size = static_cast<uint32_t>(4 * units.size());
  std::string data(reinterpret_cast<const char*>(&size), sizeof size);
  data.append(reinterpret_cast<const char*>(units.data()), size);
  return data + std::string("b\0", 2);
}

/// Whether 4,096 code points have no characters, but for one in sixteen such parts.
bool is_empty_plane(int32_t begin) {
  return begin >= 0x34000 && begin != 0xE0000 && begin % 0x10000 != 0;
}

TEST(HubTokenizer, NormalizesEveryCodePointAsThePackage) {
  const Json& every = hub_cases()["every"];
  for (const char* name :
       {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "clusters"}) {
    const bool clusters = std::string_view(name) == "clusters";
    HubIssues issues;
    const HubNormalizer normalizer(
        clusters ? Json(Members{{"type", "Precompiled"},
                                {"precompiled_charsmap", to_base64(every_byte_rules())}})
                 : Json(Members{{"type", name}}),
        issues);
    ASSERT_TRUE(issues.empty());
    EXPECT_EQ(every[name].array().size(), 272u) << name;
    size_t block = 0;
    AlignedText text, spare;
    for (int32_t begin = 0; begin < 0x110000; begin += 4096) {
      if (is_empty_plane(begin)) {
        ++block;
        continue;
      }
      std::string made;
      for (int32_t c = begin; c < begin + 4096; ++c) {
        if (c >= 0xD800 && c < 0xE000) continue;
        std::string one;
        append_utf8(one, c);
        text.assign(one + "a\u0301" + one + (clusters ? "\u1161" : "\u0327") + "\u0301" + one + one,
                    0, c % 2 == 0);
        normalizer.apply(text, spare);
        EXPECT_EQ(text.from.size(), text.tracked ? text.bytes.size() : 0);
        made += text.bytes + "\n";
      }
      if (made.empty()) continue;
      EXPECT_EQ(text_hash(made), every[name].array().at(block).string())
          << name << " from " << begin;
      ++block;
    }
  }
}

TEST(HubTokenizer, SplitsAtEveryCodePointAsThePackage) {
  for (const char* name : {"Whitespace", "Digits"}) {
    HubIssues issues;
    const HubPreTokenizer split(Members{{"type", name}}, issues);
    size_t block = 0;
    HubPreTokenizer::Words words;
    for (int32_t begin = 0; begin < 0x110000; begin += 4096) {
      if (is_empty_plane(begin)) {
        ++block;
        continue;
      }
      std::string made;
      for (int32_t c = begin; c < begin + 4096; ++c) {
        if (c >= 0xD800 && c < 0xE000) continue;
        std::string one;
        append_utf8(one, c);
        const std::string text = "a" + one + one + "b!" + one;
        words.text.assign(text, 0, false);
        split.apply(words);
        std::string line;
        for (const HubWord& word : words.words) {
          const TextSpan span =
              in_code_points(text, std::vector<TextSpan>{{word.begin, word.end}})[0];
          line += (line.empty() ? "" : " ") + fmt::format("{}-{}", span.begin, span.end);
        }
        made += line + "\n";
      }
      if (made.empty()) continue;
      EXPECT_EQ(text_hash(made), hub_cases()["every"][name].array().at(block).string())
          << name << " from " << begin;
      ++block;
    }
  }
}

/// A small tokenizer.json, of which a test replaces a part.
std::string file_with(const std::string& name, const std::string& value) {
  std::string text =
      R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,)"
      R"("pre_tokenizer":null,"post_processor":null,"decoder":null,)"
      R"("model":{"type":"WordPiece","unk_token":"[UNK]","vocab":{"[UNK]":0,"a":1}}})";
  const Json whole = parse_json(text);
  Members members;
  for (const JsonMember& member : whole.object()) {
    members.push_back(member.name == name ? JsonMember{name, parse_json(value)} : member);
  }
  if (whole.find(name) == nullptr) members.push_back({name, parse_json(value)});
  return to_string(Json(members));
}

TEST(HubTokenizer, RefusesByNameWhatItDoesNotHave) {
  const Folder folder;
  const auto message = [&](const std::string& name, const std::string& value) {
    write_bytes(folder / "tokenizer.json", file_with(name, value));
    return message_of<IoError>([&] { open_hub_tokenizer(folder.path()); });
  };
  const std::tuple<const char*, const char*, const char*> wrong[] = {
      {"normalizer", R"({"type":"Nmt"})", "normalizer has the type \"Nmt\""},
      {"normalizer", R"({"type":"Replace","pattern":{"Regex":"a+"},"content":""})", "a+"},
      {"normalizer", R"({"type":"Precompiled","precompiled_charsmap":"AAA"})",
       "precompiled_charsmap"},
      {"normalizer", R"({"type":"Precompiled","precompiled_charsmap":"AAAA"})", "broken"},
      {"normalizer", R"({"type":"Lowercase","twice":true})", "normalizer.twice"},
      {"pre_tokenizer", R"({"type":"Split","pattern":{"Regex":"[a-z]+"},"behavior":"Isolated"})",
       "[a-z]+"},
      {"pre_tokenizer", R"({"type":"Sequence","pretokenizers":[{"type":"UnicodeScripts"}]})",
       "pre_tokenizer.pretokenizers[0] has the type \"UnicodeScripts\""},
      {"pre_tokenizer", R"({"type":"Punctuation","behavior":"Gone"})", "Gone"},
      {"post_processor",
       R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x","type_id":0}}],"pair":[]})",
       "\"x\""},
      {"post_processor", R"({"type":"BertProcessing","sep":["a",9],"cls":["a",1]})",
       "post_processor.sep"},
      {"decoder", R"({"type":"CTC"})", "decoder has the type \"CTC\""},
      {"added_tokens", R"([{"id":7,"content":"b"}])",
       "gives \"b\" the id 7; the package gives it 2"},
      {"added_tokens", R"({"b":7})", "added_tokens is an object"},
      {"truncation", R"({"max_length":-1})", "truncation.max_length"},
      {"padding", R"({"strategy":"Some"})", "padding.strategy"},
      {"model", R"({"type":"WordLevel","vocab":{}})", "WordLevel"},
      {"model", R"({"type":"BPE","dropout":0.1,"vocab":{"a":0},"merges":[]})",
       "model.dropout is 0.1"},
      {"model", R"({"type":"BPE","vocab":{"a":0},"merges":["a b"]})",
       "merges[0] joins \"a\" and \"b\""},
      {"model", R"({"type":"WordPiece","vocab":{"a":0}})", "model.unk_token is absent"},
      {"model", R"({"type":"WordPiece","vocab":{"[UNK]":0,"a":0}})", "\"a\" the id 0"},
      {"model", R"({"type":"WordPiece","vocab":{"[UNK]":0,"a":99999999999}})", "99999999999"},
      {"model", R"({"type":"Unigram","unk_id":5,"vocab":[["a",0.0]]})", "unk_id is 5"},
      {"model", R"({"type":"Unigram","vocab":[["a"]]})", "vocab[0]"},
      {"model", "7", "model is 7"},
      {"more", "7", "tokenizer.more is 7"}};
  for (const auto& [name, value, expected] : wrong) {
    EXPECT_TRUE(contains(message(name, value), expected) &&
                contains(message(name, value), "tokenizer.json"))
        << value << ": " << message(name, value);
  }
  std::string deep = R"({"type":"NFC"})";
  for (int i = 0; i < 4; ++i) deep = R"({"type":"Sequence","normalizers":[)" + deep + "]}";
  write_bytes(folder / "tokenizer.json", file_with("normalizer", deep));
  EXPECT_NO_THROW(open_hub_tokenizer(folder.path()));
}

TEST(HubTokenizer, BoundsHowMuchATextGrows) {
  const Folder folder;
  std::string normalizers, pre_tokenizers;
  for (int i = 0; i < 40; ++i) {
    normalizers += R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"},)";
    pre_tokenizers += R"({"type":"ByteLevel","use_regex":false},)";
  }
  normalizers.pop_back();
  pre_tokenizers.pop_back();
  write_bytes(
      folder / "tokenizer.json",
      file_with("normalizer", R"({"type":"Sequence","normalizers":[)" + normalizers + "]}"));
  EXPECT_TRUE(contains(
      message_of<ValueError>([&] { open_hub_tokenizer(folder.path())->encode("aaa"); }), "grows"));
  write_bytes(folder / "tokenizer.json",
              file_with("pre_tokenizer",
                        R"({"type":"Sequence","pretokenizers":[)" + pre_tokenizers + "]}"));
  EXPECT_TRUE(
      contains(message_of<ValueError>([&] { open_hub_tokenizer(folder.path())->encode("\u00e9"); }),
               "grows"));
}

TEST(HubTokenizer, ListsAllThatIsWrongAtOnce) {
  const Folder folder;
  std::string file = file_with("decoder", R"({"type":"CTC"})");
  file.replace(file.find(R"("normalizer":null)"), 17, R"("normalizer":{"type":"Nmt"})");
  write_bytes(folder / "tokenizer.json", file);
  const std::string message = message_of<IoError>([&] { open_hub_tokenizer(folder.path()); });
  EXPECT_TRUE(contains(message, "Nmt") && contains(message, "CTC")) << message;
}

TEST(HubTokenizer, RefusesRowsThatCannotBe) {
  const HubTokenizer& t = *hub_tokenizers().at("wordpiece");
  EXPECT_TRUE(contains(message_of<ValueError>([&] { t.encode_text("a b c", {.max_length = 1}); }),
                       "no room for the 2"));
  EXPECT_THROW(t.encode_text("a b c", {.max_length = 4, .truncation = HubTruncation::only_second}),
               ValueError);
  EXPECT_THROW(
      t.encode_pair("a b c", "a", {.max_length = 5, .truncation = HubTruncation::only_second}),
      ValueError);
  EXPECT_THROW(t.windows("a b c d e f", {.max_length = 4, .stride = 2}), ValueError);
  EXPECT_THROW(t.windows("a b c d e f", "a b c d e f", {.max_length = 8, .stride = 1}), ValueError);
  EXPECT_THROW(t.encode_text("a", {.pad_to = -1}), ValueError);
  EXPECT_THROW(t.text(std::vector<int32_t>{-1}), ValueError);
  EXPECT_THROW(t.text(std::vector<int32_t>{static_cast<int32_t>(t.vocabulary())}), ValueError);
  EXPECT_EQ(t.encode_text("").ids, (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(t.encode_text("", {.special = false, .pad_multiple = 8}).ids.size(), 0u);
  EXPECT_EQ(t.encode_text("a", {.pad_multiple = 8}).ids.size(), 8u);
}

/// Files of older releases and settings, in a folder of their own.
class HubFolder : public testing::Test {
 protected:
  void copy(const std::string& from, const std::string& to) {
    write_bytes(folder_ / to, read_bytes(LONGSPAN_SOURCE_DIR "/tests/oracles/golden/" + from));
  }
  void config(const std::string& text) { write_bytes(folder_ / "tokenizer_config.json", text); }
  std::unique_ptr<HubTokenizer> open(const std::map<std::string, std::string>& settings = {}) {
    return open_hub_tokenizer(folder_.path(), {.settings = settings});
  }
  Folder folder_;
};

TEST_F(HubFolder, TokenizerJsonMustBeWhatItsClassMakes) {
  copy("hub/wordpiece_cased/tokenizer.json", "tokenizer.json");
  const std::vector<int32_t> cased = open()->encode("Speak, Speak! Caf\u00e9");
  config(R"({"tokenizer_class":"BertTokenizerFast"})");
  const std::string message = message_of<ValueError>([&] { open(); });
  for (const char* part :
       {"do_lower_case", ":do_lower_case=false (which is the pipeline of the file)",
        "BertTokenizer"}) {
    EXPECT_TRUE(contains(message, part)) << message;
  }
  EXPECT_EQ(open({{"do_lower_case", "false"}})->encode("Speak, Speak! Caf\u00e9"), cased);
  EXPECT_EQ(
      open({{"tokenizer_class", "PreTrainedTokenizerFast"}})->encode("Speak, Speak! Caf\u00e9"),
      cased);
  EXPECT_NE(open({{"do_lower_case", "true"}})->encode("Speak, Speak! Caf\u00e9"), cased);
  config(
      R"({"tokenizer_class":"BertTokenizer","do_lower_case":false,"model_max_length":512,"padding_side":"left"})");
  const auto t = open();
  EXPECT_EQ(t->encode("Speak, Speak! Caf\u00e9"), cased);
  EXPECT_EQ(t->settings().model_max_length, 512);
  EXPECT_TRUE(t->settings().pad_left);
  EXPECT_EQ(t->settings().names.at("mask_token"), "[MASK]");
  config("{}");
  write_bytes(folder_ / "config.json", R"({"model_type":"bert"})");
  EXPECT_TRUE(contains(message_of<ValueError>([&] { open(); }), "do_lower_case"));
}

TEST_F(HubFolder, ANameMayHaveSettings) {
  copy("hub/wordpiece_cased/tokenizer.json", "tokenizer.json");
  config(R"({"tokenizer_class":"BertTokenizerFast"})");
  const std::string& path = folder_.path();
  const std::string text = "Speak, [MASK]!";
  EXPECT_EQ(open_tokenizer(path + ":do_lower_case=false")->encode(text),
            open({{"do_lower_case", "false"}})->encode(text));
  EXPECT_EQ(
      open_tokenizer(path + ":do_lower_case=false,special_in_text=false")->encode(text),
      open_hub_tokenizer(path, {.settings = {{"do_lower_case", "false"}}, .special_in_text = false})
          ->encode(text));
  EXPECT_EQ(tokenizer_path(path + ":do_lower_case=false"), path);
  EXPECT_EQ(tokenizer_path(path), path);
  EXPECT_EQ(tokenizer_path("bytes"), "bytes");
  const std::pair<const char*, const char*> wrong[] = {
      {":lower=true", "there is no setting lower"},
      {":do_lower_case=false,special", "expected NAME=VALUE"},
      {":do_lower_case=false,do_lower_case=true", "given twice"},
      {":do_lower_case=maybe", "expected true, false or null"},
      {":special_in_text=1", "expected true or false"}};
  for (const auto& [settings, expected] : wrong) {
    const std::string message = message_of<ValueError>([&] { open_tokenizer(path + settings); });
    EXPECT_TRUE(contains(message, expected)) << settings << ": " << message;
  }
  EXPECT_TRUE(contains(message_of<ValueError>([&] { open_tokenizer("bytes:do_lower_case=false"); }),
                       "no folder"));
}

TEST_F(HubFolder, SettingsWithoutEffectAreRefused) {
  copy("hub/wordpiece_cased/tokenizer.json", "tokenizer.json");
  const std::pair<std::map<std::string, std::string>, const char*> wrong[] = {
      {{{"do_lower_case", "false"}}, "tokenizer_class=NAME"},
      {{{"src_lang", "ro_RO"}}, "src_lang changes nothing"},
      {{{"tokenizer_class", "BertTokenizer"}, {"offset", "3"}}, "does not read it"},
      {{{"tokenizer_class", "BertTokenizer"}, {"add_prefix_space", "true"}}, "does not read it"},
      {{{"tokenizer_class", "GPT2Tokenizer"}}, "is a WordPiece model"},
      {{{"tokenizer_class", "MBartTokenizer"}}, "is a WordPiece model"}};
  for (const auto& [settings, expected] : wrong) {
    const std::string message = message_of<ValueError>([&] { open(settings); });
    EXPECT_TRUE(contains(message, expected)) << message;
  }
}

TEST_F(HubFolder, FilesOfOlderReleasesMakeATokenizer) {
  copy("text/wordpiece.txt", "vocab.txt");
  config(R"({"tokenizer_class":"BertTokenizer","do_lower_case":true})");
  const auto t = open();
  const auto plain = open_word_pieces(folder_ / "vocab.txt");
  for (const Json& text : hub_cases()["texts"].array()) {
    if (contains(text.string(), "[")) continue;  // names of special tokens
    EXPECT_EQ(t->encode(text.string()), plain->encode(text.string())) << text.string();
  }
  const std::vector<int32_t> row = t->encode_pair("a", "b").ids;
  EXPECT_EQ(row.front(), t->find("[CLS]"));
  EXPECT_EQ(row.back(), t->find("[SEP]"));
  write_bytes(folder_ / "added_tokens.json",
              fmt::format(R"({{"newword":{}}})", plain->vocabulary()));
  EXPECT_EQ(open()->encode("newword").back(), plain->vocabulary());
  write_bytes(folder_ / "added_tokens.json", R"({"newword":7})");
  EXPECT_TRUE(contains(message_of<IoError>([&] { open(); }), "\"newword\" the id 7"));
}

TEST_F(HubFolder, SentencePieceModelsNeedAClass) {
  copy("text/pegasus.model", "spiece.model");
  EXPECT_TRUE(contains(message_of<ValueError>([&] { open(); }), "tokenizer_class"));
  config(R"({"tokenizer_class":"PegasusTokenizer"})");
  const auto pegasus = open();
  EXPECT_EQ(pegasus->find("<unk_2>"), 4);
  EXPECT_EQ(pegasus->find("<unk>"), 105);
  EXPECT_EQ(pegasus->encode_text("the king").ids.back(), pegasus->find("</s>"));
  config(R"({"tokenizer_class":"MBartTokenizer","src_lang":"ro_RO"})");
  const auto mbart = open();
  EXPECT_EQ(mbart->encode_text("the king").ids.back(), mbart->find("ro_RO"));
  EXPECT_EQ(open({{"src_lang", "en_XX"}})->encode_text("the king").ids.back(),
            mbart->find("en_XX"));
  config(R"({"tokenizer_class":"BertTokenizer"})");
  EXPECT_THROW(open(), ValueError);
}

TEST_F(HubFolder, RefusesSettingsByName) {
  copy("hub/wordpiece/tokenizer.json", "tokenizer.json");
  const std::pair<const char*, const char*> wrong[] = {
      {R"({"tokenizer_class":"LlamaTokenizer"})", "LlamaTokenizer"},
      {R"({"padding_side":"up"})", "padding_side"},
      {R"({"model_max_length":"x"})", "model_max_length"},
      {R"({"clean_up_tokenization_spaces":1})", "clean_up_tokenization_spaces"},
      {R"({"added_tokens_decoder":{"x":{"content":"a"}}})", "added_tokens_decoder"},
      {R"({"added_tokens_decoder":{"3":{"content":"[CLS]"}}})", "\"[CLS]\" the id 3"},
      {R"({"extra_special_tokens":7})", "extra_special_tokens"}};
  for (const auto& [text, expected] : wrong) {
    config(text);
    EXPECT_TRUE(contains(message_of<ValueError>([&] { open(); }), expected)) << text;
  }
  config("[]");
  EXPECT_THROW(open(), IoError);
  config("{");
  EXPECT_THROW(open(), IoError);
  const Folder empty;
  EXPECT_TRUE(
      contains(message_of<IoError>([&] { open_hub_tokenizer(empty.path()); }), "no vocabulary"));
}

TEST_F(HubFolder, OpensByName) {
  copy("hub/roberta/tokenizer.json", "tokenizer.json");
  const auto t = open_tokenizer(folder_.path());
  EXPECT_EQ(t->hash(), open()->hash());
  EXPECT_EQ(t->special().mask, t->find("<mask>"));
  EXPECT_EQ(t->encode("a <mask>").back(), t->find("<mask>"));
}

TEST_F(HubFolder, WritesOwnTokenizersWithEqualIds) {
  const std::string text = LONGSPAN_SOURCE_DIR "/tests/oracles/golden/text/";
  std::vector<std::unique_ptr<Tokenizer>> own;
  own.push_back(byte_tokenizer());
  own.push_back(open_word_pieces(text + "wordpiece.txt"));
  own.push_back(open_word_pieces(text + "wordpiece.txt", {.lower_case = false}));
  own.push_back(open_byte_pairs(text + "vocab.json", text + "merges.txt", {.prefix_space = true}));
  own.push_back(open_sentence_pieces(text + "unigram.model"));
  own.push_back(open_sentence_pieces(text + "bpe.model"));
  for (size_t i = 0; i < own.size(); ++i) {
    const Folder folder;
    write_hub_tokenizer(*own[i], folder.path());
    const auto again = open_hub_tokenizer(folder.path());
    int compared = 0;
    for (const Json& one : hub_cases()["texts"].array()) {
      const std::string& s = one.string();
      if (contains(s, "[") || contains(s, "<") || contains(s, "\u2581")) continue;
      EXPECT_EQ(again->encode(s), own[i]->encode(s)) << i << ": " << s;
      ++compared;
    }
    EXPECT_GE(compared, 30);
    EXPECT_EQ(again->vocabulary(), own[i]->vocabulary());
  }
  EXPECT_TRUE(contains(
      message_of<ValueError>([&] { write_hub_tokenizer(*char27_tokenizer(), folder_.path()); }),
      "tokenizer.json"));
  EXPECT_TRUE(contains(message_of<ValueError>([&] {
                         write_hub_tokenizer(*open_sentence_pieces(text + "prefix.model"),
                                             folder_.path());
                       }),
                       "SentencePiece"));
}

TEST_F(HubFolder, WritesWhatItHasRead) {
  for (const auto& [name, t] : hub_tokenizers()) {
    const Folder folder;
    write_hub_tokenizer(*t, folder.path());
    const auto again = open_hub_tokenizer(folder.path());
    for (const Json& text : hub_cases()["texts"].array()) {
      EXPECT_EQ(again->encode_text(text.string()), t->encode_text(text.string())) << name;
    }
  }
}

TEST(HubTokenizer, CountsCodePoints) {
  const std::string text = "a\u00e9\u4e2d\U0001f600z";
  const std::vector<TextSpan> spans = {{0, 1},   {1, 3},  {3, 6}, {6, 10},
                                       {10, 11}, {0, 11}, {2, 4}, {11, 99}};
  const std::vector<TextSpan> expected = {{0, 1}, {1, 2}, {2, 3}, {3, 4},
                                          {4, 5}, {0, 5}, {1, 2}, {5, 5}};
  EXPECT_EQ(in_code_points(text, spans), expected);
  EXPECT_EQ(in_code_points("", std::vector<TextSpan>{{0, 0}}), (std::vector<TextSpan>{{0, 0}}));
}

TEST(HubTokenizer, ReadsBase64) {
  for (const std::string& bytes : {std::string(), std::string("a"), std::string("ab"),
                                   std::string("abc"), std::string("\0\xFF\x10z", 4)}) {
    EXPECT_EQ(from_base64(to_base64(bytes)).value_or("?"), bytes);
  }
  EXPECT_EQ(to_base64("any carnal pleas"), "YW55IGNhcm5hbCBwbGVhcw==");
  for (const char* wrong : {"a", "ab", "a===", "ab=c", "ab c", "====", "ab!=", "=abc"})
    EXPECT_FALSE(from_base64(wrong)) << wrong;
}

}  // namespace
}  // namespace longspan
