#include "data/tokenizers/sentence_piece_model.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "core/error.h"
#include "data/unicode/unicode.h"

namespace longspan {
namespace {

[[noreturn]] void unsound(const std::string& path, std::string_view why) {
  fail<IoError>("tokenizer", "{} is not a SentencePiece model: {}", path, why);
}

/// Iterates over the fields of a Protocol Buffers message.
class Fields {
 public:
  Fields(std::string_view message, const std::string& path) : rest_(message), path_(path) {}

  bool next() {
    if (rest_.empty()) return false;
    const uint64_t key = number();
    field_ = key >> 3;
    const auto kind = static_cast<int>(key & 7);
    text_ = {};
    value_ = 0;
    if (kind == 0) {
      value_ = number();
    } else if (kind == 1 || kind == 5) {
      text_ = taken(kind == 1 ? 8 : 4);
    } else if (kind == 2) {
      text_ = taken(number());
    } else {
      unsound(path_, "it has a field of an unknown kind");
    }
    return true;
  }
  uint64_t field() const { return field_; }
  /// The bytes of a string or message field, and of an f32 or f64.
  std::string_view text() const { return text_; }
  /// The number of a field that is one.
  uint64_t value() const { return value_; }

 private:
  std::string_view taken(uint64_t bytes) {
    if (bytes > rest_.size()) unsound(path_, "it is cut off");
    const std::string_view some = rest_.substr(0, static_cast<size_t>(bytes));
    rest_.remove_prefix(some.size());
    return some;
  }
  uint64_t number() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(taken(1)[0]);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    unsound(path_, "it has a number of more than 64 bits");
  }

  std::string_view rest_;
  const std::string& path_;
  uint64_t field_ = 0, value_ = 0;
  std::string_view text_;
};

void check_piece(std::string_view piece, const std::string& path) {
  for (Fields f(piece, path); f.next();) {
    if (f.field() == 1 && f.text().find('\0') != std::string_view::npos) {
      unsound(path, "a piece has a byte of 0");
    }
    if (f.field() == 1 && f.text().size() > longest_sentence_piece) {
      unsound(path, fmt::format("a piece has {} bytes; expected at most {}", f.text().size(),
                                longest_sentence_piece));
    }
    float score = 0;
    if (f.field() != 2 || f.text().size() != sizeof score) continue;
    std::memcpy(&score, f.text().data(), sizeof score);
    if (!std::isfinite(score)) unsound(path, "a piece has a score that is no number");
  }
}

/// Format of the rules: the size of a double array, the array, and zero-terminated texts. A unit of
/// the array has in bits 0 to 7 and 31 the byte of the transition into it, in bit 8 whether a text
/// ends there, and from bit 9 on the distance to its successors. The array maps to offsets in the
/// texts.
void check_rules(std::string_view rules, const std::string& path) {
  if (rules.empty()) return;
  uint32_t bytes = 0;
  constexpr const char* broken = "its rules for characters are broken";
  if (rules.size() <= sizeof bytes) unsound(path, broken);
  std::memcpy(&bytes, rules.data(), sizeof bytes);
  rules.remove_prefix(sizeof bytes);
  if (bytes >= rules.size() || bytes % 4 != 0 || bytes == 0 || rules.back() != '\0') {
    unsound(path, broken);
  }
  std::vector<uint32_t> units(bytes / 4);
  std::memcpy(units.data(), rules.data(), bytes);
  const size_t texts = rules.size() - bytes;
  const auto leads_to = [&](uint32_t at) {
    return at ^ ((units[at] >> 10) << ((units[at] & 0x200) >> 6));
  };
  std::vector<bool> seen(units.size());
  std::vector<uint32_t> open = {0};
  seen[0] = true;
  while (!open.empty()) {
    const uint32_t at = open.back(), base = leads_to(at);
    open.pop_back();
    if (at != 0 && (units[at] & 0x100) != 0) {
      if (base >= units.size() || (units[base] & 0x7FFFFFFF) >= texts) unsound(path, broken);
    }
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t next = base ^ byte;
      if (next >= units.size()) unsound(path, broken);
      if ((units[next] & 0x800000FF) != byte || seen[next]) continue;
      seen[next] = true;
      open.push_back(next);
    }
  }
}

}  // namespace

void require_sound_sentence_pieces(std::string_view model, const std::string& path) {
  for (Fields f(model, path); f.next();) {
    if (f.field() == 1) check_piece(f.text(), path);
    if (f.field() != 3 && f.field() != 5) continue;  // normalizer and denormalizer
    for (Fields g(f.text(), path); g.next();) {
      if (g.field() == 2) check_rules(g.text(), path);
    }
  }
}

SentencePieceParts read_sentence_piece_parts(std::string_view model, const std::string& path) {
  SentencePieceParts parts;
  for (Fields f(model, path); f.next();) {
    if (f.field() == 1) {
      SentencePieceParts::Piece piece;
      for (Fields g(f.text(), path); g.next();) {
        if (g.field() == 1) piece.text = g.text();
        if (g.field() == 2 && g.text().size() == sizeof piece.score) {
          std::memcpy(&piece.score, g.text().data(), sizeof piece.score);
        }
        if (g.field() == 3) piece.kind = g.value();
      }
      if (!is_utf8(piece.text)) unsound(path, "a piece is no UTF-8");
      parts.pieces.push_back(std::move(piece));
    } else if (f.field() == 2) {
      for (Fields g(f.text(), path); g.next();) {
        if (g.field() == 3) parts.model = g.value();
        if (g.field() == 35) parts.bytes = g.value() != 0;
        if (g.field() == 40) parts.unknown = static_cast<int64_t>(g.value());
      }
    } else if (f.field() == 3) {
      for (Fields g(f.text(), path); g.next();) {
        if (g.field() == 2) parts.rules = g.text();
        if (g.field() == 3) parts.prefix = g.value() != 0;
        if (g.field() == 4) parts.single = g.value() != 0;
        if (g.field() == 5) parts.escapes = g.value() != 0;
      }
    }
  }
  return parts;
}

Json sentence_piece_merges(const SentencePieceParts& parts) {
  std::map<std::string, int64_t> ids;
  for (size_t i = 0; i < parts.pieces.size(); ++i)
    ids[parts.pieces[i].text] = static_cast<int64_t>(i);
  struct Merge {
    int64_t made, length_left, length_right, left, right;
    std::string a, b;
  };
  std::vector<Merge> all;
  for (const auto& [text, id] : ids) {
    int64_t count = 0, total = 0;
    for (size_t at = 0; at < text.size(); ++total)
      at += static_cast<size_t>(code_point(text, at).length);
    for (size_t at = 0; at < text.size();) {
      at += static_cast<size_t>(code_point(text, at).length);
      ++count;
      const auto a = ids.find(text.substr(0, at)), b = ids.find(text.substr(at));
      if (at == text.size() || a == ids.end() || b == ids.end()) continue;
      all.push_back({id, count, total - count, a->second, b->second, a->first, b->first});
    }
  }
  std::sort(all.begin(), all.end(), [](const Merge& x, const Merge& y) {
    return std::tie(x.made, x.length_left, x.length_right) <
           std::tie(y.made, y.length_left, y.length_right);
  });
  Json::Array merges;
  for (const Merge& m : all) merges.push_back(Json::Array{Json(m.a), Json(m.b)});
  return merges;
}

}  // namespace longspan
