#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "data/corpus.h"
#include "data/tokenizers/tokenizer.h"

namespace longspan {

/// What a file of tokens was made of: where either differs, it is of no use.
struct TokenSource {
  uint64_t tokenizer = 0;  ///< Tokenizer::hash()
  uint64_t text = 0;       ///< XXH3 of the text
  friend bool operator==(const TokenSource&, const TokenSource&) = default;
};

/// Writes the tokens of a part to a file: a header (magic, hashes, count, width, vocabulary, XXH3
/// of all these and the ids), then the ids. Replaces the file or leaves it as it was. Throws
/// IoError.
void write_tokens(const std::string& path, const CorpusPart& part, const TokenSource& source);

/// The tokens of a file made from `source`, mapped, or nothing where the file is not there or of
/// another source or an earlier format. Throws IoError that says to remove it where it is damaged
/// or cut off.
std::optional<CorpusPart> read_tokens(const std::string& path, const TokenSource& source);

/// The tokens of a part of text, of 1, 2 or 4 bytes each as the vocabulary needs. `cache` is a file
/// to read them from, and to write them to where it does not have them; without it, or where it
/// cannot be written, nothing is kept.
CorpusPart tokenize(const CorpusPart& text, const Tokenizer& tokenizer,
                    const std::string& cache = {});

}  // namespace longspan
