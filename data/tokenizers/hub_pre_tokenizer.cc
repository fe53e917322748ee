#include "data/tokenizers/hub_pre_tokenizer.h"

#include <array>
#include <utility>

#include "data/unicode/byte_level.h"
#include "data/unicode/package_classes.h"
#include "data/unicode/package_unicode.h"
#include "data/unicode/unicode.h"

namespace longspan {
namespace {

using Words = HubPreTokenizer::Words;

/// What becomes of characters that delimit words, as of the package.
enum class Delimiter : uint8_t { removed, isolated, contiguous, with_previous, with_next };

/// What becomes of a character of a word.
enum class Kind : uint8_t { plain, alone, removed };

uint32_t u32(size_t n) { return static_cast<uint32_t>(n); }

/// Splits each word: characters of kind `removed` vanish, those that are `alone` are words, the
/// others form words.
template <class KindOf>
void split_by_kind(Words& w, KindOf&& kind_of) {
  w.spare_words.clear();
  const std::string_view text = w.text.bytes;
  for (const HubWord& word : w.words) {
    uint32_t begin = word.begin;
    for (uint32_t at = word.begin; at < word.end;) {
      const auto byte = static_cast<uint8_t>(text[at]);
      const CodePoint c = byte < 0x80 ? CodePoint{byte, 1} : code_point(text, at);
      const uint32_t next = at + static_cast<uint32_t>(c.length);
      const Kind kind = kind_of(c.value);
      if (kind != Kind::plain) {
        if (at > begin) w.spare_words.push_back({begin, at});
        if (kind == Kind::alone) w.spare_words.push_back({at, next});
        begin = next;
      }
      at = next;
    }
    if (word.end > begin) w.spare_words.push_back({begin, word.end});
  }
  w.words.swap(w.spare_words);
}

/// Splits each word at delimiters, which are single characters.
template <class IsDelimiter>
void split_at(Words& w, Delimiter behaviour, IsDelimiter&& is_delimiter) {
  w.spare_words.clear();
  struct Part {
    HubWord word;
    bool match;
  };
  std::vector<Part> parts;
  const std::string_view text = w.text.bytes;
  for (const HubWord& word : w.words) {
    parts.clear();
    for (uint32_t at = word.begin; at < word.end;) {
      const CodePoint c = code_point(text, at);
      const uint32_t next = at + static_cast<uint32_t>(c.length);
      const bool match = is_delimiter(c.value);
      const bool joins = !parts.empty() && parts.back().match == match &&
                         (!match || behaviour == Delimiter::contiguous);
      if (joins) {
        parts.back().word.end = next;
      } else {
        parts.push_back({{at, next}, match});
      }
      at = next;
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      const bool after_plain = i > 0 && !parts[i - 1].match;
      const bool before_plain = i + 1 < parts.size() && !parts[i + 1].match;
      if (behaviour == Delimiter::removed && parts[i].match) continue;
      if (behaviour == Delimiter::with_previous && parts[i].match && after_plain) {
        w.spare_words.back().end = parts[i].word.end;
      } else if (behaviour == Delimiter::with_next && parts[i].match && before_plain) {
        parts[i + 1].word.begin = parts[i].word.begin;
      } else {
        w.spare_words.push_back(parts[i].word);
      }
    }
  }
  w.words.swap(w.spare_words);
}

void split_words(Words& w) {
  w.spare_words.clear();
  const std::string_view text = w.text.bytes;
  enum Class { space, word_character, other };
  for (const HubWord& word : w.words) {
    Class last = space;
    for (uint32_t at = word.begin; at < word.end;) {
      const CodePoint c = code_point(text, at);
      const uint32_t next = at + static_cast<uint32_t>(c.length);
      const Class now = (package_classes(c.value) & PackageClass::word) != 0 ? word_character
                        : is_white_space(c.value)                            ? space
                                                                             : other;
      if (now != space && now == last) {
        w.spare_words.back().end = next;
      } else if (now != space) {
        w.spare_words.push_back({at, next});
      }
      last = now;
      at = next;
    }
  }
  w.words.swap(w.spare_words);
}

/// Writes each word again: `prefix` before it if add(word) holds, and every space as `space`.
template <class Adds>
void rewrite(Words& w, std::string_view prefix, std::string_view space, Adds&& adds) {
  const AlignedText& old = w.text;
  AlignedText& to = w.spare;
  to.begin_from(old);
  const auto add = [&](std::string_view text, SourceBytes source) {
    to.bytes += text;
    if (to.tracked) to.from.insert(to.from.end(), text.size(), source);
  };
  for (HubWord& word : w.words) {
    const uint32_t begin = u32(to.bytes.size());
    if (adds(word)) add(prefix, old.tracked ? old.from[word.begin] : SourceBytes{});
    for (uint32_t at = word.begin; at < word.end; ++at) {
      if (old.bytes[at] == ' ') {
        add(space, old.tracked ? old.from[at] : SourceBytes{});
        continue;
      }
      to.bytes += old.bytes[at];
      if (to.tracked) to.from.push_back(old.from[at]);
    }
    to.check_size();
    word = {begin, u32(to.bytes.size())};
  }
  std::swap(w.text, w.spare);
}

bool begins_with(const Words& w, const HubWord& word, std::string_view start) {
  const std::string_view text =
      std::string_view(w.text.bytes).substr(word.begin, word.end - word.begin);
  return text.substr(0, start.size()) == start;
}

void split_byte_level(Words& w) {
  w.spare_words.clear();
  for (const HubWord& word : w.words) {
    const std::string_view text =
        std::string_view(w.text.bytes).substr(word.begin, word.end - word.begin);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = byte_level_end(text, begin);
      w.spare_words.push_back({word.begin + u32(begin), word.begin + u32(end)});
      begin = end;
    }
  }
  w.words.swap(w.spare_words);
}

/// Writes bytes as the characters of byte-level BPE.
void spell_bytes(Words& w) {
  static const std::array<int32_t, 256> characters = byte_level_characters();
  AlignedText& to = w.spare;
  to.begin_from(w.text);
  for (HubWord& word : w.words) {
    const uint32_t begin = u32(to.bytes.size());
    for (uint32_t at = word.begin; at < word.end; ++at) {
      const size_t before = to.bytes.size();
      append_utf8(to.bytes, characters[static_cast<uint8_t>(w.text.bytes[at])]);
      if (to.tracked) to.from.insert(to.from.end(), to.bytes.size() - before, w.text.from[at]);
    }
    to.check_size();
    word = {begin, u32(to.bytes.size())};
  }
  std::swap(w.text, w.spare);
}

void split_metaspace(Words& w, std::string_view mark) {
  w.spare_words.clear();
  for (const HubWord& word : w.words) {
    uint32_t begin = word.begin;
    const std::string_view text = std::string_view(w.text.bytes).substr(0, word.end);
    for (size_t at = text.find(mark, begin + 1); at < text.size();
         at = text.find(mark, begin + 1)) {
      w.spare_words.push_back({begin, u32(at)});
      begin = u32(at);
    }
    w.spare_words.push_back({begin, word.end});
  }
  w.words.swap(w.spare_words);
}

bool is_punctuation_mark(int32_t c) {
  return (package_properties(c) & PackageProperty::punctuation) != 0;
}

Kind bert_kind(int32_t c) {
  if (c == ' ' || (c > 0x20 && is_white_space(c)) || (c >= 9 && c <= 13)) return Kind::removed;
  return is_punctuation_mark(c) ? Kind::alone : Kind::plain;
}

Delimiter behaviour_of(HubPart& part) {
  const std::string name = part.text("behavior", "Isolated");
  if (name == "Removed") return Delimiter::removed;
  if (name == "Contiguous") return Delimiter::contiguous;
  if (name == "MergedWithPrevious") return Delimiter::with_previous;
  if (name == "MergedWithNext") return Delimiter::with_next;
  if (name != "Isolated") {
    part.refuse("behavior",
                "expected Isolated, Removed, Contiguous, MergedWithPrevious or MergedWithNext");
  }
  return Delimiter::isolated;
}

}  // namespace

HubPreTokenizer::HubPreTokenizer(const Json& json, HubIssues& issues) {
  read(json, "pre_tokenizer", issues, 0);
}

void HubPreTokenizer::read_byte_level(HubPart& part) {
  const bool prefix = part.flag("add_prefix_space", true);
  const bool splits = part.flag("use_regex", true);
  part.flag("trim_offsets", true);
  steps_.push_back([=](Words& w) {
    bool changes = false;
    for (const HubWord& word : w.words) changes = changes || (prefix && !begins_with(w, word, " "));
    if (changes) {
      rewrite(w, " ", " ", [&](const HubWord& word) { return !begins_with(w, word, " "); });
    }
    if (splits) split_byte_level(w);
  });
  bytes_last_ = true;
}

void HubPreTokenizer::read_metaspace(HubPart& part) {
  const std::string mark = part.text("replacement", "\u2581");
  if (mark.empty() || code_point(mark, 0).length != static_cast<int32_t>(mark.size())) {
    part.refuse("replacement", "expected one character");
  }
  const bool old_prefix = part.flag("add_prefix_space", true);  // of files before prepend_scheme
  const std::string scheme = part.text("prepend_scheme", old_prefix ? "always" : "never");
  const bool splits = part.flag("split", true);
  part.text("str_rep", "");
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    part.refuse("prepend_scheme", "expected always, first or never");
  }
  needs_source_ = needs_source_ || scheme == "first";
  const bool never = scheme == "never", first = scheme == "first";
  steps_.push_back([=](Words& w) {
    rewrite(w, mark, mark, [&](const HubWord& word) {
      if (never || begins_with(w, word, mark) || begins_with(w, word, " ")) return false;
      return !first || w.text.from[word.begin].begin == 0;
    });
    if (splits) split_metaspace(w, mark);
  });
}

void HubPreTokenizer::read(const Json& json, const std::string& path, HubIssues& issues,
                           int depth) {
  if (json.is_null()) return;
  HubPart part(json, path, issues);
  if (depth > detail::deepest_component) return issues.add("{} is nested too deeply", path);
  const std::string type = part.type();
  if (type == "Sequence") {
    const std::vector<Json> inner = part.list("pretokenizers");
    for (size_t i = 0; i < inner.size(); ++i) {
      read(inner[i], fmt::format("{}.pretokenizers[{}]", path, i), issues, depth + 1);
    }
    return part.finish();
  }
  if (bytes_last_) steps_.push_back(spell_bytes);
  bytes_last_ = false;
  if (type == "BertPreTokenizer") {
    steps_.push_back([](Words& w) { split_by_kind(w, bert_kind); });
  } else if (type == "ByteLevel") {
    read_byte_level(part);
  } else if (type == "Metaspace") {
    read_metaspace(part);
  } else if (type == "WhitespaceSplit") {
    steps_.push_back([](Words& w) {
      split_by_kind(w, [](int32_t c) { return is_white_space(c) ? Kind::removed : Kind::plain; });
    });
  } else if (type == "Whitespace") {
    steps_.push_back(split_words);
  } else if (type == "Punctuation") {
    steps_.push_back([b = behaviour_of(part)](Words& w) { split_at(w, b, is_punctuation_mark); });
  } else if (type == "Digits") {
    const bool single = part.flag("individual_digits", false);
    steps_.push_back([b = single ? Delimiter::isolated : Delimiter::contiguous](Words& w) {
      split_at(w, b, [](int32_t c) { return (package_classes(c) & PackageClass::numeral) != 0; });
    });
  } else if (type == "Split") {
    const Json* pattern = part.find("pattern");
    issues.add(
        "{} is a Split by the pattern {}; expected BertPreTokenizer, ByteLevel, Metaspace, "
        "WhitespaceSplit, Whitespace, Punctuation, Digits or Sequence",
        path, pattern == nullptr ? "null" : to_string(*pattern));
    return;
  } else {
    issues.add(
        "{} has the type \"{}\"; expected BertPreTokenizer, ByteLevel, Metaspace, "
        "WhitespaceSplit, Whitespace, Punctuation, Digits or Sequence",
        path, type);
    return;
  }
  part.finish();
}

void HubPreTokenizer::apply(Words& w) const {
  w.words.clear();
  if (!w.text.bytes.empty()) w.words.push_back({0, u32(w.text.bytes.size())});
  for (const Step& step : steps_) step(w);
}

}  // namespace longspan
