#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "nn/fields.h"
#include "nn/init.h"
#include "nn/layer.h"
#include "nn/module.h"
#include "ops/elementwise.h"

namespace longspan {

/// y = x W^T + b, W [out, in]. The weight is cast to the dtype of x.
struct Linear : Module {
  Linear() = default;
  Linear(int64_t in, int64_t out, bool with_bias, const Init& init, const Scheme& scheme,
         const Scheme& biases = Scheme::zeros());

  /// [..., in] -> [..., out]; onto [..., out], if it is defined, is added.
  Tensor forward(const Tensor& x) const;
  Tensor forward_onto(const Tensor& onto, const Tensor& x) const;
  /// [B, M, in] (or undefined), [B, L, in] -> [B, M + L, out]: joined_linear().
  Tensor forward(const Tensor& before, const Tensor& x) const;
  void visit(Visitor& v) override { v("weight", weight)("bias", bias); }
  /// Returns the layer with its parameters as constants: they get no gradient from its results.
  Linear detached() const;
  /// Returns the layer with its parameters cast, if they have another dtype.
  Linear as(DType dtype) const;

  Tensor weight;  ///< [out, in]
  Tensor bias;    ///< [out], or undefined
};

/// Returns layer->forward(x) for each of the layers, by one op: projections() (ops/matmul.h).
std::vector<Tensor> forward_each(const Tensor& x, std::span<const Linear* const> layers);
template <std::same_as<Linear>... Layers>
std::array<Tensor, sizeof...(Layers)> forward_each(const Tensor& x, const Layers&... layers) {
  std::array<Tensor, sizeof...(Layers)> results;
  std::ranges::move(forward_each(x, std::array<const Linear*, sizeof...(Layers)>{&layers...}),
                    results.begin());
  return results;
}

/// An embedding table.
struct Embedding : Module {
  Embedding() = default;
  Embedding(int64_t rows, int64_t width, const Init& init, const Scheme& scheme);

  /// ids [...] of an integer dtype -> [..., width]. Rows of the id `padding` are constants: the
  /// table gets no gradient from them. Throws ValueError on an id outside the table.
  Tensor forward(const Tensor& ids, int64_t padding = -1) const;
  void visit(Visitor& v) override { v("weight", weight); }

  Tensor weight;  ///< [rows, width]
};

/// Which statistics a norm divides by.
enum class NormKind : uint8_t { layer, rms };
template <>
inline constexpr std::array<std::string_view, 2> value_names<NormKind>{"layer", "rms"};

/// Layer norm (x - mean) / sqrt(var + eps) g + b, or RMS norm x / sqrt(mean x^2 + eps) g, over the
/// last axis, in at least f32.
struct Normalization : Module {
  Normalization() = default;
  Normalization(NormKind norm, int64_t width, double epsilon, const Init& init);

  Tensor forward(const Tensor& x) const;
  void visit(Visitor& v) override { v("weight", weight)("bias", bias); }
  /// Returns the norm with its parameters as constants.
  Normalization detached() const;

  NormKind kind = NormKind::layer;
  double eps = 1e-5;
  Tensor weight;  ///< [width]
  Tensor bias;    ///< [width]; undefined with rms
};

/// The names of activations in configurations.
template <>
inline constexpr std::array<std::string_view, 7> value_names<Activation>{
    "relu", "gelu_erf", "gelu_tanh", "gelu_sigmoid", "geglu", "silu", "geglu_tanh"};

/// Options of FeedForward.
struct FeedForwardOptions {
  int64_t d_model = 0, d_ff = 0;
  Activation activation = Activation::relu;
  bool bias = true;
  float dropout = 0;                      ///< site "ffn_act"
  Scheme weights = {}, out_weights = {};  ///< initialisation of `in` and `out`
  Scheme biases = Scheme::zeros(), out_biases = Scheme::zeros();
};

/// W2 Drop(f(W1 x + b1)) + b2, position-wise; b1 and b2 unless bias is false.
class FeedForward : public Layer {
 public:
  FeedForward(const FeedForwardOptions& options, const Init& init);

  Output forward(const Tensor& x, const LayerContext& ctx, Pass pass) const override;
  Output forward_onto(const Tensor& onto, const Tensor& x, const LayerContext& ctx,
                      Pass pass) const override;
  bool position_wise() const override { return true; }
  void visit(Visitor& v) override { v("in", in_)("out", out_); }

 private:
  FeedForwardOptions options_;
  Linear in_;   // [F or 2F, D]
  Linear out_;  // [D, F]
};

}  // namespace longspan
