// WordPiece, and the text normalization of BERT.
#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "data/io/files.h"
#include "data/io/json.h"
#include "data/tokenizers/tokenizer.h"
#include "data/unicode/package_unicode.h"
#include "data/unicode/unicode.h"

namespace longspan {
namespace {

constexpr size_t longest_word = 100;  // characters

/// Whether a token of the vocabulary continues a word.
bool goes_on(std::string_view token) { return token.size() > 2 && token.substr(0, 2) == "##"; }

/// A lower-cased word, with the source of each character.
struct Word {
  struct Character {
    size_t at;           ///< first byte in `text`
    int64_t begin, end;  ///< bytes of the source
  };
  std::string text;
  std::vector<Character> characters;

  void add(char32_t c, int64_t begin, int64_t end) {
    characters.push_back({text.size(), begin, end});
    append_utf8(text, static_cast<int32_t>(c));
  }
  void clear() {
    text.clear();
    characters.clear();
  }
  /// First byte in `text` of character i, or the end of `text`.
  size_t byte(size_t i) const { return i < characters.size() ? characters[i].at : text.size(); }
};

class WordPieces : public Tokenizer {
 public:
  WordPieces(const std::string& path, const WordPieceOptions& options) : options_(options) {
    const std::string file = read_file(path, "tokenizer", 1 << 30);
    const size_t mark = file.size() - without_byte_order_mark(file).size();
    for (size_t begin = mark, line = 1; begin < file.size(); ++line) {
      const size_t end = std::min(file.find('\n', begin), file.size());
      std::string token = file.substr(begin, end - begin);
      while (!token.empty() && token.back() == '\r') token.pop_back();
      require<IoError>(!token.empty(), "tokenizer", "{}: line {} is empty; expected a token a line",
                       path, line);
      const auto id = static_cast<int32_t>(tokens_.size());
      const auto [first, is_new] = ids_.emplace(token, id);
      require<IoError>(is_new, "tokenizer", "{}: line {} repeats \"{}\" of line {}", path, line,
                       token, first->second + 1);
      longest_token_ = std::max(longest_token_, token.size());
      tokens_.push_back(std::move(token));
      begin = end + 1;
    }
    find_special();
    require<IoError>(special().unknown >= 0, "tokenizer",
                     "{} has no [UNK]; expected a WordPiece vocabulary, a token a line", path);
    set_hash(options_.lower_case ? "wordpiece, uncased" : "wordpiece, cased", file);
  }

  std::vector<Piece> pieces(std::string_view text) const override {
    std::vector<Piece> out;
    Word word;
    std::vector<Mark> marks;                          // that wait for those of a lower class
    std::vector<std::pair<int64_t, int64_t>> places;  // theirs, which are not sorted
    const auto settle = [&] {
      if (marks.empty()) return;
      std::stable_sort(marks.begin(), marks.end(),
                       [](const Mark& a, const Mark& b) { return a.order < b.order; });
      for (size_t i = 0; i < marks.size(); ++i) {
        if (!marks[i].is_accent) word.add(marks[i].value, places[i].first, places[i].second);
      }
      marks.clear();
      places.clear();
    };
    const auto close = [&] {
      settle();
      split(word, out);
      word.clear();
    };
    std::u32string parts;
    for (size_t at = 0; at < text.size();) {
      const CodePoint c = code_point(text, at);
      const auto begin = static_cast<int64_t>(at);
      at += static_cast<size_t>(c.length);
      const uint8_t properties = package_properties(c.value);
      if (c.value < 0 || (properties & PackageProperty::removed) != 0) continue;
      if (is_white_space(c.value)) {
        close();
        continue;
      }
      const bool ideograph = is_ideograph(c.value);
      if (ideograph) close();
      parts.assign(1, static_cast<char32_t>(c.value));
      if (options_.lower_case && (properties & PackageProperty::decomposes) != 0) {
        parts.clear();
        append_decomposed(parts, static_cast<char32_t>(c.value));
      }
      for (char32_t part : parts) {
        const bool same = static_cast<int32_t>(part) == c.value;
        const uint8_t kind = same ? properties : package_properties(static_cast<int32_t>(part));
        if (options_.lower_case) {
          constexpr uint8_t mark = PackageProperty::accent | PackageProperty::ordered;
          const int order = (kind & mark) != 0 ? package_combining_class(part) : 0;
          const bool is_accent = (kind & PackageProperty::accent) != 0;
          if (order > 0) {
            marks.push_back({part, order, is_accent});
            places.emplace_back(begin, static_cast<int64_t>(at));
            continue;
          }
          settle();
          if (is_accent) continue;
          if ((kind & PackageProperty::has_lower) != 0) part = package_lower(part);
        }
        const bool alone = (kind & PackageProperty::punctuation) != 0;
        if (alone) close();
        word.add(part, begin, static_cast<int64_t>(at));
        if (alone) close();
      }
      if (ideograph) close();
    }
    close();
    return out;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      require_id(id);
      const std::string_view token = tokens_[static_cast<size_t>(id)];
      const bool inside = goes_on(token);
      if (!inside && !text.empty()) text += ' ';
      text += inside && !text.empty() ? token.substr(2) : token;
    }
    return text;
  }

  Json hub_file() const override {
    Members vocabulary;
    for (size_t id = 0; id < tokens_.size(); ++id) vocabulary.push_back({tokens_[id], id});
    return Members{
        {"added_tokens", hub_special_tokens()},
        {"normalizer", Members{{"type", "BertNormalizer"},
                               {"clean_text", true},
                               {"handle_chinese_chars", true},
                               {"strip_accents", Json()},
                               {"lowercase", options_.lower_case}}},
        {"pre_tokenizer", Members{{"type", "BertPreTokenizer"}}},
        {"decoder", Members{{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", false}}},
        {"model", Members{{"type", "WordPiece"},
                          {"unk_token", token(special().unknown)},
                          {"continuing_subword_prefix", "##"},
                          {"max_input_chars_per_word", longest_word},
                          {"vocab", std::move(vocabulary)}}}};
  }
  WordRole word_role(int32_t id) const override {
    return goes_on(token(id)) ? WordRole::inside : WordRole::first;
  }
  int64_t vocabulary() const override { return static_cast<int64_t>(tokens_.size()); }
  int32_t find(std::string_view token) const override { return look_up(std::string(token)); }
  std::string token(int32_t id) const override {
    require_id(id);
    return tokens_[static_cast<size_t>(id)];
  }

 private:
  int32_t look_up(const std::string& token) const {
    const auto at = ids_.find(token);
    return at == ids_.end() ? -1 : at->second;
  }

  /// A mark with its canonical combining class. Those of one base are sorted by class; then accents
  /// are removed.
  struct Mark {
    char32_t value;
    int order;
    bool is_accent;
  };

  void split(const Word& word, std::vector<Piece>& out) const {
    const size_t count = word.characters.size();
    if (count == 0) return;
    const size_t first = out.size();
    const auto add = [&](int32_t id, size_t begin, size_t end) {
      out.push_back({id, begin == 0, word.characters[begin].begin, word.characters[end - 1].end});
    };
    const auto give_up = [&] {
      out.resize(first);
      add(special().unknown, 0, count);
    };
    if (count > longest_word) return give_up();
    std::string token;
    for (size_t begin = 0; begin < count;) {
      int32_t id = -1;
      size_t end = count;
      for (; end > begin; --end) {
        token = begin > 0 ? "##" : "";
        token.append(word.text, word.byte(begin), word.byte(end) - word.byte(begin));
        if (token.size() > longest_token_) continue;
        id = look_up(token);
        if (id >= 0) break;
      }
      if (id < 0) return give_up();
      add(id, begin, end);
      begin = end;
    }
  }

  WordPieceOptions options_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
  size_t longest_token_ = 0;
};

}  // namespace

std::unique_ptr<Tokenizer> open_word_pieces(const std::string& path,
                                            const WordPieceOptions& options) {
  return std::make_unique<WordPieces>(path, options);
}

}  // namespace longspan
