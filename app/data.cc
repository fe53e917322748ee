#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "app/commands.h"
#include "app/tasks/table.h"
#include "app/tasks/text.h"
#include "core/error.h"
#include "data/choices.h"
#include "data/data_sets.h"
#include "data/io/bytes.h"
#include "data/profiles.h"
#include "data/trivia.h"
#include "nn/nearest.h"

namespace longspan {
namespace {

struct DataCommandOptions {
  std::string data, data_root, split, tokenizer;
  void visit(auto& v) {
    v("data", data)("data_root", data_root)("split", split)("tokenizer", tokenizer);
  }
  DataPlace place() const { return {data_root, data}; }
};

void print(const std::string& text) { std::puts(text.c_str()); }

std::string names(const DataSet& set) {
  if (is_generated(set.kind)) return fmt::format("--task {}: no files", set.id);
  if (set.files.empty()) return fmt::format("--data {}=FILE", set.id);
  std::string all;
  for (const DataFile& file : set.files) {
    all += (all.empty() ? "" : " ") + std::string(file.name);
  }
  return fmt::format("{}/: {}", set.folder, all);
}

/// Returns the data of a task; throws as find_data_set() if there is none of that name.
const DataSet& listed_set(const std::string& id) {
  const auto at = std::find_if(tasks().begin(), tasks().end(),
                               [&](const TaskEntry& task) { return task.set.id == id; });
  return at != tasks().end() ? at->set : find_data_set(id);
}

int list() {
  for (const TaskEntry& task : tasks()) {
    const DataSet& set = task.set;
    print(fmt::format("{:<15}  {}\n{:15}  {}", set.id, set.about, "", names(set)));
  }
  return 0;
}

/// Prints the presence and size of each file. Returns whether all are as expected.
bool check_files(const DataSet& set, const DataPlace& place) {
  bool good = true;
  for (const FoundFile& found : find_files(set, place)) {
    const int64_t expected = found.file.bytes;
    if (found.path.empty() && found.file.optional) {
      print(fmt::format("file      {}: not there, which is no fault", found.name()));
      continue;
    }
    if (found.path.empty()) {
      good = false;
      print(fmt::format("file      {}: missing{}", found.name(),
                        expected < 0 ? "" : fmt::format("; expected {} bytes", expected)));
      continue;
    }
    const FileBytes file = open_bytes(found.path, "data");
    const auto bytes = static_cast<int64_t>(file.bytes.size());
    const bool wrong = expected >= 0 && bytes != expected;
    good = good && !wrong;
    print(fmt::format("file      {}: {} bytes{}", found.path, bytes,
                      wrong ? fmt::format("; expected {}", expected) : ""));
    print(fmt::format("checksum  xxh3 {}", checksum(file.bytes)));
  }
  return good;
}

/// Counts of each id, and of each pair of adjacent ids.
class Counts {
 public:
  explicit Counts(int64_t vocabulary)
      : single_(static_cast<size_t>(vocabulary)),
        pairs_(vocabulary <= 256 ? single_.size() * single_.size() : 0) {}

  void add(const CorpusPart& part) {
    for (int64_t i = 0; i < part.size(); ++i) {
      const auto id = static_cast<size_t>(part[i]);
      ++single_[id];
      if (i > 0 && !pairs_.empty()) ++pairs_[previous_ * single_.size() + id];
      previous_ = id;
    }
  }

  int64_t distinct() const {
    int64_t count = 0;
    for (const int64_t n : single_) count += n > 0 ? 1 : 0;
    return count;
  }
  /// Entropy in bits of the unigram distribution.
  double alone() const { return entropy(single_); }
  /// The same for the bigram distribution; NaN if the vocabulary is too large to count pairs.
  double after_one() const {
    if (pairs_.empty()) return std::nan("");
    std::vector<int64_t> firsts(single_.size());
    for (size_t i = 0; i < pairs_.size(); ++i) firsts[i / single_.size()] += pairs_[i];
    return entropy(pairs_) - entropy(firsts);
  }

 private:
  static double entropy(const std::vector<int64_t>& counts) {
    double total = 0, sum = 0;
    for (const int64_t n : counts) {
      if (n == 0) continue;
      total += static_cast<double>(n);
      sum += static_cast<double>(n) * std::log2(static_cast<double>(n));
    }
    return total > 0 ? std::log2(total) - sum / total : 0;
  }

  std::vector<int64_t> single_, pairs_;
  size_t previous_ = 0;
};

int documents(const DataSet& set, const DataCommandOptions& o, bool statistics) {
  constexpr const char* parts[] = {"train", "valid", "test"};
  for (int part = 0; part < 3; ++part) {
    const std::vector<Document> all = open_documents(std::string(set.id), o.place(), part, o.split);
    const auto count = static_cast<int64_t>(all.size());
    const int64_t expected = set.counts[static_cast<size_t>(part)];
    print(fmt::format(
        "{:<8}  {} documents{}", parts[part], count,
        expected < 0 || count == expected ? "" : fmt::format("; expected {}", expected)));
    int64_t article = 0, summary = 0, labels = 0, empty = 0;
    for (const Document& document : all) {
      article += static_cast<int64_t>(document.article.size());
      summary += static_cast<int64_t>(document.summary.size());
      labels += static_cast<int64_t>(document.labels.size());
      empty += document.article.empty() ? 1 : 0;
    }
    if (empty > 0) print(fmt::format("          {} of them have no sentences", empty));
    if (statistics) {
      print(fmt::format("          {} sentences of articles, {} of summaries, {} labels", article,
                        summary, labels));
    }
  }
  return 0;
}

/// Reads and checks every labelled sample.
int labelled(const DataSet& set, const DataCommandOptions& o, bool statistics) {
  constexpr const char* parts[] = {"train", "valid", "test"};
  const auto data = open_labelled(set, o.place(), o.split, 1);
  print(fmt::format("samples   {} bases, {} answers each", data->length(), data->answers()));
  bool good = true;
  for (size_t part = 0; part < 3; ++part) {
    int64_t yes = 0, unknown = 0;
    for (int64_t i = 0; i < data->size(part); ++i) {
      const Sample s = data->sample(part, i);
      for (const int32_t label : s.targets) yes += label;
      for (const int32_t base : s.tokens) unknown += base > 3 ? 1 : 0;
    }
    const int64_t expected = set.counts[part];
    const bool right = expected < 0 || expected == data->size(part);
    good = good && right;
    print(fmt::format("{:<8}  {} samples{}", parts[part], data->size(part),
                      right ? "" : fmt::format("; expected {}", expected)));
    if (statistics)
      print(fmt::format("          {} answers are yes, {} bases unknown", yes, unknown));
  }
  return good ? 0 : 1;
}

/// Reads and checks every question.
int questions(const DataSet& set, const DataPlace& place, bool statistics) {
  constexpr const char* parts[] = {"train", "valid", "test"};
  bool good = true;
  for (int part = 0; part < 3; ++part) {
    const PartFile file = open_part(set, place, part);
    if (file.path.empty()) continue;
    size_t count = 0, texts = 0, answers = 0;
    const auto add = [&](size_t texts_here, size_t answers_here) {
      ++count;
      texts += texts_here;
      answers += answers_here;
    };
    if (set.kind == DataKind::choices) {
      for (const ChoiceQuestion& q : read_wikihop(file.content.text(), file.path)) {
        add(q.supports.size(), q.candidates.size());
      }
    } else {
      for (const TriviaQuestion& q : read_triviaqa(file.content.text(), file.path)) {
        add(q.documents.size(), q.aliases.size());
      }
    }
    const int64_t expected = set.counts[static_cast<size_t>(part)];
    const bool right = static_cast<int64_t>(count) == expected;
    good = good && right;
    print(fmt::format("{:<8}  {} questions{}", parts[part], count,
                      right ? "" : fmt::format("; expected {}", expected)));
    if (statistics) {
      print(fmt::format("          {} texts, {} {}", texts, answers,
                        set.kind == DataKind::choices ? "candidates" : "ways to write answers"));
    }
  }
  return good ? 0 : 1;
}

int describe_data(const DataSet& set, const DataCommandOptions& o, bool statistics) {
  if (is_generated(set.kind)) {
    print("generated  there are no files");
    return 0;
  }
  const bool good = check_files(set, o.place());
  const std::string missing = missing_files(set, o.place());
  require<IoError>(missing.empty(), "data", "{}", missing);
  if (set.kind == DataKind::documents) {
    const int status = documents(set, o, statistics);
    return good ? status : 1;
  }
  if (set.kind == DataKind::promoters || set.kind == DataKind::profiles) {
    const int status = labelled(set, o, statistics);
    return good ? status : 1;
  }
  if (set.kind == DataKind::choices || set.kind == DataKind::trivia) {
    const int status = questions(set, o.place(), statistics);
    return good ? status : 1;
  }
  require<NotImplemented>(set.kind != DataKind::tables, "data",
                          "{} are texts with labels, which are no single sequence", set.id);
  const Corpus corpus = open_corpus(std::string(set.id), o.place(), {o.split, o.tokenizer});
  const std::string unit = corpus.train.symbols < 0 ? corpus.unit + "s" : "tokens";
  print(fmt::format("{:<8}  {}", unit,
                    corpus.train.size() + corpus.valid.size() + corpus.test.size()));
  print(fmt::format("split     {} train, {} valid, {} test", corpus.train.size(),
                    corpus.valid.size(), corpus.test.size()));
  print(fmt::format("ids       {}", corpus.vocabulary));
  for (const std::string& warning : corpus.warnings) print("warning   " + warning);
  if (statistics) {
    Counts counts(corpus.vocabulary);
    for (const CorpusPart* part : {&corpus.train, &corpus.valid, &corpus.test}) counts.add(*part);
    print(fmt::format("distinct  {} {}", counts.distinct(), unit));
    const double after = counts.after_one();
    print(
        fmt::format("entropy   {:.3f} bits per {} alone{}", counts.alone(),
                    corpus.train.symbols < 0 ? corpus.unit : "token",
                    std::isnan(after) ? "" : fmt::format(", {:.3f} after the one before", after)));
  }
  return good && corpus.warnings.empty() ? 0 : 1;
}

/// Throws ValueError if one of these options was typed, which a command does not use.
void require_no_typed(const CommandLine& line, std::initializer_list<const char*> keys,
                      const std::string& command) {
  for (const char* const key : keys) {
    const Setting* const s = last_setting(line.settings, key);
    require(s == nullptr || !s->text, s != nullptr ? s->origin : "",
            "{} has no use for it: leave it out", command);
  }
}

/// Prints what a task is for, and its keys.
void print_task(const TaskEntry& entry) {
  const std::unique_ptr<Task> task = entry.make(entry.set);
  std::string text =
      fmt::format("# {}: {}\n# for: {}\n", entry.set.id, entry.set.about, task->models());
  const std::vector<Key> keys = keys_of(*task);
  if (!keys.empty()) text += "\n" + to_toml(to_json(*task), keys);
  std::fputs(text.c_str(), stdout);
}

}  // namespace

int tasks_command(int argc, const char* const* argv) {
  const std::string name = name_given(argc, argv, "tasks",
                                      "longspan tasks [NAME]: every --task, or the keys of one, "
                                      "with their values and meanings.");
  if (!name.empty()) {
    print_task(find_task(name));
    return 0;
  }
  for (const TaskEntry& entry : tasks()) {
    std::puts(fmt::format("{:<18} {}\n{:18} for: {}", entry.set.id, entry.set.about, "",
                          entry.make(entry.set)->models())
                  .c_str());
  }
  return 0;
}

namespace {

/// Makes the token files of a text, from which training maps its tokens.
int prepare(const DataSet& set, const DataCommandOptions& o) {
  require(!o.tokenizer.empty() && o.tokenizer != "bytes", "data prepare",
          "bytes are their own tokens; expected --tokenizer");
  TextProgress progress(0);
  const Corpus corpus = open_corpus(
      std::string(set.id), o.place(),
      {o.split, o.tokenizer,
       [&](const char* split, int64_t done, int64_t total) { progress(split, done, total); }});
  for (const CorpusPart* part : {&corpus.train, &corpus.valid, &corpus.test}) {
    if (part->size() == 0) continue;
    const std::string file = token_file(set, o.place(), part->split);
    require<IoError>(
        part->stored, "data prepare",
        "{} could not be written; expected a folder with room that may be written, and "
        "no other process that writes it",
        file);
    print(fmt::format("{}  {} tokens of {} bytes", file, part->size(), part->symbols));
  }
  return 0;
}

}  // namespace

int data_command(int argc, const char* const* argv) {
  const Flag own[] = {
      {"--data", "data", "ID=PATH: the file or folder, plain or packed with gzip"},
      {"--data-root", "data_root", "folder of all data sets; without it LONGSPAN_DATA"},
      {"--split", "split", "parts in per cent: 90/5/5"},
      {"--tokenizer", "tokenizer", "of bytes: a folder or file"}};
  CommandLine line = read_own_flags(
      argc, argv, own,
      "longspan data list | check ID | stats ID | prepare ID: what can be trained on, whether its "
      "files are as they should be, how its tokens are distributed; prepare makes token files of a "
      "text, in all threads, and goes on where it was stopped. For bytes, any file or folder, or "
      "several with commas between them: --data bytes=FILE.");
  const std::vector<std::string> commands = {"list", "check", "stats", "prepare"};
  const std::string command = line.others.empty() ? "list" : line.others[0];
  if (std::find(commands.begin(), commands.end(), command) == commands.end()) {
    const std::string near = nearest(command, commands);
    fail("data", "there is no data {}; {}expected list, check, stats or prepare", command,
         near.empty() ? "" : fmt::format("did you mean {}? ", near));
  }
  if (command == "list") {
    require(line.others.size() <= 1, "data", "\"{}\" belongs to nothing",
            line.others.size() > 1 ? line.others[1] : "");
    require_no_typed(line, {"data", "data_root", "split", "tokenizer"}, "data list");
    return list();
  }
  require(line.others.size() <= 2, "data", "\"{}\" belongs to nothing",
          line.others.size() > 2 ? line.others[2] : "");
  DataCommandOptions o;
  set_fields(o, line.settings);
  const DataSet& set = listed_set(line.others.size() > 1 ? line.others[1] : "bytes");
  const std::string what = fmt::format("data {} {}", command, set.id);
  const bool questions = set.kind == DataKind::choices || set.kind == DataKind::trivia;
  if (is_generated(set.kind)) require_no_typed(line, {"data", "data_root", "split"}, what);
  if (questions) require_no_typed(line, {"split"}, what);
  if (set.kind != DataKind::bytes) require_no_typed(line, {"tokenizer"}, what);
  if (command == "prepare") {
    require(set.kind == DataKind::bytes, "data prepare",
            "{} has {}s, which no tokenizer makes; expected bytes or another text", set.id,
            unit_of(set.kind));
    return prepare(set, o);
  }
  return describe_data(set, o, command == "stats");
}

}  // namespace longspan
