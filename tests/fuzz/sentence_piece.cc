// Any bytes as a model of SentencePiece, and any text for it.

#include "tests/fuzz/tokens.h"

using namespace longspan;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static MemoryFile file("sentence_piece");
  prepare();
  // The text comes first: a model has bytes of 0.
  const auto parts = parts_of(text_of(data, size), 2);
  file.set(parts[1]);
  std::unique_ptr<Tokenizer> tokenizer;
  if (refuses([&] { tokenizer = open_sentence_pieces(file.path); })) return 0;
  check_tokenizer(*tokenizer, parts[0].substr(0, 2000));
  return 0;
}
