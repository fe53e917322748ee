// A whole training step of a pre-norm causal language model: forward, backward, AdamW.

#include <fmt/format.h>

#include <memory>
#include <vector>

#include "bench/harness.h"
#include "bench/kernels.h"
#include "models/transformer/transformer.h"
#include "train/optimizer.h"

namespace longspan::bench {
namespace {

void add_step(int64_t batch, int64_t length, int64_t window) {
  TransformerConfig config;
  config.n_layer = 6;
  config.n_head = 8;
  config.d_model = 256;
  config.d_ff = 1024;
  config.n_max = length;
  config.activation = Activation::gelu_erf;
  config.positions = Positions::learned;
  config.qkv_bias = config.out_bias = config.head_bias = true;
  config.window = window;
  if (window > 0) config.local = Locality::exact;

  const Transformer plan(config, Init{.device = meta_device});
  const double forward = 2.0 * static_cast<double>(forward_macs(plan, length, batch));
  const std::string attention = window > 0 ? fmt::format("local {}", window) : "causal";
  measure(fmt::format("training step/{}/N=6 D=256 H=8 B={} L={}/f32", attention, batch, length),
          {.flops = 3 * forward}, [=] {
            const auto model = std::make_shared<Transformer>(config, Init{});
            const auto optimizer = std::make_shared<AdamW>(named_parameters(*model));
            std::vector<int64_t> token(static_cast<size_t>(batch * length));
            for (size_t i = 0; i < token.size(); ++i) {
              token[i] = static_cast<int64_t>(i) * 7919 % config.vocab;
            }
            const Tensor tokens = Tensor::from(token, {batch, length});
            return [=] {
              const Pass pass{.training = true, .gen = {}, .row = 0};
              backward(model->loss(tokens, tokens, {}, pass).loss);
              optimizer->step(1e-3);
            };
          });
}

}  // namespace

void add_steps() {
  add_step(4, 512, 0);
  add_step(1, 8192, 256);
}

}  // namespace longspan::bench
