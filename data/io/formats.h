#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// Sequences of letters, as ids, one after the other.
struct Sequences {
  std::vector<uint8_t> ids;
  std::vector<int64_t> ends;         ///< of each sequence in `ids`
  int64_t unknown = 0;               ///< letters that the alphabet does not have
  std::vector<std::string> headers;  ///< of each, without the ">", where they were asked for
  std::vector<int64_t> lines;        ///< line of each header, from 1
  std::string others;                ///< the letters that were unknown, in capitals, each once
  std::vector<int64_t> other_lines;  ///< the first line of each of `others`

  int64_t size() const { return static_cast<int64_t>(ends.size()); }
  /// The ids of sequence i.
  std::span<const uint8_t> operator[](int64_t i) const {
    const auto begin = static_cast<size_t>(i == 0 ? 0 : ends[static_cast<size_t>(i - 1)]);
    return {ids.data() + begin, static_cast<size_t>(ends[static_cast<size_t>(i)]) - begin};
  }
};

/// Ids of bases: A 0, C 1, G 2, T 3, and N 4 for every other code of a base.
inline constexpr std::string_view bases = "ACGTN";
/// Ids of residues: the 20 amino acids, then B O U X Z; X stands for every other code.
inline constexpr std::string_view residues = "ACDEFGHIKLMNPQRSTVWYBOUXZ";

/// The records of a FASTA file: a line that begins with ">", then lines of letters of either case;
/// "*" and "-" are left out. A text without any ">" is one record. What `alphabet` lacks becomes
/// `other`. Throws IoError that names `path` and the line on a character that is no letter, and on
/// a record without any.
enum class Headers { skip, keep };
Sequences read_fasta(std::string_view text, std::string_view alphabet, char other,
                     const std::string& path, Headers headers = Headers::skip);

/// A recording.
struct Recording {
  int64_t rate = 0;              ///< samples a second
  std::vector<int16_t> samples;  ///< of one channel
};

/// A WAV file of 16-bit PCM with one channel. Throws IoError that names `path` where it is of
/// another kind or ends before the length that it gives.
Recording read_wav(std::span<const uint8_t> bytes, const std::string& path);

/// f(x) = sign(x) ln(1 + 255 |x|) / ln 256 of x = sample / 32768, as floor((f + 1) / 2 * 255 +
/// 0.5).
uint8_t mu_law(int16_t sample);
/// The inverse, at the middle of what has the code; in [-1, 1].
double from_mu_law(uint8_t code);

/// Pictures as sequences of bytes: rows from the top, pixels from the left, red, green and blue of
/// each.
struct Pictures {
  int64_t width = 0;            ///< of the square
  std::vector<uint8_t> values;  ///< [pictures, width, width, 3]
  std::vector<uint8_t> labels;  ///< of each, where the file has them
  int64_t size() const { return 3 * width * width; }
};

/// The binary layout of CIFAR-10: records of a label and 32 x 32 red, green and blue values. Throws
/// IoError that names `path` where the file does not hold whole records.
Pictures read_cifar(std::span<const uint8_t> bytes, const std::string& path);

/// A file that is nothing but [N, width, width, 3] bytes. Throws IoError as above.
Pictures read_pixels(std::span<const uint8_t> bytes, int64_t width, const std::string& path);

/// An article and its summary, in sentences.
struct Document {
  std::vector<std::string> article, summary;
};

/// Documents a line, sentences separated by " <S_SEP> ". Throws IoError where the files have
/// different numbers of lines.
std::vector<Document> read_documents(std::string_view articles, std::string_view summaries,
                                     const std::string& path);

}  // namespace longspan
