// ETC's layers as steps of a reversible stack. Each of its two streams holds the long tokens
// followed by the globals.

#include <memory>
#include <optional>
#include <utility>

#include "core/scope.h"
#include "models/etc/etc.h"
#include "nn/chunked.h"
#include "nn/reversible.h"
#include "ops/copy.h"
#include "ops/random.h"
#include "ops/shape.h"

namespace longspan {
namespace {

/// [B, n_l + n_g, D].
Tensor joined(const EtcStreams& x) {
  if (!x.l || !x.g) return x.l ? x.l : x.g;
  return concat({x.l, x.g}, 1);
}

EtcStreams split(const Tensor& x, int64_t n_l) {
  EtcStreams y;
  if (n_l > 0) y.l = narrow(x, 1, 0, n_l);
  if (n_l < x.dim(1)) y.g = narrow(x, 1, n_l, x.dim(1) - n_l);
  return y;
}

/// A norm for each side; empty: identity.
struct Norms {
  std::optional<Normalization> l, g;

  EtcStreams forward(const EtcStreams& x) const {
    return {l && x.l ? l->forward(x.l) : x.l, g && x.g ? g->forward(x.g) : x.g};
  }
};

}  // namespace

/// The residual branch of a layer, attention or feed-forward: applies the norm of each side, the
/// layer and dropout.
struct EtcLayer::Residual final : Layer {
  Residual(const EtcLayer& of, bool attends, Norms before, EtcPatterns patterns, int64_t tokens)
      : layer(of),
        attention(attends),
        norms(std::move(before)),
        see(std::move(patterns)),
        n_l(tokens) {}

  Output forward(const Tensor& x, const LayerContext&, Pass pass) const override {
    const EtcStreams in = norms.forward(split(x, n_l));
    EtcStreams y;
    if (attention) {
      y = layer.attention_.forward(in, see, pass.at("attention"));
    } else {
      y.l = feed_forward(layer.ff_.front(), in.l, pass.at("long"));
      y.g = feed_forward(layer.ff_.back(), in.g, pass.at("global"));
    }
    const auto drop = [&](const Tensor& z, const char* side) {
      return z ? dropout(z, layer.dropout_, pass.at(side).at("resid")) : z;
    };
    return joined({drop(y.l, "long"), drop(y.g, "global")});
  }

  void visit(Visitor& v) override {
    v("norm_long", norms.l)("norm_global", norms.g);
    if (attention) {
      EtcAttention weights = layer.attention_;
      v("attention", weights);
    } else {
      v("long", *layer.ff_.front().branch("ff").layer);
      v("global", *layer.ff_.back().branch("ff").layer);
    }
  }

  static Tensor feed_forward(const Block& block, const Tensor& x, Pass pass) {
    const Layer& ff = *block.branch("ff").layer;
    if (!x) return x;
    return (block.chunks() == 1 ? ff.forward(x, {}, pass) : chunked(ff, x, block.chunks(), pass)).y;
  }

  const EtcLayer& layer;
  const bool attention;
  Norms norms;
  const EtcPatterns see;
  const int64_t n_l;
};

/// The state of the reversible streams between layers.
struct EtcEncoder::Walk {
  Reversible streams;
  Norms last;  // with post-norm: the norms to apply when reading the streams
  int64_t n_l = 0;

  /// Splits a stream into both sides and applies their norms.
  EtcStreams read(const Tensor& x, const Norms& norms) const {
    return norms.forward(split(x, n_l));
  }
};

/// Runs the first `count` layers. With post-norm, the norms apply to the input of the next branch
/// that reads the sum, as in a Stack.
EtcEncoder::Walk EtcEncoder::walk(const EtcStreams& x, const EtcPatterns& all, Pass pass,
                                  int64_t count) const {
  const bool pre = config_.norm == NormPlace::pre;
  const Tensor input = joined(x);
  const ReversibleOptions options = reversible_options(config_.memory, input.dtype(), 2);
  Walk w{Reversible(enter_reversible(input, options), options), {}, x.l ? x.l.dim(1) : 0};
  for (int64_t i = 0; i < count; ++i) {
    const Scope scope("layers", static_cast<long>(i));
    const EtcLayer& layer = this->layer(i);
    const Pass site = pass.at("layers").at(i);
    const Norms own{layer.norm_l_, layer.norm_g_};
    const Norms of_ff{layer.ff_.front().last_norm(), layer.ff_.back().last_norm()};
    const auto step = [&](bool attention, const Norms& norms) {
      w.streams.step(
          std::make_shared<EtcLayer::Residual>(layer, attention, norms, all.of_layer(i), w.n_l), {},
          site.at(attention ? "attention" : "ff"));
    };
    step(true, pre ? own : w.last);
    step(false, pre ? of_ff : own);
    if (!pre) w.last = of_ff;
  }
  return w;
}

EtcStreams EtcEncoder::forward_reversible(const EtcStreams& x, const EtcPatterns& all,
                                          Pass pass) const {
  Walk w = walk(x, all, pass, config_.n_layer);
  return w.read(cast(mean_of(w.streams.finish()), compute_), w.last);
}

EtcStreams EtcEncoder::reversible_attention_input(int64_t layer, const EtcStreams& x,
                                                  const EtcPatterns& all) const {
  const Walk w = walk(x, all, Pass{}, layer);
  if (config_.norm == NormPlace::post) return w.read(w.streams.input(), w.last);
  return this->layer(layer).attention_input(w.read(w.streams.input(), {}));
}

}  // namespace longspan
