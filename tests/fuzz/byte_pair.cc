// Reads any bytes as vocab.json and merges.txt of byte pairs, with any text. Then repeats this with
// all bytes in the vocabulary: decoding must return the text.

#include "data/io/json.h"
#include "data/unicode/unicode.h"
#include "tests/fuzz/tokens.h"

using namespace longspan;

namespace {

/// Returns all bytes in GPT-2's encoding.
std::vector<std::string> byte_tokens() {
  std::vector<std::string> all;
  for (int32_t byte = 0, next = 256; byte < 256; ++byte) {
    const bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    all.emplace_back();
    append_utf8(all.back(), visible ? byte : next++);
  }
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static MemoryFile vocab("vocab"), merges("merges");
  static const std::vector<std::string> bytes = byte_tokens();
  prepare();
  const auto parts = parts_of(text_of(data, size), 3);
  const std::string_view text = parts[2];
  std::unique_ptr<Tokenizer> tokenizer;
  vocab.set(parts[0]);
  merges.set(parts[1]);
  if (!refuses([&] { tokenizer = open_byte_pairs(vocab.path, merges.path); })) {
    check_tokenizer(*tokenizer, text);
  }

  // Adds the tokens that the merges produce.
  Members members;
  for (const std::string& token : bytes) members.push_back({token, members.size()});
  std::vector<std::string> seen;
  for (std::string_view rest = parts[1]; !rest.empty() && seen.size() < 500;) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string line(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const size_t space = line.find(' ');
    if (space == std::string::npos) continue;
    line.erase(space, 1);
    if (std::find(seen.begin(), seen.end(), line) != seen.end()) continue;
    if (std::find(bytes.begin(), bytes.end(), line) != bytes.end()) continue;
    seen.push_back(line);
    members.push_back({line, members.size()});
  }
  std::string json;
  if (refuses([&] { json = to_string(Json(members)); })) return 0;  // not UTF-8
  vocab.set(json);
  for (const bool prefix : {false, true}) {
    const BytePairOptions options{.prefix_space = prefix};
    if (refuses([&] { tokenizer = open_byte_pairs(vocab.path, merges.path, options); })) continue;
    check_tokenizer(*tokenizer, text);
    const bool spaced = prefix && !text.empty() && text[0] != ' ';
    check(tokenizer->decode(tokenizer->encode(text)) == (spaced ? " " : "") + std::string(text));
  }
  return 0;
}
