#include "data/token_file.h"

#include <xxhash.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "data/io/bytes.h"
#include "data/io/files.h"

namespace longspan {
namespace {

struct Header {
  char magic[8];
  uint64_t tokenizer, text;
  int64_t count, width, vocabulary;
  uint64_t checksum;  // of the fields before it and the ids
};
constexpr char magic[] = {'L', 'S', 'T', 'O', 'K', 'E', 'N', '3'};
constexpr size_t family = sizeof magic - 1;  // the last character is the version, of ids too

int width_of(int64_t vocabulary) { return vocabulary <= 256 ? 1 : vocabulary <= 65'536 ? 2 : 4; }

uint64_t hash(std::span<const uint8_t> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

uint64_t checksum(const Header& header, std::span<const uint8_t> ids) {
  const uint64_t seed = XXH3_64bits(&header, offsetof(Header, checksum));
  return XXH3_64bits_withSeed(ids.data(), ids.size(), seed);
}

}  // namespace

void write_tokens(const std::string& path, const CorpusPart& part, const TokenSource& source) {
  Header header{{}, source.tokenizer, source.text, part.size(), part.width, part.vocabulary, 0};
  std::memcpy(header.magic, magic, sizeof magic);
  header.checksum = checksum(header, part.bytes);
  std::string text(reinterpret_cast<const char*>(&header), sizeof header);
  text.append(reinterpret_cast<const char*>(part.bytes.data()), part.bytes.size());
  replace_file(path, text, "tokens");
}

std::optional<CorpusPart> read_tokens(const std::string& path, const TokenSource& source) {
  if (kind_of_path(path, "tokens") == PathKind::nothing) return std::nullopt;
  const FileBytes file = open_bytes(path, "tokens");
  Header header;
  const bool known =
      file.bytes.size() >= sizeof header && std::memcmp(file.bytes.data(), magic, family) == 0;
  require<IoError>(known, "tokens", "{} is not a file of tokens: remove it", path);
  std::memcpy(&header, file.bytes.data(), sizeof header);
  if (std::memcmp(header.magic, magic, sizeof magic) != 0) return std::nullopt;
  if (header.tokenizer != source.tokenizer || header.text != source.text) return std::nullopt;
  const std::span<const uint8_t> ids = file.bytes.subspan(sizeof header);
  const bool whole = header.width == width_of(header.vocabulary) && header.count >= 0 &&
                     header.count == static_cast<int64_t>(ids.size()) / header.width &&
                     ids.size() % static_cast<size_t>(header.width) == 0;
  require<IoError>(whole && checksum(header, ids) == header.checksum, "tokens",
                   "{} is damaged or cut off: remove it, and it is made again", path);
  CorpusPart part;
  part.owner = file.owner;
  part.bytes = ids;
  part.path = path;
  part.width = static_cast<int>(header.width);
  part.vocabulary = header.vocabulary;
  return part;
}

CorpusPart tokenize(const CorpusPart& text, const Tokenizer& tokenizer, const std::string& cache) {
  const TokenSource source{tokenizer.hash(), hash(text.bytes)};
  CorpusPart part;
  std::optional<CorpusPart> kept;
  if (!cache.empty()) kept = read_tokens(cache, source);
  if (kept) {
    part = *kept;
  } else {
    const std::string_view whole(reinterpret_cast<const char*>(text.bytes.data()),
                                 text.bytes.size());
    part.vocabulary = tokenizer.vocabulary();
    part.width = width_of(part.vocabulary);
    std::vector<uint8_t> ids;
    // Encodes some lines at a time: no tokenizer merges the end of a line with the text after it.
    for (size_t begin = 0; begin < whole.size();) {
      constexpr size_t piece = 1 << 20;
      size_t end = whole.find('\n', std::min(whole.size(), begin + piece));
      end = end == std::string_view::npos ? whole.size() : end + 1;
      while (end < whole.size() && whole[end] == '\n') ++end;
      for (const int32_t id : tokenizer.encode(whole.substr(begin, end - begin))) {
        const auto* bytes = reinterpret_cast<const uint8_t*>(&id);
        ids.insert(ids.end(), bytes, bytes + part.width);
      }
      begin = end;
    }
    const FileBytes own = own_bytes(ids);
    part.owner = own.owner;
    part.bytes = own.bytes;
    if (!cache.empty() && !ids.empty()) {
      try {
        write_tokens(cache, part, source);
      } catch (const IoError&) {  // the folder is not writable
      }
    }
  }
  part.split = text.split;
  part.path = text.path;
  part.symbols = text.size();
  return part;
}

}  // namespace longspan
