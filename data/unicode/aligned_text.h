#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

/// Bytes of a source text that a byte of a changed text stands for.
struct SourceBytes {
  uint32_t begin = 0, end = 0;
  friend bool operator==(const SourceBytes&, const SourceBytes&) = default;
};

/// A text that is changed step by step and, if tracked, the bytes of its source that each of its
/// bytes stands for. All bytes of a character have the same source.
class AlignedText {
 public:
  std::string bytes;
  std::vector<SourceBytes> from;  ///< for each byte; empty unless tracked
  bool tracked = false;
  uint32_t origin = 0;  ///< where the text began in its source
  size_t limit =
      SIZE_MAX;  ///< bytes that it may grow to: a file could make it grow without a bound

  /// Starts again with a part of a source text that begins at byte `begin` of it.
  void assign(std::string_view text, size_t begin, bool track);
  /// Source of bytes [begin, end), which are not empty if tracked.
  SourceBytes source(size_t begin, size_t end) const {
    if (!tracked) return {};
    if (begin >= end)
      return {from.empty() ? origin : from.back().end, from.empty() ? origin : from.back().end};
    return {from[begin].begin, from[end - 1].end};
  }
  /// Throws ValueError if it has more bytes than `limit`.
  void check_size() const {
    if (bytes.size() > limit) fail_size();
  }
  /// Becomes empty, and otherwise as the text that it is made of.
  void begin_from(const AlignedText& old) {
    clear();
    tracked = old.tracked;
    origin = old.origin;
    limit = old.limit;
  }
  void clear() {
    bytes.clear();
    from.clear();
  }

 private:
  [[noreturn]] void fail_size() const;
};

/// Writes a changed text character by character, as the package tokenizers does: a character that
/// replaces an old one takes its source, an inserted character takes the source of the character
/// before it, and a removed character leaves nothing.
class TextChange {
 public:
  /// Reads `old` and appends to `to`, which is cleared.
  TextChange(const AlignedText& old, AlignedText& to);

  /// The next character of the old text is replaced by these bytes of one character.
  void replace(std::string_view character) {
    add(character, to_.tracked && at_ < old_.from.size() ? old_.from[at_] : SourceBytes{});
    skip();
  }
  /// A character is inserted before the next one of the old text.
  void insert(std::string_view character) { add(character, before()); }
  /// The next character of the old text is left out.
  void skip();
  /// Takes bytes of the old text as they are, up to `end`.
  void keep(size_t end);
  /// The byte of the old text that is next.
  size_t at() const { return at_; }

 private:
  SourceBytes before() const {
    if (!to_.tracked) return {};
    return at_ > 0 && at_ <= old_.from.size() ? old_.from[at_ - 1]
                                              : SourceBytes{old_.origin, old_.origin};
  }
  void add(std::string_view character, SourceBytes source) {
    to_.bytes += character;
    to_.check_size();
    if (to_.tracked) to_.from.insert(to_.from.end(), character.size(), source);
  }

  const AlignedText& old_;
  AlignedText& to_;
  size_t at_ = 0;
};

}  // namespace longspan
