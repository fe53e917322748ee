#include "data/data_sets.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "core/error.h"
#include "core/generator.h"
#include "data/choices.h"
#include "data/io/formats.h"
#include "data/io/stories.h"
#include "data/questions.h"
#include "data/tasks.h"
#include "data/token_file.h"
#include "data/tokenizers/tokenizer.h"
#include "data/trivia.h"
#include "tests/harness/scratch.h"

namespace longspan {
namespace {

using test::contains;
using test::Folder;
using test::message_of;
using test::read_bytes;
using test::write_bytes;

std::vector<int32_t> ids_of(const CorpusPart& part) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < part.size(); ++i) ids.push_back(part[i]);
  return ids;
}

Corpus open(const std::string& id, const std::string& path, const CorpusOptions& options = {}) {
  return open_corpus(id, {.root = "", .data = id + "=" + path}, options);
}

TEST(TasksAndData, CountsOfTheBundledText) {
  const Folder folder;
  std::filesystem::create_directory(folder / "tinyshakespeare");
  std::filesystem::copy_file(LONGSPAN_SOURCE_DIR "/data/samples/tinyshakespeare.txt.gz",
                             folder / "tinyshakespeare/input.txt.gz");
  const Corpus corpus = open_corpus("tinyshakespeare", {.root = folder.path(), .data = ""});
  EXPECT_EQ(corpus.train.size(), 1'003'854);
  EXPECT_EQ(corpus.valid.size(), 111'540);
  EXPECT_EQ(corpus.test.size(), 0);
  EXPECT_TRUE(corpus.warnings.empty());
  EXPECT_EQ(corpus.unit, "byte");
  EXPECT_EQ(corpus.vocabulary, 256);
  // The expected counts apply only to the default split.
  const Corpus other = open_corpus("tinyshakespeare", {.root = folder.path(), .data = ""},
                                   {.split = "50/50/0", .tokenizer = ""});
  EXPECT_EQ(other.train.size(), 557'697);
  EXPECT_TRUE(other.warnings.empty());
}

/// Every reader of text gives the same with and without a byte order mark at the beginning.
TEST(ByteOrderMark, IsNoPartOfAnyText) {
  const std::string mark = "\xEF\xBB\xBF";
  const Folder folder;
  const auto with = [&](const std::string& name, const std::string& text) {
    write_bytes(folder / name, text);
    return folder / name;
  };
  // Texts that are parsed.
  const auto read_twice = [&](const std::string& text, const auto& read) {
    EXPECT_EQ(read(mark + text), read(text)) << text;
    EXPECT_NE(read(text + "."), read(text)) << "the comparison sees something";
  };
  const auto joined = [](const std::vector<std::string>& sentences) {
    std::string all;
    for (const std::string& s : sentences) all += s + '|';
    return all;
  };
  read_twice("One. Two", [&](const std::string& t) { return joined(split_sentences(t)); });
  read_twice("One. Two.\n\n@highlight\n\nHigh", [&](const std::string& t) {
    const Document d = read_story(t, "x");
    return joined(d.article) + joined(d.summary);
  });
  read_twice("One <S_SEP> two",
             [&](const std::string& t) { return joined(read_documents(t)[0].article); });
  read_twice("One <S_SEP> two", [&](const std::string& t) {
    const std::vector<Document> d = read_documents(mark + "a", t, "x");
    return joined(d[0].article) + joined(d[0].summary);
  });
  std::vector<Document> labelled = read_documents("a <S_SEP> b");
  read_labels(mark + "T F", "x", labelled);
  EXPECT_EQ(labelled[0].labels, (std::vector<uint8_t>{1, 0}));
  EXPECT_EQ(read_fasta(mark + ">one\nACG\n", bases, 'N', "x").ids,
            read_fasta(">one\nACG\n", bases, 'N', "x").ids);
  EXPECT_EQ(read_squad(mark + R"({"data":[]})", "x").size(), 0u);
  EXPECT_EQ(read_mrqa(mark + R"({"context":"a","qas":[{"qid":"1","question":"b",)"
                             R"("detected_answers":[]}]})",
                      "x")
                .size(),
            1u);
  EXPECT_EQ(read_triviaqa(mark + R"({"Data":[]})", "x").size(), 0u);
  EXPECT_EQ(read_wikihop(mark + "[]", "x").size(), 0u);

  // Files of a corpus. In bytes the mark stays.
  const std::string text = "the cat the dog\nthe end\n";
  const CorpusOptions whole{.split = "100/0/0", .tokenizer = ""};
  const auto words = [&](const std::string& t) {
    const Corpus c = open("words", with("text", t), whole);
    std::string all = c.tokenizer->decode(ids_of(c.train)) + '|';
    for (int32_t i = 0; i < c.tokenizer->vocabulary(); ++i) all += c.tokenizer->token(i) + '|';
    return all;
  };
  read_twice(text, words);
  EXPECT_EQ(ids_of(open("bytes", with("text", mark + text), whole).train).size(), text.size() + 3);

  // Vocabularies, and a corpus in their tokens.
  const std::string vocabulary = "[UNK]\n[CLS]\nthe\ncat\ndog\nend\n";
  for (const std::string& first : {std::string(), mark}) {
    const std::string path = with("vocab.txt", first + vocabulary);
    EXPECT_EQ(open_word_pieces(path)->token(0), "[UNK]");
    for (const std::string& second : {std::string(), mark}) {
      const Corpus c =
          open("bytes", with("text", second + text), {.split = "100/0/0", .tokenizer = path});
      EXPECT_EQ(c.train.symbols, static_cast<int64_t>(text.size()));
      EXPECT_EQ(ids_of(c.train), (std::vector<int32_t>{2, 3, 2, 4, 2, 5}));
    }
  }
  const std::string golden = LONGSPAN_SOURCE_DIR "/tests/oracles/golden/text/";
  const auto byte_pairs = [&](const std::string& first) {
    return open_byte_pairs(with("vocab.json", first + read_bytes(golden + "vocab.json")),
                           with("merges.txt", first + read_bytes(golden + "merges.txt")));
  };
  EXPECT_EQ(byte_pairs(mark)->encode(text), byte_pairs("")->encode(text));
  // A tokenizer's own ids are those of the reference, which keeps the character in a text.
  EXPECT_NE(byte_pairs("")->encode(mark + text), byte_pairs("")->encode(text));
}

/// Returns bits per token of the test part with counts of the training part, plus one for each
/// token, after the token before (order 1) or alone.
double count_bits(const Corpus& corpus, bool order_1) {
  constexpr double tokens = 22;  // that occur: 20 amino acids, X and the end
  std::map<std::pair<int32_t, int32_t>, double> seen;
  std::map<int32_t, double> total;
  int32_t before = 25;
  const auto context = [&] { return order_1 ? before : 0; };
  for (int64_t i = 0; i < corpus.train.size(); ++i) {
    seen[{context(), corpus.train[i]}] += 1;
    total[context()] += 1;
    before = corpus.train[i];
  }
  double bits = 0;
  for (int64_t i = 0; i < corpus.test.size(); ++i) {
    bits -= std::log2((seen[{context(), corpus.test[i]}] + 1) / (total[context()] + tokens));
    before = corpus.test[i];
  }
  return bits / static_cast<double>(corpus.test.size());
}

TEST(TasksAndData, CountsOfTheBundledProteins) {
  const Corpus corpus = open("proteins", LONGSPAN_SOURCE_DIR "/data/samples/uniprot-500.fasta.gz");
  EXPECT_TRUE(corpus.warnings.empty());
  EXPECT_EQ(corpus.train.size(), 198'162);
  EXPECT_EQ(corpus.valid.size(), 25'443);
  EXPECT_EQ(corpus.test.size(), 22'725);
  EXPECT_EQ(corpus.unit, "residue");
  EXPECT_EQ(corpus.vocabulary, 26);
  const CorpusPart* const parts[] = {&corpus.train, &corpus.valid, &corpus.test};
  const int64_t records[] = {400, 50, 50};
  for (size_t p = 0; p < 3; ++p) {
    const std::vector<int32_t> ids = ids_of(*parts[p]);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 25), records[p]);
    EXPECT_EQ(ids.back(), 25);
    EXPECT_EQ(parts[p]->before, p == 0 ? 0 : 25);
  }
  // The figures of data/samples/README.md.
  EXPECT_NEAR(count_bits(corpus, false), 4.210, 5e-4);
  EXPECT_NEAR(count_bits(corpus, true), 4.195, 5e-4);
  const std::vector<int32_t> train = ids_of(corpus.train);
  const auto leucine = static_cast<int32_t>(residues.find('L'));
  EXPECT_NEAR(double(std::count(train.begin(), train.end(), leucine)) / double(train.size() - 400),
              0.095, 1e-3);
}

TEST(DataSets, WarnOfOtherCounts) {
  const Folder folder;
  write_bytes(folder / "input.txt", std::string(1000, 'x'));
  const Corpus corpus = open("tinyshakespeare", folder / "input.txt");
  ASSERT_EQ(corpus.warnings.size(), 2u);
  EXPECT_EQ(corpus.warnings[0], "tinyshakespeare: the train part has 900 bytes; expected 1003854");
}

TEST(DataSets, UnitsOfEveryKind) {
  std::set<std::string_view> generated, tasks;
  for (const DataSet& set : data_sets()) {
    EXPECT_FALSE(unit_of(set.kind).empty()) << set.id;
    if (is_generated(set.kind)) generated.emplace(set.id);
  }
  for (const SampleTaskEntry& task : sample_tasks()) tasks.insert(task.id);
  EXPECT_EQ(generated, tasks);
  for (const auto& [id, unit] : {std::pair{"bytes", "byte"},
                                 {"text8", "character"},
                                 {"dna", "base"},
                                 {"wiki-leads", "document"},
                                 {"chromatin", "answer"},
                                 {"wikihop", "question"},
                                 {"triviaqa", "question"}}) {
    EXPECT_EQ(unit_of(find_data_set(id).kind), unit) << id;
  }
}

TEST(DataSets, AreFoundAndMissing) {
  const Folder folder;
  const DataPlace place{.root = folder.path(), .data = ""};
  const std::string missing = missing_files(find_data_set("enwik8"), place);
  EXPECT_EQ(missing,
            "enwik8 lacks enwik8 (100000000 bytes), plain or with .gz, in " + (folder / "enwik8"));
  EXPECT_TRUE(contains(message_of<IoError>([&] { open_corpus("enwik8", place); }), missing));
  std::filesystem::create_directory(folder / "war-and-peace");
  write_bytes(folder / "war-and-peace/valid.txt", "v");
  EXPECT_TRUE(contains(missing_files(find_data_set("war-and-peace"), place),
                       "lacks train.txt (2884626 bytes), test.txt (241972 bytes)"));
  EXPECT_TRUE(
      contains(message_of<ValueError>([&] { find_data_set("enwik9"); }), "did you mean enwik8?"));
  unsetenv("LONGSPAN_DATA");
  EXPECT_TRUE(contains(message_of<ValueError>([&] { open_corpus("enwik8", {}); }),
                       "--data enwik8=PATH, --data-root DIR or LONGSPAN_DATA"));
  EXPECT_TRUE(contains(message_of<ValueError>([&] { open_corpus("dna", {}); }), "--data dna=FILE"));
  EXPECT_TRUE(
      contains(message_of<ValueError>([&] {
                 open_corpus("dna", {"", "bytes=x"});
               }),
               "got data \"bytes\" for the task dna; expected --data dna=PATH, or --task bytes"));
  setenv("LONGSPAN_DATA", folder.path().c_str(), 1);
  EXPECT_TRUE(missing_files(find_data_set("war-and-peace"), {}).find("valid.txt") ==
              std::string::npos);
  unsetenv("LONGSPAN_DATA");
  std::set<std::string_view> ids;
  for (const DataSet& set : data_sets()) EXPECT_TRUE(ids.insert(set.id).second) << set.id;
}

TEST(DataSets, PartsOfSeveralFiles) {
  const Folder folder;
  write_bytes(folder / "train.txt", "the first");
  write_bytes(folder / "valid.txt", "second");
  write_bytes(folder / "test.txt", "third");
  const Corpus corpus = open("war-and-peace", folder.path());
  EXPECT_EQ(corpus.tokenizer->decode(ids_of(corpus.train)), "the first");
  EXPECT_EQ(corpus.tokenizer->decode(ids_of(corpus.valid)), "second");
  EXPECT_EQ(corpus.tokenizer->decode(ids_of(corpus.test)), "third");
  EXPECT_EQ(corpus.valid.before, 0);
  EXPECT_EQ(&corpus.part("valid"), &corpus.valid);
  EXPECT_THROW(corpus.part("dev"), ValueError);
}

TEST(DataSets, Characters) {
  const Folder folder;
  write_bytes(folder / "x", "a cat and ");
  const Corpus corpus = open("chars", folder / "x");
  EXPECT_EQ(ids_of(corpus.train), (std::vector<int32_t>{1, 0, 3, 1, 20, 0, 1, 14, 4}));
  EXPECT_EQ(corpus.vocabulary, 27);
  write_bytes(folder / "x", "A cat");
  const std::string said = message_of<ValueError>([&] { open("chars", folder / "x"); });
  EXPECT_TRUE(contains(said, folder / "x")) << said;
  EXPECT_TRUE(contains(said, "byte 0 is 0x41")) << said;
}

/// Returns a number of /proc/self/status in bytes.
int64_t status_of(const char* name) {
  const std::string text = read_bytes("/proc/self/status");
  const size_t at = text.find(std::string(name) + ":");
  return at == std::string::npos ? 0 : std::atoll(text.c_str() + at + std::strlen(name) + 1) * 1024;
}

// A byte of memory for each byte of a file of characters, and the file itself, which is mapped.
TEST(DataSets, CharactersTakeAByteEach) {
  constexpr int64_t bytes = 32 << 20;
  const Folder folder;
  write_bytes(folder / "x", std::string(bytes, 'x'));
  const pid_t child = fork();
  if (child == 0) {
    const int64_t before = status_of("VmRSS");
    write_bytes("/proc/self/clear_refs", "5");  // the peak begins anew
    const Corpus corpus = open("chars", folder / "x");
    const int64_t grown = status_of("VmHWM") - before;
    _exit(corpus.train.size() > 0 && grown < 3 * bytes ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(DataSets, EmptyPartsNameTheirFile) {
  const Folder folder;
  for (const char* id : {"bytes", "chars"}) {
    write_bytes(folder / id, std::string(100, 'x'));
    const Corpus corpus = open_corpus(id, {"", std::string(id) + "=" + (folder / id)}, {"0/50/50"});
    const std::string said =
        message_of<ValueError>([&] { SegmentBatches(corpus.train, 1, 8, {}); });
    EXPECT_TRUE(contains(said, folder / id)) << said;
  }
}

TEST(DataSets, WordsAndTheirCache) {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 100; ++i) text += fmt::format(" word {} of it \n", i / 2);
  write_bytes(folder / "x", text);
  const Corpus corpus = open("words", folder / "x");
  // Splits end at line ends: 90 % ends inside line 90 or 91.
  EXPECT_EQ(corpus.train.size() % 5, 0);
  EXPECT_EQ(corpus.train.size() + corpus.valid.size() + corpus.test.size(), 500);
  EXPECT_EQ(corpus.vocabulary, 4 + (corpus.train.size() / 5 + 1) / 2 + 1);
  EXPECT_EQ(corpus.train.symbols, -1);
  EXPECT_EQ(corpus.tokenizer->decode(std::vector<int32_t>{0, 1}), "word of");
  const std::string cache = folder / "x.train.tokens";
  const std::string kept = read_bytes(cache);
  ASSERT_FALSE(kept.empty());
  EXPECT_EQ(ids_of(open("words", folder / "x").train), ids_of(corpus.train));
  // A corrupted or truncated cache file is an error. A cache file of another text is rebuilt.
  std::string bad = kept;
  bad.back() ^= 1;
  write_bytes(cache, bad);
  EXPECT_TRUE(contains(message_of<IoError>([&] { open("words", folder / "x"); }), "damaged"));
  for (size_t at = 24; at < 56; ++at) {  // the count, the width, the vocabulary, the checksum
    bad = kept;
    bad[at] ^= 1;
    write_bytes(cache, bad);
    EXPECT_TRUE(contains(message_of<IoError>([&] { open("words", folder / "x"); }), "damaged"))
        << at;
  }
  bad = kept;
  bad[7] = '1';  // a cache file of an earlier format is rebuilt
  write_bytes(cache, bad);
  EXPECT_EQ(ids_of(open("words", folder / "x").train), ids_of(corpus.train));
  EXPECT_EQ(read_bytes(cache), kept);
  write_bytes(cache, kept.substr(0, kept.size() - 1));
  EXPECT_TRUE(contains(message_of<IoError>([&] { open("words", folder / "x"); }), "cut off"));
  write_bytes(cache, "x");
  EXPECT_TRUE(contains(message_of<IoError>([&] { open("words", folder / "x"); }), "remove it"));
  write_bytes(cache, kept);
  const std::string last = folder / "x.test.tokens", before = read_bytes(last);
  write_bytes(folder / "x", text + "of\n");
  const Corpus longer = open("words", folder / "x");
  EXPECT_EQ(longer.test.size(), corpus.test.size() + 2);
  EXPECT_NE(read_bytes(last), before);
  EXPECT_EQ(ids_of(open("words", folder / "x").test), ids_of(longer.test));
}

TEST(TasksAndData, WordsOfALineEndInEos) {
  const Folder folder;
  write_bytes(folder / "train.txt", " = A = \n \n b c \n");
  write_bytes(folder / "valid.txt", "\nb\n");
  write_bytes(folder / "test.txt", "zebra b");
  const Corpus corpus = open("wikitext-2", folder.path());
  EXPECT_EQ(corpus.train.size(), 8);
  EXPECT_EQ(corpus.valid.size(), 3);
  EXPECT_EQ(corpus.test.size(), 3);
  EXPECT_EQ(corpus.vocabulary, 6);
  EXPECT_EQ(corpus.test[0], corpus.tokenizer->special().unknown);
  EXPECT_EQ(corpus.warnings.size(), 3u);
}

TEST(DataSets, BytesInTokensOfAnother) {
  const Folder folder;
  const std::string source = read_bytes(LONGSPAN_SOURCE_DIR "/data/data_sets.cc");
  write_bytes(folder / "x", source);
  const std::string vocabulary = LONGSPAN_SOURCE_DIR "/tests/oracles/golden/text";
  const std::string model = vocabulary + "/bpe.model";
  const Corpus corpus = open("bytes", folder / "x", {.split = "", .tokenizer = model});
  EXPECT_EQ(corpus.vocabulary, 800);
  EXPECT_EQ(corpus.train.width, 2);
  EXPECT_LT(corpus.train.size(), corpus.train.symbols);
  const auto bytes = static_cast<int64_t>(source.size());
  EXPECT_EQ(corpus.train.symbols, bytes * 90 / 100);
  std::string back;
  for (const CorpusPart* part : {&corpus.train, &corpus.valid, &corpus.test}) {
    back += corpus.tokenizer->decode(ids_of(*part));
  }
  EXPECT_EQ(back, source);
  EXPECT_EQ(corpus.words.size(), 800u);
  EXPECT_THROW(open("dna", folder / "x", {.split = "", .tokenizer = model}), Error);
}

TEST(TasksAndData, GzipAndPlainGiveTheSameTokens) {
  const Folder folder;
  std::filesystem::copy_file(LONGSPAN_SOURCE_DIR "/data/samples/tinyshakespeare.txt.gz",
                             folder / "x.gz");
  const Corpus packed = open("bytes", folder / "x.gz");
  std::string text = packed.tokenizer->decode(ids_of(packed.train)) +
                     packed.tokenizer->decode(ids_of(packed.valid)) +
                     packed.tokenizer->decode(ids_of(packed.test));
  write_bytes(folder / "x", text);
  const Corpus plain = open("bytes", folder / "x");
  EXPECT_EQ(ids_of(plain.train), ids_of(packed.train));
  const std::string whole = read_bytes(folder / "x.gz");
  write_bytes(folder / "cut.gz", whole.substr(0, whole.size() / 2));
  for (const char* id : {"bytes", "chars", "words", "dna", "fasta", "wav", "images"}) {
    EXPECT_TRUE(contains(message_of<IoError>([&] { open(id, folder / "cut.gz"); }), "cut off"));
  }
}

TEST(DataSets, BasesAndResidues) {
  const Folder folder;
  std::string fasta = ">genome\n";
  for (int i = 0; i < 100; ++i) fasta += std::string(1, "ACGTN"[i % 5]) + (i % 7 == 6 ? "\n" : "");
  write_bytes(folder / "x.fa", fasta);
  const Corpus dna = open("dna", folder / "x.fa");
  EXPECT_EQ(dna.vocabulary, 5);
  EXPECT_EQ(dna.train.size(), 90);
  EXPECT_EQ(dna.valid.size(), 5);
  for (int64_t i = 0; i < 90; ++i) EXPECT_EQ(dna.train[i], i % 5);

  std::string proteins;
  for (int i = 0; i < 10; ++i)
    proteins += ">p\n" + std::string(static_cast<size_t>(i + 1), 'C') + "\n";
  write_bytes(folder / "p.fa", proteins);
  const Corpus p = open("fasta", folder / "p.fa");
  EXPECT_EQ(p.vocabulary, 26);
  EXPECT_EQ(p.train.size(), 36 + 8);  // 1 + ... + 8 and an end each
  EXPECT_EQ(ids_of(p.test), (std::vector<int32_t>{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 25}));
  EXPECT_EQ(p.valid.before, 25);
}

TEST(DataSets, PicturesComeWhole) {
  const Folder folder;
  std::string file;
  for (int image = 0; image < 20; ++image) file += std::string(3073, static_cast<char>(image));
  write_bytes(folder / "x.bin", file);
  const Corpus corpus = open("images", folder / "x.bin");
  EXPECT_EQ(corpus.train.size(), 18 * 3072);
  EXPECT_EQ(corpus.train.record, 3072);
  EXPECT_EQ(corpus.valid[0], 18);
  EXPECT_EQ(corpus.test[0], 19);

  // A window is a picture: all its targets belong to one picture, and its first token to the
  // previous picture.
  const SegmentBatches batches(corpus.train, 6, 3072);
  EXPECT_EQ(batches.windows(), 18);
  std::set<int32_t> seen;
  for (int64_t step = 0; step < 3; ++step) {
    const Batch batch = batches.at(step);
    const std::vector<int32_t> tokens = batch.tokens.to_vector<int32_t>();
    const std::vector<int32_t> targets = batch.targets.to_vector<int32_t>();
    for (size_t row = 0; row < 6; ++row) {
      const int32_t image = targets[row * 3072];
      EXPECT_TRUE(seen.insert(image).second);
      EXPECT_EQ(tokens[row * 3072], std::max(image - 1, 0));
      for (size_t i = 0; i < 3072; ++i) ASSERT_EQ(targets[row * 3072 + i], image);
    }
  }
  // Windows of a fraction or a multiple of a record are allowed, others are not.
  EXPECT_EQ(SegmentBatches(corpus.train, 1, 1024).windows(), 54);
  EXPECT_EQ(SegmentBatches(corpus.train, 1, 6144).windows(), 9);
  EXPECT_TRUE(contains(message_of<ValueError>([&] { SegmentBatches(corpus.train, 1, 1000); }),
                       "has records of 3072"));
  file.pop_back();
  write_bytes(folder / "x.bin", file);
  EXPECT_TRUE(contains(message_of<IoError>([&] { open("images", folder / "x.bin"); }),
                       "not whole pictures"));
}

TEST(TasksAndData, EveryTokenIsScoredOnce) {
  const Folder folder;
  std::string images, text;
  for (int i = 0; i < 3 * 3073; ++i) images += static_cast<char>(philox_word(1, i));
  for (int i = 0; i < 700; ++i) text += fmt::format("word{} ", philox_word(2, i) % 400);
  write_bytes(folder / "images", images);
  write_bytes(folder / "words", text);
  for (const char* id : {"images", "words"}) {
    const CorpusPart part = open(id, folder / id, {.split = "100/0/0", .tokenizer = ""}).train;
    EXPECT_EQ(part.width, std::string(id) == "words" ? 2 : 1);
    for (const int64_t length : {1, 7, 512, 3072, 10'000}) {
      const EvaluationSegments segments(part, 4, length);
      std::vector<int32_t> scored;
      for (int64_t i = 0; i < segments.size(); ++i) {
        const std::vector<int32_t> tokens = segments[i].tokens.to_vector<int32_t>();
        const std::vector<int32_t> targets = segments[i].targets.to_vector<int32_t>();
        EXPECT_EQ(tokens[0], scored.empty() ? 0 : scored.back());
        scored.insert(scored.end(), targets.begin(), targets.end());
      }
      EXPECT_EQ(scored, ids_of(part)) << id << ' ' << length;
    }
  }
}

TEST(DataSets, DocumentsAreNoSequence) {
  const Folder folder;
  for (const char* part : {"train", "valid", "test"}) {
    write_bytes(folder / (std::string(part) + ".article"), "a . <S_SEP> b .\n");
    write_bytes(folder / (std::string(part) + ".summary"), std::string(part) + " .\n");
  }
  const DataPlace place{.root = "", .data = "wiki-leads=" + folder.path()};
  EXPECT_EQ(open_documents("wiki-leads", place, 1)[0].summary,
            (std::vector<std::string>{"valid ."}));
  EXPECT_THROW(open_corpus("wiki-leads", place), NotImplemented);
  EXPECT_THROW(open_documents("wiki-leads", place, 3), ValueError);
  EXPECT_THROW(open_documents("bytes", place, 0), ValueError);
}

TEST(JoinedFiles, MakeOneText) {
  const Folder folder;
  std::filesystem::create_directories(folder / "text/more");
  write_bytes(folder / "text/a.txt", std::string(60, 'a'));
  write_bytes(folder / "text/more/b.txt", std::string(40, 'b') + "\n");
  write_bytes(folder / "text/.hidden", "hidden");
  const Corpus whole = open("bytes", folder / "text", {.split = "100/0/0"});
  const std::string expected = std::string(60, 'a') + "\n" + std::string(40, 'b') + "\n";
  EXPECT_EQ(ids_of(whole.train), std::vector<int32_t>(expected.begin(), expected.end()));
  const Corpus listed = open("bytes", folder / "text/a.txt" + "," + (folder / "text/more/b.txt"),
                             {.split = "100/0/0"});
  EXPECT_EQ(ids_of(listed.train), ids_of(whole.train));
  // A path with a comma is one file if it is there.
  write_bytes(folder / "a,b", "xyz");
  EXPECT_EQ(open("bytes", folder / "a,b", {.split = "100/0/0"}).train.size(), 3);
}

TEST(JoinedFiles, BelongToTheSplitsThatTheirNamesSay) {
  const Folder folder;
  std::filesystem::create_directories(folder / "text");
  write_bytes(folder / "text/train-1.txt", "aaaa\n");
  write_bytes(folder / "text/train-2.txt", "bbbb\n");
  write_bytes(folder / "text/valid.txt", "cc\n");
  const Corpus corpus = open("bytes", folder / "text");
  EXPECT_EQ(corpus.train.size(), 10);
  EXPECT_EQ(corpus.valid.size(), 3);
  EXPECT_EQ(corpus.test.size(), 0);
  EXPECT_EQ(
      paths_of(find_data_set("bytes"), {.root = "", .data = "bytes=" + (folder / "text")}).size(),
      3u);
  std::filesystem::remove(folder / "text/valid.txt");
  EXPECT_TRUE(contains(message_of<IoError>([&] { open("bytes", folder / "text"); }), "valid.txt"));
  std::filesystem::create_directories(folder / "empty");
  EXPECT_TRUE(contains(message_of<IoError>([&] { open("bytes", folder / "empty"); }), "no file"));
}

/// A text of some megabytes, so that it is encoded in several pieces.
std::string long_text() {
  std::string text;
  for (int i = 0; text.size() < (5 << 20); ++i) text += "line " + std::to_string(i) + " a b c\n";
  return text;
}

TEST(TokenFiles, AreTheSameInAnyNumberOfPiecesAndGoOn) {
  const Folder folder;
  const std::string text = long_text();
  const std::unique_ptr<Tokenizer> tokenizer = word_tokenizer(text.substr(0, 10000));
  CorpusPart part;
  part.bytes = {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
  const std::vector<int32_t> expected = tokenizer->encode(text);
  EXPECT_EQ(ids_of(tokenize(part, *tokenizer)), expected);

  // A process that is stopped leaves what it has, and the next one goes on behind it.
  const std::string cache = folder / "x.train.tokens";
  struct Stop {};
  int64_t first = 0;
  EXPECT_THROW(tokenize(part, *tokenizer, cache,
                        [&](int64_t done, int64_t) {
                          if (done > (2 << 20)) throw Stop{};
                        }),
               Stop);
  EXPECT_TRUE(std::filesystem::exists(cache + ".partial"));
  EXPECT_FALSE(std::filesystem::exists(cache));
  const CorpusPart found = tokenize(part, *tokenizer, cache, [&](int64_t done, int64_t total) {
    if (first == 0) first = done;
    EXPECT_LE(done, total);
  });
  EXPECT_EQ(ids_of(found), expected);
  EXPECT_FALSE(std::filesystem::exists(cache + ".partial"));
  ASSERT_TRUE(std::filesystem::exists(cache));
  // Then the file is read.
  bool again = false;
  EXPECT_EQ(ids_of(tokenize(part, *tokenizer, cache, [&](int64_t, int64_t) { again = true; })),
            expected);
  EXPECT_FALSE(again);
}

/// Lines of many scripts with blank lines, spaces at both ends and a long line.
std::string mixed_text() {
  const std::string lines =
      read_bytes(LONGSPAN_SOURCE_DIR "/tests/oracles/golden/text/everywhere.txt") +
      read_bytes(LONGSPAN_SOURCE_DIR "/tests/oracles/golden/text/random.txt");
  const std::string between[] = {"\n", "\n\n", " \n\n  Then", "\n ", "\n\n\n", "  ", "\r\n", "It"};
  std::string text;
  for (size_t i = 0, at = 0; text.size() < (21 << 17); ++i, at = (at + 97 * i) % lines.size()) {
    text += lines.substr(at, 40 + i % 50) + between[i % 8] + "word " + std::to_string(i);
  }
  for (int i = 0; i < 30'000; ++i) text += " a1 b,cc";
  return text;
}

TEST(TokenFiles, HaveTheTokensOfTheWholeText) {
  const std::string at = LONGSPAN_SOURCE_DIR "/tests/oracles/golden/";
  const std::string text = mixed_text();
  CorpusPart part;
  part.bytes = {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
  for (const char* name : {"hub/byte_fallback", "hub/roberta", "hub/roberta_prefix", "hub/sequence",
                           "hub/unigram_nfkc", "hub/wordpiece", "text/prefix.model"}) {
    SCOPED_TRACE(name);
    const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(at + name);
    const std::vector<int32_t> expected = tokenizer->encode(text),
                               found = ids_of(tokenize(part, *tokenizer));
    const auto [a, b] = std::mismatch(expected.begin(), expected.end(), found.begin(), found.end());
    EXPECT_EQ(found.size(), expected.size());
    EXPECT_EQ(a - expected.begin(), std::ssize(expected));
  }
}

/// Three letters a token, counted from the begin of the text: what a token is depends on all
/// before.
class Triples : public Tokenizer {
 public:
  std::vector<Piece> pieces(std::string_view text) const override {
    std::vector<Piece> all;
    for (int64_t at = 0; at < std::ssize(text); at += 3) {
      const int64_t end = std::min(at + 3, std::ssize(text));
      all.push_back({static_cast<int32_t>(end - at), false, at, end});
    }
    return all;
  }
  std::string decode(std::span<const int32_t>) const override { return {}; }
  int64_t vocabulary() const override { return 4; }
  int32_t find(std::string_view) const override { return -1; }
  std::string token(int32_t) const override { return {}; }
};

TEST(TokenFiles, AreEncodedWholeWherePartsDisagree) {
  const std::string text((3 << 20) + 1, 'x');
  CorpusPart part;
  part.bytes = {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
  EXPECT_EQ(ids_of(tokenize(part, Triples())), Triples().encode(text));
}

TEST(TokenFiles, OfTwoTextsInAFolderStayApart) {
  const Folder folder;
  write_bytes(folder / "x", std::string(400, 'a') + "\n");
  write_bytes(folder / "y", std::string(400, 'b') + "\n");
  open("words", folder / "x");
  open("words", folder / "y");
  open("words", folder / "x," + (folder / "y"));
  for (const char* name : {"x.train.tokens", "y.train.tokens", "x+1.train.tokens"}) {
    EXPECT_FALSE(read_bytes(folder / name).empty()) << name;
  }
}

TEST(TokenFiles, OfAnotherTextBeginAnew) {
  const Folder folder;
  const std::string cache = folder / "x.train.tokens";
  const std::unique_ptr<Tokenizer> tokenizer = byte_tokenizer();
  for (const std::string& rubbish : {std::string("short"), std::string(200, 'x'),
                                     std::string("LSPARTS2") + std::string(90, 'y')}) {
    write_bytes(cache + ".partial", rubbish);
    const std::string text = "a text of " + std::to_string(rubbish.size());
    CorpusPart part;
    part.bytes = {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
    EXPECT_EQ(ids_of(tokenize(part, *tokenizer, cache)), tokenizer->encode(text));
    EXPECT_TRUE(read_tokens(cache, {tokenizer->hash(), 0}) == std::nullopt);
  }
}

TEST(TokenFiles, ThatCannotBeWrittenAreNotNeeded) {
  const std::unique_ptr<Tokenizer> tokenizer = byte_tokenizer();
  const std::string text = "a text";
  CorpusPart part;
  part.bytes = {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
  EXPECT_EQ(ids_of(tokenize(part, *tokenizer, "/none/x.tokens")), tokenizer->encode(text));
}

}  // namespace
}  // namespace longspan
