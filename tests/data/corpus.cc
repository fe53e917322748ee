#include "data/corpus.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/memory.h"
#include "data/io/bytes.h"
#include "tests/harness/gzip.h"
#include "tests/harness/scratch.h"

namespace longspan {
namespace {

using test::contains;
using test::Folder;
using test::gzip;
using test::message_of;
using test::write_bytes;

/// Returns bytes that identify their position: byte i is a hash of i.
std::string some_bytes(int64_t n) {
  std::string bytes(static_cast<size_t>(n), '\0');
  for (int64_t i = 0; i < n; ++i) {
    bytes[static_cast<size_t>(i)] = static_cast<char>(philox_word(77, i) & 0xFF);
  }
  return bytes;
}

std::string text_of(const CorpusPart& part) { return {part.bytes.begin(), part.bytes.end()}; }

TEST(Split, Parses) {
  EXPECT_EQ(Split::parse("90/5/5"), Split{});
  EXPECT_EQ(Split::parse("90/10/0"), (Split{90, 10, 0}));
  EXPECT_EQ(Split::parse("33.5/33.5/33"), (Split{33.5, 33.5, 33}));
  for (const char* bad : {"", "90", "90/5", "90/5/5/0", "90/5/6", "-10/100/10", "90/5/x", "90//10",
                          "90/5/5 ", "nan/50/50", "1e2/0/0", "90,5,5"}) {
    const std::string message = message_of<ValueError>([&] { Split::parse(bad); });
    EXPECT_TRUE(contains(message, fmt::format("\"{}\"", bad))) << message;
  }
}

TEST(ByteCorpus, CutsWithoutLossOrOverlap) {
  const Folder folder;
  for (const int64_t n : {1, 2, 19, 100, 1001}) {
    const std::string bytes = some_bytes(n);
    write_bytes(folder / "x", bytes);
    for (const char* split : {"90/5/5", "90/10/0", "0/100/0", "100/0/0", "33.3/33.3/33.4"}) {
      const ByteCorpus corpus = ByteCorpus::open(folder / "x", Split::parse(split));
      EXPECT_EQ(text_of(corpus.train()) + text_of(corpus.valid()) + text_of(corpus.test()), bytes);
      EXPECT_EQ(corpus.train().before, 0);
      if (corpus.train().size() > 0) {
        EXPECT_EQ(corpus.valid().before, corpus.train().bytes.back());
      }
    }
  }
  write_bytes(folder / "shakespeare", std::string(1'115'394, 'x'));
  const ByteCorpus corpus = ByteCorpus::open(folder / "shakespeare", Split::parse("90/10/0"));
  EXPECT_EQ(corpus.train().size(), 1'003'854);
  EXPECT_EQ(corpus.valid().size(), 111'540);
  EXPECT_EQ(corpus.test().size(), 0);
}

TEST(ByteCorpus, PartsOutliveTheCorpus) {
  const Folder folder;
  write_bytes(folder / "x", some_bytes(1000));
  const CorpusPart part = ByteCorpus::open(folder / "x").train();
  EXPECT_EQ(text_of(part), some_bytes(900));
}

TEST(ByteCorpus, ReadsGzip) {
  const Folder folder;
  const std::string bytes = some_bytes(700'000);
  write_bytes(folder / "x", bytes);
  write_bytes(folder / "x.gz", gzip(bytes));
  write_bytes(folder / "two.gz", gzip(bytes.substr(0, 300'000)) + gzip(bytes.substr(300'000)));
  write_bytes(folder / "padded.gz", gzip(bytes) + std::string(512, '\0'));
  const ByteCorpus plain = ByteCorpus::open(folder / "x");
  for (const char* name : {"x.gz", "two.gz", "padded.gz"}) {
    const int64_t before = memory_tracker().live()[Category::data];
    const ByteCorpus packed = ByteCorpus::open(folder / name);
    EXPECT_EQ(packed.size(), plain.size()) << name;
    EXPECT_EQ(packed.checksum(), plain.checksum()) << name;
    EXPECT_EQ(memory_tracker().live()[Category::data] - before, memory::block_bytes(700'000));
  }
}

// 300 MiB of zeros need 300 KiB of gzip: a hundred such files would fill the memory of a machine.
TEST(ByteCorpus, RefusesABombBeforeItUnpacksIt) {
  const Folder folder;
  const std::string zeros = gzip(std::string(20 << 20, '\0'));
  std::string bomb;
  for (int i = 0; i < 15; ++i) bomb += zeros;
  write_bytes(folder / "bomb.gz", bomb);
  write_bytes(folder / "two.gz", zeros + zeros);
  memory_tracker().reset_peak();
  const auto message = message_of<IoError>([&] { ByteCorpus::open(folder / "bomb.gz"); });
  for (const std::string& part :
       {folder / "bomb.gz", std::string("unpacks to 256 MiB or more"),
        fmt::format("has {} bytes", bomb.size()), std::string("gunzip")}) {
    EXPECT_TRUE(contains(message, part)) << message;
  }
  EXPECT_LT(memory_tracker().peak()[Category::data], 1 << 20);
  EXPECT_THROW(fingerprint_of(std::vector<std::string>{folder / "bomb.gz"}), IoError);
  EXPECT_EQ(ByteCorpus::open(folder / "two.gz").size(), 40 << 20);
}

TEST(ByteCorpus, RefusesOnlyWhatIsLargeAndShrinksAsNoDataDo) {
  constexpr int64_t mib = 1 << 20;
  EXPECT_NO_THROW(require_no_bomb(256 * mib, 1, "x", ""));
  EXPECT_THROW(require_no_bomb(256 * mib + 1, 1, "x", ""), IoError);
  EXPECT_NO_THROW(require_no_bomb(2000 * mib, 10 * mib, "x", ""));
  EXPECT_THROW(require_no_bomb(2001 * mib, 10 * mib, "x", ""), IoError);
}

TEST(ByteCorpus, RejectsBadFiles) {
  const Folder folder;
  const auto open = [&](const char* name) {
    return message_of<IoError>([&] { ByteCorpus::open(folder / name); });
  };
  EXPECT_TRUE(contains(open("missing"), "No such file"));
  EXPECT_TRUE(contains(open("missing"), folder / "missing"));
  EXPECT_TRUE(contains(open(""), "a folder"));
  write_bytes(folder / "empty", "");
  EXPECT_TRUE(contains(open("empty"), "empty"));
  write_bytes(folder / "empty.gz", gzip(""));
  EXPECT_TRUE(contains(open("empty.gz"), "empty"));

  const std::string packed = gzip(some_bytes(5000));
  for (const size_t length :
       {size_t{2}, size_t{9}, packed.size() / 2, packed.size() - 8, packed.size() - 1}) {
    write_bytes(folder / "cut.gz", packed.substr(0, length));
    EXPECT_TRUE(contains(open("cut.gz"), "cut off")) << length;
  }
  std::string flipped = packed;
  flipped[packed.size() / 2] ^= 0x10;
  write_bytes(folder / "flipped.gz", flipped);
  EXPECT_TRUE(contains(open("flipped.gz"), "damaged"));
  write_bytes(folder / "garbage.gz", packed + "garbage");
  EXPECT_TRUE(contains(open("garbage.gz"), "damaged"));
}

TEST(Permutation, IsABijection) {
  for (int64_t n = 1; n <= 70; ++n) {
    for (const uint64_t seed : {1, 2, 3}) {
      const Permutation order(n, Generator{seed});
      std::vector<int64_t> seen;
      for (int64_t i = 0; i < n; ++i) seen.push_back(order[i]);
      std::sort(seen.begin(), seen.end());
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(seen[static_cast<size_t>(i)], i) << n;
    }
  }
  for (const int64_t n : {1023, 1024, 1025, 65'537, 100'003}) {
    const Permutation order(n, Generator{5});
    std::vector<bool> seen(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      const int64_t x = order[i];
      ASSERT_TRUE(x >= 0 && x < n && !seen[static_cast<size_t>(x)]);
      seen[static_cast<size_t>(x)] = true;
    }
  }
  EXPECT_THROW(Permutation(0, Generator{}), ValueError);
  const Permutation huge((int64_t{1} << 62) + 1, Generator{1});
  EXPECT_LE(huge[12345], int64_t{1} << 62);
}

TEST(Permutation, ReachesEveryPlaceEvenly) {
  // Chi-square of element 0's index over 7,000 keys: 6 degrees of freedom, 27.9 at p = 0.0001.
  for (const int64_t from : {0, 3, 6}) {
    std::vector<double> counts(7);
    for (uint64_t seed = 0; seed < 7000; ++seed) {
      ++counts[static_cast<size_t>(Permutation(7, Generator{seed})[from])];
    }
    double chi = 0;
    for (const double c : counts) chi += (c - 1000) * (c - 1000) / 1000;
    EXPECT_LT(chi, 27.9);
  }
  // All 24 orders of four elements: 23 degrees of freedom, 57.1 at p = 0.0001.
  std::vector<double> orders(256);
  for (uint64_t seed = 0; seed < 24'000; ++seed) {
    const Permutation p(4, Generator{seed});
    ++orders[static_cast<size_t>(p[0] * 64 + p[1] * 16 + p[2] * 4 + p[3])];
  }
  double chi = 0;
  for (const double c : orders) chi += c > 0 ? (c - 1000) * (c - 1000) / 1000 : 0;
  EXPECT_EQ(std::count_if(orders.begin(), orders.end(), [](double c) { return c > 0; }), 24);
  EXPECT_LT(chi, 57.1);
}

class Batches : public testing::Test {
 protected:
  CorpusPart part(int64_t bytes) {
    text_ = some_bytes(bytes);
    write_bytes(folder_ / "x", text_);
    return ByteCorpus::open(folder_ / "x", Split{100, 0, 0}).train();
  }
  int byte(int64_t i) const { return static_cast<uint8_t>(text_[static_cast<size_t>(i)]); }

  Folder folder_;
  std::string text_;
};

TEST_F(Batches, TargetsAreTheNextBytes) {
  SegmentBatches batches(part(1000), 3, 16);
  const int64_t before = memory_tracker().live()[Category::data];
  const auto [tokens, targets] = batches.next();
  EXPECT_EQ(memory_tracker().live()[Category::data] - before, 2 * memory::block_bytes(3 * 16 * 4));
  EXPECT_EQ(tokens.shape(), Shape({3, 16}));
  EXPECT_EQ(tokens.dtype(), DType::i32);
  const auto x = tokens.to_vector<int32_t>(), y = targets.to_vector<int32_t>();
  for (int64_t row = 0; row < 3; ++row) {
    const int64_t begin = batches.window_begin(row);
    for (int64_t i = 0; i < 16; ++i) {
      EXPECT_EQ(x[static_cast<size_t>(row * 16 + i)], byte(begin + i));
      EXPECT_EQ(y[static_cast<size_t>(row * 16 + i)], byte(begin + i + 1));
    }
  }
}

TEST_F(Batches, AnEpochHoldsEveryWindowOnce) {
  for (const int64_t bytes : {17, 18, 33, 49, 1000, 1024}) {
    const SegmentBatches batches(part(bytes), 5, 16, {.seed = 9});
    const int64_t n = batches.windows();
    EXPECT_GE(n * 16, bytes - 1 - (2 * 16 - 2));
    for (const int64_t epoch : {0, 1, 7}) {
      std::vector<int64_t> begins;
      for (int64_t i = 0; i < n; ++i) begins.push_back(batches.window_begin(epoch * n + i));
      std::sort(begins.begin(), begins.end());
      EXPECT_GE(begins.front(), 0);
      EXPECT_LE(begins.front(), 2 * 16 - 2);
      EXPECT_LE(begins.back() + 16 + 1, bytes);
      for (size_t i = 1; i < begins.size(); ++i) EXPECT_EQ(begins[i], begins[i - 1] + 16);
    }
  }
}

TEST_F(Batches, EveryByteOfTheFileCanBeDrawn) {
  const SegmentBatches batches(part(64), 1, 16);
  std::vector<bool> target(64);
  for (int64_t row = 0; row < 200 * batches.windows(); ++row) {
    const int64_t begin = batches.window_begin(row);
    for (int64_t i = 0; i < 16; ++i) target[static_cast<size_t>(begin + i + 1)] = true;
  }
  EXPECT_EQ(std::count(target.begin() + 1, target.end(), true), 63);
}

TEST_F(Batches, OrderDependsOnSeedAndEpochOnly) {
  const CorpusPart bytes = part(4000);
  SegmentBatches a(bytes, 4, 16, {.seed = 3}), b(bytes, 4, 16, {.seed = 3});
  const SegmentBatches other(bytes, 4, 16, {.seed = 4}), wide(bytes, 2, 16, {.seed = 3});
  std::vector<std::vector<int32_t>> steps;
  for (int i = 0; i < 150; ++i) steps.push_back(a.next().tokens.to_vector<int32_t>());
  // Seeking to any step continues the order.
  b.seek(97);
  EXPECT_EQ(b.position(), 97);
  for (size_t i = 97; i < 150; ++i) EXPECT_EQ(b.next().tokens.to_vector<int32_t>(), steps[i]);
  // The order of rows does not depend on how they are batched.
  EXPECT_EQ(wide.window_begin(31), a.window_begin(31));
  int64_t same_seed = 0, same_epoch = 0;
  for (int64_t row = 0; row < a.windows(); ++row) {
    same_seed += a.window_begin(row) == other.window_begin(row);
    same_epoch += a.window_begin(row) == a.window_begin(row + a.windows());
  }
  EXPECT_LT(same_seed, a.windows() / 4);
  EXPECT_LT(same_epoch, a.windows() / 4);
  // Seeking far ahead is as cheap as seeking nearby, and does not overflow.
  EXPECT_NO_THROW(a.at(int64_t{1} << 40));
}

TEST_F(Batches, RejectsWhatHasNoWindow) {
  EXPECT_EQ(SegmentBatches(part(17), 1, 16).windows(), 1);
  const std::string message = message_of<ValueError>([&] { SegmentBatches(part(16), 1, 16); });
  EXPECT_TRUE(contains(message, folder_ / "x")) << message;
  EXPECT_TRUE(contains(message, "16 bytes")) << message;
  EXPECT_TRUE(contains(message, "needs 17")) << message;
  EXPECT_TRUE(contains(message, "--length")) << message;
  EXPECT_NO_THROW(SegmentBatches(part(16), 1, 16, {.objective = Objective::masked_token}));
  EXPECT_THROW(SegmentBatches(part(15), 1, 16, {.objective = Objective::masked_token}), ValueError);
  EXPECT_THROW(SegmentBatches(part(100), 1, 16, {.objective = Objective::sequence}), ValueError);
  EXPECT_THROW(SegmentBatches(part(100), 0, 16), ValueError);
  EXPECT_THROW(SegmentBatches(part(100), 1, 0), ValueError);
  EXPECT_THROW(SegmentBatches(part(100), 1, 16).at(-1), ValueError);
}

TEST_F(Batches, MasksByTheRates) {
  SegmentBatches batches(part(40'000), 8, 512, {.objective = Objective::masked_token});
  double total = 0, chosen = 0, masked = 0, kept = 0, random = 0;
  for (int step = 0; step < 40; ++step) {
    const Batch batch = batches.next();
    const auto x = batch.tokens.to_vector<int32_t>(), y = batch.targets.to_vector<int32_t>();
    for (int64_t row = 0; row < 8; ++row) {
      const int64_t begin = batches.window_begin(step * 8 + row);
      for (int64_t i = 0; i < 512; ++i) {
        const size_t at = static_cast<size_t>(row * 512 + i);
        ++total;
        if (y[at] == ignored_target) {
          ASSERT_EQ(x[at], byte(begin + i));
          continue;
        }
        ASSERT_EQ(y[at], byte(begin + i));
        ++chosen;
        masked += x[at] == default_mask_token;
        kept += x[at] == y[at];
        random += x[at] != default_mask_token && x[at] != y[at];
        ASSERT_TRUE(x[at] >= 0 && x[at] <= default_mask_token);
      }
    }
  }
  EXPECT_NEAR(chosen / total, 0.15, 0.005);
  EXPECT_NEAR(masked / chosen, 0.8, 0.01);
  EXPECT_NEAR(kept / chosen, 0.1 + 0.1 / 256, 0.01);
  EXPECT_NEAR(random / chosen, 0.1 * 255 / 256, 0.01);
}

TEST_F(Batches, MasksAtLeastOneByte) {
  const CorpusPart bytes = part(300);
  const SegmentBatches batches(bytes, 4, 2, {.objective = Objective::masked_token});
  int64_t first = 0, ones = 0;
  for (int64_t step = 0; step < 500; ++step) {
    const auto y = batches.at(step).targets.to_vector<int32_t>();
    for (size_t row = 0; row < 4; ++row) {
      const bool a = y[2 * row] != ignored_target, b = y[2 * row + 1] != ignored_target;
      ASSERT_TRUE(a || b);
      ones += a != b;
      first += a && !b;
    }
  }
  EXPECT_NEAR(static_cast<double>(first) / static_cast<double>(ones), 0.5, 0.05);
  // Masks are drawn anew each epoch.
  const SegmentBatches whole(bytes, 1, 300, {.objective = Objective::masked_token});
  EXPECT_EQ(whole.windows(), 1);
  EXPECT_NE(whole.at(0).targets.to_vector<int32_t>(), whole.at(1).targets.to_vector<int32_t>());
  EXPECT_EQ(whole.at(1).targets.to_vector<int32_t>(), whole.at(1).targets.to_vector<int32_t>());
}

TEST_F(Batches, EvaluationScoresEveryByteOnce) {
  for (const int64_t n : {1, 5, 16, 17, 100, 128}) {
    text_ = some_bytes(2 * n);
    write_bytes(folder_ / "x", text_);
    const CorpusPart valid = ByteCorpus::open(folder_ / "x", Split{50, 50, 0}).valid();
    ASSERT_EQ(valid.size(), n);
    for (const int64_t batch : {1, 3, 64}) {
      const EvaluationSegments segments(valid, batch, 16);
      int64_t at = n;  // offset in the file
      for (int64_t i = 0; i < segments.size(); ++i) {
        const auto [tokens, targets] = segments[i];
        EXPECT_LE(tokens.dim(0), batch);
        const auto x = tokens.to_vector<int32_t>(), y = targets.to_vector<int32_t>();
        for (size_t j = 0; j < x.size(); ++j, ++at) {
          ASSERT_EQ(x[j], byte(at - 1));
          ASSERT_EQ(y[j], byte(at));
        }
      }
      EXPECT_EQ(at, 2 * n);
    }
  }
}

TEST_F(Batches, EvaluationAtTheStartOfTheFile) {
  const EvaluationSegments segments(part(5), 2, 16);
  ASSERT_EQ(segments.size(), 1);
  const auto x = segments[0].tokens.to_vector<int32_t>();
  EXPECT_EQ(x, (std::vector<int32_t>{0, byte(0), byte(1), byte(2), byte(3)}));
  EXPECT_EQ(
      EvaluationSegments(ByteCorpus::open(folder_ / "x", Split{100, 0, 0}).valid(), 1, 4).size(),
      0);
  EXPECT_THROW(segments[1], ValueError);
  EXPECT_THROW(EvaluationSegments(part(5), 0, 16), ValueError);
}

TEST_F(Batches, MaskedEvaluationDoesNotDependOnBatching) {
  const CorpusPart bytes = part(150);
  const auto scored = [&](int64_t batch) {
    std::vector<int32_t> x, y;
    const EvaluationSegments segments(bytes, batch, 16, {.objective = Objective::masked_token});
    for (int64_t i = 0; i < segments.size(); ++i) {
      const auto [tokens, targets] = segments[i];
      const auto a = tokens.to_vector<int32_t>(), b = targets.to_vector<int32_t>();
      x.insert(x.end(), a.begin(), a.end());
      y.insert(y.end(), b.begin(), b.end());
    }
    EXPECT_EQ(x.size(), 150u);
    x.insert(x.end(), y.begin(), y.end());
    return x;
  };
  EXPECT_EQ(scored(1), scored(4));
  EXPECT_EQ(scored(1), scored(100));
}

TEST_F(Batches, EvaluationOfChosenSegments) {
  const CorpusPart bytes = part(150);
  for (const Objective objective : {Objective::next_token, Objective::masked_token}) {
    const BatchOptions options{.objective = objective};
    const EvaluationSegments all(bytes, 1, 16, options);
    for (const int64_t batch : {1, 2, 64}) {
      const EvaluationSegments some(bytes, batch, 16, options, {1, 4, 8});
      std::vector<int32_t> tokens, targets, right_tokens, right_targets;
      const auto add = [](const Tensor& from, std::vector<int32_t>& to) {
        for (const int32_t x : from.to_vector<int32_t>()) to.push_back(x);
      };
      for (int64_t i = 0; i < some.size(); ++i)
        add(some[i].tokens, tokens), add(some[i].targets, targets);
      for (const int64_t i : {1, 4, 8})
        add(all[i].tokens, right_tokens), add(all[i].targets, right_targets);
      EXPECT_EQ(tokens, right_tokens);
      EXPECT_EQ(targets, right_targets);
    }
    EXPECT_THROW(EvaluationSegments(bytes, 1, 16, options, {9}), ValueError)
        << "the rest is no segment";
    EXPECT_THROW(EvaluationSegments(bytes, 1, 16, options, {-1}), ValueError);
  }
}

TEST(Masking, HidesWholeWords) {
  const auto bytes = byte_tokenizer();
  const std::vector<WordRole> roles = bytes->word_roles();
  std::string text;
  for (int i = 0; i < 2000; ++i) text += i % 3 == 0 ? "it, " : i % 3 == 1 ? "caf\xC3\xA9 " : "x9\n";
  const std::vector<int32_t> original = bytes->encode(text);
  std::vector<int32_t> tokens = original, targets(tokens.size());
  mask_window(tokens, targets, Generator{4}, {}, roles);
  const std::vector<int64_t> ends = word_ends(original, roles);
  EXPECT_EQ(ends.back(), static_cast<int64_t>(text.size()));
  int64_t begin = 0, words = 0, hidden = 0, masked = 0, other = 0, chosen = 0;
  for (const int64_t end : ends) {
    const std::string word =
        text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    EXPECT_TRUE(word == "it" || word == "," || word == " " || word == "caf\xC3\xA9" ||
                word == "x9" || word == "\n")
        << word;
    const bool is_chosen = targets[static_cast<size_t>(begin)] != ignored_target;
    for (int64_t i = begin; i < end; ++i) {
      const auto at = static_cast<size_t>(i);
      ASSERT_EQ(targets[at] != ignored_target, is_chosen);
      if (!is_chosen) {
        ASSERT_EQ(tokens[at], original[at]);
        continue;
      }
      ASSERT_EQ(targets[at], original[at]);
      ++hidden;
      masked += tokens[at] == default_mask_token ? 1 : 0;
      other += tokens[at] != default_mask_token && tokens[at] != original[at] ? 1 : 0;
    }
    ++words;
    chosen += is_chosen ? 1 : 0;
    begin = end;
  }
  // The tolerance is four standard deviations.
  const auto near = [](int64_t n, int64_t of, double p) {
    const auto total = static_cast<double>(of);
    EXPECT_NEAR(static_cast<double>(n), p * total, 4 * std::sqrt(p * (1 - p) * total));
  };
  near(chosen, words, 0.15);
  near(masked, hidden, 0.8);
  near(other, hidden, 0.1 * 255 / 256);
}

TEST(Masking, RandomTokensAreBelowTheVocabulary) {
  std::vector<int32_t> tokens(20'000, 3), targets(tokens.size());
  mask_window(tokens, targets, Generator{4},
              {.share = 1, .masked = 0, .random = 1, .token = 9, .vocabulary = 5});
  std::vector<double> counts(5);
  for (const int32_t token : tokens) ++counts.at(static_cast<size_t>(token));
  double chi = 0;
  for (const double n : counts) chi += (n - 4000) * (n - 4000) / 4000;
  EXPECT_LT(chi, 23.5);  // 4 degrees of freedom, p = 0.0001
}

TEST(Masking, ChoosesAWordWhereNoneWas) {
  const auto bytes = byte_tokenizer();
  const std::vector<WordRole> roles = bytes->word_roles();
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<int32_t> tokens = bytes->encode("two words"), targets(tokens.size());
    mask_window(tokens, targets, Generator{seed}, {.share = 0}, roles);
    const auto n = std::count_if(targets.begin(), targets.end(),
                                 [](int32_t t) { return t != ignored_target; });
    EXPECT_TRUE(n == 3 || n == 1 || n == 5) << n;
  }
}

TEST(WordRoles, FollowTheVocabularies) {
  const std::string golden = LONGSPAN_SOURCE_DIR "/tests/oracles/golden/text/";
  const auto words = [](const Tokenizer& t, std::string_view text) {
    const std::vector<int32_t> ids = t.encode(text);
    std::string out;
    int64_t begin = 0;
    for (const int64_t end : word_ends(ids, t.word_roles())) {
      const std::span<const int32_t> all(ids);
      out +=
          "|" + t.decode(all.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
      begin = end;
    }
    return out;
  };
  EXPECT_EQ(words(*open_word_pieces(golden + "wordpiece.txt"), "Unhappily, I"), "|unhappily|,|i");
  EXPECT_EQ(words(*open_tokenizer(golden), "Unhappily,  naively\n!caf\xC3\xA9"),
            "|Unhappily|,| | naively|\n|!|caf\xC3\xA9");
  EXPECT_EQ(words(*open_sentence_pieces(golden + "unigram.model"), "Unhappily, naively\nx"),
            "|Unhappily|,| naively|\n|x");
}

TEST(Fingerprint, TellsContentsApart) {
  const Folder folder;
  const auto of = [&](const std::vector<std::string>& names) {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back(folder / name);
    return fingerprint_of(paths);
  };
  // Beyond 16 MiB the fingerprint covers only samples: 4 KiB at every MiB.
  constexpr size_t mib = 1 << 20;
  const std::string bytes = some_bytes(18 * mib + 100);
  const auto changed = [&](size_t at) {
    std::string other = bytes;
    other[at] = static_cast<char>(other[at] + 1);
    write_bytes(folder / "changed", other);
    return of({"changed"});
  };
  write_bytes(folder / "a", bytes);
  const Fingerprint all = of({"a"});
  EXPECT_EQ(all.bytes, std::ssize(bytes));
  EXPECT_EQ(all.xxh3.size(), 16u);
  for (const size_t at : {size_t{0}, 3 * mib + 500'000, 16 * mib - 1, 16 * mib, 17 * mib,
                          17 * mib + 4095, 18 * mib + 99}) {
    EXPECT_NE(changed(at).xxh3, all.xxh3) << at;
  }
  EXPECT_EQ(changed(17 * mib + 4096), all);  // between two samples
  write_bytes(folder / "shorter", bytes.substr(0, 17 * mib + 9000));
  write_bytes(folder / "longer", bytes.substr(0, 17 * mib + 9001));
  EXPECT_NE(of({"shorter"}).xxh3, of({"longer"}).xxh3);
  // The fingerprint ignores compression, but depends on how bytes are divided into files.
  write_bytes(folder / "a.gz", gzip(bytes));
  EXPECT_EQ(of({"a.gz"}), all);
  write_bytes(folder / "one", "one");
  write_bytes(folder / "two", "two");
  write_bytes(folder / "onetwo", "onetwo");
  write_bytes(folder / "none", "");
  EXPECT_NE(of({"one", "two"}).xxh3, of({"two", "one"}).xxh3);
  EXPECT_NE(of({"one", "two"}).xxh3, of({"onetwo"}).xxh3);
  EXPECT_NE(of({"one", "none"}).xxh3, of({"one"}).xxh3);
  EXPECT_EQ(of({}).bytes, 0);
  EXPECT_THROW(of({"missing"}), IoError);
}

}  // namespace
}  // namespace longspan
