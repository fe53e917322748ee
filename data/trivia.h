#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/questions.h"

namespace longspan {

/// A question of TriviaQA \cite joshi2017 : documents that may answer it, and every way to write
/// the answer. Where it stands in a document, if it does, nobody has marked.
struct TriviaQuestion {
  std::string id, text;
  std::vector<std::string> aliases;    ///< the value first; none in a test set
  std::vector<std::string> documents;  ///< files below evidence/wikipedia
};

/// The questions of a file of the Wikipedia part: "Data", of which Question, QuestionId,
/// EntityPages with Filename, and but for tests Answer with Value and Aliases. Throws IoError that
/// names `path` and the question where something is missing, or a file lies elsewhere.
std::vector<TriviaQuestion> read_triviaqa(std::string_view json, const std::string& path);

/// Where any of the aliases stands in a text: letters A to Z of either case, no letter or digit
/// beside it. In the order of the text, each place once; what is found is a guess, since an alias
/// may be there by chance \cite clark2018 . Only those within the first `read` bytes; what follows
/// these still says whether a word ends there.
std::vector<Answer> find_aliases(std::string_view text, std::span<const std::string> aliases,
                                 size_t read = std::string_view::npos);

/// The first `count` pieces of a text, or all; reads no more of a long text than it must.
std::vector<Piece> first_pieces(std::string_view text, const Tokenizer& tokenizer, int64_t count);

}  // namespace longspan
