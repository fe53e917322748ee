#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "models/capabilities.h"
#include "models/model_spec.h"
#include "nn/layers.h"
#include "nn/stack.h"

namespace longspan::test {

/// A position-wise layer with all that a layer may return besides its result. z = W x belongs to
/// clusters by p = softmax(C z), and y = Drop(tanh(z)). Its auxiliary losses are "commitment", the
/// distance of z from p C, and "copy", which alone trains the parameters of the clip group "copy"
/// to reproduce x and does not reach x. The centroids C are buffers: running means of z, weighted
/// by p, plus noise; another buffer counts the updates.
class Clusters final : public Layer {
 public:
  Clusters(int64_t width, float dropout, const Init& init);
  Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const override;
  bool position_wise() const override { return true; }
  void visit(Visitor& v) override;

  void after_step(const StepEnd& end) override;

 private:
  float dropout_;
  Linear linear_, copy_;
  Tensor centroids_, totals_;  // [clusters, width]
  Tensor counts_;              // [clusters, 1]
  Tensor updates_;             // [1]
};

/// Returns a stack of blocks with one branch, "clusters".
Stack cluster_stack(int64_t layers, int64_t width, float dropout, const MemoryPolicy& policy,
                    const Init& init);

/// The configuration of ClusterModel.
struct ClusterConfig {
  int64_t vocab = 16, n_layer = 3, d_model = 16;
  float dropout = 0.1f;
  MemoryPolicy memory;
  void visit(auto& v) {
    v("vocab", vocab)("n_layer", n_layer)("d_model", d_model)("dropout", dropout)("memory", memory)(
        "chunks", memory.chunks);
  }
};

/// Predicts each next token from the token alone, with Clusters as layers. It has no attention to
/// show.
class ClusterModel final : public LanguageModel {
 public:
  ClusterModel(const ClusterConfig& config, const Init& init);

  Objective objective() const override { return Objective::next_token; }
  int64_t vocab() const override { return config_.vocab; }
  Device device() const override { return embed_.weight.device(); }
  int64_t layers() const override { return config_.n_layer; }
  Losses loss(const Tensor& tokens, const Tensor& targets, const SegmentMemory& memory,
              Pass pass) const override;
  Tensor logits(const Tensor& tokens, Pass pass) const override;
  void visit(Visitor& v) override;

 private:
  ClusterConfig config_;
  Embedding embed_;
  Stack stack_;
  Linear head_;
};

/// Returns the spec of a ClusterModel with these fields.
std::unique_ptr<ModelSpec> cluster_spec(const ClusterConfig& config = {});

}  // namespace longspan::test
