#include "data/tokenizers/tokenizer.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "core/error.h"
#include "data/io/json.h"
#include "data/unicode/byte_level.h"
#include "data/unicode/unicode.h"

namespace longspan {
namespace {

bool in_word(char c) {
  const auto byte = static_cast<uint8_t>(c);
  return byte >= 0x80 || (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') ||
         (byte >= 'A' && byte <= 'Z');
}

bool starts_word(std::string_view text, size_t at) {
  return at == 0 || !in_word(text[at]) || !in_word(text[at - 1]);
}

class Bytes : public Tokenizer {
 public:
  Bytes() { set_hash("bytes", ""); }

  std::vector<Piece> pieces(std::string_view text) const override {
    std::vector<Piece> out(text.size());
    for (size_t i = 0; i < text.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      out[i] = {static_cast<uint8_t>(text[i]), starts_word(text, i), at, at + 1};
    }
    return out;
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      require_id(id);
      text += static_cast<char>(id);
    }
    return text;
  }
  int64_t vocabulary() const override { return 256; }
  int32_t find(std::string_view token) const override {
    return token.size() == 1 ? static_cast<uint8_t>(token[0]) : -1;
  }
  std::string token(int32_t id) const override {
    require_id(id);
    return std::string(1, static_cast<char>(id));
  }
  Json hub_file() const override {
    const std::array<int32_t, 256> characters = byte_level_characters();
    Members vocabulary;
    for (size_t byte = 0; byte < characters.size(); ++byte) {
      std::string token;
      append_utf8(token, characters[byte]);
      vocabulary.push_back({token, byte});
    }
    const Json level = Members{{"type", "ByteLevel"},
                               {"add_prefix_space", false},
                               {"trim_offsets", false},
                               {"use_regex", false}};
    return Members{
        {"added_tokens", Json::Array{}},
        {"pre_tokenizer", level},
        {"decoder", level},
        {"model",
         Members{{"type", "BPE"}, {"vocab", std::move(vocabulary)}, {"merges", Json::Array{}}}}};
  }
};

class Char27 : public Tokenizer {
 public:
  Char27() { set_hash("char27", ""); }

  std::vector<Piece> pieces(std::string_view text) const override {
    std::vector<Piece> out(text.size());
    for (size_t i = 0; i < text.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const int32_t id = find(text.substr(i, 1));
      require(id >= 0, "char27", "byte {} of the text is 0x{:02x}; expected a to z and space only",
              i, static_cast<uint8_t>(text[i]));
      out[i] = {id, starts_word(text, i), at, at + 1};
    }
    return out;
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) text += token(id);
    return text;
  }
  int64_t vocabulary() const override { return 27; }
  int32_t find(std::string_view token) const override {
    if (token == " ") return 0;
    return token.size() == 1 && token[0] >= 'a' && token[0] <= 'z' ? token[0] - 'a' + 1 : -1;
  }
  std::string token(int32_t id) const override {
    require_id(id);
    return std::string(1, id == 0 ? ' ' : static_cast<char>('a' + id - 1));
  }
};

constexpr std::string_view end_of_line = "<eos>", unknown_word = "<unk>";

/// Calls take(word, begin) for each word of a text, and take(end_of_line, end) after each line.
template <class F>
void for_each_word(std::string_view text, F&& take) {
  size_t begin = 0;
  bool inside = false, line = false;  // inside a word; inside a line
  const auto close = [&](size_t end) {
    if (inside) take(text.substr(begin, end - begin), begin);
    inside = false;
  };
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point(text, at);
    if (c.value == '\n') {
      close(at);
      take(end_of_line, at);
      line = false;
    } else {
      line = true;
      if (is_white_space(c.value)) {
        close(at);
      } else if (!inside) {
        inside = true;
        begin = at;
      }
    }
    at += static_cast<size_t>(c.length);
  }
  close(text.size());
  if (line) take(end_of_line, text.size());
}

class WordTokenizer : public Tokenizer {
 public:
  explicit WordTokenizer(std::string_view training) {
    std::unordered_map<std::string_view, size_t> places;
    std::vector<std::pair<std::string_view, int64_t>> counts;
    for_each_word(training, [&](std::string_view word, size_t) {
      const auto [at, is_new] = places.try_emplace(word, counts.size());
      if (is_new) counts.emplace_back(word, 0);
      ++counts[at->second].second;
    });
    std::stable_sort(counts.begin(), counts.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    if (places.count(end_of_line) == 0) counts.emplace_back(end_of_line, 0);
    if (places.count(unknown_word) == 0) counts.emplace_back(unknown_word, 0);
    std::string all;
    for (const auto& [word, count] : counts) {
      ids_.emplace(word, static_cast<int32_t>(words_.size()));
      words_.emplace_back(word);
      all += words_.back() + '\n';
    }
    unknown_ = find(unknown_word);
    find_special();
    set_hash("word", all);
  }

  std::vector<Piece> pieces(std::string_view text) const override {
    std::vector<Piece> out;
    for_each_word(text, [&](std::string_view word, size_t at) {
      const int32_t id = find(word);
      const size_t end =
          std::min(text.size(), word.data() == end_of_line.data() ? at + 1 : at + word.size());
      out.push_back(
          {id < 0 ? unknown_ : id, true, static_cast<int64_t>(at), static_cast<int64_t>(end)});
    });
    return out;
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    bool space = false;
    for (const int32_t id : ids) {
      require_id(id);
      const std::string& word = words_[static_cast<size_t>(id)];
      const bool line = word == end_of_line;
      if (space && !line) text += ' ';
      text += line ? "\n" : word;
      space = !line;
    }
    return text;
  }
  WordRole word_role(int32_t) const override { return WordRole::alone; }
  int64_t vocabulary() const override { return static_cast<int64_t>(words_.size()); }
  int32_t find(std::string_view token) const override {
    const auto at = ids_.find(std::string(token));
    return at == ids_.end() ? -1 : at->second;
  }
  std::string token(int32_t id) const override {
    require_id(id);
    return words_[static_cast<size_t>(id)];
  }

 private:
  std::vector<std::string> words_;
  std::unordered_map<std::string, int32_t> ids_;
  int32_t unknown_ = -1;
};

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  const std::vector<Piece> all = pieces(text);
  std::vector<int32_t> ids(all.size());
  std::transform(all.begin(), all.end(), ids.begin(), [](const Piece& p) { return p.id; });
  return ids;
}

WordRole Tokenizer::word_role(int32_t id) const {
  const std::string text = decode({&id, 1});
  if (text.empty()) return WordRole::alone;
  if (in_word(text[0])) return WordRole::inside;
  return text.size() > 1 && in_word(text[1]) ? WordRole::first : WordRole::alone;
}

std::vector<WordRole> Tokenizer::word_roles() const {
  std::vector<WordRole> roles(static_cast<size_t>(vocabulary()));
  for (size_t id = 0; id < roles.size(); ++id) roles[id] = word_role(static_cast<int32_t>(id));
  return roles;
}

Json Tokenizer::hub_file() const {
  fail("tokenizer",
       "a tokenizer of this kind cannot be written as a tokenizer.json; expected bytes, WordPiece, "
       "byte-level BPE, a lossless SentencePiece model, or the tokenizer of a hub folder");
}

Json Tokenizer::hub_special_tokens() const {
  std::vector<std::pair<int32_t, std::string>> found;
  for (const char* name : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<pad>",
                           "<unk>", "<mask>", "<|endoftext|>"}) {
    if (const int32_t id = find(name); id >= 0) found.emplace_back(id, name);
  }
  std::sort(found.begin(), found.end());
  Json::Array tokens;
  for (const auto& [id, name] : found) {
    tokens.push_back(Members{{"id", id},
                             {"content", name},
                             {"single_word", false},
                             {"lstrip", false},
                             {"rstrip", false},
                             {"normalized", false},
                             {"special", true}});
  }
  return tokens;
}

void Tokenizer::set_hash(std::string_view kind, std::string_view content) {
  hash_ =
      XXH3_64bits_withSeed(content.data(), content.size(), XXH3_64bits(kind.data(), kind.size()));
}

void Tokenizer::find_special() {
  const auto first = [this](std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names) {
      if (const int32_t id = find(name); id >= 0) return id;
    }
    return int32_t{-1};
  };
  special_ = {.pad = first({"[PAD]", "<pad>"}),
              .unknown = first({"[UNK]", "<unk>"}),
              .begin = first({"[CLS]", "<s>"}),
              .separator = first({"[SEP]", "</s>"}),
              .mask = first({"[MASK]", "<mask>", "<mask_2>"})};
}

void Tokenizer::require_id(int32_t id) const {
  require(id >= 0 && id < vocabulary(), "decode", "id {} is not in the vocabulary of {} tokens", id,
          vocabulary());
}

std::unique_ptr<Tokenizer> byte_tokenizer() { return std::make_unique<Bytes>(); }

std::unique_ptr<Tokenizer> char27_tokenizer() { return std::make_unique<Char27>(); }

std::unique_ptr<Tokenizer> word_tokenizer(std::string_view training) {
  return std::make_unique<WordTokenizer>(training);
}

}  // namespace longspan
