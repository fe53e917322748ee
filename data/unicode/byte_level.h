#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace longspan {

/// Returns the character by which byte-level BPE writes each byte: visible Latin-1 characters by
/// themselves, the others by U+0100 and up, in order; a space is U+0120.
std::array<int32_t, 256> byte_level_characters();

/// Returns the end of the pre-token of a text that begins at byte `begin` < text.size(), by the
/// regular expression of GPT-2,
///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
size_t byte_level_end(std::string_view text, size_t begin);

}  // namespace longspan
