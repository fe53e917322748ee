#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace longspan {

/// The longest piece, in bytes. The library descends once for each byte of a piece, on the stack.
inline constexpr size_t longest_sentence_piece = 4096;

/// Checks the properties of a model file that the SentencePiece library does not verify: pieces
/// have no zero bytes, at most longest_sentence_piece of others, and finite scores, and the
/// character replacement rules never lead outside their own data, which the library would then
/// read. The library checks the rest. Throws IoError that names `path`.
void require_sound_sentence_pieces(std::string_view model, const std::string& path);

}  // namespace longspan
