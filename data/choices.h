#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "data/tokenizers/tokenizer.h"

namespace longspan {

// Questions whose answer is one of some candidates, with texts that lead to it.

/// A question of WikiHop \cite welbl2018 .
struct ChoiceQuestion {
  std::string id, query;
  std::vector<std::string> candidates, supports;
  int64_t answer = -1;  ///< which of the candidates; -1: not said, as in a test set
};

/// The questions of a WikiHop file, an array of objects with id, query, candidates, supports and,
/// but for tests, answer. Throws IoError that names `path` and the question where something is
/// missing, there is no candidate, one is there twice or the answer is none of them.
std::vector<ChoiceQuestion> read_wikihop(std::string_view json, const std::string& path);

/// A question in tokens.
struct ChoicePieces {
  std::vector<Piece> query;
  std::vector<std::vector<Piece>> candidates, supports;
};

/// Tokens around the parts of a window, four of them added to a vocabulary.
struct ChoiceTokens {
  int32_t begin = -1, separator = -1;
  int32_t question = -1, question_end = -1, candidate = -1, candidate_end = -1;
};

/// Those of a tokenizer, and behind its vocabulary those that it lacks: always the four of choices.
struct ChoiceIds {
  explicit ChoiceIds(const Tokenizer& tokenizer);

  ChoiceTokens tokens;
  int64_t vocabulary = 0;  ///< all ids are below
};

/// A window: begin, [question] query [/question], [candidate] c [/candidate] of each candidate,
/// separator, part of the supports with separators between them, separator.
struct ChoiceWindow {
  std::vector<int32_t> tokens;
  int64_t question_end = 0;    ///< tokens before it are query and candidates: global ones
  std::vector<int64_t> marks;  ///< place of [candidate] of each candidate
};

/// Windows of at most `length` tokens that share out the supports; one where there are none.
/// Throws ValueError where a token is missing, there is no candidate, or query and candidates leave
/// no room.
std::vector<ChoiceWindow> choice_windows(const ChoicePieces& question, const ChoiceTokens& special,
                                         int64_t length);

/// Tokens of a window that hold no support: query, candidates and what stands around them.
int64_t choice_overhead(const ChoicePieces& question);

/// All windows of some questions side by side, padded with 0.
struct ChoiceBatch {
  Tensor tokens;   ///< i64 [B, L]
  Tensor lengths;  ///< i64 [B]
  Tensor global;   ///< u8 [B, L]: query and candidates
  Tensor places;   ///< i64 [Q, C, m]: b L + i of each mark of each candidate, or -1
};
ChoiceBatch choice_batch(std::span<const std::vector<ChoiceWindow>> questions);

}  // namespace longspan
