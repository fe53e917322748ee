#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nn/fields.h"
#include "nn/layer.h"
#include "nn/layers.h"
#include "nn/memory_policy.h"
#include "nn/position.h"
#include "nn/segment.h"

namespace longspan {

/// Whether a branch normalises its input or its sum with the residual stream.
enum class NormPlace : uint8_t { pre, post };
template <>
inline constexpr std::array<std::string_view, 2> value_names<NormPlace>{"pre", "post"};

/// One residual branch: its layer and its norm.
struct Branch {
  std::string name;  ///< "attention", "cross", "ff"
  Normalization norm;
  std::unique_ptr<Layer> layer;
  bool own_dropout = false;  ///< the layer drops out its output itself, and the block does not
};

/// Residual branches in sequence:
///   pre:  x <- x + Drop(layer(norm(x)))       post:  x <- norm(x + Drop(layer(x)))
/// The block's own position vectors, if any, are added to the input first. Only the first branch
/// sees the earlier states of ctx.memory; with pre-norm they pass through its norm, as x does. With
/// EdgeContext::rows, the result has only the rows that they name, of which the first branch
/// computes each.
class Block : public Layer {
 public:
  Block(NormPlace place, float dropout, std::vector<Branch> branches,
        LearnedPositions positions = {});

  Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const override;
  /// Returns x, with the losses and the memory of the first branch.
  Output left_out(const Tensor& x, const LayerContext& ctx, Pass pass) const override;
  void visit(Visitor& v) override;
  /// Returns a branch by name. Throws ValueError if there is none of that name.
  const Branch& branch(std::string_view name) const;
  /// Runs position-wise branches, each with its norm and dropout, in this many pieces (chunked.h).
  /// Returns whether there is such a branch.
  bool set_chunks(int64_t chunks);
  int64_t chunks() const { return chunks_; }
  /// Returns the x that the branch's layer gets, for the input of the block.
  Tensor branch_input(std::string_view name, const Tensor& x, const LayerContext& ctx) const;

  /// One branch without the residual sum, x -> Drop(layer(norm(x))): what it adds to a stream.
  struct Residual;
  /// Returns the branches as steps of a reversible stack. With pre-norm each has its own norm. With
  /// post-norm each reads the stream through the norm of the branch before it; for the first branch
  /// that is `before`, the last norm of the previous block, or null.
  std::vector<std::shared_ptr<Residual>> residuals(const Normalization* before) const;
  size_t size() const { return branches_.size(); }
  NormPlace place() const { return place_; }
  const Normalization& last_norm() const { return branches_.back().norm; }

 private:
  Tensor with_positions(const Tensor& x, const LayerContext& ctx) const;
  /// Returns the context of the first branch.
  LayerContext inner_context(const Tensor& x, const LayerContext& ctx) const;
  /// Returns the input of a branch: x through its norm, or x itself.
  Tensor normed(const Branch& b, const Tensor& x) const;
  /// Returns the rows of the branch's input x that it computes: all, except in the first one.
  Tensor computed_rows(const Branch& b, const Tensor& x, const LayerContext& ctx) const;
  /// Drop(layer(norm(x))), or Drop(layer(x)) without a norm: what is added to a stream, and added to
  /// `onto` if that is defined.
  Output branch_output(const Branch& b, const Normalization* norm, const Tensor& x,
                       const LayerContext& ctx, Pass pass, const Tensor& onto = {}) const;

  NormPlace place_;
  float dropout_;  // site "resid"
  int64_t chunks_ = 1;
  std::vector<Branch> branches_;
  LearnedPositions positions_;
};

/// Blocks in sequence and, with pre-norm, a final norm. Only the stack knows about memory policies:
/// models contain no memory logic. A reversible policy makes it another function, of two streams
/// (reversible.h): both start as x, the branches of all blocks in turn read one stream and add to
/// the other, and the result is the mean of both, through the final norm. A norm after a sum cannot
/// be inverted, so with post-norm each norm is applied where the sum is read: in branches and for
/// the result. Where the last block computes fewer rows than it reads, its first branch cannot be
/// inverted and saves what its ops save.
class Stack : public Module {
 public:
  struct Result {
    Tensor y;
    std::vector<AuxiliaryLoss> losses;   ///< of the layers; those of one name are summed
    std::vector<Statistics> statistics;  ///< of the layers, for end_step()
    SegmentMemory memory;
  };

  Stack() = default;
  /// Throws NotImplemented for a policy that this build lacks, ValueError for chunks > 1 if no
  /// branch is position-wise.
  Stack(std::vector<Block> blocks, std::optional<Normalization> final_norm, MemoryPolicy policy);

  /// `memory` is empty or has an entry for each layer, and replaces ctx.memory; likewise
  /// ctx.layer_patterns replaces ctx.pattern, and EdgeContext::last_rows EdgeContext::rows in the
  /// last layer. Throws ValueError if their sizes differ from the number of layers. The result's
  /// memory holds what layers made for it (Output::kept); else, with ctx.mem_len, the newest inputs
  /// of each layer; with two streams, inputs of the stream that it reads. `each`, if given,
  /// receives the output of every layer.
  Result forward(const Tensor& x, const LayerContext& ctx, const SegmentMemory& memory, Pass pass,
                 std::vector<Tensor>* each = nullptr) const;
  /// In training each block is left out from now on with this probability, except on the meta
  /// device: its input is its output. The host reads the draws, so that such a step is not
  /// recorded. Training throws NotImplemented if the stack has two streams.
  void set_layer_drop(double probability) { layer_drop_ = probability; }
  void visit(Visitor& v) override;

  /// Returns [H, L, T] f32: the attention probabilities of the first sample's rows in a branch of
  /// layer `layer`, for the input x of the stack. Throws ValueError if there is no such layer or
  /// branch, NotImplemented if its attention has no probabilities.
  Tensor attention_map(int64_t layer, const Tensor& x, const LayerContext& ctx,
                       std::string_view branch = "attention") const;
  /// Returns the input [B, L, D] of that branch, without history, for the input x of the stack.
  /// `ctx` becomes the context of that layer. Throws as attention_map().
  Tensor attention_input(int64_t layer, const Tensor& x, LayerContext& ctx,
                         std::string_view branch = "attention") const;

  int64_t size() const { return static_cast<int64_t>(blocks_.size()); }
  const std::optional<Normalization>& final_norm() const { return final_norm_; }
  const Block& block(int64_t i) const { return blocks_[static_cast<size_t>(i)]; }

 private:
  bool two_streams() const { return is_reversible(policy_); }
  Result forward_reversible(const Tensor& x, const LayerContext& ctx, const SegmentMemory& memory,
                            Pass pass, std::vector<Tensor>* each) const;
  Tensor reversible_attention_input(int64_t layer, const Tensor& x, const LayerContext& ctx,
                                    std::string_view branch) const;
  void check_numbers(const LayerContext& ctx, const SegmentMemory& memory) const;
  /// Sets the patterns and rows in `ctx` to the ones of a layer, from the stack's context `all`.
  /// Returns whether the layer computes fewer rows than it reads.
  bool see_layer(LayerContext& ctx, const LayerContext& all, int64_t layer) const;

  std::vector<Block> blocks_;
  std::optional<Normalization> final_norm_;
  MemoryPolicy policy_;
  double layer_drop_ = 0;
};

}  // namespace longspan
