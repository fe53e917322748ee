// Any bytes as a file, compressed or not, are read or refused. Data compressed here decompress to
// the same bytes.

#include <zlib.h>

#include "data/io/bytes.h"
#include "tests/fuzz/input.h"

using namespace longspan;

namespace {

std::string packed(std::string_view text, int level) {
  z_stream stream{};
  check(deflateInit2(&stream, level, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  check(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static MemoryFile file("gzip");
  prepare();
  const std::string_view text = text_of(data, size);
  file.set(text);
  uint64_t sum = 0;
  refuses([&] {
    for (const uint8_t byte : open_bytes(file.path, "fuzz").bytes) sum += byte;
  });
  if (text.empty()) return 0;
  // Two gzip members with trailing zeros, as on a tape.
  const size_t middle = data[0] % text.size();
  file.set(packed(text.substr(0, middle), data[0] % 10) + packed(text.substr(middle), 1) +
           std::string(data[0] % 7, '\0'));
  check(open_bytes(file.path, "fuzz").text() == text);
  return 0;
}
