// One layer of the Sparse Transformer, forward and backward, at the sizes of its text model: what
// fixed and strided attention save compared with our dense causal kernel. Includes embedding, head
// and loss, which are the same for all.

#include <fmt/format.h>

#include <memory>
#include <vector>

#include "bench/harness.h"
#include "bench/kernels.h"
#include "models/sparse_transformer/sparse_transformer.h"

namespace longspan::bench {
namespace {

void add_layer(const std::string& name, const std::string& sets, Integration integration,
               int64_t length) {
  SparseTransformerConfig config = sparse_transformer_preset("enwik8");
  config.n_layer = 1;
  config.n_max = length;
  config.dropout = 0;
  config.index_sets = sets;
  config.integration = integration;
  const SparseTransformer plan(config, Init{.device = meta_device});
  const double forward = 2.0 * static_cast<double>(forward_macs(plan, length));
  measure(fmt::format("sparse layer/{}/D=512 H=8 l=128 c=32 B=1 L={}/f32", name, length),
          {.flops = 3 * forward}, [=] {
            const auto model = std::make_shared<SparseTransformer>(config, Init{});
            std::vector<int64_t> token(static_cast<size_t>(length));
            for (size_t i = 0; i < token.size(); ++i) {
              token[i] = static_cast<int64_t>(i) * 7919 % config.vocab;
            }
            const Tensor tokens = Tensor::from(token, {1, length});
            return [=] {
              backward(model->loss(tokens, tokens, {}, {.training = true, .gen = {}}).loss);
            };
          });
}

}  // namespace

void add_sparse_layers() {
  for (const int64_t length : {3072, 12288}) {
    add_layer("dense", "dense", Integration::merged, length);
    add_layer("fixed, merged", "block,summary", Integration::merged, length);
    add_layer("strided, merged", "local,strided", Integration::merged, length);
    add_layer("local", "local", Integration::interleave, length);
    add_layer("strided", "strided", Integration::interleave, length);
  }
}

}  // namespace longspan::bench
