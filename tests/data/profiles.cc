#include "data/profiles.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/error.h"
#include "data/tasks.h"
#include "tests/harness/numpy_file.h"
#include "tests/harness/scratch.h"

namespace longspan {
namespace {

using test::contains;
using test::Folder;
using test::message_of;
using test::npy;
using test::write_bytes;

DataPlace at(const std::string& id, const std::string& path) { return {"", id + "=" + path}; }

std::string dna_of(const Sample& s) {
  std::string all;
  for (const int32_t id : s.tokens) all += "ACGTN"[id];
  return all;
}

TEST(KmerTokens, AreRunsOfBases) {
  const std::vector<int32_t> some{0, 1, 2, 3, 4, 3};  // ACGTNT
  const KmerTokens single{.k = 1, .stride = 1};
  EXPECT_EQ(single.tokens(some), (std::vector<int32_t>{4, 0, 1, 2, 3, 5, 3}));
  EXPECT_EQ(single.vocabulary(), 6);
  const KmerTokens pairs{.k = 2, .stride = 1};
  EXPECT_EQ(pairs.tokens(some), (std::vector<int32_t>{16, 1, 6, 11, 17, 17}));
  const KmerTokens apart{.k = 2, .stride = 2};
  EXPECT_EQ(apart.tokens(some), (std::vector<int32_t>{16, 1, 11, 17}));
  for (const KmerTokens& t : {single, pairs, apart, KmerTokens{3, 2}, KmerTokens{8, 1}}) {
    EXPECT_EQ(static_cast<int64_t>(t.tokens(some).size()), t.count(6));
    for (const int32_t token : t.tokens(some)) EXPECT_LT(token, t.vocabulary());
  }
  // The generated task uses the same tokens.
  const MotifTask task{.length = 60, .nearest = 20, .furthest = 30, .kmer = 3};
  const MotifTask letters{.length = 60, .nearest = 20, .furthest = 30};
  std::vector<int32_t> bases_of = letters.sample({}).tokens;
  bases_of.erase(bases_of.begin());
  EXPECT_EQ((KmerTokens{.k = 3, .stride = 1}.tokens(bases_of)), task.sample({}).tokens);
  EXPECT_THROW((KmerTokens{.k = 9, .stride = 1}.tokens(some)), ValueError);
  EXPECT_THROW((KmerTokens{.k = 2, .stride = 0}.tokens(some)), ValueError);
}

TEST(Promoters, AreReadFromTwoFiles) {
  const Folder folder;
  std::string positive, negative;
  for (int i = 0; i < 10; ++i) {
    positive += ">p" + std::to_string(i) + "\nacgtRN" + std::string(1, "ACGT"[i % 4]) + "\nA\n";
    negative += ">n\nTTTTTTT" + std::string(1, "ACGT"[i % 4]) + "\n";
  }
  write_bytes(folder / "positive.fasta", positive);
  write_bytes(folder / "negative.fasta", negative);
  const auto data = open_promoters(at("promoter", folder.path()), "80/10/10", 1);
  EXPECT_EQ(data->answers(), 1);
  EXPECT_EQ(data->length(), 8);
  EXPECT_EQ(data->size(0), 16);
  EXPECT_EQ(data->size(1), 2);
  EXPECT_EQ(data->size(2), 2);
  int64_t yes = 0;
  for (size_t part = 0; part < 3; ++part) {
    int64_t here = 0;
    for (int64_t i = 0; i < data->size(part); ++i) {
      const Sample s = data->sample(part, i);
      // Lower case means the same base, and an ambiguity code is N.
      EXPECT_EQ(dna_of(s).substr(0, 6), s.targets[0] == 1 ? "ACGTNN" : "TTTTTT");
      here += s.targets[0];
    }
    EXPECT_EQ(2 * here, data->size(part));  // each split has both labels
    yes += here;
  }
  EXPECT_EQ(yes, 10);
}

TEST(Promoters, AreReadFromLabelsInHeaders) {
  const Folder folder;
  write_bytes(folder / "all.fa", ">a label=1\nACGT\n>b chr1:5-9 label=0\nCCCC\n>c label=1\nAAAA\n");
  const auto data = open_promoters(at("promoter", folder / "all.fa"), "100/0/0", 1);
  ASSERT_EQ(data->size(0), 3);
  std::multiset<std::string> yes, no;
  for (int64_t i = 0; i < 3; ++i) {
    const Sample s = data->sample(0, i);
    (s.targets[0] == 1 ? yes : no).insert(dna_of(s));
  }
  EXPECT_EQ(yes, (std::multiset<std::string>{"AAAA", "ACGT"}));
  EXPECT_EQ(no, std::multiset<std::string>{"CCCC"});
}

// Oubounyt et al. 2019: of 20 segments, 8 stay unchanged.
TEST(Promoters, HaveNegativesMadeOfThem) {
  std::vector<int32_t> sequence(400);
  for (size_t i = 0; i < sequence.size(); ++i) sequence[i] = 4;  // not a base that is drawn
  const std::vector<int32_t> made = negative_of(sequence, Generator{3});
  int64_t kept = 0;
  for (size_t piece = 0; piece < 20; ++piece) {
    const auto begin = made.begin() + static_cast<std::ptrdiff_t>(20 * piece);
    const auto same = std::count(begin, begin + 20, 4);
    EXPECT_TRUE(same == 0 || same == 20) << piece;
    kept += same == 20 ? 1 : 0;
  }
  EXPECT_EQ(kept, 8);
  EXPECT_EQ(negative_of(sequence, Generator{3}), made);
  EXPECT_NE(negative_of(sequence, Generator{4}), made);

  const Folder folder;
  write_bytes(folder / "positive.fasta",
              ">a\n" + std::string(40, 'A') + "\n>b\n" + std::string(40, 'C') + "\n");
  const auto data = open_promoters(at("promoter", folder.path()), "50/50/0", 1);
  ASSERT_EQ(data->size(0), 2);
  ASSERT_EQ(data->size(1), 2);
  for (size_t part = 0; part < 2; ++part) {
    const std::string all(40, "AC"[part]);
    for (int64_t i = 0; i < 2; ++i) {
      const Sample s = data->sample(part, i);
      EXPECT_EQ(dna_of(s) == all, s.targets[0] == 1);
      EXPECT_EQ(s, data->sample(part, i));
    }
  }
}

TEST(Promoters, RefuseBadFiles) {
  const Folder folder;
  const std::string path = folder / "all.fa";
  const auto message = [&](const std::string& text) {
    write_bytes(path, text);
    return message_of<IoError>([&] { open_promoters(at("promoter", path), "80/10/10", 1); });
  };
  EXPECT_TRUE(contains(message(">a label=1\nACGT\n>b label=0\nACG\n"),
                       "the record of line 3 has 3 bases and the first of " + path + " has 4"));
  EXPECT_TRUE(contains(message(">a label=1\nACGT\n>b label=0\n"), "record of line 3 is empty"));
  EXPECT_TRUE(contains(message(">a label=1\nACGT\n>b\nACGT\n"),
                       "the header of line 3 does not end in label=0 or label=1: \">b\""));
  EXPECT_TRUE(contains(message(">a label=2\nACGT\n"), "label=0 or label=1"));
  EXPECT_TRUE(
      contains(message(">a label=1\nACGTE\n"), path + ": line 2 has the letter E; expected bases"));
  EXPECT_TRUE(contains(message(">a label=1\nAC7T\n"), "line 2 has the byte 0x37"));
  EXPECT_TRUE(contains(message("ACGT\n"), "does not end in label=0"));
  EXPECT_TRUE(contains(message(""), "is empty"));
  EXPECT_TRUE(contains(
      message_of<IoError>([&] { open_promoters(at("promoter", folder / "none"), "80/10/10", 1); }),
      "promoter lacks positive.fasta, plain or with .gz, in "));
  write_bytes(path, "\x1f\x8b\x08");  // truncated gzip
  EXPECT_TRUE(
      contains(message_of<IoError>([&] { open_promoters(at("promoter", path), "80/10/10", 1); }),
               "cut off"));
}

/// Returns one-hot bases of these letters. Other letters become four zeros.
std::string one_hot(const std::string& letters) {
  std::string bytes;
  for (const char c : letters) {
    for (const char base : std::string("ACGT")) bytes += static_cast<char>(c == base ? 1 : 0);
  }
  return bytes;
}

TEST(Profiles, AreReadFromArrays) {
  const Folder folder;
  const std::string x = npy("|u1", "(2, 5, 4)", one_hot("ACGTNTTTTT")),
                    y = npy("<i4", "(2, 3)",
                            std::string("\1\0\0\0\0\0\0\0\1\0\0\0"
                                        "\0\0\0\0\1\0\0\0\1\0\0\0",
                                        24));
  for (const std::string part : {"train", "valid", "test"}) {
    write_bytes(folder / (part + "_x.npy"), x);
    write_bytes(folder / (part + "_y.npy"), y);
  }
  const auto data = open_profiles(at("chromatin", folder.path()), "90/5/5");
  EXPECT_EQ(data->answers(), 3);
  EXPECT_EQ(data->length(), 5);
  for (size_t part = 0; part < 3; ++part) {
    ASSERT_EQ(data->size(part), 2);
    EXPECT_EQ(dna_of(data->sample(part, 0)), "ACGTN");
    EXPECT_EQ(data->sample(part, 0).targets, (std::vector<int32_t>{1, 0, 1}));
    EXPECT_EQ(dna_of(data->sample(part, 1)), "TTTTT");
    EXPECT_EQ(data->sample(part, 1).targets, (std::vector<int32_t>{0, 1, 1}));
  }
  std::filesystem::remove(folder / "valid_y.npy");
  EXPECT_TRUE(contains(
      message_of<IoError>([&] { open_profiles(at("chromatin", folder.path()), "90/5/5"); }),
      "chromatin lacks valid_y.npy, plain"));
}

TEST(Profiles, RefuseBadArrays) {
  const Folder folder;
  const auto write_all = [&](const std::string& x, const std::string& y) {
    for (const std::string part : {"train", "valid", "test"}) {
      write_bytes(folder / (part + "_x.npy"), x);
      write_bytes(folder / (part + "_y.npy"), y);
    }
  };
  const auto message = [&](const std::string& x, const std::string& y) {
    write_all(x, y);
    return message_of<IoError>([&] {
      const auto data = open_profiles(at("chromatin", folder.path()), "90/5/5");
      data->sample(0, 0);
    });
  };
  const std::string x = npy("|u1", "(1, 2, 4)", one_hot("AC")), y = npy("|u1", "(1, 2)", "\1\1");
  EXPECT_TRUE(contains(message(npy("|u1", "(1, 4, 2)", one_hot("AC")), y),
                       "x is uint8[1, 4, 2]; expected [N, L, 4]"));
  EXPECT_TRUE(contains(message(x, npy("|u1", "(2, 1)", "\1\1")),
                       "y is uint8[2, 1]; expected [1, answers], a row for each of x"));
  EXPECT_TRUE(contains(message(x, npy("|u1", "(1, 2)", "\1\7")), "y[0, 1] is 7; expected 0 or 1"));
  EXPECT_TRUE(contains(message(npy("|u1", "(1, 2, 4)", std::string("\1\0\0\0\1\1\0\0", 8)), y),
                       "x[0, 1] is no base: [1, 1, 0, 0]; expected one 1"));
  EXPECT_TRUE(contains(message(npy("|u1", "(1, 2, 4)", "\1\0\0"), y), "train_x.npy is cut off"));
  EXPECT_TRUE(
      contains(message(npy("<U4", "(1, 2, 4)", one_hot("AC")), y), "numbers of type '<U4'"));
  EXPECT_TRUE(contains(message(npy("|u1", "(0, 2, 4)", ""), npy("|u1", "(0, 2)", "")),
                       "expected one sample or more"));
  // An archive without arrays.
  const std::string empty = "PK\5\6" + std::string(18, '\0');
  EXPECT_TRUE(contains(message(x, empty), "train_y.npy has 0 arrays; expected one"));
  EXPECT_TRUE(contains(message(empty, y), "train_x.npy has 0 arrays; expected one"));
  // An .npz file of one array is not combined with the arrays of another split.
  write_bytes(folder / "train.npz", x);
  EXPECT_TRUE(contains(message(x, y), "train.npz has one array; expected an .npz file"));
  std::filesystem::remove(folder / "train.npz");
  write_all(x, y);
  write_bytes(folder / "test_y.npy", npy("|u1", "(1, 1)", "\1"));
  EXPECT_TRUE(contains(
      message_of<IoError>([&] { open_profiles(at("chromatin", folder.path()), "90/5/5"); }),
      "has samples of 2 bases and 1 answers, and "));
}

}  // namespace
}  // namespace longspan
