#pragma once

#include <string>
#include <string_view>

namespace longspan {

/// Checks the properties of a model file that the SentencePiece library does not verify: pieces
/// have no zero bytes and finite scores, and the character replacement rules never lead outside
/// their own data, which the library would then read. The library checks the rest. Throws IoError
/// that names `path`.
void require_sound_sentence_pieces(std::string_view model, const std::string& path);

}  // namespace longspan
