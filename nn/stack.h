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

namespace longspan {

/// Whether a branch normalises its input or its sum with the stream.
enum class NormPlace : uint8_t { pre, post };
template <>
inline constexpr std::array<std::string_view, 2> value_names<NormPlace>{"pre", "post"};

/// One residual branch: its layer and the norm that belongs to it.
struct Branch {
  std::string name;  ///< "attention", "cross", "ff"
  Normalization norm;
  std::unique_ptr<Layer> layer;
};

/// Residual branches one after another:
///   pre:  x <- x + Drop(layer(norm(x)))       post:  x <- norm(x + Drop(layer(x)))
/// Position vectors of its own, where there are any, are added to the input first. The first branch
/// alone sees the earlier states of given.memory, with pre-norm through its norm, as it sees x.
class Block : public Layer {
 public:
  Block(NormPlace place, float dropout, std::vector<Branch> branches,
        LearnedPositions positions = {});

  Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const override;
  void visit(Visitor& v) override;
  /// The layer of a branch. Throws ValueError where there is none of that name.
  const Branch& branch(std::string_view name) const;
  /// Runs position-wise branches, each with its norm and dropout, in so many pieces (chunked.h).
  /// Returns whether there is one.
  bool set_chunks(int64_t chunks);
  int64_t chunks() const { return chunks_; }
  /// What that branch's layer is given as x, for the input of the block.
  Tensor branch_input(std::string_view name, const Tensor& x, const LayerContext& ctx) const;

  /// One branch by itself, x -> Drop(layer(norm(x))): what it adds to a stream.
  struct Residual;
  /// The branches by themselves, as steps of a reversible stack. With pre-norm each has its own
  /// norm; with post-norm that of the branch before it, through which it reads the stream there
  /// too: `before`, where there is one, is that of the block before.
  std::vector<std::shared_ptr<Residual>> residuals(const Normalization* before) const;
  size_t size() const { return branches_.size(); }
  NormPlace place() const { return place_; }
  const Normalization& last_norm() const { return branches_.back().norm; }

 private:
  Tensor with_positions(const Tensor& x, const LayerContext& ctx) const;
  /// What a branch is given: x through its norm, or x itself.
  Tensor normed(const Branch& b, const Tensor& x) const;
  /// Drop(layer(norm(x))), or without a norm Drop(layer(x)): what is added to a stream.
  Output branch_output(const Branch& b, const Normalization* norm, const Tensor& x,
                       const LayerContext& ctx, Pass pass) const;

  NormPlace place_;
  float dropout_;  // site "resid"
  int64_t chunks_ = 1;
  std::vector<Branch> branches_;
  LearnedPositions positions_;
};

/// Blocks in sequence and, with pre-norm, a final norm. It alone knows about memory policies:
/// models contain no memory logic. With a reversible policy it is another function, of two streams
/// (reversible.h): both begin as x, the branches of all blocks in turn add to the one what they
/// make of the other, and the result is their mean, through the final norm. What a norm behind a
/// sum drops could not be brought back, so that the norms of blocks with post-norm stand before
/// what reads the sum there, branches and result.
class Stack : public Module {
 public:
  struct Result {
    Tensor y;
    Tensor loss;                 ///< sum of the layers' auxiliary losses; undefined without any
    std::vector<Tensor> states;  ///< of each layer
    SegmentMemory memory;
  };

  Stack() = default;
  /// Throws NotImplemented on a policy that this build lacks, ValueError on chunks where no branch
  /// is position-wise.
  Stack(std::vector<Block> blocks, std::optional<Normalization> final_norm, MemoryPolicy policy);

  /// `memory` is empty or has an entry for each layer, and takes the place of given.memory; so do
  /// given.layer_patterns, of given.pattern. Throws ValueError where their numbers differ. With
  /// given.mem_len the result's memory holds the newest inputs of each layer; of two streams, of
  /// the one that it reads. `each`, where given, takes the output of every layer.
  Result forward(const Tensor& x, const LayerContext& ctx, const SegmentMemory& memory, Pass pass,
                 std::vector<Tensor>* each = nullptr) const;
  void visit(Visitor& v) override;

  /// [H, L, T] f32: the probabilities with which the first sample's rows attend in layer `layer`,
  /// for the input x of the stack. Throws ValueError where there is no such layer, NotImplemented
  /// where its attention has none.
  Tensor attention_map(int64_t layer, const Tensor& x, const LayerContext& ctx) const;

  int64_t size() const { return static_cast<int64_t>(blocks_.size()); }
  const std::optional<Normalization>& final_norm() const { return final_norm_; }
  const Block& block(int64_t i) const { return blocks_[static_cast<size_t>(i)]; }

 private:
  bool two_streams() const { return is_reversible(policy_); }
  Result forward_reversible(const Tensor& x, const LayerContext& ctx, const SegmentMemory& memory,
                            Pass pass, std::vector<Tensor>* each) const;
  Tensor reversible_attention_input(int64_t layer, const Tensor& x, const LayerContext& ctx) const;
  void check_numbers(const LayerContext& ctx, const SegmentMemory& memory) const;

  std::vector<Block> blocks_;
  std::optional<Normalization> final_norm_;
  MemoryPolicy policy_;
};

}  // namespace longspan
