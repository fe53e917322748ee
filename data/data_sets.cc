#include "data/data_sets.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "data/io/bytes.h"
#include "data/io/files.h"
#include "data/io/listed_files.h"
#include "data/io/stories.h"
#include "data/tasks.h"
#include "data/token_file.h"
#include "nn/nearest.h"

namespace longspan {
namespace {

constexpr const char* part_names[] = {"train", "valid", "test"};

using enum DataKind;

/// All data sets but the generated ones and tables, in the order in which they are listed.
const std::vector<DataSet> kDataSets = {
    {"bytes", "", bytes, {}, "90/5/5", {-1, -1, -1}, "any file as a sequence of bytes"},
    {"chars", "", chars, {}, "90/5/5", {-1, -1, -1}, "text of a to z and space"},
    {"words", "", words, {}, "90/5/5", {-1, -1, -1}, "text as words, with <eos> for each line"},
    {"dna", "", dna, {}, "90/5/5", {-1, -1, -1}, "bases of FASTA or plain text"},
    {"fasta", "", fasta, {}, "80/10/10", {-1, -1, -1}, "proteins in FASTA, split by records"},
    {"wav", "", wav, {}, "90/5/5", {-1, -1, -1}, "16-bit PCM of one channel as mu-law codes"},
    {"images", "", images, {}, "90/5/5", {-1, -1, -1}, "pictures in the layout of CIFAR-10"},
    {"pixels", "", pixels, {}, "90/5/5", {-1, -1, -1}, "pictures as u8[N, 64, 64, 3]"},
    {"enwik8",
     "enwik8",
     bytes,
     {{"enwik8", 100'000'000}},
     "90/5/5",
     {90'000'000, 5'000'000, 5'000'000},
     "the head of a Wikipedia dump"},
    {"text8",
     "text8",
     chars,
     {{"text8", 100'000'000}},
     "90/5/5",
     {90'000'000, 5'000'000, 5'000'000},
     "Wikipedia text in 27 characters"},
    {"wikixml",
     "wikixml",
     bytes,
     {{"wikixml.xml", 6'089'746}},
     "90/5/5",
     {5'480'771, 304'487, 304'488},
     "a small Wikipedia dump, in place of enwik8"},
    {"text8-mini",
     "wikixml",
     chars,
     {{"text8-mini", 2'909'029}},
     "90/5/5",
     {2'618'126, 145'451, 145'452},
     "its text in 27 characters, in place of text8"},
    {"tinyshakespeare",
     "tinyshakespeare",
     bytes,
     {{"input.txt", 1'115'394}},
     "90/10/0",
     {1'003'854, 111'540, 0},
     "plays of Shakespeare"},
    {"war-and-peace",
     "war-and-peace",
     bytes,
     {{"train.txt", 2'884'626, 0}, {"valid.txt", 140'857, 1}, {"test.txt", 241'972, 2}},
     "",
     {2'884'626, 140'857, 241'972},
     "one long book, in place of PG-19"},
    {"wikitext-2",
     "wikitext-2",
     words,
     {{"train.txt", -1, 0}, {"valid.txt", 1'121'681, 1}, {"test.txt", 1'256'449, 2}},
     "",
     {2'088'628, 217'646, 245'569},
     "articles of Wikipedia in words"},
    {"wt2-swap",
     "wikitext-2",
     words,
     {{"valid.txt", 1'121'681, 0}, {"test.txt", 1'256'449, 1}},
     "",
     {217'646, 245'569, 0},
     "WikiText-2 without its training file: trained on valid, validated on test"},
    {"wikitext-103",
     "wikitext-103",
     words,
     {{"wiki.train.tokens", -1, 0}, {"wiki.valid.tokens", -1, 1}, {"wiki.test.tokens", -1, 2}},
     "",
     {103'227'021, 217'646, 245'569},
     "articles of Wikipedia in words"},
    {"cifar10",
     "cifar10",
     images,
     {{"data_batch_1.bin", 30'730'000, 0},
      {"data_batch_2.bin", 30'730'000, 0},
      {"data_batch_3.bin", 30'730'000, 0},
      {"data_batch_4.bin", 30'730'000, 0},
      {"data_batch_5.bin", 30'730'000, 0},
      {"test_batch.bin", 30'730'000, 2}},
     "",
     {50'000 * 3'072, 0, 10'000 * 3'072},
     "photographs of 32 x 32"},
    {"photo-crops-32",
     "photo-crops-32",
     images,
     {{"train.bin", 5'150'348, 0}, {"valid.bin", 196'672, 1}, {"test.bin", 196'672, 2}},
     "",
     {1'676 * 3'072, 64 * 3'072, 64 * 3'072},
     "crops of three photographs, in place of CIFAR-10"},
    {"imagenet64",
     "imagenet64",
     pixels,
     {{"train.u8", 1'281'149LL * 12'288, 0}, {"valid.u8", 49'999LL * 12'288, 1}},
     "",
     {1'281'149LL * 12'288, 49'999LL * 12'288, 0},
     "photographs of 64 x 64"},
    {"spoken-digits",
     "spoken-digits",
     wav,
     {{"digits_train.wav", 4'186'870, 0}, {"digits_test.wav", 2'068'104, 2}},
     "90/10/0",
     {1'884'071, 209'342, 1'034'030},
     "digits spoken by six people, in place of music"},
    {"genomes",
     "genomes",
     dna,
     {{"ecoli-k12-mg1655.fna", 4'699'745}},
     "90/5/5",
     {4'177'486, 232'082, 232'084},
     "the genome of E. coli"},
    {"lambda-phage",
     "genomes",
     dna,
     {{"lambda-phage.fa", 49'270}},
     "90/5/5",
     {43'651, 2'425, 2'426},
     "the genome of a virus"},
    {"proteins",
     "proteins",
     fasta,
     {{"uniprot-500.fasta", 304'764}},
     "80/10/10",
     {198'162, 25'443, 22'725},
     "500 proteins of UniProt"},
    {"wiki-leads",
     "wiki-leads",
     documents,
     {{"train.article", 1'970'850, 0},
      {"train.summary", 115'968, 0},
      {"valid.article", 254'802, 1},
      {"valid.summary", 13'454, 1},
      {"test.article", 300'648, 2},
      {"test.summary", 14'975, 2}},
     "",
     {70, 8, 8},
     "articles of Wikipedia, to be summarised by their leads"},
    {"documents",
     "documents",
     documents,
     {{"train.article", -1, 0},
      {"train.summary", -1, 0, true},
      {"train.label", -1, 0, true},
      {"valid.article", -1, 1, true},
      {"valid.summary", -1, 1, true},
      {"valid.label", -1, 1, true},
      {"test.article", -1, 2, true},
      {"test.summary", -1, 2, true},
      {"test.label", -1, 2, true}},
     "90/5/5",
     {-1, -1, -1},
     "any articles with their summaries, or a folder of .story files"},
    {"promoter",
     "promoter",
     promoters,
     {{"positive.fasta", -1, -1}, {"negative.fasta", -1, -1, true}},
     "80/10/10",
     {-1, -1, -1},
     "windows of genomes: is it a promoter?"},
    {"chromatin",
     "chromatin",
     profiles,
     {{"train.npz", -1, 0}, {"valid.npz", -1, 1}, {"test.npz", -1, 2}},
     "90/5/5",
     {4'400'000, 8'000, 455'024},
     "windows of genomes: which of 919 features of chromatin are there?"},
    {"wikihop",
     "wikihop",
     choices,
     {{"train.json", -1, 0}, {"dev.json", -1, 1}},
     "",
     {43'738, 5'129, 0},
     "questions over several articles, one of some candidates answers each"},
    {"triviaqa",
     "triviaqa",
     trivia,
     {{"qa/wikipedia-train.json", -1, 0}, {"qa/wikipedia-dev.json", -1, 1}},
     "",
     {61'888, 7'993, 0},
     "trivia questions, answered within articles of evidence/wikipedia"},
};

/// Returns PATH of "ID=PATH" (empty if no data is given); throws unless it names this data set.
std::string path_of(const DataSet& set, const DataPlace& place) {
  if (place.data.empty()) return {};
  const size_t equals = place.data.find('=');
  require(equals != std::string::npos && equals + 1 < place.data.size(), "data",
          "got \"{}\"; expected --data {}=PATH", place.data, set.id);
  const std::string id = place.data.substr(0, equals);
  require(id == set.id, "data",
          "got data \"{}\" for the task {}; expected --data {}=PATH, or --task {}", id, set.id,
          set.id, id);
  return place.data.substr(equals + 1);
}

std::string root_of(const DataPlace& place) {
  if (!place.root.empty()) return place.root;
  const char* root = std::getenv("LONGSPAN_DATA");
  return root != nullptr ? root : "";
}

/// Returns the folder of the data set, or its only file.
std::string place_of(const DataSet& set, const DataPlace& place) {
  const std::string path = path_of(set, place);
  if (!path.empty()) return path;
  require(!set.folder.empty(), "data", "no data given; expected --data {}=FILE", set.id);
  const std::string root = root_of(place);
  require(!root.empty(), "data",
          "no path was given for {}; expected --data {}=PATH, --data-root DIR or LONGSPAN_DATA",
          set.id, set.id);
  return root + "/" + std::string(set.folder);
}

/// Returns the path, or the path with ".gz", or nothing if neither is a file.
std::string plain_or_packed(const std::string& plain) {
  for (const std::string& path : {plain, plain + ".gz"}) {
    if (kind_of_path(path, "data") == PathKind::file) return path;
  }
  return {};
}

/// Adds NAME_x.npy and NAME_y.npy if at least one of them exists in place of NAME.npz.
bool add_pair(const DataFile& file, const std::string& npz, std::vector<FoundFile>& files) {
  const std::string stem = npz.substr(0, npz.rfind(".npz"));
  const std::string x = plain_or_packed(stem + "_x.npy"), y = plain_or_packed(stem + "_y.npy");
  if (x.empty() && y.empty()) return false;
  const std::string name(file.name.substr(0, file.name.rfind(".npz")));
  files.push_back({file, x, name + "_x.npy"});
  files.push_back({file, y, name + "_y.npy"});
  return true;
}

/// Whether the files of a folder, or of a list, make one text of that kind.
bool is_joined(DataKind kind) {
  return kind == DataKind::bytes || kind == DataKind::chars || kind == DataKind::words ||
         kind == DataKind::dna || kind == DataKind::fasta;
}

/// Returns the files that a path names: one file, all files of a folder, or a list with commas. If
/// there are several and the name of any says its split (split_in_name()), files whose names say
/// none belong to the training split.
std::vector<FoundFile> joined_files(const DataSet& set, const std::string& list) {
  std::vector<std::string> paths;
  for (const std::string& path : listed_paths(list)) {
    if (kind_of_path(path, "data") != PathKind::folder) {
      paths.push_back(path);
      continue;
    }
    std::vector<std::string> all = list_files(path);
    std::erase_if(all, [](const std::string& file) {
      return file.ends_with(".tokens") || file.ends_with(".tokens.partial");
    });
    require<IoError>(!all.empty(), "data", "the folder {} has no file", path);
    paths.insert(paths.end(), all.begin(), all.end());
  }
  const bool apart = paths.size() > 1 && std::any_of(paths.begin(), paths.end(), [](auto& path) {
                       return split_in_name(path).has_value();
                     });
  const bool validates =
      std::any_of(paths.begin(), paths.end(), [](auto& path) { return split_in_name(path) == 1; });
  require<IoError>(!apart || validates, "data",
                   "names of files in {} say train or test, and none says valid; expected one such "
                   "as valid.txt, or names that say none, whose text is split",
                   list);
  std::vector<FoundFile> files;
  for (const std::string& path : paths) {
    const int part = apart ? split_in_name(path).value_or(0) : -1;
    files.push_back({DataFile{set.id, -1, part}, path});
  }
  return files;
}

std::string expected(const FoundFile& found) {
  const int64_t bytes = found.file.bytes;
  return bytes < 0 ? std::string(found.name()) : fmt::format("{} ({} bytes)", found.name(), bytes);
}

/// Moves the ends of the first two splits to the next end of a line.
void cut_at_lines(std::string_view text, std::array<int64_t, 2>& cuts) {
  for (int64_t& cut : cuts) {
    const auto at = static_cast<size_t>(cut);
    if (at == 0 || at >= text.size() || text[at - 1] == '\n') continue;
    const size_t end = text.find('\n', at);
    cut = static_cast<int64_t>(end == std::string_view::npos ? text.size() : end + 1);
  }
}

/// Contents of a file before it is split.
struct Content {
  FileBytes ids;
  std::vector<int64_t> ends;  ///< ends of records, if splits must respect them
  std::string path;
};

/// Returns the ids of the characters of a file, a byte each, without a list of its tokens.
FileBytes characters_of(const FileBytes& file, const std::string& path) {
  const std::unique_ptr<Tokenizer> tokenizer = char27_tokenizer();
  std::array<int32_t, 256> ids{};
  for (size_t byte = 0; byte < ids.size(); ++byte) {
    ids[byte] = tokenizer->find(std::string(1, static_cast<char>(byte)));
  }
  const size_t count = file.bytes.size();
  auto all = std::make_shared<Tensor>(
      Tensor::empty({static_cast<int64_t>(count)}, DType::u8, {}, Category::data));
  auto* to = all->mut().as<uint8_t>();
  for (size_t i = 0; i < count; ++i) {
    const int32_t id = ids[file.bytes[i]];
    require(id >= 0, "data", "{}: byte {} is 0x{:02x}; expected a to z and space only", path, i,
            file.bytes[i]);
    to[i] = static_cast<uint8_t>(id);
  }
  return {all, {all->view().as<uint8_t>(), count}};
}

class Opening {
 public:
  Opening(const DataSet& set, const DataPlace& place, const CorpusOptions& options)
      : set_(set), place_(place), options_(options) {
    corpus_.id = set.id;
    corpus_.kind = set.kind;
    corpus_.unit = unit_of(set.kind);
  }

  Corpus open() {
    const std::string problem = missing_files(set_, place_);
    require<IoError>(problem.empty(), "data", "{}", problem);
    std::vector<std::string> paths[3], whole;
    for (const FoundFile& found : find_files(set_, place_)) {
      (found.file.part < 0 ? whole : paths[found.file.part]).push_back(found.path);
    }
    if (!whole.empty()) {
      cut(read(whole), split(), {0, 1, 2});
    } else {
      for (size_t part = 0; part < 3; ++part) {
        if (paths[part].empty()) continue;
        // Only the samples of the training file are split further.
        const bool further = part == 0 && set_.kind == DataKind::wav;
        cut(read(paths[part]), further ? split() : Split{100, 0, 0},
            further ? std::array<size_t, 3>{0, 1, 2} : std::array<size_t, 3>{part, part, part});
      }
    }
    finish();
    return std::move(corpus_);
  }

 private:
  Split split() const {
    return Split::parse(options_.split.empty() ? set_.split : std::string_view(options_.split));
  }

  bool has_tokenizer() const {
    return !options_.tokenizer.empty() && options_.tokenizer != "bytes";
  }
  bool own_split() const { return options_.split.empty() || options_.split == set_.split; }

  Content read(const std::vector<std::string>& paths) {
    Content content;
    content.path = paths.front();
    if (paths.size() == 1) {
      read_file(paths[0], content);
      return content;
    }
    std::vector<uint8_t> all;
    for (const std::string& path : paths) {
      Content one;
      read_file(path, one);
      const auto shift = static_cast<int64_t>(all.size());
      for (const int64_t end : one.ends) content.ends.push_back(shift + end);
      // A text does not go on in the line of another.
      const bool text = set_.kind == DataKind::bytes || set_.kind == DataKind::words;
      if (text && !all.empty() && all.back() != '\n') all.push_back('\n');
      all.insert(all.end(), one.ids.bytes.begin(), one.ids.bytes.end());
    }
    content.ids = own_bytes(all);
    return content;
  }

  void read_file(const std::string& path, Content& content) {
    const FileBytes file = open_bytes(path, "data");
    require<IoError>(!file.bytes.empty(), "data",
                     "{} is empty: 0 bytes, and a training window needs its length and one more; "
                     "choose a longer file",
                     path);
    switch (set_.kind) {
      case DataKind::dna:
      case DataKind::fasta: {
        const bool dna = set_.kind == DataKind::dna;
        const Sequences all =
            read_fasta(file.text(), dna ? bases : residues, dna ? 'N' : 'X', path);
        if (dna) {
          content.ids = own_bytes(all.ids);
          return;
        }
        std::vector<uint8_t> joined;  // with an end token after each record
        int64_t begin = 0;
        for (const int64_t end : all.ends) {
          joined.insert(joined.end(), all.ids.begin() + begin, all.ids.begin() + end);
          joined.push_back(static_cast<uint8_t>(residues.size()));
          content.ends.push_back(static_cast<int64_t>(joined.size()));
          begin = end;
        }
        content.ids = own_bytes(joined);
        return;
      }
      case DataKind::wav: {
        const Recording recording = read_wav(file.bytes, path);
        std::vector<uint8_t> codes(recording.samples.size());
        std::transform(recording.samples.begin(), recording.samples.end(), codes.begin(), mu_law);
        content.ids = own_bytes(codes);
        return;
      }
      case DataKind::images:
        return read_pictures(read_cifar(file.bytes, path), content);
      case DataKind::pixels:
        return read_pictures(read_pixels(file.bytes, 64, path), content);
      case DataKind::chars:
        content.ids = characters_of(file, path);
        return;
      default:
        content.ids = file;
        // Part of the first byte tokens, but of no word.
        if (set_.kind == DataKind::words || has_tokenizer()) {
          const size_t text = without_byte_order_mark(file.text()).size();
          content.ids.bytes = file.bytes.last(text);
        }
    }
  }

  void read_pictures(const Pictures& pictures, Content& content) {
    record_ = pictures.size();
    for (int64_t end = record_; end <= static_cast<int64_t>(pictures.values.size());
         end += record_) {
      content.ends.push_back(end);
    }
    content.ids = own_bytes(pictures.values);
  }

  /// Adds the segments between the cuts to the splits with these numbers.
  void cut(const Content& content, const Split& shares, std::array<size_t, 3> numbers) {
    const auto size = static_cast<int64_t>(content.ids.bytes.size());
    std::array<int64_t, 2> cuts;
    if (!content.ends.empty()) {
      cuts = shares.cuts(static_cast<int64_t>(content.ends.size()));
      for (int64_t& at : cuts) at = at > 0 ? content.ends[static_cast<size_t>(at - 1)] : 0;
    } else {
      cuts = shares.cuts(size);
      // The customary splits, if they differ from the shares by rounding.
      if (own_split() && set_.counts[0] >= 0 &&
          set_.counts[0] + set_.counts[1] + set_.counts[2] == size) {
        cuts = {set_.counts[0], set_.counts[0] + set_.counts[1]};
      }
      if (set_.kind == DataKind::words) cut_at_lines(content.ids.text(), cuts);
    }
    const int64_t ends[] = {cuts[0], std::max(cuts[0], cuts[1]), size};
    CorpusPart* parts[] = {&corpus_.train, &corpus_.valid, &corpus_.test};
    int64_t begin = 0;
    for (size_t i = 0; i < 3; ++i) {
      const auto at = static_cast<size_t>(begin), count = static_cast<size_t>(ends[i] - begin);
      begin = ends[i];
      CorpusPart& part = *parts[numbers[i]];
      if (part.path.empty()) part.path = content.path;  // messages about an empty part name it
      if (count == 0) continue;
      part.owner = content.ids.owner;
      part.bytes = content.ids.bytes.subspan(at, count);
      part.before = at > 0 ? content.ids.bytes[at - 1] : 0;
      part.path = content.path;
    }
  }

  void finish() {
    CorpusPart* parts[] = {&corpus_.train, &corpus_.valid, &corpus_.test};
    for (size_t i = 0; i < 3; ++i) {
      parts[i]->split = part_names[i];
      if (parts[i]->path.empty()) parts[i]->path = corpus_.train.path;
      parts[i]->record = record_;
    }
    std::string tokenizer = options_.tokenizer;
    require(tokenizer.empty() || set_.kind == DataKind::bytes, "tokenizer",
            "got \"{}\", and the tokens of {} are given: {}s; expected none", tokenizer, set_.id,
            corpus_.unit);
    if (tokenizer == "bytes") tokenizer.clear();
    if (set_.kind == DataKind::bytes && tokenizer.empty()) corpus_.tokenizer = byte_tokenizer();
    if (set_.kind == DataKind::chars) corpus_.tokenizer = char27_tokenizer();
    if (set_.kind == DataKind::words) {
      const std::span<const uint8_t> text = corpus_.train.bytes;
      corpus_.tokenizer = word_tokenizer({reinterpret_cast<const char*>(text.data()), text.size()});
    }
    if (!tokenizer.empty()) corpus_.tokenizer = open_tokenizer(tokenizer);
    if (set_.kind == DataKind::words || !tokenizer.empty()) {
      for (size_t i = 0; i < 3; ++i) {
        CorpusPart& part = *parts[i];
        part = tokenize(part, *corpus_.tokenizer, token_file(set_, place_, part_names[i]),
                        [&](int64_t done, int64_t total) {
                          if (options_.progress) options_.progress(part_names[i], done, total);
                        });
        if (set_.kind == DataKind::words) part.symbols = -1;
      }
    }
    if (corpus_.tokenizer) corpus_.words = corpus_.tokenizer->word_roles();
    corpus_.vocabulary = vocabulary();
    for (size_t i = 0; i < 3; ++i) {
      CorpusPart& part = *parts[i];
      part.vocabulary = corpus_.vocabulary;
      // The expected counts are in tokens of the data set, for its own split.
      const int64_t found = part.symbols >= 0 ? part.symbols : part.size();
      const int64_t count = set_.counts[i];
      if (own_split() && count >= 0 && found != count) {
        corpus_.warnings.push_back(fmt::format("{}: the {} part has {} {}s; expected {}", set_.id,
                                               part_names[i], found, corpus_.unit, count));
      }
    }
  }

  int64_t vocabulary() const {
    if (corpus_.tokenizer) return corpus_.tokenizer->vocabulary();
    if (set_.kind == DataKind::dna) return static_cast<int64_t>(bases.size());
    if (set_.kind == DataKind::fasta) return static_cast<int64_t>(residues.size()) + 1;
    return 256;
  }

  const DataSet& set_;
  const DataPlace& place_;
  const CorpusOptions& options_;
  int64_t record_ = 1;
  Corpus corpus_;
};

}  // namespace

DataSet generated_data_set(const SampleTaskEntry& task) {
  const TargetKind targets = task.make()->targets();
  const DataKind kind = targets == TargetKind::tokens   ? generated_tokens
                        : targets == TargetKind::labels ? generated_labels
                        : targets == TargetKind::span   ? generated_span
                                                        : generated_documents;
  return {task.id, "", kind, {}, "", {-1, -1, -1}, task.about};
}

std::span<const DataSet> data_sets() {
  static const std::vector<DataSet> all = [] {
    std::vector<DataSet> list = kDataSets;
    const auto named = std::find_if(list.begin(), list.end(),
                                    [](const DataSet& set) { return !set.folder.empty(); });
    std::vector<DataSet> made;
    for (const SampleTaskEntry& task : sample_tasks()) made.push_back(generated_data_set(task));
    list.insert(named, made.begin(), made.end());
    return list;
  }();
  return all;
}

const DataSet& find_data_set(const std::string& id) {
  std::vector<std::string> names;
  for (const DataSet& set : data_sets()) {
    if (set.id == id) return set;
    names.emplace_back(set.id);
  }
  const std::string near = nearest(id, names);
  fail("data", "there is no data set \"{}\"; {}longspan data list has them all", id,
       near.empty() ? "" : fmt::format("did you mean {}? ", near));
}

std::string_view unit_of(DataKind kind) {
  constexpr std::string_view units[] = {"byte",     "character", "word",     "base",   "residue",
                                        "sample",   "value",     "value",    "answer", "symbol",
                                        "place",    "sentence",  "document", "answer", "answer",
                                        "question", "question",  "text"};
  static_assert(std::size(units) == static_cast<size_t>(DataKind::tables) + 1);
  return units[static_cast<size_t>(kind)];
}

namespace {

/// Returns the stories of a split, by name; nothing unless the folder holds stories.
std::vector<std::string> stories_of(const std::string& folder, int part, const Split& split) {
  const auto is_folder = [](const std::string& path) {
    return kind_of_path(path, "data") == PathKind::folder;
  };
  if (!is_folder(folder)) return {};
  bool apart = false;
  for (const char* name : part_names) apart = apart || is_folder(folder + "/" + name);
  if (apart) {
    const std::string own = folder + "/" + part_names[part];
    return is_folder(own) ? list_stories(own) : std::vector<std::string>{};
  }
  const std::vector<std::string> all = list_stories(folder);
  const auto cuts = split.cuts(std::ssize(all));
  const int64_t bounds[] = {0, cuts[0], cuts[1], std::ssize(all)};
  return {all.begin() + bounds[part], all.begin() + bounds[part + 1]};
}

/// Whether a data set of documents is a folder of stories.
bool has_stories(const DataSet& set, const std::string& at) {
  if (set.kind != DataKind::documents) return false;
  for (int part = 0; part < 3; ++part) {
    if (!stories_of(at, part, Split{}).empty()) return true;
  }
  return false;
}

}  // namespace

std::vector<FoundFile> find_files(const DataSet& set, const DataPlace& place) {
  const std::string at = place_of(set, place);
  if (set.folder.empty())
    return is_joined(set.kind) ? joined_files(set, at)
                               : std::vector{FoundFile{DataFile{set.id}, at}};
  const bool labelled = set.kind == DataKind::promoters || set.kind == DataKind::profiles;
  const bool is_file = kind_of_path(at, "data") == PathKind::file;
  if (labelled && is_file) return {{DataFile{set.id, -1, -1}, at}};
  std::vector<FoundFile> all;
  if (has_stories(set, at)) return all;
  for (const DataFile& file : set.files) {
    const std::string plain = at + "/" + std::string(file.name);
    const std::string path = plain_or_packed(plain);
    if (path.empty() && set.kind == DataKind::profiles && add_pair(file, plain, all)) continue;
    const bool itself = set.files.size() == 1 && is_file;
    all.push_back({file, itself ? at : path});
  }
  return all;
}

std::string missing_files(const DataSet& set, const DataPlace& place) {
  if (set.folder.empty() || has_stories(set, place_of(set, place))) return {};
  std::string names;
  for (const FoundFile& found : find_files(set, place)) {
    if (!found.path.empty() || found.file.optional) continue;
    names += (names.empty() ? "" : ", ") + expected(found);
  }
  if (names.empty()) return {};
  return fmt::format("{} lacks {}, plain or with .gz, in {}", set.id, names, place_of(set, place));
}

std::vector<std::string> paths_of(const DataSet& set, const DataPlace& place) {
  const std::string problem = missing_files(set, place);
  require<IoError>(problem.empty(), "data", "{}", problem);
  const std::string at = place_of(set, place);
  std::vector<std::string> all;
  for (int part = 0; part < 3 && has_stories(set, at); ++part) {
    for (const std::string& path : stories_of(at, part, Split{})) all.push_back(path);
  }
  for (const FoundFile& found : find_files(set, place)) {
    if (!found.path.empty()) all.push_back(found.path);
  }
  return all;
}

const CorpusPart& Corpus::part(std::string_view name) const {
  require(name == "train" || name == "valid" || name == "test", "--part",
          "got \"{}\"; expected train, valid or test", name);
  return name == "train" ? train : name == "valid" ? valid : test;
}

Corpus open_corpus(const std::string& id, const DataPlace& place, const CorpusOptions& options) {
  const DataSet& set = find_data_set(id);
  require<NotImplemented>(!is_generated(set.kind), "data",
                          "{} is generated and has no files; train on it with --task {}", id, id);
  require<NotImplemented>(set.kind != DataKind::documents, "data",
                          "{} has documents with summaries, which are no single sequence", id);
  const bool labelled = set.kind == DataKind::promoters || set.kind == DataKind::profiles;
  require<NotImplemented>(!labelled, "data",
                          "{} has samples with answers, which are no single sequence", id);
  require<NotImplemented>(set.kind != DataKind::choices && set.kind != DataKind::trivia, "data",
                          "{} has questions and texts, which are no single sequence", id);
  return Opening(set, place, options).open();
}

std::string token_file(const DataSet& set, const DataPlace& place, std::string_view split) {
  const std::vector<std::string> paths = listed_paths(place_of(set, place));
  if (kind_of_path(paths.front(), "data") == PathKind::folder) {
    return fmt::format("{}/{}.{}.tokens", paths.front(), set.id, split);
  }
  const std::string others = paths.size() > 1 ? fmt::format("+{}", paths.size() - 1) : "";
  return fmt::format("{}{}.{}.tokens", paths.front(), others, split);
}

PartFile open_part(const DataSet& set, const DataPlace& place, int part) {
  const std::string problem = missing_files(set, place);
  require<IoError>(problem.empty(), "data", "{}", problem);
  for (const FoundFile& found : find_files(set, place)) {
    if (found.file.part == part) return {found.path, open_bytes(found.path, "data")};
  }
  return {};
}

std::vector<Document> open_documents(const std::string& id, const DataPlace& place, int part,
                                     const std::string& split) {
  const DataSet& set = find_data_set(id);
  require(set.kind == DataKind::documents, "data", "{} has {}s; expected documents", id,
          unit_of(set.kind));
  require(part >= 0 && part < 3, "data", "got part {}; expected 0, 1 or 2", part);
  const std::string at = place_of(set, place);
  std::vector<Document> all;
  if (has_stories(set, at)) {
    const std::string_view shares = split.empty() ? set.split : std::string_view(split);
    for (const std::string& path :
         stories_of(at, part, shares.empty() ? Split{} : Split::parse(shares))) {
      all.push_back(read_story(open_bytes(path, "data").text(), path));
    }
    return all;
  }
  const std::string problem = missing_files(set, place);
  require<IoError>(problem.empty(), "data", "{}", problem);
  FoundFile found[3];  // article, summary, label
  constexpr std::string_view endings[] = {".article", ".summary", ".label"};
  for (const FoundFile& file : find_files(set, place)) {
    for (size_t i = 0; i < 3; ++i) {
      if (file.file.part == part && file.file.name.ends_with(endings[i])) found[i] = file;
    }
  }
  if (found[0].path.empty()) return {};
  const FileBytes articles = open_bytes(found[0].path, "data");
  if (found[1].path.empty()) {
    all = read_documents(articles.text());
  } else {
    all = read_documents(articles.text(), open_bytes(found[1].path, "data").text(), found[1].path);
  }
  if (!found[2].path.empty()) {
    read_labels(open_bytes(found[2].path, "data").text(), found[2].path, all);
  }
  return all;
}

}  // namespace longspan
