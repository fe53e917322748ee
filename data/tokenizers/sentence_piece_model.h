#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/io/json.h"

namespace longspan {

/// The longest piece, in bytes. The library descends once for each byte of a piece, on the stack.
inline constexpr size_t longest_sentence_piece = 4096;

/// Checks the properties of a model file that the SentencePiece library does not verify: pieces
/// have no zero bytes, at most longest_sentence_piece of others, and finite scores, and the
/// character replacement rules never lead outside their own data, which the library would then
/// read. The library checks the rest. Throws IoError that names `path`.
void require_sound_sentence_pieces(std::string_view model, const std::string& path);

/// What a model file holds.
struct SentencePieceParts {
  /// A token. Kinds: 1 ordinary, 2 unknown, 3 control, 4 given by the user, 6 a byte.
  struct Piece {
    std::string text = {};
    float score = 0;
    uint64_t kind = 1;
  };
  std::vector<Piece> pieces = {};
  std::string rules = {};  ///< for characters (precompiled_charsmap)
  uint64_t model = 1;      ///< 1: unigram, 2: BPE
  int64_t unknown = 0;     ///< id of the unknown token
  bool bytes = false;      ///< byte_fallback
  bool prefix = true;      ///< add_dummy_prefix
  bool single = true;      ///< remove_extra_whitespaces
  bool escapes = true;     ///< escape_whitespaces
};

/// Reads a model file for which require_sound_sentence_pieces() holds. Throws IoError if it is cut
/// off or a piece is no UTF-8.
SentencePieceParts read_sentence_piece_parts(std::string_view model, const std::string& path);

/// Returns the merges of a BPE model, as in a tokenizer.json: all pairs of pieces that are a piece
/// together, in the order of its ids.
Json sentence_piece_merges(const SentencePieceParts& parts);

}  // namespace longspan
