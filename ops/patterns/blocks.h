#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/patterns/pattern.h"

namespace longspan {

/// Blocks of a sequence, and which blocks of keys each block of queries sees: whole blocks, no
/// rule.
struct BlockTable {
  std::vector<int64_t> bounds;  ///< block k is [bounds[k], bounds[k + 1]); it may be empty
  /// Of each block of queries, ascending; a block named n times has n keys for each of its tokens.
  std::vector<std::vector<int64_t>> keys;
  /// No token sees a later one of its own block, which counts once; no block is after that one.
  bool causal = false;

  int64_t blocks() const { return static_cast<int64_t>(bounds.size()) - 1; }
  /// Sum over the blocks of queries of its size times the sizes of the blocks that it sees, each
  /// once; of the own block only what a token sees where causal.
  int64_t pairs() const;
};

/// The bounds of blocks of `block` tokens over [0, length), the last one shorter where need be.
/// Throws ValueError where block < 1.
std::vector<int64_t> block_bounds(int64_t length, int64_t block);

/// The bounds of n blocks with floor(i n / length) the block of token i: they differ by one token
/// at most, and with n > length some are empty. `padded` >= length in place of length: as if there
/// were so many tokens. Throws ValueError where n < 1 or padded < length.
std::vector<int64_t> equal_block_bounds(int64_t length, int64_t n, int64_t padded);

/// BigBird's rows of blocks \cite zaheer2020 over [0, length), n blocks of `block` tokens, the last
/// one shorter where need be: rows 0 and n - 1 see every block, row i between them blocks 0, i - 1,
/// i, i + 1, n - 1 and random[i - 1]. Without `random` every row sees everything. Throws ValueError
/// where `random` is not for n rows or, unless `repeats`, names a block that the row sees already.
BlockTable bigbird_blocks(int64_t length, int64_t block,
                          const std::vector<std::vector<int64_t>>& random, bool repeats = false);

/// The fixed factorised attention of \cite child2019 without its causal mask, SparseBERT in
/// \cite qiu2020 : over [0, length) in blocks of `stride` tokens, every row sees its own block and
/// the last `columns` of every block; of a block cut short only what is left of them. Blocks 2 k
/// and 2 k + 1 of the table are the two parts of block k. Throws ValueError unless 1 <= columns <=
/// stride.
BlockTable fixed_blocks(int64_t length, int64_t stride, int64_t columns);

namespace patterns {

/// Self-attention over `length` tokens by tables of blocks.
///   members  tables over [0, n), n <= length: queries from n on see nothing; all causal or none
///   which    i32 [B or 1, H or 1], the member of each sample and head; undefined: member 0 for all
///   first    queries are the tokens from here on, keys still all
/// Throws ShapeError where bounds descend or leave the sequence or a table names a block out of
/// order, more than 255 times, that it lacks or, where causal, after the row's own.
AttentionPattern block_lists(int64_t length, const std::vector<BlockTable>& members,
                             const Tensor& which, std::string name, int64_t first = 0);

/// BlockBERT's heads \cite qiu2020 : with blk(i) = floor(i n / length), query i of head a sees key
/// j iff pi_a(blk(i)) = blk(j). Blocks differ by one token at most; with more blocks than tokens
/// some are empty, and so are the key sets of whoever looks there.
///   permutations  pi_a of each head, bijections of 0 .. n - 1
///   padded        blocks are those of a sequence of this length, as if padding were there; 0: of
///                 `length`
/// Throws ValueError where a permutation is none.
AttentionPattern permuted_blocks(int64_t length,
                                 const std::vector<std::vector<int64_t>>& permutations,
                                 int64_t padded = 0);

}  // namespace patterns

}  // namespace longspan
