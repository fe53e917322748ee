#include "tests/harness/clusters.h"

#include <utility>

#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "ops/softmax.h"

namespace longspan::test {
namespace {

constexpr int64_t clusters = 3;

}  // namespace

Clusters::Clusters(int64_t width, float dropout, const Init& init)
    : dropout_(dropout),
      linear_(width, width, true, init.at("linear"), Scheme::normal(0.3)),
      copy_(width, width, true, init.at("copy"), Scheme::normal(0.3)),
      centroids_(init.at("centroids").make_buffer({clusters, width}, Scheme::normal(0.5))),
      totals_(clone(centroids_)),
      counts_(init.make_buffer({clusters, 1}, Scheme{Scheme::Kind::constant, 1})),
      updates_(init.make_buffer({1}, Scheme::zeros())) {
  totals_.set_category(Category::parameter);
}

Output Clusters::forward(const Tensor& x, const LayerContext&, Pass pass) const {
  const Tensor z = linear_.forward(x);
  Output out(dropout(tanh(z), dropout_, pass.at("clusters")));
  if (!pass.training) return out;
  const Tensor constant = x.detach();
  const Tensor rows = reshape(z, {z.numel() / z.dim(-1), z.dim(-1)});
  const Tensor p = softmax(matmul(rows, transpose(centroids_))).detach();
  out.losses = {{"commitment", mul(mean(square(sub(rows, matmul(p, centroids_)))), 0.1)},
                {"copy", mean(square(sub(copy_.forward(constant), constant)))}};
  const Tensor members = transpose(p);
  out.statistics = {{this, {sum(members, {1}, true), matmul(members, rows.detach())}}};
  return out;
}

void Clusters::after_step(const StepEnd& end) {
  constexpr double keep = 0.9;
  require(end.statistics.size() == 2, "clusters", "got {} sums; expected 2", end.statistics.size());
  const Tensor noise =
      normal(centroids_.shape(), end.gen, 0, 0.01, centroids_.dtype(), centroids_.device());
  write_buffer(counts_, add(mul(counts_, keep), mul(end.statistics[0], 1 - keep)));
  write_buffer(totals_, add(mul(totals_, keep), mul(end.statistics[1], 1 - keep)));
  write_buffer(centroids_, add(div(totals_, counts_), noise));
  write_buffer(updates_, add(updates_, 1));
}

void Clusters::visit(Visitor& v) {
  v("linear", linear_).clipped_apart("copy", "copy", copy_);
  v.buffer("centroids", centroids_).buffer("totals", totals_).buffer("counts", counts_);
  v.buffer("updates", updates_);
}

Stack cluster_stack(int64_t layers, int64_t width, float dropout, const MemoryPolicy& policy,
                    const Init& init) {
  std::vector<Block> blocks;
  for (int64_t i = 0; i < layers; ++i) {
    const Init own = init.at(i);
    std::vector<Branch> branches;
    branches.push_back({"clusters", Normalization(NormKind::rms, width, 1e-5, own.at("norm")),
                        std::make_unique<Clusters>(width, dropout, own.at("clusters"))});
    blocks.emplace_back(NormPlace::pre, dropout, std::move(branches));
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
  losses.statistics = std::move(r.statistics);
  return losses;
}

Tensor ClusterModel::logits(const Tensor& tokens, Pass pass) const {
  return head_.forward(stack_.forward(embed_.forward(tokens), {}, {}, pass).y);
}

void ClusterModel::visit(Visitor& v) { v("embed", embed_)("stack", stack_)("head", head_); }

std::unique_ptr<ModelSpec> cluster_spec(const ClusterConfig& config) {
  const TrainingDefaults defaults{.length = 12, .batch = 4, .steps = 8, .warmup = 2, .clip = 0.05};
  return std::make_unique<ModelSpecOf<ClusterModel, ClusterConfig>>("clusters", config, defaults);
}

}  // namespace longspan::test
