#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "nn/memory_policy.h"
#include "nn/stack.h"
#include "ops/patterns/linked.h"

namespace longspan {

/// Two linked streams \cite ainslie2020 : long tokens [B, n_l, D] and globals [B, n_g, D]. Either
/// may be undefined.
struct LinkedStreams {
  Tensor l, g;
};

/// Attention within and between two streams.
struct LinkedAttention : Module {
  /// Returns streams of the shapes of x; `see` are the patterns of one layer.
  virtual LinkedStreams forward(const LinkedStreams& x, const LinkedPatterns& see,
                                Pass pass) const = 0;
  /// Returns the probabilities [B, H, n, n], n = n_l + n_g, long rows and columns first.
  virtual Tensor probabilities(const LinkedStreams& x, const LinkedPatterns& see) const = 0;
};

/// Attention of both streams, and feed-forward networks, each with residual and norm:
///   pre:  x <- x + Drop(attention(norm(x)))       post:  x <- norm(x + Drop(attention(x)))
class LinkedBlock : public Module {
 public:
  ///   norm_l, norm_g  the attention's norms of long tokens and of globals
  ///   ff              blocks of one branch "ff": one for both streams, or one each
  LinkedBlock(NormPlace place, float dropout, std::unique_ptr<LinkedAttention> attention,
              Normalization norm_l, Normalization norm_g, std::vector<Block> ff);

  LinkedStreams forward(LinkedStreams x, const LinkedPatterns& see, Pass pass) const;
  void visit(Visitor& v) override;
  /// Returns the input of attention, computed from the input of the block.
  LinkedStreams attention_input(const LinkedStreams& x) const;
  const LinkedAttention& attention() const { return *attention_; }

 private:
  friend class LinkedStack;
  struct Residual;

  NormPlace place_;
  float dropout_;  // site "resid"
  std::unique_ptr<LinkedAttention> attention_;
  Normalization norm_l_, norm_g_;
  std::vector<Block> ff_;
};

/// Blocks in sequence and, with pre-norm, a final norm. As in Stack, only the stack knows about
/// memory policies, and a reversible one makes it another function: each of its two streams then
/// holds the long tokens followed by the globals.
class LinkedStack : public Module {
 public:
  LinkedStack() = default;
  ///   compute  dtype of the result
  LinkedStack(NormPlace place, std::vector<LinkedBlock> blocks,
              std::optional<Normalization> final_norm, MemoryPolicy policy, DType compute);

  /// `all` holds the patterns of all layers.
  LinkedStreams forward(const LinkedStreams& x, const LinkedPatterns& all, Pass pass) const;
  /// Returns the input of the attention of block i for the input x of the stack.
  LinkedStreams attention_input(int64_t i, const LinkedStreams& x, const LinkedPatterns& all) const;
  void visit(Visitor& v) override { v("layers", blocks_)("final_norm", final_norm_); }

  int64_t size() const { return static_cast<int64_t>(blocks_.size()); }
  const LinkedBlock& block(int64_t i) const { return blocks_[static_cast<size_t>(i)]; }

 private:
  struct Walk;
  Walk walk(const LinkedStreams& x, const LinkedPatterns& all, Pass pass, int64_t count) const;

  NormPlace place_ = NormPlace::post;
  std::vector<LinkedBlock> blocks_;
  std::optional<Normalization> final_norm_;
  MemoryPolicy policy_;
  DType compute_ = DType::f32;
};

}  // namespace longspan
