#include "data/io/formats.h"

#include <cmath>

#include "core/error.h"
#include "core/generator.h"
#include "tests/harness/scratch.h"

namespace longspan {
namespace {

using test::contains;
using test::message_of;

std::vector<uint8_t> byte_vector(std::string_view text) { return {text.begin(), text.end()}; }

std::string letters_of(const Sequences& s, std::string_view alphabet) {
  std::string text;
  int64_t begin = 0;
  for (const int64_t end : s.ends) {
    for (int64_t i = begin; i < end; ++i) text += alphabet[s.ids[static_cast<size_t>(i)]];
    text += '|';
    begin = end;
  }
  return text;
}

TEST(Fasta, ReadsRecords) {
  const Sequences s = read_fasta(">one first\nACGT\nacgtn\r\n\n>two\nRYACGT", bases, 'N', "x");
  EXPECT_EQ(letters_of(s, bases), "ACGTACGTN|NNACGT|");
  EXPECT_EQ(s.unknown, 2);
  EXPECT_TRUE(s.headers.empty());  // headers were not requested
  EXPECT_EQ(read_fasta(">one first\nACGT\n>two\nA", bases, 'N', "x", Headers::keep).headers,
            (std::vector<std::string>{"one first", "two"}));
  EXPECT_EQ(letters_of(read_fasta("acg\nt\n", bases, 'N', "x"), bases), "ACGT|");
  const Sequences p = read_fasta(">p Split=0\nMKV*JX-\n", residues, 'X', "x");
  EXPECT_EQ(letters_of(p, residues), "MKVXX|");
  EXPECT_EQ(p.unknown, 1);
  EXPECT_EQ(residues.size(), 25u);
}

TEST(Fasta, RefusesWhatIsNone) {
  const auto message = [](std::string_view text) {
    return message_of<IoError>([&] { read_fasta(text, bases, 'N', "file.fa"); });
  };
  EXPECT_TRUE(contains(message(">a\nAC\nA1T\n"), "file.fa: line 3 has the byte 0x31"));
  EXPECT_TRUE(contains(message(">a\n>b\nA\n"), "the record of line 1 is empty"));
  EXPECT_TRUE(contains(message(">a\nA\n>b\n"), "the record of line 3 is empty"));
  EXPECT_TRUE(contains(message(""), "is empty"));
}

std::string number(uint32_t value, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xFF);
  return bytes;
}

std::string wav(const std::vector<int16_t>& samples, int kind = 1, int channels = 1,
                int bits = 16) {
  std::string data;
  for (const int16_t s : samples) data += number(static_cast<uint16_t>(s), 2);
  const std::string format =
      number(static_cast<uint32_t>(kind), 2) + number(static_cast<uint32_t>(channels), 2) +
      number(8000, 4) + number(16000, 4) + number(2, 2) + number(static_cast<uint32_t>(bits), 2);
  const std::string chunks = "fmt " + number(16, 4) + format + "LIST" + number(3, 4) + "abc" +
                             std::string(1, '\0') + "data" +
                             number(static_cast<uint32_t>(data.size()), 4) + data;
  return "RIFF" + number(static_cast<uint32_t>(chunks.size() + 4), 4) + "WAVE" + chunks;
}

TEST(Wav, ReadsSamples) {
  const std::vector<int16_t> samples = {0, 1, -1, 32767, -32768, 258};
  const Recording r = read_wav(byte_vector(wav(samples)), "x");
  EXPECT_EQ(r.rate, 8000);
  EXPECT_EQ(r.samples, samples);
}

TEST(Wav, RefusesWhatItCannotRead) {
  const std::string good = wav({1, 2, 3, 4});
  const auto message = [](const std::string& bytes) {
    return message_of<IoError>([&] { read_wav(byte_vector(bytes), "x.wav"); });
  };
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_TRUE(contains(message(good.substr(0, length)), "x.wav")) << length;
  }
  EXPECT_TRUE(contains(message(good.substr(0, good.size() - 3)),
                       "is cut off: 5 bytes of samples, of the 8"));
  EXPECT_TRUE(contains(message(wav({1}, 3)), "has format 3"));
  EXPECT_TRUE(contains(message(wav({1}, 1, 2)), "2 channels"));
  EXPECT_TRUE(contains(message(wav({1}, 1, 1, 8)), "and 8 bits; expected PCM"));
}

TEST(TasksAndData, MuLawReturnsWithinItsSteps) {
  EXPECT_EQ(mu_law(0), 128);
  EXPECT_EQ(mu_law(32767), 255);
  EXPECT_EQ(mu_law(-32768), 0);
  EXPECT_EQ(mu_law(-1), 127);  // ln(1 + 255 / 32768) / ln 256 is 0.0014, a fifth of a step
  for (int code = 0; code < 256; ++code) {
    const double x = from_mu_law(static_cast<uint8_t>(code));
    EXPECT_LE(std::abs(x), 1);
    const double sample = std::round(x * 32768);
    if (sample > 32767 || code == 127) continue;
    EXPECT_EQ(mu_law(static_cast<int16_t>(sample)), code);
  }
  int previous = 0;
  for (int sample = -32768; sample <= 32767; ++sample) {
    const uint8_t code = mu_law(static_cast<int16_t>(sample));
    EXPECT_GE(code, previous);
    previous = code;
    // Half a step of f is 1/255; dx/df is at most ln 256 (1 + 255 |x|) / 255 nearby.
    const double x = sample / 32768.0, bound = std::log(256.0) / 255 * (1 / 255.0 + std::abs(x));
    EXPECT_LE(std::abs(from_mu_law(code) - x), 1.02 * bound) << sample;
  }
}

TEST(Pictures, InterleaveColours) {
  std::vector<uint8_t> file;
  for (uint8_t label = 0; label < 2; ++label) {
    file.push_back(label);
    for (int channel = 0; channel < 3; ++channel) {
      for (int pixel = 0; pixel < 1024; ++pixel) {
        file.push_back(static_cast<uint8_t>(philox_word(label, channel * 1024 + pixel)));
      }
    }
  }
  const Pictures p = read_cifar(file, "x");
  EXPECT_EQ(p.size(), 3072);
  EXPECT_EQ(p.labels, (std::vector<uint8_t>{0, 1}));
  ASSERT_EQ(p.values.size(), 2u * 3072);
  for (int64_t image = 0; image < 2; ++image) {
    for (int64_t i = 0; i < 3072; ++i) {
      const int64_t channel = i % 3, pixel = i / 3;
      ASSERT_EQ(
          p.values[static_cast<size_t>(image * 3072 + i)],
          static_cast<uint8_t>(philox_word(static_cast<uint64_t>(image), channel * 1024 + pixel)));
    }
  }
  file.pop_back();
  EXPECT_TRUE(contains(message_of<IoError>([&] { read_cifar(file, "x.bin"); }),
                       "x.bin has 6145 bytes, which is not whole pictures of 3073: 1 are missing"));
  EXPECT_TRUE(contains(message_of<IoError>([&] { read_cifar({}, "x.bin"); }), "0 bytes"));
  const std::vector<uint8_t> pixels(2 * 3 * 4 * 4, 7);
  EXPECT_EQ(read_pixels(pixels, 4, "x").values, pixels);
  EXPECT_TRUE(contains(message_of<IoError>([&] { read_pixels(pixels, 5, "x"); }), "of 75"));
}

TEST(Documents, SplitIntoSentences) {
  const std::vector<Document> all =
      read_documents("a b . <S_SEP> c .\nd\n", "s . <S_SEP> t\n\n", "x");
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].article, (std::vector<std::string>{"a b .", "c ."}));
  EXPECT_EQ(all[0].summary, (std::vector<std::string>{"s .", "t"}));
  EXPECT_EQ(all[1].article, (std::vector<std::string>{"d"}));
  EXPECT_TRUE(all[1].summary.empty());
  EXPECT_TRUE(contains(message_of<IoError>([&] { read_documents("a\nb\n", "c\n", "x.summary"); }),
                       "x.summary: 2 articles and 1 summaries"));
}

}  // namespace
}  // namespace longspan
