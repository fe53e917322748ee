#include "data/tokenizers/hub_model.h"

#include <algorithm>
#include <array>
#include <limits>
#include <queue>
#include <unordered_map>

#include "core/error.h"
#include "data/tokenizers/piece_trie.h"
#include "data/unicode/unicode.h"

namespace longspan {
namespace {

/// Reads {"token": id, ...} into a table.
void read_vocabulary(HubPart& part, TokenTable& tokens) {
  const Json* vocabulary = part.find("vocab");
  if (vocabulary == nullptr || !vocabulary->is_object()) {
    return part.refuse("vocab", "expected an object of tokens and their ids");
  }
  for (const JsonMember& member : vocabulary->object()) {
    if (!member.value.is_integer() || member.value.integer() < 0 ||
        member.value.integer() > TokenTable::largest_id) {
      part.issues().add("{}.vocab gives \"{}\" the id {}; expected a number from 0 to {}",
                        part.path(), member.name, shown(member.value), TokenTable::largest_id);
    } else if (!tokens.add(member.name, member.value.integer())) {
      part.issues().add("{}.vocab gives \"{}\" the id {}, which another token has", part.path(),
                        member.name, member.value.integer());
    }
  }
}

Json vocabulary_json(const TokenTable& tokens) {
  Members members;
  for (int64_t id = 0; id < tokens.limit(); ++id) {
    if (tokens.has(id)) members.push_back({std::string(tokens.token(id)), id});
  }
  return members;
}

/// Ids of <0x00> to <0xFF>; -1 where one is missing.
std::array<int32_t, 256> byte_ids(const TokenTable& tokens) {
  std::array<int32_t, 256> ids;
  for (size_t byte = 0; byte < ids.size(); ++byte)
    ids[byte] = tokens.find(fmt::format("<0x{:02X}>", byte));
  return ids;
}

class WordPieceModel : public HubModel {
 public:
  explicit WordPieceModel(HubPart& part)
      : unknown_(part.text("unk_token", "[UNK]")),
        prefix_(part.text("continuing_subword_prefix", "##")),
        longest_(part.integer("max_input_chars_per_word", 100)) {
    read_vocabulary(part, tokens_);
    unknown_id_ = tokens_.find(unknown_);
    if (unknown_id_ < 0) part.refuse("unk_token", "which vocab does not have");
  }

  void tokenize(std::string_view word, std::vector<HubPiece>& out) const override {
    const size_t first = out.size();
    const auto size = static_cast<uint32_t>(word.size());
    const auto give_up = [&] {
      out.resize(first);
      out.push_back({unknown_id_, 0, size});
    };
    int64_t characters = 0;
    for (size_t at = 0; at < word.size(); ++characters) at += length_at(word, at);
    if (characters > longest_) return give_up();
    std::string rest;
    for (size_t begin = 0; begin < word.size();) {
      std::string_view text = word;
      const size_t before = begin > 0 ? prefix_.size() : 0;
      if (begin > 0) {
        rest.assign(prefix_);
        rest += word.substr(begin);
        text = rest;
      }
      size_t end = text.size();
      int32_t id = -1;
      while (end > before) {
        if (end <= tokens_.longest()) id = tokens_.find(text.substr(0, end));
        if (id >= 0) break;
        --end;
        while (end > before && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
      }
      if (id < 0) return give_up();
      const size_t next = begin + end - before;
      out.push_back({id, static_cast<uint32_t>(begin), static_cast<uint32_t>(next)});
      begin = next;
    }
  }
  std::string_view kind() const override { return "WordPiece"; }
  std::string_view inside_prefix() const override { return prefix_; }
  Json json() const override {
    return Members{{"type", "WordPiece"},
                   {"unk_token", unknown_},
                   {"continuing_subword_prefix", prefix_},
                   {"max_input_chars_per_word", longest_},
                   {"vocab", vocabulary_json(tokens_)}};
  }

 private:
  std::string unknown_, prefix_;
  int64_t longest_;
  int32_t unknown_id_ = -1;
};

class BytePairModel : public HubModel {
 public:
  explicit BytePairModel(HubPart& part)
      : unknown_(part.text("unk_token", "")),
        prefix_(part.text("continuing_subword_prefix", "")),
        suffix_(part.text("end_of_word_suffix", "")),
        fuses_(part.flag("fuse_unk", false)),
        bytes_(part.flag("byte_fallback", false)),
        ignores_(part.flag("ignore_merges", false)) {
    const Json* dropout = part.find("dropout");
    const bool drops = dropout != nullptr && !(dropout->is_number() && dropout->number() == 0);
    if (drops) part.refuse("dropout", "expected null: pieces are not drawn");
    read_vocabulary(part, tokens_);
    read_merges(part);
    byte_ids_ = byte_ids(tokens_);
    if (unknown_.empty()) return;
    unknown_id_ = tokens_.find(unknown_);
    if (unknown_id_ < 0) part.refuse("unk_token", "which vocab does not have");
  }

  void tokenize(std::string_view word, std::vector<HubPiece>& out) const override {
    if (ignores_) {
      if (const int32_t id = tokens_.find(word); id >= 0) {
        out.push_back({id, 0, static_cast<uint32_t>(word.size())});
        return;
      }
    }
    std::vector<Symbol> symbols;
    symbols.reserve(word.size());
    add_symbols(word, symbols);
    merge(symbols);
    uint32_t begin = 0;
    const auto size = static_cast<uint32_t>(word.size());
    for (const Symbol& s : symbols) {
      if (s.length == 0) continue;
      out.push_back({s.id, std::min(begin, size), std::min(begin + s.length, size)});
      begin += s.length;
    }
  }
  std::string_view kind() const override { return "BPE"; }
  Json json() const override {
    const auto text_or_null = [](const std::string& s) { return s.empty() ? Json() : Json(s); };
    std::vector<std::pair<Merge, uint64_t>> sorted;
    for (const auto& [pair, merge] : merges_) sorted.emplace_back(merge, pair);
    std::sort(sorted.begin(), sorted.end(),
              [](const auto& a, const auto& b) { return a.first.rank < b.first.rank; });
    Json::Array merges;
    for (const auto& [merge, pair] : sorted) {
      const auto left = static_cast<int64_t>(pair >> 32),
                 right = static_cast<int64_t>(pair & 0xFFFFFFFF);
      merges.push_back(Json::Array{Json(tokens_.token(left)), Json(tokens_.token(right))});
    }
    return Members{{"type", "BPE"},
                   {"dropout", Json()},
                   {"unk_token", text_or_null(unknown_)},
                   {"continuing_subword_prefix", text_or_null(prefix_)},
                   {"end_of_word_suffix", text_or_null(suffix_)},
                   {"fuse_unk", fuses_},
                   {"byte_fallback", bytes_},
                   {"ignore_merges", ignores_},
                   {"vocab", vocabulary_json(tokens_)},
                   {"merges", std::move(merges)}};
  }

 private:
  struct Merge {
    int32_t rank, id;
  };
  struct Symbol {
    int32_t id;
    uint32_t length;    // bytes; 0: it was merged into another one
    int before, after;  // neighbours; -1: none
  };
  static uint64_t key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }

  void read_merges(HubPart& part) {
    const std::vector<Json> list = part.list("merges");
    for (size_t i = 0; i < list.size(); ++i) {
      std::string left, right;
      const Json& one = list[i];
      if (one.is_string()) {
        const size_t space = one.string().find(' ');
        left = one.string().substr(0, space);
        right = space == std::string::npos ? "" : one.string().substr(space + 1);
      } else if (one.is_array() && one.array().size() == 2 && one.array()[0].is_string() &&
                 one.array()[1].is_string()) {
        left = one.array()[0].string();
        right = one.array()[1].string();
      }
      const bool whole = !left.empty() && right.size() >= std::max<size_t>(prefix_.size(), 1);
      const int32_t a = tokens_.find(left), b = tokens_.find(right);
      const int32_t joint = whole ? tokens_.find(left + right.substr(prefix_.size())) : -1;
      if (whole && a >= 0 && b >= 0 && joint >= 0) {
        merges_[key(a, b)] = {static_cast<int32_t>(i), joint};
      } else if (!whole) {
        part.issues().add("{}.merges[{}] is {}; expected two tokens", part.path(), i, shown(one));
      } else {
        part.issues().add(
            "{}.merges[{}] joins \"{}\" and \"{}\", and not all of them and of what they make are "
            "in the vocabulary",
            part.path(), i, left, right);
      }
    }
  }

  void add_symbols(std::string_view word, std::vector<Symbol>& symbols) const {
    const auto add = [&](int32_t id, uint32_t length) {
      const auto at = static_cast<int>(symbols.size());
      if (at > 0) symbols.back().after = at;
      symbols.push_back({id, length, at - 1, -1});
    };
    uint32_t unknown = 0;  // bytes of an unknown symbol that waits; 0: none
    std::string spelled;
    for (size_t at = 0; at < word.size();) {
      const size_t end = at + length_at(word, at);
      std::string_view text = word.substr(at, end - at);
      const auto length = static_cast<uint32_t>(end - at);
      if ((at > 0 && !prefix_.empty()) || (end == word.size() && !suffix_.empty())) {
        spelled = at > 0 ? prefix_ : "";
        spelled += text;
        if (end == word.size()) spelled += suffix_;
        text = spelled;
      }
      at = end;
      if (const int32_t id = tokens_.find(text); id >= 0) {
        if (unknown > 0) add(unknown_id_, unknown);
        unknown = 0;
        add(id, length);
        continue;
      }
      const auto known = [&](char c) { return byte_ids_[static_cast<uint8_t>(c)] >= 0; };
      if (bytes_ && std::all_of(text.begin(), text.end(), known)) {
        for (const char c : text) add(byte_ids_[static_cast<uint8_t>(c)], 1);
        continue;
      }
      if (unknown_id_ < 0) continue;
      if (unknown > 0 && !fuses_) add(unknown_id_, unknown);
      unknown = unknown > 0 && fuses_ ? unknown + length : length;
    }
    if (unknown > 0) add(unknown_id_, unknown);
  }

  void merge(std::vector<Symbol>& symbols) const {
    struct Candidate {
      int32_t rank, id;
      int at;
      bool operator<(const Candidate& o) const {  // the queue takes the largest
        return rank != o.rank ? rank > o.rank : at > o.at;
      }
    };
    std::priority_queue<Candidate> queue;
    const auto find = [&](int at) -> const Merge* {
      const Symbol& left = symbols[static_cast<size_t>(at)];
      if (left.after < 0) return nullptr;
      const auto found = merges_.find(key(left.id, symbols[static_cast<size_t>(left.after)].id));
      return found == merges_.end() ? nullptr : &found->second;
    };
    const auto consider = [&](int at) {
      if (at < 0) return;
      if (const Merge* merge = find(at)) queue.push({merge->rank, merge->id, at});
    };
    for (int at = 0; at < static_cast<int>(symbols.size()); ++at) consider(at);
    while (!queue.empty()) {
      const Candidate c = queue.top();
      queue.pop();
      Symbol& left = symbols[static_cast<size_t>(c.at)];
      if (left.length == 0) continue;
      const Merge* merge = find(c.at);
      if (merge == nullptr || merge->id != c.id) continue;
      Symbol& right = symbols[static_cast<size_t>(left.after)];
      left.id = c.id;
      left.length += right.length;
      left.after = right.after;
      right.length = 0;
      if (left.after >= 0) symbols[static_cast<size_t>(left.after)].before = c.at;
      consider(left.before);
      consider(c.at);
    }
  }

  std::string unknown_, prefix_, suffix_;
  bool fuses_, bytes_, ignores_;
  int32_t unknown_id_ = -1;
  std::array<int32_t, 256> byte_ids_;
  std::unordered_map<uint64_t, Merge> merges_;
};

class UnigramModel : public HubModel {
 public:
  explicit UnigramModel(HubPart& part) : bytes_(part.flag("byte_fallback", false)) {
    unknown_ = static_cast<int32_t>(part.integer("unk_id", -1));
    const std::vector<Json> list = part.list("vocab");
    if (list.empty()) part.refuse("vocab", "expected an array of tokens and their scores");
    double least = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < list.size(); ++i) {
      const bool fits = list[i].is_array() && list[i].array().size() == 2 &&
                        list[i].array()[0].is_string() && list[i].array()[1].is_number();
      if (!fits) {
        part.issues().add("{}.vocab[{}] is {}; expected a token and its score", part.path(), i,
                          shown(list[i]));
        continue;
      }
      tokens_.add(list[i].array()[0].string(), static_cast<int64_t>(i));
      scores_.push_back(list[i].array()[1].number());
      least = std::min(least, scores_.back());
    }
    if (unknown_ >= static_cast<int32_t>(list.size()))
      part.refuse("unk_id", "which vocab does not have");
    unknown_score_ = least - 10;
    byte_ids_ = byte_ids(tokens_);
    if (part.issues().empty()) trie_ = std::make_unique<PieceTrie>(tokens_);
  }

  void tokenize(std::string_view word, std::vector<HubPiece>& out) const override {
    std::vector<Node> best(word.size() + 1);
    search(word, best);
    struct Part {
      uint32_t begin, end;
    };
    std::vector<Part> parts;  // from last to first
    bool after_unknown = false;
    for (size_t end = word.size(); end > 0;) {
      const Node& node = best[end];
      const bool fuses = node.id == unknown_ && unknown_ >= 0;
      if (fuses && after_unknown) {
        parts.back().begin = node.begin;
      } else {
        parts.push_back({node.begin, static_cast<uint32_t>(end)});
      }
      after_unknown = fuses;
      end = node.begin;
    }
    for (size_t i = parts.size(); i-- > 0;) {
      const std::string_view text = word.substr(parts[i].begin, parts[i].end - parts[i].begin);
      const int32_t id = tokens_.find(text);
      const auto known = [&](char c) { return byte_ids_[static_cast<uint8_t>(c)] >= 0; };
      if (id < 0 && bytes_ && std::all_of(text.begin(), text.end(), known)) {
        for (const char c : text) {
          out.push_back({byte_ids_[static_cast<uint8_t>(c)], parts[i].begin, parts[i].end});
        }
        continue;
      }
      require(id >= 0 || unknown_ >= 0, "tokenizer",
              "the model has no token for \"{}\", and no unk_id for what is unknown", text);
      out.push_back({id >= 0 ? id : unknown_, parts[i].begin, parts[i].end});
    }
  }
  std::string_view kind() const override { return "Unigram"; }
  Json json() const override {
    Json::Array list;
    for (size_t i = 0; i < scores_.size(); ++i) {
      list.push_back(Json::Array{Json(tokens_.token(static_cast<int64_t>(i))), Json(scores_[i])});
    }
    return Members{{"type", "Unigram"},
                   {"unk_id", unknown_ >= 0 ? Json(unknown_) : Json()},
                   {"vocab", std::move(list)},
                   {"byte_fallback", bytes_}};
  }

 private:
  struct Node {
    double score = 0;
    uint32_t begin = UINT32_MAX;  // of the last token; none yet
    int32_t id = -1;
  };

  /// Finds the token that ends the best cover of each beginning of the word.
  void search(std::string_view word, std::vector<Node>& best) const {
    for (size_t at = 0; at < word.size();) {
      const double here = best[at].score;
      const size_t one = length_at(word, at);
      bool single = false;
      const auto offer = [&](size_t length, int32_t id, double score) {
        Node& node = best[at + length];
        if (node.begin != UINT32_MAX && !(here + score > node.score)) return;
        node = {here + score, static_cast<uint32_t>(at), id};
      };
      trie_->for_each_prefix(word, at, [&](size_t length, int32_t id) {
        offer(length, id, scores_[static_cast<size_t>(id)]);
        single = single || length == one;
      });
      if (!single) offer(one, unknown_, unknown_score_);
      at += one;
    }
  }

  bool bytes_;
  int32_t unknown_ = -1;
  std::vector<double> scores_;
  double unknown_score_ = 0;
  std::array<int32_t, 256> byte_ids_;
  std::unique_ptr<PieceTrie> trie_;
};

}  // namespace

std::unique_ptr<HubModel> read_hub_model(const Json& json, HubIssues& issues) {
  HubPart part(json, "model", issues);
  std::string type = part.type();
  const Json* vocabulary = part.find("vocab");
  if (type.empty() && part.find("merges") != nullptr) type = "BPE";
  if (type.empty() && vocabulary != nullptr && vocabulary->is_array()) type = "Unigram";
  if (type.empty() && vocabulary != nullptr) type = "WordPiece";
  std::unique_ptr<HubModel> model;
  if (type == "WordPiece") {
    model = std::make_unique<WordPieceModel>(part);
  } else if (type == "BPE") {
    model = std::make_unique<BytePairModel>(part);
  } else if (type == "Unigram") {
    model = std::make_unique<UnigramModel>(part);
  } else {
    issues.add("model has the type \"{}\"; expected WordPiece, BPE or Unigram", type);
    return model;
  }
  part.finish();
  return model;
}

}  // namespace longspan
