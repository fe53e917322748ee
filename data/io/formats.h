#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// Sequences of letters as ids, concatenated.
struct Sequences {
  std::vector<uint8_t> ids;
  std::vector<int64_t> ends;         ///< end of each sequence in `ids`
  int64_t unknown = 0;               ///< number of letters missing from the alphabet
  std::vector<std::string> headers;  ///< of each sequence, without the ">", if requested
  std::vector<int64_t> lines;        ///< line of each header, from 1
  std::string others;                ///< the unknown letters in upper case, each once
  std::vector<int64_t> other_lines;  ///< the first line of each of `others`

  int64_t size() const { return static_cast<int64_t>(ends.size()); }
  /// Returns the ids of sequence i.
  std::span<const uint8_t> operator[](int64_t i) const {
    const auto begin = static_cast<size_t>(i == 0 ? 0 : ends[static_cast<size_t>(i - 1)]);
    return {ids.data() + begin, static_cast<size_t>(ends[static_cast<size_t>(i)]) - begin};
  }
};

/// Ids of bases: A 0, C 1, G 2, T 3, and N 4 for every other base code.
inline constexpr std::string_view bases = "ACGTN";
/// Ids of residues: the 20 amino acids, then B O U X Z; every other code becomes X.
inline constexpr std::string_view residues = "ACDEFGHIKLMNPQRSTVWYBOUXZ";

/// Reads the records of a FASTA file: a line that begins with ">", then lines of letters of either
/// case; "*" and "-" are skipped. A text without any ">" is one record. Letters missing from
/// `alphabet` become `other`. Throws IoError that names `path` and the line if a character is not a
/// letter or a record is empty.
enum class Headers { skip, keep };
Sequences read_fasta(std::string_view text, std::string_view alphabet, char other,
                     const std::string& path, Headers headers = Headers::skip);

/// An audio recording.
struct Recording {
  int64_t rate = 0;              ///< samples per second
  std::vector<int16_t> samples;  ///< of the single channel
};

/// Reads a WAV file of 16-bit mono PCM. Throws IoError that names `path` if the file has another
/// format or ends before its stated length.
Recording read_wav(std::span<const uint8_t> bytes, const std::string& path);

/// Returns the mu-law code floor((f + 1) / 2 * 255 + 0.5), with f(x) = sign(x) ln(1 + 255 |x|) / ln
/// 256 and x = sample / 32768.
uint8_t mu_law(int16_t sample);
/// The inverse: the middle of the code's interval, in [-1, 1].
double from_mu_law(uint8_t code);

/// Images as byte sequences: rows from the top, pixels from the left, red, green and blue of each
/// pixel.
struct Pictures {
  int64_t width = 0;            ///< of the square images
  std::vector<uint8_t> values;  ///< [pictures, width, width, 3]
  std::vector<uint8_t> labels;  ///< of each image, if the file has labels
  int64_t size() const { return 3 * width * width; }
};

/// Reads the binary layout of CIFAR-10: records of a label and 32 x 32 red, green and blue values.
/// Throws IoError that names `path` unless the file holds whole records.
Pictures read_cifar(std::span<const uint8_t> bytes, const std::string& path);

/// Reads raw bytes of shape [N, width, width, 3]. Throws IoError that names `path` unless
/// the file holds whole pictures.
Pictures read_pixels(std::span<const uint8_t> bytes, int64_t width, const std::string& path);

/// An article and its summary, as lists of sentences.
struct Document {
  std::vector<std::string> article, summary;
  std::vector<uint8_t> labels = {};  ///< of the article's sentences, 1: in an extract; empty: none
};

/// Reads one document per line, with sentences separated by " <S_SEP> ". Throws IoError if the
/// files have different numbers of lines.
std::vector<Document> read_documents(std::string_view articles, std::string_view summaries,
                                     const std::string& path);
/// The same without summaries.
std::vector<Document> read_documents(std::string_view articles);
/// Reads the labels of the sentences of all articles, a line for each document: T or F for each
/// sentence, separated by spaces. Throws IoError that names `path` and the line on other text, on
/// labels of another number than sentences, and if the numbers of lines and documents differ.
void read_labels(std::string_view labels, const std::string& path, std::vector<Document>& to);

}  // namespace longspan
