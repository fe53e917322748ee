// Any bytes as a SentencePiece model, with any text.

#include "tests/fuzz/tokens.h"

using namespace longspan;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static MemoryFile file("sentence_piece");
  prepare();
  // The text comes first, because a model may contain zero bytes.
  const auto parts = parts_of(text_of(data, size), 2);
  file.set(parts[1]);
  std::unique_ptr<Tokenizer> tokenizer;
  if (refuses([&] { tokenizer = open_sentence_pieces(file.path); })) return 0;
  check_tokenizer(*tokenizer, parts[0].substr(0, 2000));
  return 0;
}
