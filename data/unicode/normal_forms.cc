#include "data/unicode/normal_forms.h"

#include <utf8proc.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/unicode/package_classes.h"
#include "data/unicode/package_unicode.h"
#include "data/unicode/unicode.h"

namespace longspan {
namespace {

constexpr char32_t invalid = 0x110000;  // plus the byte
constexpr char32_t first_syllable = 0xAC00, first_initial = 0x1100, first_vowel = 0x1161,
                   first_final = 0x11A7, initials = 19, vowels = 21, finals = 28;

/// A character, and how it changes the text: 0 replaces a character of it, above 0 inserts, -n
/// replaces one and leaves out n that follow.
struct Changed {
  char32_t value = 0;
  int change = 0;
  int order = 0;  // canonical combining class
};

bool decomposes(char32_t c) {
  return (package_properties(static_cast<int32_t>(c)) & PackageProperty::decomposes) != 0;
}

void append_parts(std::u32string& to, char32_t c, bool compatible) {
  const auto value = static_cast<int32_t>(c);
  if (compatible && (package_classes(value) & PackageClass::compatible) != 0) {
    utf8proc_int32_t parts[32];
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        value, parts, 32, static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT),
        &boundary);
    for (utf8proc_ssize_t i = 0; i < std::min<utf8proc_ssize_t>(count, 32); ++i) {
      to += static_cast<char32_t>(parts[i]);
    }
  } else if (decomposes(c)) {
    append_decomposed(to, c);
  } else {
    to += c;
  }
}

/// Composes two characters, except of Hangul.
class Pairs {
 public:
  Pairs() {
    std::unordered_map<std::u32string, char32_t> whole;  // by the full decomposition
    std::vector<std::u32string> all;
    std::vector<char32_t> composites;
    for (char32_t c = 0; c < invalid; ++c) {
      if (!decomposes(c) || (c >= first_syllable && c < first_syllable + 11172)) continue;
      if ((package_classes(static_cast<int32_t>(c)) & PackageClass::excluded) != 0) continue;
      std::u32string parts;
      append_decomposed(parts, c);
      whole.emplace(parts, c);
      all.push_back(parts);
      composites.push_back(c);
    }
    for (size_t i = 0; i < all.size(); ++i) {
      const char32_t last = all[i].back();
      all[i].pop_back();
      const auto first = whole.find(all[i]);
      const char32_t begin = all[i].size() == 1     ? all[i][0]
                             : first == whole.end() ? 0
                                                    : first->second;
      if (begin != 0) pairs_.emplace(key(begin, last), composites[i]);
    }
  }
  /// Returns the composite, or 0.
  char32_t operator()(char32_t a, char32_t b) const {
    if (a >= first_initial && a < first_initial + initials && b >= first_vowel &&
        b < first_vowel + vowels) {
      return first_syllable + ((a - first_initial) * vowels + (b - first_vowel)) * finals;
    }
    if (a >= first_syllable && a < first_syllable + 11172 && (a - first_syllable) % finals == 0 &&
        b > first_final && b < first_final + finals) {
      return a + (b - first_final);
    }
    const auto at = pairs_.find(key(a, b));
    return at == pairs_.end() ? 0 : at->second;
  }

 private:
  static uint64_t key(char32_t a, char32_t b) { return uint64_t{a} << 32 | b; }
  std::unordered_map<uint64_t, char32_t> pairs_;
};

/// Returns the decomposition, marks sorted by their classes.
std::vector<Changed> decomposition(const std::string& text, bool compatible) {
  std::vector<Changed> out;
  out.reserve(text.size());
  std::u32string parts;
  size_t marks = 0;  // from here on marks wait to be sorted
  const auto settle = [&] {
    std::stable_sort(out.begin() + static_cast<std::ptrdiff_t>(marks), out.end(),
                     [](const Changed& a, const Changed& b) { return a.order < b.order; });
    marks = out.size();
  };
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point(text, at);
    parts.clear();
    if (c.value < 0) {
      parts += invalid + static_cast<uint8_t>(text[at]);
    } else {
      append_parts(parts, static_cast<char32_t>(c.value), compatible);
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      const int order =
          parts[i] < 0x300 || parts[i] >= invalid ? 0 : package_combining_class(parts[i]);
      if (order == 0) settle();
      out.push_back({parts[i], i == 0 ? 0 : 1, order});
      if (order == 0) marks = out.size();
    }
    at += static_cast<size_t>(c.length);
  }
  settle();
  return out;
}

/// Joins characters to composites.
void compose(std::vector<Changed>& all) {
  static const Pairs pairs;
  std::vector<Changed> out;
  out.reserve(all.size());
  constexpr size_t none = SIZE_MAX;
  size_t base = none;  // the starter in `out` to which characters are joined
  int last = -1;       // class of the last character behind it that was not joined; -1: none
  for (const Changed& c : all) {
    if (base == none) {
      if (c.order == 0) base = out.size();
      out.push_back(c);
      continue;
    }
    const bool blocked = last >= 0 && last >= c.order;
    const char32_t joint = blocked ? 0 : pairs(out[base].value, c.value);
    if (joint != 0) {
      out[base].value = joint;
      out[base].change += c.change - 1;
      continue;
    }
    if (c.order == 0) {
      base = out.size();
      last = -1;
    } else {
      last = c.order;
    }
    out.push_back(c);
  }
  all.swap(out);
}

/// Whether a text is surely in a normal form already: no character changes alone, and none is a
/// mark or a part of a syllable, which characters around it could join or overtake.
bool is_plain(NormalForm form, std::string_view text) {
  const bool compatible = form == NormalForm::nfkd || form == NormalForm::nfkc;
  const bool composes = form == NormalForm::nfc || form == NormalForm::nfkc;
  for (size_t at = 0; at < text.size();) {
    if (static_cast<uint8_t>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const CodePoint c = code_point(text, at);
    at += static_cast<size_t>(c.length);
    const uint16_t classes = package_classes(c.value);
    if ((classes & PackageClass::mark) != 0 || (c.value >= 0x1100 && c.value < 0x1200))
      return false;
    if (compatible && (classes & PackageClass::compatible) != 0) return false;
    if (composes && (classes & PackageClass::excluded) != 0) return false;
    const uint8_t properties = package_properties(c.value);
    constexpr uint8_t ordered = PackageProperty::accent | PackageProperty::ordered;
    if ((properties & ordered) != 0) return false;
    if (!composes && (properties & PackageProperty::decomposes) != 0) return false;
  }
  return true;
}

}  // namespace

void normalize(NormalForm form, const AlignedText& text, AlignedText& to) {
  TextChange change(text, to);
  if (is_plain(form, text.bytes)) return change.keep(text.bytes.size());
  const bool compatible = form == NormalForm::nfkd || form == NormalForm::nfkc;
  std::vector<Changed> all = decomposition(text.bytes, compatible);
  if (form == NormalForm::nfc || form == NormalForm::nfkc) compose(all);
  std::string spelled;
  for (const Changed& c : all) {
    spelled.clear();
    if (c.value >= invalid) {
      spelled += static_cast<char>(c.value - invalid);
    } else {
      append_utf8(spelled, static_cast<int32_t>(c.value));
    }
    if (c.change > 0) {
      change.insert(spelled);
      continue;
    }
    change.replace(spelled);
    for (int i = c.change; i < 0; ++i) change.skip();
  }
}

}  // namespace longspan
