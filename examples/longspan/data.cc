#include "train/data.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdio>

#include "core/error.h"
#include "examples/longspan/commands.h"

namespace longspan {
namespace {

/// Bits per byte of the best guess that knows nothing but how often each byte follows each byte.
double bigram_bits(std::span<const uint8_t> bytes) {
  std::vector<int64_t> pairs(256 * 256), firsts(256);
  for (size_t i = 1; i < bytes.size(); ++i) {
    ++pairs[bytes[i - 1] * size_t{256} + bytes[i]];
    ++firsts[bytes[i - 1]];
  }
  double bits = 0;
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (pairs[i] == 0) continue;
    const auto n = static_cast<double>(pairs[i]);
    bits -= n * std::log2(n / static_cast<double>(firsts[i / 256]));
  }
  return bytes.size() > 1 ? bits / static_cast<double>(bytes.size() - 1) : 0;
}

struct Options {
  std::string data, split = "90/5/5";
  void visit(auto& v) { v("data", data)("split", split); }
};

void print(const std::string& text) { std::puts(text.c_str()); }

}  // namespace

int data_command(int argc, const char* const* argv) {
  const Flag own[] = {{"--data", "data", "bytes=FILE: the text, plain or packed with gzip"},
                      {"--split", "split", "parts in per cent: 90/5/5"}};
  CommandLine line = parse_command_line(
      argc, argv, own,
      "longspan data list | check ID | stats ID: what can be trained on. For bytes, any file: "
      "--data bytes=FILE.");
  if (!line.help.empty()) print_help(line.help);
  const std::vector<std::string> commands = {"list", "check", "stats"};
  const std::string command = line.others.empty() ? "list" : line.others[0];
  if (command != "list" && command != "check" && command != "stats") {
    const std::string near = nearest(command, commands);
    fail("data", "there is no data {}; {}expected list, check or stats", command,
         near.empty() ? "" : fmt::format("did you mean {}? ", near));
  }
  if (command == "list") {
    print("bytes  any file as a sequence of bytes: --data bytes=FILE (plain or gzip), --split");
    return 0;
  }
  const std::string id = line.others.size() > 1 ? line.others[1] : "bytes";
  require(id == "bytes", "data", "there is no data set \"{}\"; expected bytes", id);
  require(line.others.size() <= 2, "data", "\"{}\" belongs to nothing",
          line.others.size() > 2 ? line.others[2] : "");

  Options o;
  set_fields(o, line.settings);
  RunConfig config;
  config.data = o.data;
  const ByteCorpus corpus = ByteCorpus::open(data_path(config), Split::parse(o.split));
  print(fmt::format("file      {}", corpus.path()));
  print(fmt::format("bytes     {}", corpus.size()));
  print(fmt::format("checksum  xxh3 {}", corpus.checksum()));
  print(fmt::format("split     {} train, {} valid, {} test", corpus.train().size(),
                    corpus.valid().size(), corpus.test().size()));
  if (command == "check") return 0;
  std::array<int64_t, 256> counts{};
  for (const uint8_t byte : corpus.bytes()) ++counts[byte];
  int distinct = 0;
  double bits = 0;
  for (const int64_t n : counts) {
    if (n == 0) continue;
    ++distinct;
    const double p = static_cast<double>(n) / static_cast<double>(corpus.size());
    bits -= p * std::log2(p);
  }
  print(fmt::format("distinct  {} bytes", distinct));
  print(fmt::format("entropy   {:.3f} bits per byte alone, {:.3f} after the one before", bits,
                    bigram_bits(corpus.bytes())));
  return 0;
}

}  // namespace longspan
