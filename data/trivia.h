#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/questions.h"

namespace longspan {

/// A TriviaQA question \cite joshi2017 : documents that may contain the answer, and every spelling
/// of the answer. Its position in the documents is not annotated.
struct TriviaQuestion {
  std::string id, text;
  std::vector<std::string> aliases;    ///< the value first; empty in a test set
  std::vector<std::string> documents;  ///< files below evidence/wikipedia
};

/// Reads the questions of a file of the Wikipedia domain: "Data" with Question, QuestionId,
/// EntityPages with Filename and, except in test sets, Answer with Value and Aliases. Throws
/// IoError that names `path` and the question if a field is missing or a file is outside the
/// folder.
std::vector<TriviaQuestion> read_triviaqa(std::string_view json, const std::string& path);

/// Finds the aliases in a text: A to Z in either case, with no letter or digit adjacent. Results
/// are in text order without duplicates. They are distant supervision, since an alias may occur by
/// chance \cite clark2018 . Only matches within the first `read` bytes count; the following byte
/// still decides whether a word ends there.
std::vector<Answer> find_aliases(std::string_view text, std::span<const std::string> aliases,
                                 size_t read = std::string_view::npos);

/// Returns the first `count` pieces of a text, or all; reads no more of a long text than necessary.
std::vector<Piece> first_pieces(std::string_view text, const Tokenizer& tokenizer, int64_t count);

}  // namespace longspan
