// hub_ids FOLDER LINES.json [special] [text] [file] [skip] [NAME=VALUE...]: prints what the
// tokenizer of a hub folder makes of each text of an array, or of each pair of texts, one JSON
// object a line. `special`: with the tokens of the template; `text`: names of special tokens are
// text; `file`: truncated and padded as tokenizer.json says; `skip`: decoded without special
// tokens. For tests/long/hub_tokenizers.py.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <set>
#include <string>

#include "core/error.h"
#include "data/io/files.h"
#include "data/io/json.h"
#include "data/tokenizers/hub_tokenizer.h"

using namespace longspan;

namespace {

template <class T>
Json array_of(const std::vector<T>& values) {
  Json::Array all;
  for (const T& value : values) all.emplace_back(static_cast<int64_t>(value));
  return all;
}

/// Prints MB/s of encode(), and of encode_text().
void print_speed(const HubTokenizer& tokenizer, const Json::Array& lines) {
  double best = 1e9, best_row = 1e9;
  size_t bytes = 0, tokens = 0;
  for (int pass = 0; pass < 5; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    bytes = tokens = 0;
    for (const Json& line : lines) {
      tokens += tokenizer.encode(line.string()).size();
      bytes += line.string().size();
    }
    const auto middle = std::chrono::steady_clock::now();
    for (const Json& line : lines) tokens += tokenizer.encode_text(line.string()).ids.size();
    const auto end = std::chrono::steady_clock::now();
    best = std::min(best, std::chrono::duration<double>(middle - begin).count());
    best_row = std::min(best_row, std::chrono::duration<double>(end - middle).count());
  }
  const auto size = static_cast<double>(bytes) * 1e-6;
  std::printf("%.1f MB/s as ids, %.1f as rows; %zu tokens\n", size / best, size / best_row, tokens);
}

int print(int argc, char** argv) {
  const std::set<std::string> flags(argv + 3, argv + argc);
  const auto has = [&](const char* name) { return flags.count(name) != 0; };
  HubOptions how{.special_in_text = !has("text")};
  for (const std::string& flag : flags) {
    const size_t equals = flag.find('=');
    if (equals != std::string::npos) how.settings[flag.substr(0, equals)] = flag.substr(equals + 1);
  }
  if (argv[2] == std::string("write-own")) {
    write_hub_tokenizer(*open_tokenizer(argv[1]), argv[3]);
    return 0;
  }
  const auto tokenizer = open_hub_tokenizer(argv[1], how);
  if (argv[2] == std::string("write")) {
    write_hub_tokenizer(*tokenizer, argv[3]);
    return 0;
  }
  HubEncodeOptions options;
  if (has("file")) options = tokenizer->file_options();
  options.special = has("special");
  const Json lines = parse_json(read_file(argv[2], "hub_ids", 1 << 30));
  if (has("speed")) {
    print_speed(*tokenizer, lines.array());
    return 0;
  }
  for (const Json& line : lines.array()) {
    const bool pair = line.is_array();
    const HubEncoding row =
        pair ? tokenizer->encode_pair(line.array()[0].string(), line.array()[1].string(), options)
             : tokenizer->encode_text(line.string(), options);
    Json::Array spans;
    for (const TextSpan& span : row.spans)
      spans.push_back(Json::Array{Json(span.begin), Json(span.end)});
    const bool same =
        pair || options.special || has("file") || tokenizer->encode(line.string()) == row.ids;
    require(same, "hub_ids", "encode() and encode_text() differ");
    const Members out = {{"ids", array_of(row.ids)},
                         {"types", array_of(row.types)},
                         {"words", array_of(row.words)},
                         {"spans", spans},
                         {"text", tokenizer->text(row.ids, has("skip"))}};
    std::puts(to_string(out).c_str());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  try {
    return print(argc, argv);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
