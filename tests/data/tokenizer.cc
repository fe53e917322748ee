#include "data/tokenizers/tokenizer.h"

#include <zlib.h>

#include <map>

#include "core/error.h"
#include "core/generator.h"
#include "data/io/json.h"
#include "data/unicode/unicode.h"
#include "tests/harness/scratch.h"

namespace longspan {
namespace {

using test::contains;
using test::Folder;
using test::message_of;
using test::read_bytes;
using test::write_bytes;

using Ids = std::vector<int32_t>;

std::string tokenizer_golden(const std::string& name) {
  return LONGSPAN_SOURCE_DIR "/tests/oracles/golden/text/" + name;
}

std::string tinyshakespeare() {
  const std::string path = LONGSPAN_SOURCE_DIR "/data/samples/tinyshakespeare.txt.gz";
  const gzFile file = gzopen(path.c_str(), "rb");
  std::string text(2 << 20, '\0');
  const int count = gzread(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  EXPECT_EQ(count, 1'115'394);
  text.resize(static_cast<size_t>(count));
  return text;
}

/// Returns the tokenizers of the goldens, by their names there.
const std::map<std::string, std::unique_ptr<Tokenizer>>& tokenizers() {
  static const auto all = [] {
    std::map<std::string, std::unique_ptr<Tokenizer>> t;
    t["wordpiece"] = open_word_pieces(tokenizer_golden("wordpiece.txt"));
    t["wordpiece_cased"] =
        open_word_pieces(tokenizer_golden("wordpiece.txt"), {.lower_case = false});
    t["folds"] = open_word_pieces(tokenizer_golden("folds.txt"));
    t["byte_pairs"] =
        open_byte_pairs(tokenizer_golden("vocab.json"), tokenizer_golden("merges.txt"));
    t["byte_pairs_prefix"] = open_byte_pairs(
        tokenizer_golden("vocab.json"), tokenizer_golden("merges.txt"), {.prefix_space = true});
    for (const char* name : {"unigram", "bpe", "prefix"}) {
      t[name] = open_sentence_pieces(tokenizer_golden(std::string(name) + ".model"));
    }
    return t;
  }();
  return all;
}

const Json& tokenizer_cases() {
  static const Json json = parse_json(read_bytes(tokenizer_golden("cases.json")));
  return json;
}

std::vector<int64_t> integers(const Json& array) {
  std::vector<int64_t> all;
  for (const Json& item : array.array()) all.push_back(item.integer());
  return all;
}

std::vector<int64_t> wide(const Ids& ids) { return {ids.begin(), ids.end()}; }

std::string ids_hash(const Ids& ids) {
  uint64_t h = 0xCBF29CE484222325u;
  for (const int32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      h = (h ^ (static_cast<uint32_t>(id) >> shift & 0xFF)) * 0x100000001B3u;
    }
  }
  return fmt::format("{:016x}", h);
}

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  for (size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<char>(philox_word(5, static_cast<int64_t>(i)) & 0xFF);
  }
  return bytes;
}

/// Returns random code points without surrogates. ASCII is more frequent than the rest.
std::string random_utf8(size_t count) {
  std::string text;
  for (int64_t i = 0; text.size() < count; ++i) {
    const uint32_t word = philox_word(6, i);
    const uint32_t most = word & 1 ? 0x80 : word & 2 ? 0x3000 : 0x110000;
    const auto c = static_cast<int32_t>((word >> 2) % most);
    if (c < 0xD800 || c > 0xDFFF) append_utf8(text, c);
  }
  return text;
}

TEST(Tokenizer, GivesTheIdsOfTheReferences) {
  int64_t compared = 0;
  for (const Json& text : tokenizer_cases()["texts"].array()) {
    for (const auto& [kind, tokenizer] : tokenizers()) {
      EXPECT_EQ(wide(tokenizer->encode(text["text"].string())), integers(text[kind]))
          << kind << " of \"" << text["text"].string() << '"';
      ++compared;
    }
  }
  EXPECT_GE(compared, 200);
}

TEST(Tokenizer, GivesTheIdsOfTheReferencesOnWholeTexts) {
  const std::map<std::string, std::string> texts = {
      {"tinyshakespeare", tinyshakespeare()},
      {"random", read_bytes(tokenizer_golden("random.txt"))},
      {"everywhere", read_bytes(tokenizer_golden("everywhere.txt"))}};
  for (const auto& [name, text] : texts) {
    for (const auto& [kind, tokenizer] : tokenizers()) {
      const bool by_line = kind == "unigram" || kind == "bpe" || kind == "prefix";
      Ids ids;
      for (size_t begin = 0; begin <= text.size();) {
        const size_t end = by_line ? std::min(text.find('\n', begin), text.size()) : text.size();
        const Ids part = tokenizer->encode(std::string_view(text).substr(begin, end - begin));
        ids.insert(ids.end(), part.begin(), part.end());
        begin = end + 1;
      }
      const Json& expected = tokenizer_cases()["whole"][name][kind];
      EXPECT_EQ(static_cast<int64_t>(ids.size()), expected["count"].integer()) << name << kind;
      EXPECT_EQ(ids_hash(ids), expected["fnv1a"].string()) << name << ' ' << kind;
    }
  }
}

/// Every code point between letters, between digits, between other characters and after a space.
TEST(Tokenizer, GivesTheIdsOfTheReferencesForEveryCodePoint) {
  const Json expected = parse_json(read_bytes(tokenizer_golden("every.json")));
  const auto folds = open_word_pieces(tokenizer_golden("folds.txt"));
  const auto cased = open_word_pieces(tokenizer_golden("folds.txt"), {.lower_case = false});
  const Tokenizer& pairs = *tokenizers().at("byte_pairs");
  size_t block = 0;
  for (int32_t begin = 0; begin < 0x110000; begin += 4096) {
    std::string words, lines;
    for (int32_t c = begin; c < begin + 4096; ++c) {
      if (c >= 0xD800 && c < 0xE000) continue;
      std::string one;
      append_utf8(one, c);
      words += (words.empty() ? "a" : " a") + one + "b";
      lines += "a" + one + "a1" + one + "1!" + one + "! " + one + "\n";
    }
    if (words.empty()) continue;
    EXPECT_EQ(ids_hash(folds->encode(words)), expected["wordpiece"].array().at(block).string())
        << begin;
    EXPECT_EQ(ids_hash(cased->encode(words)),
              expected["wordpiece_cased"].array().at(block).string())
        << begin;
    Ids ids;
    for (const Piece& p : pairs.pieces(lines)) ids.push_back(2 * p.id + (p.starts_word ? 1 : 0));
    EXPECT_EQ(ids_hash(ids), expected["byte_pairs"].array().at(block).string()) << begin;
    ++block;
  }
  EXPECT_EQ(expected["wordpiece"].array().size(), block);
}

TEST(Tokenizer, LeavesOutDamagedUtf8AsTheReferenceDoes) {
  for (const Json& damaged : tokenizer_cases()["damaged"].array()) {
    std::string text;
    const std::string& hex = damaged["hex"].string();
    for (size_t i = 0; i < hex.size(); i += 2) {
      text += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
    EXPECT_EQ(wide(tokenizers().at("wordpiece")->encode(text)), integers(damaged["wordpiece"]))
        << hex;
  }
}

TEST(Tokenizer, SaysWhichBytesAPieceStandsFor) {
  int compared = 0;
  for (const Json& text : tokenizer_cases()["texts"].array()) {
    const Json* spans = text.find("spans");
    if (spans == nullptr) continue;
    for (const char* kind : {"wordpiece", "byte_pairs"}) {
      std::vector<int64_t> ours;
      for (const Piece& p : tokenizers().at(kind)->pieces(text["text"].string())) {
        ours.insert(ours.end(), {p.begin, p.end});
      }
      EXPECT_EQ(ours, integers((*spans)[kind])) << kind << " of " << text["text"].string();
      ++compared;
    }
  }
  EXPECT_GE(compared, 10);
  // If nothing is left out, pieces are adjacent.
  const std::string text = random_utf8(20'000) + random_bytes(2'000);
  for (const char* kind : {"byte_pairs", "unigram", "bpe"}) {
    int64_t end = 0;
    for (const Piece& p : tokenizers().at(kind)->pieces(text)) {
      EXPECT_EQ(p.begin, end);
      EXPECT_GE(p.end, p.begin);
      end = p.end;
    }
    EXPECT_EQ(end, static_cast<int64_t>(text.size())) << kind;
  }
  // Marks that are sorted take the places of the text in their order, as in the package.
  const auto folds = open_word_pieces(tokenizer_golden("folds.txt"));
  std::vector<int64_t> spans;
  for (const Piece& p : folds->pieces("a\U0001D16D\u0301\U0001D165b")) {
    spans.insert(spans.end(), {p.begin, p.end});
  }
  EXPECT_EQ(spans, (std::vector<int64_t>{0, 1, 1, 5, 5, 7, 11, 12}));
  const std::string everywhere = read_bytes(tokenizer_golden("everywhere.txt"));
  for (const auto& [kind, tokenizer] : tokenizers()) {
    int64_t begin = 0;
    for (const Piece& p : tokenizer->pieces(everywhere)) {
      ASSERT_LE(begin, p.begin) << kind;
      ASSERT_LE(p.begin, p.end) << kind;
      begin = p.begin;
    }
  }
}

TEST(Tokenizer, DecodesAsTheReferences) {
  const std::string& text = tokenizer_cases()["texts"].array()[6]["text"].string();
  for (const char* kind : {"wordpiece", "byte_pairs"}) {
    const Tokenizer& t = *tokenizers().at(kind);
    EXPECT_EQ(t.decode(t.encode(text)), tokenizer_cases()["decoded"][kind].string());
  }
  const Tokenizer& prefix = *tokenizers().at("prefix");
  EXPECT_EQ(prefix.decode(prefix.encode("Speak,  speak. ")), "Speak, speak.");
}

TEST(TasksAndData, DecodingGivesTheTextBack) {
  const auto bytes = byte_tokenizer();
  const std::vector<const Tokenizer*> lossless = {bytes.get(), tokenizers().at("byte_pairs").get(),
                                                  tokenizers().at("unigram").get(),
                                                  tokenizers().at("bpe").get()};
  constexpr size_t megabyte = 1 << 20;
  for (const std::string& text :
       {random_bytes(megabyte), random_utf8(megabyte), tinyshakespeare(), std::string(),
        std::string("\0\0", 2), std::string("\xE2\x96\x81 \xE2\x96\x81\xE2\x96"),
        std::string(100'000, 'a'), std::string(100'000, ' ')}) {
    for (size_t i = 0; i < lossless.size(); ++i) {
      const std::string back = lossless[i]->decode(lossless[i]->encode(text));
      EXPECT_TRUE(back == text) << i << ": " << text.size() << " bytes became " << back.size();
    }
  }
}

TEST(Tokenizer, StartsWords) {
  const auto words = [](const Tokenizer& t, std::string_view text) {
    std::string out;
    for (const Piece& p : t.pieces(text)) {
      if (p.starts_word) out += '|';
      const auto begin = static_cast<size_t>(p.begin);
      out += text.substr(begin, static_cast<size_t>(p.end) - begin);
    }
    return out;
  };
  EXPECT_EQ(words(*byte_tokenizer(), "No2 caf\xC3\xA9, ok"), "|No2| |caf\xC3\xA9|,| |ok");
  EXPECT_EQ(words(*char27_tokenizer(), "the cat"), "|the| |cat");
  EXPECT_EQ(words(*tokenizers().at("wordpiece"), "Unhappily, we"), "|Unhappily|,|we");
  EXPECT_EQ(words(*tokenizers().at("byte_pairs"), "Unhappily, we'll"), "|Unhappily|,| we|'ll");
  EXPECT_EQ(words(*tokenizers().at("unigram"), "Unhappily we\nthen"), "|Unhappily| we\n|then");
}

TEST(Tokenizer, SpecialIds) {
  EXPECT_EQ(byte_tokenizer()->special(), SpecialIds{});
  EXPECT_EQ(tokenizers().at("wordpiece")->special(),
            (SpecialIds{.pad = 0, .unknown = 1, .begin = 2, .separator = 3, .mask = 4}));
  EXPECT_EQ(tokenizers().at("byte_pairs")->special(),
            (SpecialIds{.pad = 1, .unknown = 3, .begin = 0, .separator = 2, .mask = 4}));
  EXPECT_EQ(tokenizers().at("unigram")->special(),
            (SpecialIds{.pad = 3, .unknown = 0, .begin = 1, .separator = 2, .mask = -1}));
  // The names of special tokens in a text are plain text.
  for (const auto& [kind, t] : tokenizers()) {
    for (const int32_t id : t->encode("<s>[CLS]<mask>[MASK]</s>[SEP]<pad>")) {
      EXPECT_NE(id, t->special().mask) << kind;
      EXPECT_NE(id, t->special().begin) << kind;
      EXPECT_NE(id, t->special().pad) << kind;
    }
  }
}

TEST(Tokenizer, TokensAndIdsBelongTogether) {
  std::vector<const Tokenizer*> all;
  for (const auto& [kind, t] : tokenizers()) all.push_back(t.get());
  const auto bytes = byte_tokenizer(), chars = char27_tokenizer(), words = word_tokenizer("a b a");
  all.insert(all.end(), {bytes.get(), chars.get(), words.get()});
  for (const Tokenizer* t : all) {
    const auto count = static_cast<int32_t>(t->vocabulary());
    for (int32_t id = 0; id < count; ++id) EXPECT_EQ(t->find(t->token(id)), id);
    EXPECT_EQ(t->find("no such token"), -1);
    for (const int32_t bad : {-1, count}) {
      const Ids ids = {0, bad};
      EXPECT_TRUE(contains(message_of<ValueError>([&] { t->decode(ids); }),
                           fmt::format("id {} is not in the vocabulary of {}", bad, count)));
      EXPECT_TRUE(contains(message_of<ValueError>([&] { t->token(bad); }), "vocabulary"));
    }
    EXPECT_EQ(t->encode(""), Ids());
    EXPECT_EQ(t->decode(Ids()), "");
  }
}

TEST(Tokenizer, HashesTellThemApart) {
  std::map<uint64_t, std::string> seen;
  const auto add = [&](const Tokenizer& t, const std::string& name) {
    EXPECT_TRUE(seen.emplace(t.hash(), name).second) << name << " and " << seen[t.hash()];
  };
  for (const auto& [kind, t] : tokenizers()) add(*t, kind);
  add(*byte_tokenizer(), "bytes");
  add(*char27_tokenizer(), "char27");
  add(*word_tokenizer("a b"), "a b");
  add(*word_tokenizer("b a"), "b a");
  EXPECT_EQ(word_tokenizer("a b")->hash(), word_tokenizer(" a  b\n")->hash());
  EXPECT_EQ(open_word_pieces(tokenizer_golden("wordpiece.txt"))->hash(),
            tokenizers().at("wordpiece")->hash());
}

TEST(Char27, IsTheAlphabetOfText8) {
  const auto t = char27_tokenizer();
  EXPECT_EQ(t->encode(" az"), (Ids{0, 1, 26}));
  EXPECT_EQ(t->decode(Ids{0, 1, 26}), " az");
  EXPECT_TRUE(
      contains(message_of<ValueError>([&] { t->encode("anD"); }), "byte 2 of the text is 0x44"));
}

TEST(WordTokenizer, CountsLinesAndOrdersByFrequency) {
  const auto t = word_tokenizer(" = Title = \n \n b a a \n\n b c b");
  // <eos> 5, b 3, =, a 2, Title, c 1, and <unk>.
  const std::vector<std::string> order = {"<eos>", "b", "=", "a", "Title", "c", "<unk>"};
  ASSERT_EQ(t->vocabulary(), 7);
  for (int32_t i = 0; i < 7; ++i) EXPECT_EQ(t->token(i), order[static_cast<size_t>(i)]);
  EXPECT_EQ(t->encode("a zebra\n\nb\n"), (Ids{3, 6, 0, 0, 1, 0}));
  EXPECT_EQ(t->encode("a"), (Ids{3, 0}));
  EXPECT_EQ(t->decode(t->encode(" a  b\n\nc\n")), "a b\n\nc\n");
  EXPECT_EQ(t->special().unknown, 6);
  EXPECT_EQ(word_tokenizer("x <unk> <unk>")->find("<unk>"), 0);
  EXPECT_EQ(word_tokenizer("")->vocabulary(), 2);
  const std::vector<Piece> pieces = t->pieces("a b\nc");
  ASSERT_EQ(pieces.size(), 5u);
  EXPECT_EQ(pieces[2], (Piece{0, true, 3, 4}));
  EXPECT_EQ(pieces[4], (Piece{0, true, 5, 5}));
}

/// Unassigned characters, newer ones and noncharacters stay in their word, and punctuation that is
/// newer than the tables of the package is part of it.
TEST(WordPiece, KnowsOfUnicodeWhatThePackageKnows) {
  const Folder folder;
  write_bytes(folder / "vocab.txt",
              "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\nab\nb\n\xE2\xB9\x83\n");
  for (const bool lower : {true, false}) {
    const auto t = open_word_pieces(folder / "vocab.txt", {.lower_case = lower});
    for (const int32_t c : {0x378, 0x1FAE9, 0xFDD0, 0x2E43}) {
      std::string text = "a";
      append_utf8(text, c);
      EXPECT_EQ(t->encode(text + "b"), Ids{1}) << c;
    }
    EXPECT_EQ(t->encode("a\u00ADb a-b"), (Ids{7, 5, 1, 8})) << "soft hyphen, hyphen";
  }
}

TEST(WordPiece, RefusesBadFiles) {
  const Folder folder;
  const auto message = [&](std::string_view text) {
    write_bytes(folder / "vocab.txt", text);
    return message_of<IoError>([&] { open_word_pieces(folder / "vocab.txt"); });
  };
  EXPECT_TRUE(contains(message("[PAD]\na\n"), "has no [UNK]"));
  EXPECT_TRUE(contains(message(""), "has no [UNK]"));
  EXPECT_TRUE(contains(message("[UNK]\na\n\nb\n"), "line 3 is empty"));
  EXPECT_TRUE(contains(message("[UNK]\na\nb\na\n"), "line 4 repeats \"a\" of line 2"));
  EXPECT_TRUE(contains(message_of<IoError>([&] { open_word_pieces(folder / "none.txt"); }),
                       "none.txt: No such file"));
  write_bytes(folder / "vocab.txt", "[UNK]\r\na\r\n##b\r\n");
  EXPECT_EQ(open_word_pieces(folder / "vocab.txt")->encode("ab a b"), (Ids{1, 2, 1, 0}));
}

TEST(BytePairs, RefusesBadFiles) {
  const Folder folder;
  const std::string vocab = read_bytes(tokenizer_golden("vocab.json"));
  const std::string merges = read_bytes(tokenizer_golden("merges.txt"));
  const auto message = [&](std::string_view v, std::string_view m) {
    write_bytes(folder / "vocab.json", v);
    write_bytes(folder / "merges.txt", m);
    return message_of<IoError>([&] { open_tokenizer(folder.path()); });
  };
  EXPECT_TRUE(contains(message("{", merges), "vocab.json"));
  EXPECT_TRUE(contains(message("[1]", merges), "is an array; expected an object"));
  EXPECT_TRUE(contains(message("{}", merges), "expected an object"));
  EXPECT_TRUE(contains(message("{\"a\":0,\"b\":0}", merges), "\"a\" and \"b\" have the id 0"));
  EXPECT_TRUE(contains(message("{\"a\":0,\"b\":7}", merges), "\"b\" has no id from 0 to 1"));
  EXPECT_TRUE(contains(message("{\"a\":0,\"b\":\"1\"}", merges), "\"b\" has no id"));
  EXPECT_TRUE(contains(message("{\"a\":0}", ""), "no token for the byte 0x00"));
  EXPECT_TRUE(contains(message(vocab, "a b c\n"), "line 1 is \"a b c\"; expected two tokens"));
  EXPECT_TRUE(contains(message(vocab, "#version: 0.2\nab\n"), "line 2 is \"ab\""));
  EXPECT_TRUE(contains(message(vocab, "t q\n"), "\"tq\" is not in the vocabulary"));
  EXPECT_TRUE(contains(message(vocab, merges + "t h\n"), "repeats \"t h\""));
}

TEST(SentencePieces, RefusesBadFiles) {
  const Folder folder;
  const std::string model = read_bytes(tokenizer_golden("bpe.model"));
  for (const std::string& bad :
       {std::string(), std::string("not a model"), model.substr(0, 5000), random_bytes(3000)}) {
    write_bytes(folder / "x.model", bad);
    EXPECT_TRUE(
        contains(message_of<IoError>([&] { open_tokenizer(folder / "x.model"); }), "x.model"));
  }
}

/// Encodes a Protocol Buffers field that is a string or a message, of at most 127 bytes.
std::string field(int number, const std::string& text) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(text.size())} + text;
}

TEST(SentencePieces, RefusesWhatTheLibraryTakesOnTrust) {
  const Folder folder;
  const std::string path = folder / "x.model";
  const auto message = [&](const std::string& model) {
    write_bytes(path, model);
    return message_of<IoError>([&] { open_sentence_pieces(path); });
  };
  const std::string zero(1, '\0'), unknown = field(1, field(1, "<unk>") + "\x18\2");
  EXPECT_TRUE(contains(message(unknown + field(1, field(1, zero + zero + "<"))),
                       "x.model is not a SentencePiece model: a piece has a byte of 0"));
  EXPECT_TRUE(contains(message(unknown + field(1, field(1, "a") + "\x15\xFF\xFF\xFF\xFF")),
                       "a score that is no number"));
  EXPECT_TRUE(contains(message(unknown + field(1, "\x0A\x7F")), "cut off"));
  EXPECT_TRUE(contains(message(unknown + "\x0B\x0C"), "a field of an unknown kind"));
  EXPECT_TRUE(contains(message(unknown + "\x08" + std::string(11, '\xFF')), "64 bits"));
  // Character rules whose array points outside itself, or outside the texts that follow it.
  const auto rules = [&](std::initializer_list<uint32_t> units, const std::string& texts) {
    std::string all;
    for (const uint32_t unit : units) all.append(reinterpret_cast<const char*>(&unit), 4);
    const auto bytes = static_cast<uint32_t>(all.size());
    all.insert(0, reinterpret_cast<const char*>(&bytes), 4);
    return message(unknown + field(3, field(2, all + texts)));
  };
  for (const std::string& said :
       {rules({0}, zero), rules({1 << 10}, zero), rules({}, zero), rules({0, 0}, "a")}) {
    EXPECT_TRUE(contains(said, "its rules for characters are broken")) << said;
  }
}

TEST(SentencePieces, AreRefusedOrDoNoHarmWhereTheyAreDamaged) {
  const Folder folder;
  const std::string path = folder / "x.model", text = "the quick brown fox ﬁnds a lazy dog. ";
  std::string lines;
  for (int i = 0; i < 50; ++i) lines += text + "\n";
  const std::string model = train_sentence_pieces(lines, {.vocabulary = 28, .lossless = false});
  write_bytes(path, model);
  const Ids whole = open_sentence_pieces(path)->encode(text);
  EXPECT_GT(whole.size(), 5u);
  int refused = 0;
  for (uint64_t i = 0; i < 300; ++i) {
    std::string damaged = model;
    for (uint64_t k = 0; k < 4; ++k) {
      const uint64_t draw = philox_word(Generator{i}.key, static_cast<int64_t>(k));
      damaged[draw % damaged.size()] = static_cast<char>(draw >> 24);
    }
    write_bytes(path, damaged);
    try {
      open_sentence_pieces(path)->encode(text);
    } catch (const IoError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 30);
}

/// Returns `count` words of 150 kinds, of 3 to 7 of these letters.
std::vector<std::string> random_words(std::string_view letters, uint64_t seed, int64_t count) {
  std::vector<std::string> words;
  for (int64_t i = 0; i < count; ++i) {
    const auto kind = static_cast<int64_t>(philox_word(seed, i) % 150);
    std::string word;
    for (int64_t k = 0; k < 3 + kind % 5; ++k) {
      word += letters[philox_word(seed + 1, kind * 8 + k) % letters.size()];
    }
    words.push_back(word);
  }
  return words;
}

/// Returns the bytes that a token of the model that is trained on one text has in another.
double bytes_per_token(const std::string& trained_on, const std::string& text,
                       const std::string& path) {
  write_bytes(path, train_sentence_pieces(trained_on, {.vocabulary = 450}));
  return static_cast<double>(text.size()) /
         static_cast<double>(open_sentence_pieces(path)->encode(text).size());
}

// The library leaves out lines above its limit, and lines with a character that it reserves.
TEST(SentencePieces, TrainOnEveryLine) {
  const Folder folder;
  std::string few;
  for (const std::string& word : random_words("abcdefgh", 1, 1200)) few += word + "\n";
  const std::vector<std::string> words = random_words("stuvwxyz", 7, 30'000);
  const auto text = [&](size_t in_line, const std::string& between, const std::string& end) {
    std::string all = few;
    for (size_t i = 0; i < words.size(); ++i) {
      all += words[i] + ((i + 1) % in_line == 0 ? end : between);
    }
    return all;
  };
  const std::string shorts = text(50, " ", "\n");
  const double expected = bytes_per_token(shorts, shorts, folder / "a.model");
  EXPECT_GT(expected, 3);
  const auto near = [&](const char* what, const std::string& trained_on) {
    const double got = bytes_per_token(trained_on, shorts, folder / "b.model");
    EXPECT_NEAR(got, expected, expected / 10) << what;
  };
  near("lines of 90,000 bytes", text(15'000, " ", "\n"));
  near("one line", text(words.size(), " ", " "));
  near("with what the library reserves", text(50, " ", "\u2585\n"));
  // Cut within words, and not within characters.
  EXPECT_GT(bytes_per_token(text(words.size(), "€", "€"), text(words.size(), "€", "€"),
                            folder / "c.model"),
            expected / 2);
}

TEST(SentencePieces, LongPiecesAreRefused) {
  const Folder folder;
  const std::string path = folder / "long.model";
  const auto model = [&](size_t length) {
    const auto number = [](size_t n) {
      std::string bytes;
      for (; n > 127; n >>= 7) bytes += static_cast<char>((n & 127) | 128);
      return bytes + static_cast<char>(n);
    };
    const auto field = [&](int id, const std::string& text) {
      return static_cast<char>(id << 3 | 2) + number(text.size()) + text;
    };
    const auto piece = [&](const std::string& text, char type) {
      return field(1, field(1, text) + std::string("\x15\0\0\x80\xBF\x18", 6) + type);
    };
    std::string all = piece("<unk>", 2) + piece("<s>", 3) + piece("</s>", 3);
    for (const char* letter : {"\u2581", "a", "b"}) all += piece(letter, 1);
    all += piece(std::string(length, 'a'), 1);
    return all + field(2, "\x18\x01") + field(3, field(1, "identity"));
  };
  write_bytes(path, model(4096));
  EXPECT_GT(open_sentence_pieces(path)->encode("ab").size(), 1u);
  write_bytes(path, model(4097));
  std::string said = message_of<IoError>([&] { open_sentence_pieces(path); });
  EXPECT_TRUE(contains(said, path) && contains(said, "a piece has 4097 bytes")) << said;
  write_bytes(path, model(200'000));
  said = message_of<IoError>([&] { open_sentence_pieces(path); });
  EXPECT_TRUE(contains(said, path)) << said;
  const std::vector<std::string> symbols = {std::string(200'000, 'a')};
  message_of<ValueError>([&] { train_sentence_pieces("a b c", {.symbols = symbols}); });
}

TEST(SentencePieces, Trains) {
  const Folder folder;
  const std::string text = tinyshakespeare().substr(0, 60'000);
  for (const char* kind : {"unigram", "bpe"}) {
    const SentencePieceTraining options{.kind = kind, .vocabulary = 500, .symbols = {"[MASK]"}};
    const std::string model = train_sentence_pieces(text, options);
    EXPECT_EQ(train_sentence_pieces(text, options), model) << kind;
    write_bytes(folder / "m.model", model);
    const auto t = open_tokenizer(folder.path());
    EXPECT_EQ(t->vocabulary(), 500);
    EXPECT_EQ(t->special(),
              (SpecialIds{.pad = 3, .unknown = 0, .begin = 1, .separator = 2, .mask = 4}));
    const Ids ids = t->encode(text);
    EXPECT_LT(ids.size(), text.size() * 6 / 10);
    EXPECT_EQ(t->decode(ids), text);
    const std::string hostile = random_bytes(5000) + random_utf8(5000);
    EXPECT_TRUE(t->decode(t->encode(hostile)) == hostile);
  }
  write_bytes(folder / "n.model",
              train_sentence_pieces(text, {.vocabulary = 500, .lossless = false}));
  const auto nfkc = open_tokenizer(folder / "n.model");
  EXPECT_EQ(nfkc->decode(nfkc->encode("  \xEF\xAC\x81ne   \xEF\xBD\x81rt ")), "fine art");
  EXPECT_TRUE(contains(message_of<ValueError>([&] { train_sentence_pieces("a b", {}); }),
                       "no SentencePiece model of 8000 tokens from 3 bytes"));
  message_of<ValueError>([&] { train_sentence_pieces("", {}); });
  message_of<ValueError>([&] { train_sentence_pieces(text, {.kind = "word"}); });
}

TEST(OpenTokenizer, KnowsNamesFilesAndFolders) {
  EXPECT_EQ(open_tokenizer("bytes")->vocabulary(), 256);
  EXPECT_EQ(open_tokenizer("char27")->vocabulary(), 27);
  EXPECT_EQ(open_tokenizer(tokenizer_golden("wordpiece.txt"))->hash(),
            tokenizers().at("wordpiece")->hash());
  EXPECT_EQ(open_tokenizer(tokenizer_golden("bpe.model"))->hash(), tokenizers().at("bpe")->hash());
  const Folder folder;
  write_bytes(folder / "vocab.txt", "[UNK]\na\n");
  EXPECT_EQ(open_tokenizer(folder.path())->vocabulary(), 2);
  const Folder empty;
  EXPECT_TRUE(
      contains(message_of<ValueError>([&] { open_tokenizer(empty.path()); }),
               "expected tokenizer.json, vocab.json and merges.txt, vocab.txt or one .model file"));
  EXPECT_TRUE(contains(message_of<ValueError>([&] { open_tokenizer("byte"); }),
                       "got \"byte\"; expected bytes, char27"));
}

/// Writes a folder from an entry of settings.json.
void fill(const Folder& folder, const Json& files, const Json& config) {
  for (const JsonMember& m : files.object()) {
    write_bytes(folder / m.value.string(), read_bytes(tokenizer_golden(m.name)));
  }
  write_bytes(folder / "tokenizer_config.json", to_string(config));
}

TEST(TokenizerSettings, AreThoseOfTheReference) {
  const Json json = parse_json(read_bytes(tokenizer_golden("settings.json")));
  int64_t compared = 0;
  for (const JsonMember& m : json["folders"].object()) {
    SCOPED_TRACE(m.name);
    const Folder folder;
    fill(folder, m.value["files"], m.value["config"]);
    const auto t = open_tokenizer(folder.path());
    const Json::Array& texts = json["texts"].array();
    for (size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(wide(t->encode(texts[i].string())), integers(m.value["ids"].array()[i]))
          << texts[i].string();
      ++compared;
    }
    if (m.name.starts_with("pegasus")) {
      const Json& special = m.value["special"];
      EXPECT_EQ(t->special().pad, special["pad"].integer());
      EXPECT_EQ(t->special().unknown, special["unk"].integer());
      EXPECT_EQ(t->special().mask, special["mask"].integer());
    }
  }
  EXPECT_GE(compared, 49);
}

TEST(TokenizerSettings, ChangeWhatTheyShould) {
  // Each setting changes the ids. Earlier versions ignored these settings.
  const Json json = parse_json(read_bytes(tokenizer_golden("settings.json")));
  const auto ids = [&](const char* name) { return json["folders"][name]["ids"]; };
  EXPECT_NE(ids("cased"), ids("uncased"));
  EXPECT_NE(ids("prefix"), ids("no_prefix"));
  EXPECT_NE(ids("pegasus"), ids("pegasus_offset"));
}

TEST(TokenizerSettings, OfPegasusLieBesideTheModel) {
  const Folder folder;
  write_bytes(folder / "spiece.model", read_bytes(tokenizer_golden("pegasus.model")));
  const auto plain = open_tokenizer(folder.path());
  write_bytes(folder / "config.json", "// another program's\n{}");
  EXPECT_EQ(open_tokenizer(folder.path())->hash(), plain->hash());
  write_bytes(folder / "config.json", "{\"model_type\": \"bigbird_pegasus\"}");
  const auto t = open_tokenizer(folder.path());
  EXPECT_EQ(open_tokenizer(folder / "spiece.model")->hash(), t->hash());
  EXPECT_NE(t->hash(), plain->hash());
  EXPECT_EQ(t->vocabulary(), plain->vocabulary() + 103);
  const std::string text = "Speak, thee.";
  Ids shifted = plain->encode(text);
  for (int32_t& id : shifted) id += 103;
  EXPECT_EQ(t->encode(text), shifted);
  EXPECT_EQ(t->decode(shifted), plain->decode(plain->encode(text)));
  shifted.insert(shifted.begin(), {0, 2, 104});
  shifted.push_back(1);
  EXPECT_EQ(t->decode(shifted), plain->decode(plain->encode(text))) << "special ids are no text";
  EXPECT_EQ(t->token(104), "<unk_102>");
  EXPECT_EQ(t->token(105), "<unk>");
  EXPECT_EQ(t->special(),
            (SpecialIds{.pad = 0, .unknown = 105, .begin = -1, .separator = 1, .mask = 3}));
  for (int32_t id = 0; id < t->vocabulary(); ++id) ASSERT_EQ(t->find(t->token(id)), id);
  const Ids beyond = {static_cast<int32_t>(t->vocabulary())};
  EXPECT_TRUE(contains(message_of<ValueError>([&] { t->decode(beyond); }), "not in the vocab"));
  EXPECT_TRUE(contains(message_of<IoError>([&] {
                         open_sentence_pieces(tokenizer_golden("unigram.model"), {.offset = 103});
                       }),
                       "does not begin with <pad>, </s> and <unk>"));
}

TEST(TokenizerSettings, RefusesWhatIsNotHad) {
  const auto message = [](const char* source, const char* name, const char* config) {
    const Folder folder;
    write_bytes(folder / name, read_bytes(tokenizer_golden(source)));
    if (std::string_view(name) == "vocab.json") {
      write_bytes(folder / "merges.txt", read_bytes(tokenizer_golden("merges.txt")));
    }
    write_bytes(folder / "tokenizer_config.json", config);
    return message_of<Error>([&] { open_tokenizer(folder.path()); });
  };
  const auto refuses = [&](const char* source, const char* name, const char* config,
                           std::vector<std::string> says) {
    const std::string text = message(source, name, config);
    for (const std::string& part : says) EXPECT_TRUE(contains(text, part)) << text;
  };
  refuses("wordpiece.txt", "vocab.txt", R"({"strip_accents": false})",
          {"strip_accents is false; expected true"});
  refuses("wordpiece.txt", "vocab.txt", R"({"do_lower_case": false, "strip_accents": true})",
          {"strip_accents is true; expected false"});
  refuses("wordpiece.txt", "vocab.txt", R"({"tokenize_chinese_chars": false})",
          {"tokenize_chinese_chars is false"});
  refuses("wordpiece.txt", "vocab.txt", R"({"do_lower_case": "no"})",
          {"do_lower_case is \"no\"; expected true or false"});
  refuses("wordpiece.txt", "vocab.txt", R"({"tokenizer_class": "BertJapaneseTokenizer"})",
          {"names BertJapaneseTokenizer", "expected one of BertTokenizer"});
  refuses("vocab.json", "vocab.json", R"({"tokenizer_class": "WhisperTokenizer"})",
          {"names WhisperTokenizer", "RobertaTokenizer"});
  refuses("vocab.json", "vocab.json", R"({"add_prefix_space": 1})", {"add_prefix_space is 1"});
  refuses("bpe.model", "spiece.model", R"({"tokenizer_class": "XLMRobertaTokenizerFast"})",
          {"names XLMRobertaTokenizer", "BigBirdTokenizer"});
  refuses("bpe.model", "spiece.model", R"({"sp_model_kwargs": {"enable_sampling": true}})",
          {"sp_model_kwargs is {\"enable_sampling\":true}"});
  refuses("pegasus.model", "spiece.model",
          R"({"tokenizer_class": "PegasusTokenizer", "offset": -1})", {"offset is -1"});
  refuses("bpe.model", "spiece.model", R"({"tokenizer_class": "PegasusTokenizer"})",
          {"does not begin with <pad>"});
  refuses("bpe.model", "spiece.model", "{", {"tokenizer_config.json"});
  refuses("bpe.model", "spiece.model", "[]", {"expected an object"});
}

TEST(TokenizerSettings, ACasedVocabularyMustSaySo) {
  const Folder folder;
  write_bytes(folder / "vocab.txt", "[UNK]\n[unused0]\nthe\nThe\n");
  const std::string text = message_of<ValueError>([&] { open_tokenizer(folder.path()); });
  EXPECT_TRUE(contains(text, "such as \"The\"")) << text;
  EXPECT_TRUE(contains(text, "write {\"do_lower_case\": false} to")) << text;
  EXPECT_EQ(message_of<ValueError>([&] { open_tokenizer(folder / "vocab.txt"); }), text);
  write_bytes(folder / "tokenizer_config.json", "{\"do_lower_case\": false}");
  EXPECT_EQ(open_tokenizer(folder.path())->encode("The the"), (Ids{3, 2}));
  write_bytes(folder / "tokenizer_config.json", "{\"do_lower_case\": true}");
  EXPECT_EQ(open_tokenizer(folder.path())->encode("The the"), (Ids{2, 2}));
}

}  // namespace
}  // namespace longspan
