#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>

#include "app/commands.h"
#include "app/tasks/table.h"
#include "core/error.h"
#include "data/data_sets.h"
#include "data/io/bytes.h"
#include "data/io/files.h"
#include "data/tokenizers/tokenizer.h"

namespace longspan {
namespace {

struct TokensCommandOptions {
  std::string kind = "unigram", data, data_root, task = "bytes", tokenizer = "bytes", text, symbols;
  int64_t vocabulary = 8000;
  bool lossless = true;
  void visit(auto& v) {
    v("kind", kind)("data", data)("data_root", data_root)("task", task)("tokenizer", tokenizer)(
        "text", text)("symbols", symbols)("vocabulary", vocabulary)("lossless", lossless);
  }
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> all;
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    all.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return all;
}

/// Returns the training split of a text, or the sentences of training documents, one per line.
std::string training_text(const TokensCommandOptions& o) {
  const DataPlace place{o.data_root, o.data};
  const DataKind kind = find_task(o.task).set.kind;
  require(kind == DataKind::bytes || kind == DataKind::documents, "tokens",
          "{} has {}s; expected a text or documents", o.task, unit_of(kind));
  if (kind == DataKind::bytes) {
    const Corpus corpus = open_corpus(o.task, place);
    return std::string(
        without_byte_order_mark(FileBytes{corpus.train.owner, corpus.train.bytes}.text()));
  }
  std::string text;
  for (const Document& document : open_documents(o.task, place, 0)) {
    for (const auto* sentences : {&document.article, &document.summary}) {
      for (const std::string& sentence : *sentences) text += sentence + "\n";
    }
  }
  return text;
}

/// Throws ValueError if the path exists and is not a SentencePiece model, so must not be replaced.
void require_replaceable(const std::string& path) {
  if (!std::filesystem::exists(path)) return;
  try {
    open_sentence_pieces(path);
  } catch (const Error&) {
    fail("tokens", "{} is there already and is no SentencePiece model; choose another --out", path);
  }
}

/// Trains a SentencePiece model on a training split.
void train_pieces(const TokensCommandOptions& o, const std::string& out) {
  require(!out.empty(), "tokens", "no file given; expected --out FILE.model");
  require_replaceable(out);
  const std::string text = training_text(o);
  const std::string model = train_sentence_pieces(text, {.kind = o.kind,
                                                         .vocabulary = o.vocabulary,
                                                         .lossless = o.lossless,
                                                         .symbols = split(o.symbols)});
  replace_file(out, model, "tokens");
  const std::unique_ptr<Tokenizer> tokenizer = open_sentence_pieces(out);
  const auto tokens = static_cast<double>(tokenizer->encode(text).size());
  std::printf("%s: %lld tokens, %.3f bytes each on %lld bytes of training\n", out.c_str(),
              static_cast<long long>(tokenizer->vocabulary()),
              static_cast<double>(text.size()) / tokens, static_cast<long long>(text.size()));
}

void encode(const TokensCommandOptions& o) {
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(o.tokenizer);
  std::string line;
  for (const int32_t id : tokenizer->encode(o.text)) {
    line += (line.empty() ? "" : " ") + std::to_string(id);
  }
  std::puts(line.c_str());
}

void decode(const TokensCommandOptions& o, const std::vector<std::string>& words) {
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(o.tokenizer);
  std::vector<int32_t> ids;
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    int32_t id = 0;
    const auto result = std::from_chars(word.data(), word.data() + word.size(), id);
    require(result.ec == std::errc() && result.ptr == word.data() + word.size(), "tokens",
            "got \"{}\"; expected the number of a token", word);
    ids.push_back(id);
  }
  const std::string text = tokenizer->decode(ids);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fputc('\n', stdout);
}

}  // namespace

int tokens_command(int argc, const char* const* argv) {
  const Flag own[] = {
      {"--out", "", "train: the model to write"},
      {"--kind", "kind", "train: unigram or bpe"},
      {"--vocabulary", "vocabulary", "train: number of tokens"},
      {"--lossless", "lossless", "train: true, or false for NFKC and single spaces"},
      {"--symbols", "symbols", "train: more special tokens, e.g. [CLS],[SEP],[MASK]"},
      {"--task", "task", "train: a text of longspan data list; bytes"},
      {"--data", "data", "train: TASK=PATH"},
      {"--data-root", "data_root", "train: folder of all data sets"},
      {"--tokenizer", "tokenizer", "encode, decode: a folder or file; see docs/tokenizers.md"},
      {"--text", "text", "encode: the text"}};
  const CommandLine line = read_own_flags(
      argc, argv, own,
      "longspan tokens train | encode | decode ID...: makes a SentencePiece model of a text, or "
      "turns text into ids and back.");
  TokensCommandOptions o;
  set_fields(o, line.settings);
  const std::string command = line.others.empty() ? "" : line.others[0];
  require(command == "train" || command == "encode" || command == "decode", "tokens",
          "got \"{}\"; expected train, encode or decode", command);
  for (const Settings* all : {&line.settings, &line.values}) {
    for (const Setting& s : *all) {  // the help says what an option is for
      const auto flag = std::find_if(std::begin(own), std::end(own), [&](const Flag& f) {
        return all == &line.values ? f.name == s.origin : f.key == s.key;
      });
      if (flag == std::end(own) || !s.text) continue;
      const std::string of = flag->help.substr(0, flag->help.find(':'));
      require(of.find(command) != std::string::npos, s.origin, "is for {}: leave it out", of);
    }
  }
  require(command == "decode" || line.others.size() == 1, "tokens", "\"{}\" belongs to nothing",
          line.others.back());
  if (command == "train") {
    const std::string* out = line.value("--out");
    train_pieces(o, out != nullptr ? *out : "");
  } else if (command == "encode") {
    encode(o);
  } else {
    decode(o, line.others);
  }
  return 0;
}

}  // namespace longspan
