// Any bytes as a token file, and the same bytes with a valid checksum, as a forger would write
// them.

#include <xxhash.h>

#include <cstring>

#include "data/token_file.h"
#include "tests/fuzz/input.h"

using namespace longspan;

namespace {

void read(const std::string& path, const TokenSource& source) {
  std::optional<CorpusPart> part;
  if (refuses([&] { part = read_tokens(path, source); }) || !part) return;
  int64_t sum = 0;
  for (int64_t i = 0; i < part->size(); ++i) sum += (*part)[i];
  check(part->size() >= 0 && (sum != 1 || part->size() > 0));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static MemoryFile file("token_file");
  constexpr size_t header = 56, checked = 48;  // bytes of the header, and those before the checksum
  prepare();
  std::string bytes(text_of(data, size));
  file.set(bytes);
  read(file.path, {});
  if (bytes.size() < header) return 0;
  std::memcpy(bytes.data(), "LSTOKEN4", 8);
  TokenSource source;
  std::memcpy(&source.tokenizer, bytes.data() + 8, 8);
  std::memcpy(&source.text, bytes.data() + 16, 8);
  const uint64_t sum = XXH3_64bits_withSeed(bytes.data() + header, bytes.size() - header,
                                            XXH3_64bits(bytes.data(), checked));
  std::memcpy(bytes.data() + checked, &sum, 8);
  file.set(bytes);
  read(file.path, source);
  return 0;
}
