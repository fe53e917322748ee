#pragma once

#include <string>
#include <string_view>

namespace longspan {

/// Checks what the SentencePiece library takes on trust in a model file: that pieces have no byte
/// of 0 and finite scores, and that the rules by which characters are replaced lead nowhere outside
/// themselves, where it would read. The rest it checks by itself. Throws IoError that names `path`.
void require_sound_sentence_pieces(std::string_view model, const std::string& path);

}  // namespace longspan
