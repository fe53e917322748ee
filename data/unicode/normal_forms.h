#pragma once

#include <cstdint>

#include "data/unicode/aligned_text.h"

namespace longspan {

/// The normal forms of Unicode.
enum class NormalForm : uint8_t { nfd, nfc, nfkd, nfkc };

/// Writes a text in a normal form to `to`, by the release of Unicode that the package tokenizers
/// knows. Invalid bytes stay as they are.
void normalize(NormalForm form, const AlignedText& text, AlignedText& to);

}  // namespace longspan
