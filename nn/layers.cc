#include "nn/layers.h"

#include "autograd/mode.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/random.h"
#include "ops/shape.h"

namespace longspan {

Linear::Linear(int64_t in, int64_t out, bool with_bias, const Init& init, const Scheme& scheme,
               const Scheme& biases)
    : weight(init.at("weight").make({out, in}, scheme)) {
  if (with_bias) bias = init.at("bias").make({out}, biases);
}

Tensor Linear::forward(const Tensor& x) const { return forward({}, x); }

Tensor Linear::forward(const Tensor& before, const Tensor& x) const {
  const Linear w = as(x.dtype());
  return joined_linear(before, x, w.weight, w.bias);
}

Tensor Linear::forward_onto(const Tensor& onto, const Tensor& x) const {
  const Linear w = as(x.dtype());
  return linear(x, w.weight, w.bias, onto);
}

Linear Linear::as(DType dtype) const {
  Linear same;
  same.weight = cast(weight, dtype);
  if (bias) same.bias = cast(bias, dtype);
  return same;
}

Linear Linear::detached() const {
  Linear constant;
  constant.weight = weight.detach();
  if (bias) constant.bias = bias.detach();
  return constant;
}

std::vector<Tensor> forward_each(const Tensor& x, std::span<const Linear* const> layers) {
  std::vector<Projection> to;
  for (const Linear* layer : layers) {
    const Linear same = layer->as(x.dtype());
    to.push_back({same.weight, same.bias});
  }
  return projections(x, to);
}

Embedding::Embedding(int64_t rows, int64_t width, const Init& init, const Scheme& scheme)
    : weight(init.at("weight").make({rows, width}, scheme)) {}

Tensor Embedding::forward(const Tensor& ids, int64_t padding) const {
  const Tensor rows = embedding(weight, ids);
  if (padding < 0 || !autograd::recording()) return rows;
  const Tensor is_padding = equal(ids, full_like(ids, static_cast<double>(padding)));
  return where(unsqueeze(is_padding, -1), rows.detach(), rows);
}

Normalization::Normalization(NormKind norm, int64_t width, double epsilon, const Init& init)
    : kind(norm), eps(epsilon), weight(init.at("weight").make({width}, Scheme::constant(1))) {
  if (kind == NormKind::layer) bias = init.at("bias").make({width}, Scheme::zeros());
}

Tensor Normalization::forward(const Tensor& x) const {
  const Tensor g = cast(weight, x.dtype());
  if (kind == NormKind::rms) return rms_norm(x, g, eps);
  return layer_norm(x, g, cast(bias, x.dtype()), eps);
}

Normalization Normalization::detached() const {
  Normalization constant = *this;
  constant.weight = weight.detach();
  if (bias) constant.bias = bias.detach();
  return constant;
}

FeedForward::FeedForward(const FeedForwardOptions& options, const Init& init)
    : options_(options),
      in_(options.d_model, options.d_ff * (is_gated(options.activation) ? 2 : 1), options.bias,
          init.at("in"), options.weights, options.biases),
      out_(options.d_ff, options.d_model, options.bias, init.at("out"), options.out_weights,
           options.out_biases) {}

Output FeedForward::forward(const Tensor& x, const LayerContext& ctx, Pass pass) const {
  return forward_onto({}, x, ctx, pass);
}

Output FeedForward::forward_onto(const Tensor& onto, const Tensor& x, const LayerContext&,
                                 Pass pass) const {
  if (options_.dropout == 0 || !pass.training) {
    const Linear in = in_.as(x.dtype()), out = out_.as(x.dtype());
    return feed_forward(x, in.weight, in.bias, options_.activation, out.weight, out.bias, onto);
  }
  const Tensor h = activate(options_.activation, in_.forward(x));  // [B, L, F]
  return out_.forward_onto(onto, dropout(h, options_.dropout, pass.at("ffn_act")));
}

}  // namespace longspan
