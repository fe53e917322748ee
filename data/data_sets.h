#pragma once

#include <array>
#include <cstdint>
#include <functional>
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

struct SampleTaskEntry;

/// What the files of a data set contain, which determines the tokens.
enum class DataKind : uint8_t {
  bytes,             ///< any file: bytes, or the tokens of a tokenizer
  chars,             ///< a to z and space, the alphabet of text8
  words,             ///< text: words, and the end of each line
  dna,               ///< FASTA, or bases only: `bases`; headers are skipped
  fasta,             ///< FASTA of proteins: `residues`, and an end token after each record
  wav,               ///< 16-bit WAV: codes of mu_law()
  images,            ///< CIFAR-10's layout: pixel values, red, green and blue of each
  pixels,            ///< raw pixels, 64 x 64
  generated_labels,  ///< samples of a SampleTask, made on demand: there are no files; with labels
  generated_tokens,  ///< samples of a SampleTask whose targets are tokens
  generated_span,    ///< samples of a SampleTask with the positions of an answer
  generated_documents,  ///< documents of a SampleTask with labels of their sentences
  documents,            ///< articles and summaries; read by open_documents()
  promoters,            ///< FASTA with a binary label for each record; read by open_labelled()
  profiles,             ///< arrays of bases and of binary labels; read by open_labelled()
  choices,              ///< WikiHop: questions with candidates; read by read_wikihop()
  trivia,               ///< TriviaQA: questions and documents; read by read_triviaqa()
  tables,               ///< rows of csv, tsv or json with labels; read by find_tables()
};

/// Whether samples of that kind are generated on demand, without files.
constexpr bool is_generated(DataKind kind) {
  return kind == DataKind::generated_labels || kind == DataKind::generated_tokens ||
         kind == DataKind::generated_span || kind == DataKind::generated_documents;
}

/// A file of a data set.
struct DataFile {
  std::string_view name;  ///< without a possible ".gz" suffix
  int64_t bytes = -1;     ///< decompressed size, if it is fixed
  int part = -1;          ///< 0 train, 1 validation, 2 test; -1: the whole set, to be split
  bool optional = false;  ///< whether the data set is complete without it
};

/// A data set known to the program: its folder below the data root, and its expected sizes.
struct DataSet {
  std::string_view id, folder;
  DataKind kind = DataKind::bytes;
  std::vector<DataFile> files;
  std::string_view split = "90/5/5";             ///< default split of a file that is not one split
  std::array<int64_t, 3> counts = {-1, -1, -1};  ///< expected tokens, or documents, of each split
  std::string_view about;
};

/// Returns all data sets but tables of examples, which tasks of the program read. Those named after
/// a kind come first; they take any file.
std::span<const DataSet> data_sets();
/// Returns what programs show of a generated task as a data set; it has no files.
DataSet generated_data_set(const SampleTaskEntry& task);
/// Returns the data set of that id. Throws ValueError that names the most similar id.
const DataSet& find_data_set(const std::string& id);
/// Returns the unit that bits are counted per: "byte", "character", "word", "base" and so on;
/// "document" for documents, "question" for questions.
std::string_view unit_of(DataKind kind);

/// The user's data locations.
struct DataPlace {
  std::string root;  ///< folder of all data sets; empty: LONGSPAN_DATA
  std::string data;  ///< "ID=PATH": the folder of one data set, or its only file
};

/// A file of a data set and where it was found.
struct FoundFile {
  DataFile file;
  std::string path;       ///< empty: missing
  std::string half = {};  ///< its name, if it is one of two that replace the file

  /// Returns the file name that was looked for.
  std::string_view name() const { return half.empty() ? file.name : std::string_view(half); }
};

/// Returns the files of a data set, in order. For chromatin profiles, NAME_x.npy and NAME_y.npy may
/// replace NAME.npz. Throws ValueError if no location was given.
std::vector<FoundFile> find_files(const DataSet& set, const DataPlace& place);
/// Returns a one-line message about missing files (id, names tried, bytes expected, folder
/// searched), or an empty string.
std::string missing_files(const DataSet& set, const DataPlace& place);

/// Returns every file that a data set is read from, in order: those of find_files(), or the stories
/// of a folder. Throws IoError with missing_files().
std::vector<std::string> paths_of(const DataSet& set, const DataPlace& place);

/// A data set in three splits.
struct Corpus {
  std::string id;
  DataKind kind = DataKind::bytes;
  std::string unit;  ///< unit that bits are counted per
  int64_t vocabulary = 256;
  CorpusPart train, valid, test;
  std::shared_ptr<const Tokenizer> tokenizer;  ///< for bytes, characters and words; else null
  std::vector<WordRole> words;                 ///< word role of each id, if there is a tokenizer
  std::vector<std::string> warnings;           ///< sizes that differ from the expected ones

  /// "train", "valid" or "test". Throws ValueError on another name.
  const CorpusPart& part(std::string_view name) const;
};

/// Options of open_corpus().
struct CorpusOptions {
  std::string split = {};      ///< "90/5/5"; empty: the data set's own
  std::string tokenizer = {};  ///< for bytes: the name for open_tokenizer(); empty: raw bytes
  /// Receives, for each split, how many bytes of its text have been tokenized.
  std::function<void(const char* split, int64_t done, int64_t total)> progress = {};
};

/// Opens a data set. Texts are split at bytes, words at the next end of a line, records and
/// recordings at records and samples. Tokens of words and of a tokenizer are cached beside the
/// files (token_file()), if that location is writable. Throws IoError with missing_files() or if
/// a file is truncated or of another format. Throws NotImplemented if the data set is not a single
/// sequence.
Corpus open_corpus(const std::string& id, const DataPlace& place,
                   const CorpusOptions& options = {});

/// Returns the file in which open_corpus() keeps the tokens of a split: FILE.SPLIT.tokens, with the
/// first of several files and how many others (FILE+2.train.tokens); in a folder ID.SPLIT.tokens.
std::string token_file(const DataSet& set, const DataPlace& place, std::string_view split);

/// The bytes of the file of a split, and its path; empty if the data set has no such split.
/// open_part() throws IoError with missing_files().
struct PartFile {
  std::string path;
  FileBytes content;
};
PartFile open_part(const DataSet& set, const DataPlace& place, int part);

/// Returns the documents of a split (0 train, 1 validation, 2 test): of PART.article, PART.summary
/// and PART.label, or of a folder of stories (data/io/stories.h): the stories in its folders train,
/// valid and test or, without these, its own stories, sorted by name and cut by `split`. Only what
/// DataFile calls optional may be missing. Throws as open_corpus() does.
std::vector<Document> open_documents(const std::string& id, const DataPlace& place, int part,
                                     const std::string& split = {});

}  // namespace longspan
