#include "tests/harness/clusters.h"

#include <utility>

#include "ops/elementwise.h"
#include "ops/loss.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"

namespace longspan::test {

Clusters::Clusters(int64_t width, float dropout, const Init& init)
    : dropout_(dropout),
      linear_(width, width, true, init.at("linear"), Scheme::normal(0.3)),
      copy_(width, width, true, init.at("copy"), Scheme::normal(0.3)) {}

Output Clusters::forward(const Tensor& x, const LayerContext&, Pass pass) const {
  const Tensor z = linear_.forward(x);
  Output out(dropout(tanh(z), dropout_, pass.at("clusters")));
  if (!pass.training) return out;
  const Tensor constant = x.detach();
  out.losses = {{"size", mul(mean(square(z)), 0.1)},
                {"copy", mean(square(sub(copy_.forward(constant), constant)))}};
  return out;
}

void Clusters::visit(Visitor& v) { v("linear", linear_).clipped_apart("copy", "copy", copy_); }

Stack cluster_stack(int64_t layers, int64_t width, float dropout, const MemoryPolicy& policy,
                    const Init& init) {
  std::vector<Block> blocks;
  for (int64_t i = 0; i < layers; ++i) {
    const Init own = init.at(i);
    std::vector<Branch> branches;
    branches.push_back({"clusters", Normalization(NormKind::rms, width, 1e-5, own.at("norm")),
                        std::make_unique<Clusters>(width, dropout, own.at("clusters"))});
    blocks.emplace_back(NormPlace::pre, 0.1f, std::move(branches));
  }
  return {std::move(blocks), Normalization(NormKind::rms, width, 1e-5, init.at("final")), policy};
}

ClusterModel::ClusterModel(const ClusterConfig& config, const Init& init)
    : config_(config),
      embed_(config.vocab, config.d_model, init.at("embed"), Scheme::normal(1)),
      stack_(cluster_stack(config.n_layer, config.d_model, config.dropout, config.memory,
                           init.at("layers"))),
      head_(config.d_model, config.vocab, true, init.at("head"), Scheme::normal(0.3)) {}

LanguageModel::Losses ClusterModel::loss(const Tensor& tokens, const Tensor& targets,
                                         const SegmentMemory& /*memory*/, Pass pass) const {
  Stack::Result r = stack_.forward(embed_.forward(tokens), {}, {}, pass);
  Losses losses;
  const int64_t rows = targets.numel();
  losses.loss =
      cross_entropy(reshape(head_.forward(r.y), {rows, config_.vocab}), reshape(targets, {rows}));
  losses.auxiliary = std::move(r.losses);
  return losses;
}

Tensor ClusterModel::logits(const Tensor& tokens, Pass pass) const {
  return head_.forward(stack_.forward(embed_.forward(tokens), {}, {}, pass).y);
}

Tensor ClusterModel::attention_map(const Tensor& tokens, int64_t /*layer*/) const {
  const int64_t n = tokens.dim(1);
  std::vector<float> map(static_cast<size_t>(n * n), 0);
  for (int64_t i = 0; i < n; ++i) map[static_cast<size_t>(i * n + i)] = 1;
  return Tensor::from(map, {1, n, n});
}

void ClusterModel::visit(Visitor& v) { v("embed", embed_)("stack", stack_)("head", head_); }

std::unique_ptr<ModelSpec> cluster_spec(const ClusterConfig& config) {
  const TrainingDefaults defaults{.length = 12, .batch = 4, .steps = 8, .warmup = 2, .clip = 0.05};
  return std::make_unique<ModelSpecOf<ClusterModel, ClusterConfig>>(config, defaults);
}

}  // namespace longspan::test
