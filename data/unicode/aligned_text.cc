#include "data/unicode/aligned_text.h"

#include "core/error.h"
#include "data/unicode/unicode.h"

namespace longspan {

void AlignedText::assign(std::string_view text, size_t begin, bool track) {
  bytes.assign(text);
  tracked = track;
  origin = static_cast<uint32_t>(begin);
  limit = 1024 * text.size() + 65536;
  from.clear();
  if (!tracked) return;
  from.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const auto length = static_cast<size_t>(code_point(text, at).length);
    const auto first = static_cast<uint32_t>(begin + at);
    from.insert(from.end(), length, {first, static_cast<uint32_t>(first + length)});
    at += length;
  }
}

void AlignedText::fail_size() const {
  fail("tokenizer", "a text grows to {} bytes while it is normalized; expected at most {}",
       bytes.size(), limit);
}

TextChange::TextChange(const AlignedText& old, AlignedText& to) : old_(old), to_(to) {
  to_.begin_from(old);
  to_.bytes.reserve(old.bytes.size() + old.bytes.size() / 8);
}

void TextChange::skip() {
  if (at_ < old_.bytes.size()) at_ += static_cast<size_t>(code_point(old_.bytes, at_).length);
}

void TextChange::keep(size_t end) {
  to_.bytes.append(old_.bytes, at_, end - at_);
  if (to_.tracked) {
    to_.from.insert(to_.from.end(), old_.from.begin() + static_cast<std::ptrdiff_t>(at_),
                    old_.from.begin() + static_cast<std::ptrdiff_t>(end));
  }
  at_ = end;
}

}  // namespace longspan
