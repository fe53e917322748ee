// Any lines as a WordPiece vocabulary, with any text.

#include "tests/fuzz/tokens.h"

using namespace longspan;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static MemoryFile file("word_piece");
  prepare();
  const auto parts = parts_of(text_of(data, size), 2);
  for (const char* begin : {"", "[UNK]\n"}) {
    file.set(begin + std::string(parts[0]));
    for (const bool lower_case : {true, false}) {
      std::unique_ptr<Tokenizer> tokenizer;
      if (refuses([&] { tokenizer = open_word_pieces(file.path, {.lower_case = lower_case}); })) {
        continue;
      }
      check_tokenizer(*tokenizer, parts[1]);
    }
  }
  return 0;
}
