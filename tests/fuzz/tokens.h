#pragma once

#include <memory>

#include "data/tokenizers/tokenizer.h"
#include "tests/fuzz/input.h"

namespace longspan {

/// Encodes and decodes a text. Pieces must be within the text and in order, and ids within the
/// vocabulary.
inline void check_tokenizer(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<Piece> pieces = tokenizer.pieces(text);
  std::vector<int32_t> ids;
  int64_t last = 0;
  for (const Piece& piece : pieces) {
    check(piece.id >= 0 && piece.id < tokenizer.vocabulary());
    check(piece.begin >= last && piece.end >= piece.begin);
    check(piece.end <= static_cast<int64_t>(text.size()));
    last = piece.begin;
    ids.push_back(piece.id);
  }
  tokenizer.decode(ids);
  for (int32_t id = 0; id < std::min<int64_t>(tokenizer.vocabulary(), 300); ++id) {
    tokenizer.word_role(id);
    tokenizer.find(tokenizer.token(id));
  }
  check(refuses([&] { tokenizer.token(static_cast<int32_t>(tokenizer.vocabulary())); }));
  check(refuses([&] { tokenizer.token(-1); }));
}

}  // namespace longspan
