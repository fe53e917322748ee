#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/corpus.h"
#include "data/io/bytes.h"
#include "data/io/formats.h"
#include "data/tokenizers/tokenizer.h"

namespace longspan {

/// What the files of a data set hold, and so what a token is.
enum class DataKind : uint8_t {
  bytes,       ///< any file: bytes, or the tokens of a tokenizer
  chars,       ///< a to z and space: the alphabet of text8
  words,       ///< text: words, and the end of each line
  dna,         ///< FASTA, or bases alone: `bases`, headers left out
  fasta,       ///< FASTA of proteins: `residues`, and an end after each record
  wav,         ///< 16-bit WAV: codes of mu_law()
  images,      ///< CIFAR-10's layout: values of pixels, red, green and blue of each
  pixels,      ///< nothing but pixels, 64 x 64
  motifs,      ///< samples of MotifTask, made as they are asked for: there are no files
  duplicates,  ///< samples of DuplicateTask, likewise
  documents,   ///< articles and summaries; read by open_documents()
  promoters,   ///< FASTA with a yes-or-no answer for each record; read by open_labelled()
  profiles,    ///< arrays of bases and of yes-or-no answers; likewise
  choices,     ///< WikiHop: questions with candidates; read by read_wikihop()
  trivia,      ///< TriviaQA: questions and documents; read by read_triviaqa()
};

/// Whether samples of that kind are made as they are asked for, from no file.
constexpr bool is_generated(DataKind kind) {
  return kind == DataKind::motifs || kind == DataKind::duplicates;
}

/// A file of a data set.
struct DataFile {
  std::string_view name;  ///< plain, or with ".gz" behind it
  int64_t bytes = -1;     ///< unpacked, where that is fixed
  int part = -1;          ///< 0 train, 1 validation, 2 test; -1: all, to be split
  bool optional = false;  ///< whether the data set is complete without it
};

/// A data set that the program knows: where it lies below the folder of all data, and how much
/// there should be.
struct DataSet {
  std::string_view id, folder;
  DataKind kind = DataKind::bytes;
  std::vector<DataFile> files;
  std::string_view split = "90/5/5";             ///< of what is not in parts
  std::array<int64_t, 3> counts = {-1, -1, -1};  ///< tokens, or documents, of each part
  std::string_view about;
};

/// All of them; first those with the name of a kind, which take any file.
std::span<const DataSet> data_sets();
/// The one of that name. Throws ValueError that names the nearest.
const DataSet& find_data_set(const std::string& id);
/// What bits are counted per: "byte", "character", "word", "base" and so on; "document" of
/// documents, "question" of questions.
std::string_view unit_of(DataKind kind);

/// Where the user has data.
struct DataPlace {
  std::string root;  ///< the folder of all data sets; empty: LONGSPAN_DATA
  std::string data;  ///< "ID=PATH": the folder of one, or its only file
};

/// A file of a data set as it was found.
struct FoundFile {
  DataFile file;
  std::string path;       ///< empty: missing
  std::string half = {};  ///< the name, where it is one of two that stand in place of the file

  /// What was looked for.
  std::string_view name() const { return half.empty() ? file.name : std::string_view(half); }
};

/// The files of a data set, in order; of profiles, NAME_x.npy and NAME_y.npy where these stand in
/// place of NAME.npz. Throws ValueError where neither place has been given.
std::vector<FoundFile> find_files(const DataSet& set, const DataPlace& place);
/// One line on what is missing: id, names looked for, bytes expected, folder searched; else empty.
std::string missing_files(const DataSet& set, const DataPlace& place);

/// A data set in three parts.
struct Corpus {
  std::string id;
  DataKind kind = DataKind::bytes;
  std::string unit;  ///< what bits are counted per
  int64_t vocabulary = 256;
  CorpusPart train, valid, test;
  std::shared_ptr<const Tokenizer> tokenizer;  ///< of bytes, characters and words; else null
  std::vector<WordRole> words;                 ///< the role of each id in words, where it has one
  std::vector<std::string> warnings;           ///< counts that are not those of the data set

  /// "train", "valid" or "test". Throws ValueError on another name.
  const CorpusPart& part(std::string_view name) const;
};

/// What is wanted of a data set.
struct CorpusOptions {
  std::string split = {};      ///< "90/5/5"; empty: the data set's own
  std::string tokenizer = {};  ///< bytes: open_tokenizer() of this name; empty: bytes themselves
};

/// Opens a data set. Texts are split at bytes, words at the next end of a line, records and
/// recordings at records and samples. Tokens of words and of a tokenizer are kept beside the files
/// as ID.PART.tokens, where these can be written. Throws IoError with missing_files(), and on files
/// that are cut off or of another kind; NotImplemented on what is no single sequence.
Corpus open_corpus(const std::string& id, const DataPlace& place,
                   const CorpusOptions& options = {});

/// Bytes of the file of a part, and its path; none where the data set has no such part. Throws
/// IoError with missing_files().
struct PartFile {
  std::string path;
  FileBytes content;
};
PartFile open_part(const DataSet& set, const DataPlace& place, int part);

/// The documents of a part (0 train, 1 validation, 2 test). Throws as open_corpus().
std::vector<Document> open_documents(const std::string& id, const DataPlace& place, int part);

}  // namespace longspan
