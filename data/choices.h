#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "data/tokenizers/tokenizer.h"

namespace longspan {

// Multiple-choice questions, with texts that support the answer.

/// A question of WikiHop \cite welbl2018 .
struct ChoiceQuestion {
  std::string id, query;
  std::vector<std::string> candidates, supports;
  int64_t answer = -1;  ///< index of the candidate; -1: not given, as in a test set
};

/// Reads the questions of a WikiHop file, an array of objects with id, query, candidates, supports
/// and, except in test sets, answer. Throws IoError that names `path` and the question if a field
/// is missing, there is no candidate, a candidate is repeated, or the answer is not a candidate.
std::vector<ChoiceQuestion> read_wikihop(std::string_view json, const std::string& path);

/// A tokenized question.
struct ChoicePieces {
  std::vector<Piece> query;
  std::vector<std::vector<Piece>> candidates, supports;
};

/// Special tokens of a window; four of them are added to a vocabulary.
struct ChoiceTokens {
  int32_t begin = -1, separator = -1;
  int32_t question = -1, question_end = -1, candidate = -1, candidate_end = -1;
};

/// The special tokens: the tokenizer's own, and new ids behind its vocabulary for those it lacks,
/// always including the four of multiple choice.
struct ChoiceIds {
  explicit ChoiceIds(const Tokenizer& tokenizer);

  ChoiceTokens tokens;
  int64_t vocabulary = 0;  ///< all ids are smaller
};

/// A window: begin, [question] query [/question], [candidate] c [/candidate] for each candidate,
/// separator, some of the supports with separators between them, separator.
struct ChoiceWindow {
  std::vector<int32_t> tokens;
  int64_t question_end = 0;    ///< the tokens before it are query and candidates, which are global
  std::vector<int64_t> marks;  ///< position of each candidate's [candidate] token
};

/// Distributes the supports over windows of at most `length` tokens; without supports there is one
/// window. Throws ValueError if a special token is missing, there is no candidate, or query and
/// candidates leave no space for supports.
std::vector<ChoiceWindow> choice_windows(const ChoicePieces& question, const ChoiceTokens& special,
                                         int64_t length);

/// Number of tokens of a window that hold no support: query, candidates and special tokens.
int64_t choice_overhead(const ChoicePieces& question);

/// All windows of several questions as one batch, padded with 0.
struct ChoiceBatch {
  Tensor tokens;   ///< i64 [B, L]
  Tensor lengths;  ///< i64 [B]
  Tensor global;   ///< u8 [B, L]: query and candidates
  Tensor places;   ///< i64 [Q, C, m]: b L + i of each occurrence of each candidate's mark, or -1
};
ChoiceBatch choice_batch(std::span<const std::vector<ChoiceWindow>> questions);

}  // namespace longspan
