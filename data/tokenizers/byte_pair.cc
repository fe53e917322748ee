// Byte-level BPE as in GPT-2.
#include <algorithm>
#include <array>
#include <queue>
#include <unordered_map>

#include "core/error.h"
#include "data/io/files.h"
#include "data/io/json.h"
#include "data/tokenizers/tokenizer.h"
#include "data/unicode/byte_level.h"
#include "data/unicode/unicode.h"

namespace longspan {
namespace {

class BytePairs : public Tokenizer {
 public:
  BytePairs(const std::string& vocab, const std::string& merges, const BytePairOptions& options)
      : options_(options) {
    const std::string vocab_file = read_file(vocab, "tokenizer", 1 << 30);
    const std::string merges_file = read_file(merges, "tokenizer", 1 << 30);
    read_vocabulary(vocab, vocab_file);
    read_merges(merges, merges_file);
    find_special();
    // The order of entries in the JSON file does not matter.
    std::string content;
    for (const std::string& token : tokens_) content += token + '\n';
    set_hash(options_.prefix_space ? "byte pairs, prefix" : "byte pairs", content + merges_file);
  }

  std::vector<Piece> pieces(std::string_view text) const override {
    std::vector<Piece> out;
    const bool prefix = options_.prefix_space && !text.empty() && text[0] != ' ';
    const std::string with_space = prefix ? ' ' + std::string(text) : std::string();
    const std::string_view whole = prefix ? std::string_view(with_space) : text;
    for (size_t begin = 0; begin < whole.size();) {
      const size_t end = byte_level_end(whole, begin);
      merge(whole.substr(begin, end - begin), static_cast<int64_t>(begin), out);
      begin = end;
    }
    for (Piece& piece : out) {
      if (!prefix) break;
      piece.begin = std::max<int64_t>(piece.begin - 1, 0);
      --piece.end;
    }
    return out;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      require_id(id);
      const std::string& token = tokens_[static_cast<size_t>(id)];
      for (size_t at = 0; at < token.size();) {
        const CodePoint c = code_point(token, at);
        const auto byte = bytes_.find(c.value);
        // A token of other characters, e.g. one added for a model, is decoded literally.
        if (byte == bytes_.end()) {
          text.append(token, at, static_cast<size_t>(c.length));
        } else {
          text += static_cast<char>(byte->second);
        }
        at += static_cast<size_t>(c.length);
      }
    }
    return text;
  }

  Json hub_file() const override {
    Members vocabulary;
    for (size_t id = 0; id < tokens_.size(); ++id) vocabulary.push_back({tokens_[id], id});
    std::vector<std::pair<int32_t, uint64_t>> sorted;
    for (const auto& [pair, merge] : merges_) sorted.emplace_back(merge.rank, pair);
    std::sort(sorted.begin(), sorted.end());
    Json::Array merges;
    for (const auto& [rank, pair] : sorted) {
      merges.push_back(Json::Array{Json(tokens_[pair >> 32]), Json(tokens_[pair & 0xFFFFFFFF])});
    }
    const Json level = Members{{"type", "ByteLevel"},
                               {"add_prefix_space", options_.prefix_space},
                               {"trim_offsets", true},
                               {"use_regex", true}};
    return Members{{"added_tokens", hub_special_tokens()},
                   {"pre_tokenizer", level},
                   {"decoder", level},
                   {"model", Members{{"type", "BPE"},
                                     {"vocab", std::move(vocabulary)},
                                     {"merges", std::move(merges)}}}};
  }
  int64_t vocabulary() const override { return static_cast<int64_t>(tokens_.size()); }
  int32_t find(std::string_view token) const override {
    const auto at = ids_.find(std::string(token));
    return at == ids_.end() ? -1 : at->second;
  }
  std::string token(int32_t id) const override {
    require_id(id);
    return tokens_[static_cast<size_t>(id)];
  }

 private:
  struct Merge {
    int32_t rank, id;
  };
  static uint64_t key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }

  void read_vocabulary(const std::string& path, const std::string& file) {
    Json json;
    try {
      json = parse_json(file);
    } catch (const ValueError& error) {
      fail<IoError>("tokenizer", "{}: {}", path, error.what());
    }
    require<IoError>(json.is_object() && !json.object().empty(), "tokenizer",
                     "{} is {}; expected an object of tokens and their ids", path, json.kind());
    const auto count = static_cast<int64_t>(json.object().size());
    tokens_.resize(static_cast<size_t>(count));
    for (const JsonMember& member : json.object()) {
      const int64_t id = member.value.is_integer() ? member.value.integer() : -1;
      require<IoError>(id >= 0 && id < count, "tokenizer",
                       "{}: \"{}\" has no id from 0 to {}, one for each of {} tokens", path,
                       member.name, count - 1, count);
      std::string& token = tokens_[static_cast<size_t>(id)];
      require<IoError>(token.empty() && !member.name.empty(), "tokenizer",
                       "{}: \"{}\" and \"{}\" have the id {}", path, token, member.name, id);
      token = member.name;
      ids_.emplace(token, static_cast<int32_t>(id));
    }
    const std::array<int32_t, 256> visible = byte_level_characters();
    for (size_t byte = 0; byte < 256; ++byte) {
      std::string token;
      append_utf8(token, visible[byte]);
      bytes_.emplace(visible[byte], static_cast<uint8_t>(byte));
      byte_ids_[byte] = find(token);
      require<IoError>(byte_ids_[byte] >= 0, "tokenizer",
                       "{} has no token for the byte 0x{:02x} (\"{}\"); expected a byte-level "
                       "vocabulary",
                       path, byte, token);
    }
  }

  void read_merges(const std::string& path, const std::string& file) {
    int32_t rank = 0;
    const size_t mark = file.size() - without_byte_order_mark(file).size();
    for (size_t begin = mark, number = 1; begin < file.size(); ++number) {
      const size_t end = std::min(file.find('\n', begin), file.size());
      std::string_view line = std::string_view(file).substr(begin, end - begin);
      while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      begin = end + 1;
      if (line.empty() || (number == 1 && line.substr(0, 8) == "#version")) continue;
      const size_t space = line.find(' ');
      require<IoError>(space != std::string_view::npos && space > 0 && space + 1 < line.size() &&
                           line.find(' ', space + 1) == std::string_view::npos,
                       "tokenizer", "{}: line {} is \"{}\"; expected two tokens", path, number,
                       line);
      const std::string left(line.substr(0, space)), right(line.substr(space + 1));
      const int32_t ids[] = {find(left), find(right), find(left + right)};
      const std::string names[] = {left, right, left + right};
      for (size_t i = 0; i < 3; ++i) {
        require<IoError>(ids[i] >= 0, "tokenizer",
                         "{}: line {} joins \"{}\" and \"{}\", and \"{}\" is not in the vocabulary",
                         path, number, left, right, names[i]);
      }
      const bool is_new = merges_.try_emplace(key(ids[0], ids[1]), Merge{rank++, ids[2]}).second;
      require<IoError>(is_new, "tokenizer", "{}: line {} repeats \"{}\"", path, number, line);
    }
  }

  /// Adds the tokens of one pre-token.
  void merge(std::string_view part, int64_t begin, std::vector<Piece>& out) const {
    struct Symbol {
      int32_t id;
      int before, after;  // neighbours, -1: none. A removed symbol has id -1
      int64_t end;
    };
    struct Candidate {
      int32_t rank;
      int at;  // the left symbol
      int32_t left, right, id;
      bool operator<(const Candidate& o) const {  // the queue takes the largest
        return rank != o.rank ? rank > o.rank : at > o.at;
      }
    };
    std::vector<Symbol> symbols(part.size());
    std::priority_queue<Candidate> queue;
    const auto consider = [&](int at) {
      if (at < 0) return;
      const Symbol& left = symbols[static_cast<size_t>(at)];
      if (left.after < 0) return;
      const int32_t right = symbols[static_cast<size_t>(left.after)].id;
      const auto found = merges_.find(key(left.id, right));
      if (found == merges_.end()) return;
      queue.push({found->second.rank, at, left.id, right, found->second.id});
    };
    const int count = static_cast<int>(part.size());
    for (int i = 0; i < count; ++i) {
      const auto byte = static_cast<uint8_t>(part[static_cast<size_t>(i)]);
      symbols[static_cast<size_t>(i)] = {byte_ids_[byte], i - 1, i + 1 < count ? i + 1 : -1, i + 1};
    }
    for (int i = 0; i < count; ++i) consider(i);
    while (!queue.empty()) {
      const Candidate c = queue.top();
      queue.pop();
      Symbol& left = symbols[static_cast<size_t>(c.at)];
      if (left.id != c.left || left.after < 0) continue;
      Symbol& right = symbols[static_cast<size_t>(left.after)];
      if (right.id != c.right) continue;
      left.id = c.id;
      left.end = right.end;
      left.after = right.after;
      right.id = -1;
      if (left.after >= 0) symbols[static_cast<size_t>(left.after)].before = c.at;
      consider(left.before);
      consider(c.at);
    }
    int64_t from = 0;
    for (int i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].after) {
      const Symbol& symbol = symbols[static_cast<size_t>(i)];
      out.push_back({symbol.id, i == 0, begin + from, begin + symbol.end});
      from = symbol.end;
    }
  }

  BytePairOptions options_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<uint64_t, Merge> merges_;
  std::unordered_map<int32_t, uint8_t> bytes_;
  std::array<int32_t, 256> byte_ids_{};
};

}  // namespace

std::unique_ptr<Tokenizer> open_byte_pairs(const std::string& vocab, const std::string& merges,
                                           const BytePairOptions& options) {
  return std::make_unique<BytePairs>(vocab, merges, options);
}

}  // namespace longspan
