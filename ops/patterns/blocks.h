#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/patterns/pattern.h"

namespace longspan {

/// Blocks of a sequence, and the blocks of keys that each block of queries sees. Blocks are visible
/// as a whole, except for the own block with `causal`.
struct BlockTable {
  std::vector<int64_t> bounds;  ///< block k is [bounds[k], bounds[k + 1]); it may be empty
  /// The key blocks of each query block, ascending; a block listed n times counts each of its keys
  /// n times.
  std::vector<std::vector<int64_t>> keys;
  /// Tokens do not see later tokens of their own block, which is listed once and is the last one.
  bool causal = false;

  int64_t blocks() const { return static_cast<int64_t>(bounds.size()) - 1; }
  /// Returns the sum over query blocks of the block's size times the sizes of the blocks that it
  /// sees, each counted once; with `causal`, only the visible pairs of the own block.
  int64_t pairs() const;
};

/// Returns the bounds of blocks of `block` tokens over [0, length); the last block may be shorter.
/// Throws ValueError if length < 0 or block < 1.
std::vector<int64_t> block_bounds(int64_t length, int64_t block);

/// Returns the bounds of n blocks such that token i is in block floor(i n / length): block sizes
/// differ by at most one token, and with n > length some blocks are empty. `padded` >= length
/// replaces length in the formula, as if there were that many tokens. Throws ValueError if n < 1 or
/// padded < length.
std::vector<int64_t> equal_block_bounds(int64_t length, int64_t n, int64_t padded);

/// Returns BigBird's block table \cite zaheer2020 over [0, length), n blocks of `block` tokens, the
/// last one possibly shorter: rows 0 and n - 1 see every block; row i between them sees blocks 0, i
/// - 1, i, i + 1, n - 1 and random[i - 1]. With an empty `random` every row sees every block.
/// Throws ValueError if `random` does not have n - 2 entries or, unless `repeats`, names a block
/// that the row already sees.
BlockTable bigbird_blocks(int64_t length, int64_t block,
                          const std::vector<std::vector<int64_t>>& random, bool repeats = false);

/// The fixed factorised attention of \cite child2019 without its causal mask, called SparseBERT in
/// \cite qiu2020 : over [0, length) in blocks of `stride` tokens, every row sees its own block and
/// the last `columns` of every block; a shorter last block has only the columns that remain. Blocks
/// 2 k and 2 k + 1 of the table are the tokens of block k before its last `columns`, and those
/// `columns`. Throws ValueError unless 1 <= columns <= stride.
BlockTable fixed_blocks(int64_t length, int64_t stride, int64_t columns);

namespace patterns {

/// Returns self-attention over `length` tokens according to block tables.
///   members  tables over [0, n), n <= length: queries from n on see nothing; all causal or none
///   which    i32 [B or 1, H or 1], the member of each sample and head; undefined: member 0 for all
///   first    the queries are the tokens from this one on; the keys are still all tokens
/// Throws ShapeError if bounds descend or leave the sequence, or if a table lists a block that does
/// not exist, out of order, more than 255 times or, with `causal`, after the row's own block.
AttentionPattern block_lists(int64_t length, const std::vector<BlockTable>& members,
                             const Tensor& which, std::string name, int64_t first = 0);

/// BlockBERT's heads \cite qiu2020 : with blk(i) = floor(i n / length), query i of head a sees key
/// j iff pi_a(blk(i)) = blk(j). Block sizes differ by at most one token; with more blocks than
/// tokens some blocks are empty, and queries mapped to an empty block see no keys.
///   permutations  pi_a of each head, bijections of 0 .. n - 1
///   padded        divide the blocks as for a sequence of this length, as if padding were there; 0:
///                 `length`
/// Throws ValueError if an entry is not a permutation.
AttentionPattern permuted_blocks(int64_t length,
                                 const std::vector<std::vector<int64_t>>& permutations,
                                 int64_t padded = 0);

}  // namespace patterns

}  // namespace longspan
