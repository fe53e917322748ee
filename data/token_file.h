#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "data/corpus.h"
#include "data/tokenizers/tokenizer.h"

namespace longspan {

/// The source of a token file. If either hash differs, the file is not used.
struct TokenSource {
  uint64_t tokenizer = 0;  ///< Tokenizer::hash()
  uint64_t text = 0;       ///< XXH3 of the text
  friend bool operator==(const TokenSource&, const TokenSource&) = default;
};

/// Writes the tokens of a split to a file: a header (magic, hashes, count, width, vocabulary, XXH3
/// of these and the ids), then the ids. Replaces the file or leaves it unchanged. Throws IoError.
void write_tokens(const std::string& path, const CorpusPart& part, const TokenSource& source);

/// Maps the tokens of a file made from `source`. Returns nothing if the file is missing, has
/// another source or an earlier format. Throws IoError with the advice to remove the file if it is
/// damaged or truncated.
std::optional<CorpusPart> read_tokens(const std::string& path, const TokenSource& source);

/// Receives how many bytes of a text have been tokenized, and how many it has.
using TokenProgress = std::function<void(int64_t done, int64_t total)>;

/// Tokenizes a split of text into ids of 1, 2 or 4 bytes, as the vocabulary requires, in all
/// threads. `cache` is a file from which the ids are read, or else to which they are written some
/// at a time, so that they need not fit in memory; an interrupted one goes on from CACHE.partial.
/// If it is empty or not writable, or another process is writing it, the ids stay in memory.
CorpusPart tokenize(const CorpusPart& text, const Tokenizer& tokenizer,
                    const std::string& cache = {}, const TokenProgress& progress = {});

}  // namespace longspan
