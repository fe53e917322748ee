#include "data/unicode/charsmap.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "data/unicode/package_classes.h"
#include "data/unicode/unicode.h"

namespace longspan {
namespace {

constexpr const char* kCharsmapOp = "tokenizer";
constexpr int32_t joiner = 0x200D;

bool is_regional(int32_t c) { return c >= 0x1F1E6 && c <= 0x1F1FF; }
bool is_syllable(int32_t c) { return c >= 0xAC00 && c <= 0xD7A3; }
bool has(uint16_t classes, uint16_t bit) { return (classes & bit) != 0; }
/// Line ends and control characters: a cluster has no more characters.
bool is_control(int32_t c, uint16_t classes) {
  return c == '\r' || c == '\n' || c <= 0 || has(classes, PackageClass::control);
}

/// Whether the syllable parts of Hangul belong together.
bool hangul_joins(uint16_t a, int32_t c, uint16_t b) {
  const bool initial = has(a, PackageClass::before_vowel) && !has(a, PackageClass::before_final);
  if (initial) return has(b, PackageClass::after_initial);
  if (!has(a, PackageClass::before_final)) return false;
  if (has(b, PackageClass::after_final)) return true;
  const bool vowel =
      has(b, PackageClass::before_vowel) && has(b, PackageClass::before_final) && !is_syllable(c);
  return has(a, PackageClass::before_vowel) && vowel;
}

/// What has been seen of a cluster.
struct Cluster {
  int32_t last = 0;
  uint16_t classes = 0;
  int regional = 0;                         // regional indicators in a row
  bool pictograph = false, joined = false;  // a pictograph and marks; and a joiner after them
  bool consonant = false, linked = false;   // a consonant and what may stand behind it; a linker

  void take(int32_t c, uint16_t k) {
    regional = is_regional(c) ? regional + 1 : 0;
    joined = pictograph && c == joiner;
    if (has(k, PackageClass::pictograph)) {
      pictograph = true;
    } else if (!has(k, PackageClass::joining) || has(k, PackageClass::prepended)) {
      pictograph = false;
    }
    if (has(k, PackageClass::consonant)) {
      consonant = true;
      linked = false;
    } else if (has(k, PackageClass::linker)) {
      linked = consonant;
    } else if (!has(k, PackageClass::linked)) {
      consonant = linked = false;
    }
    last = c;
    classes = k;
  }
  bool joins(int32_t c, uint16_t k) const {
    if (last == '\r' && c == '\n') return true;
    if (is_control(last, classes) || is_control(c, k)) return false;
    if (has(k, PackageClass::joining) || has(classes, PackageClass::prepended)) return true;
    if (hangul_joins(classes, c, k)) return true;
    if (linked && has(k, PackageClass::consonant)) return true;
    if (joined && has(k, PackageClass::pictograph)) return true;
    return regional % 2 == 1 && is_regional(c);
  }
};

uint32_t offset_of(uint32_t unit) { return (unit >> 10) << ((unit & 0x200) >> 6); }

}  // namespace

size_t cluster_end(std::string_view text, size_t begin) {
  const auto is_ascii = [&](size_t at) { return static_cast<uint8_t>(text[at]) < 0x80; };
  const bool last = begin + 1 == text.size();
  if (is_ascii(begin) && (last || (is_ascii(begin + 1) && text[begin] != '\r'))) return begin + 1;
  Cluster cluster;
  for (size_t at = begin; at < text.size();) {
    const CodePoint c = code_point(text, at);
    const uint16_t classes = package_classes(c.value);
    if (at > begin && !cluster.joins(c.value, classes)) return at;
    cluster.take(c.value, classes);
    at += static_cast<size_t>(c.length);
  }
  return text.size();
}

CharacterRules::CharacterRules(std::string data) : data_(std::move(data)) {
  uint32_t bytes = 0;
  constexpr const char* broken = "the rules for characters (precompiled_charsmap) are broken";
  require(data_.size() > sizeof bytes, kCharsmapOp, "{}: they have {} bytes", broken, data_.size());
  std::memcpy(&bytes, data_.data(), sizeof bytes);
  texts_ = sizeof bytes + bytes;
  require(bytes >= 4 && bytes % 4 == 0 && texts_ <= data_.size(), kCharsmapOp,
          "{}: {} bytes of a trie in {} bytes", broken, bytes, data_.size());
  require(is_utf8(std::string_view(data_).substr(texts_)), kCharsmapOp, "{}: a text is no UTF-8",
          broken);
  units_.resize(bytes / 4);
  std::memcpy(units_.data(), data_.data() + sizeof bytes, bytes);
  for (size_t byte = 0; byte < ascii_.size(); ++byte) {
    const char c = static_cast<char>(byte);
    std::string_view text;
    ascii_[byte] = find({&c, 1}, text);
  }
}

bool CharacterRules::find(std::string_view part, std::string_view& text) const {
  size_t at = offset_of(units_[0]);
  for (const char byte : part) {
    const auto label = static_cast<uint8_t>(byte);
    at ^= label;
    if (label == 0 || at >= units_.size()) return false;
    const uint32_t unit = units_[at];
    if ((unit & 0x800000FF) != label) return false;
    at ^= offset_of(unit);
    if ((unit & 0x100) == 0) continue;
    if (at >= units_.size()) return false;
    const size_t begin = texts_ + (units_[at] & 0x7FFFFFFF);
    if (begin > data_.size()) return false;
    const size_t end = std::min(data_.find('\0', begin), data_.size());
    text = std::string_view(data_).substr(begin, end - begin);
    return true;
  }
  return false;
}

template <class Replace, class Keep>
void CharacterRules::for_each(std::string_view bytes, Replace&& replace, Keep&& keep) const {
  std::string_view by;
  for (size_t begin = 0; begin < bytes.size();) {
    const size_t end = cluster_end(bytes, begin);
    const std::string_view cluster = bytes.substr(begin, end - begin);
    const auto first = static_cast<uint8_t>(bytes[begin]);
    if (cluster.size() == 1 && first < ascii_.size() && !ascii_[first]) {
      keep(cluster);
      begin = end;
      continue;
    }
    if (cluster.size() < 6 && find(cluster, by)) {
      replace(cluster, by);
      begin = end;
      continue;
    }
    while (begin < end) {
      const std::string_view one = bytes.substr(begin, length_at(bytes, begin));
      if (find(one, by)) {
        replace(one, by);
      } else {
        keep(one);
      }
      begin += one.size();
    }
  }
}

void CharacterRules::apply(const AlignedText& text, AlignedText& to) const {
  TextChange change(text, to);
  if (!text.tracked) {
    for_each(
        text.bytes,
        [&](std::string_view, std::string_view by) {
          to.bytes += by;
          to.check_size();
        },
        [&](std::string_view one) { to.bytes += one; });
    return;
  }
  struct Change {
    std::string_view character;
    int change;
  };
  std::vector<Change> changes;
  changes.reserve(text.bytes.size());
  const auto replace = [&](std::string_view old, std::string_view by) {
    int more = 0;
    for (size_t at = 0; at < old.size(); --more) at += length_at(old, at);
    for (size_t at = 0; at < by.size(); ++more) {
      changes.push_back({by.substr(at, length_at(by, at)), 0});
      at += changes.back().character.size();
    }
    require(changes.size() <= text.limit, kCharsmapOp,
            "a text grows to {} characters by the rules for characters; expected at most {}",
            changes.size(), text.limit);
    for (int i = 0; i < more; ++i) changes[changes.size() - 1 - static_cast<size_t>(i)].change = 1;
    if (more < 0 && !changes.empty()) changes.back().change += more;
  };
  for_each(text.bytes, replace, [&](std::string_view one) { changes.push_back({one, 0}); });
  for (const Change& c : changes) {
    if (c.change > 0) {
      change.insert(c.character);
      continue;
    }
    change.replace(c.character);
    for (int i = c.change; i < 0; ++i) change.skip();
  }
}

}  // namespace longspan
