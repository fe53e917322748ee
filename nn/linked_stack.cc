#include "nn/linked_stack.h"

#include <utility>

#include "autograd/checkpoint_scope.h"
#include "core/scope.h"
#include "nn/checkpoint.h"
#include "nn/chunked.h"
#include "nn/reversible.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/shape.h"

namespace longspan {
namespace {

/// [B, n_l + n_g, D].
Tensor joined(const LinkedStreams& x) {
  if (!x.l || !x.g) return x.l ? x.l : x.g;
  return concat({x.l, x.g}, 1);
}

LinkedStreams split(const Tensor& x, int64_t n_l) {
  LinkedStreams y;
  if (n_l > 0) y.l = narrow(x, 1, 0, n_l);
  if (n_l < x.dim(1)) y.g = narrow(x, 1, n_l, x.dim(1) - n_l);
  return y;
}

/// A norm for each side; empty: identity.
struct Norms {
  std::optional<Normalization> l, g;

  LinkedStreams forward(const LinkedStreams& x) const {
    return {l && x.l ? l->forward(x.l) : x.l, g && x.g ? g->forward(x.g) : x.g};
  }
};

}  // namespace

LinkedBlock::LinkedBlock(NormPlace place, float dropout, std::unique_ptr<LinkedAttention> attention,
                         Normalization norm_l, Normalization norm_g, std::vector<Block> ff)
    : place_(place),
      dropout_(dropout),
      attention_(std::move(attention)),
      norm_l_(std::move(norm_l)),
      norm_g_(std::move(norm_g)),
      ff_(std::move(ff)) {}

void LinkedBlock::visit(Visitor& v) {
  v("attention", *attention_)("norm_long", norm_l_)("norm_global", norm_g_);
  if (ff_.size() == 1) {
    v("feed_forward", ff_[0]);
  } else {
    v("long_feed_forward", ff_[0])("global_feed_forward", ff_[1]);
  }
}

LinkedStreams LinkedBlock::attention_input(const LinkedStreams& x) const {
  return place_ == NormPlace::post ? x : Norms{norm_l_, norm_g_}.forward(x);
}

LinkedStreams LinkedBlock::forward(LinkedStreams x, const LinkedPatterns& see, Pass pass) const {
  const auto stream = [&](Tensor& y, const Tensor& z, const Normalization& norm, const Block& ff,
                          Pass site) {
    if (!y) return;
    y = add(y, dropout(z, dropout_, site.at("resid")));
    if (place_ == NormPlace::post) y = norm.forward(y);
    y = ff.forward(y, {}, site).y;
  };
  require<NotImplemented>(pass.split == nullptr, "ranks",
                          "processes do not split two linked streams; leave out Pass::split (set "
                          "ranks.sequence to 1)");
  const LinkedStreams z = attention_->forward(attention_input(x), see, pass.at("attention"));
  autograd::CheckpointScope::end_branch();
  stream(x.l, z.l, norm_l_, ff_.front(), pass.at("long"));
  stream(x.g, z.g, norm_g_, ff_.back(), pass.at("global"));
  return x;
}

/// The residual branch of a block, attention or feed-forward, as a step of a reversible stack:
/// applies the norm of each side, the layer and dropout.
struct LinkedBlock::Residual final : Layer {
  Residual(const LinkedBlock& of, bool attention, Norms before, LinkedPatterns patterns,
           int64_t tokens)
      : block(of),
        attends(attention),
        norms(std::move(before)),
        see(std::move(patterns)),
        n_l(tokens) {}

  Output forward(const Tensor& x, const LayerContext&, Pass pass) const override {
    const LinkedStreams in = norms.forward(split(x, n_l));
    LinkedStreams y;
    if (attends) {
      y = block.attention_->forward(in, see, pass.at("attention"));
    } else {
      y.l = feed_forward(block.ff_.front(), in.l, pass.at("long"));
      y.g = feed_forward(block.ff_.back(), in.g, pass.at("global"));
    }
    const auto drop = [&](const Tensor& z, const char* side) {
      return z ? dropout(z, block.dropout_, pass.at(side).at("resid")) : z;
    };
    return joined({drop(y.l, "long"), drop(y.g, "global")});
  }

  void visit(Visitor& v) override {
    v("norm_long", norms.l)("norm_global", norms.g);
    if (attends) {
      v("attention", *block.attention_);
    } else {
      v("long", *block.ff_.front().branch("ff").layer);
      v("global", *block.ff_.back().branch("ff").layer);
    }
  }

  static Tensor feed_forward(const Block& one, const Tensor& x, Pass pass) {
    const Layer& ff = *one.branch("ff").layer;
    if (!x) return x;
    return (one.chunks() == 1 ? ff.forward(x, {}, pass) : chunked(ff, x, one.chunks(), pass)).y;
  }

  const LinkedBlock& block;
  const bool attends;
  Norms norms;
  const LinkedPatterns see;
  const int64_t n_l;
};

/// The reversible streams between blocks.
struct LinkedStack::Walk {
  Reversible streams;
  Norms last;  // with post-norm: the norms to apply when reading the streams
  int64_t n_l = 0;

  /// Splits a stream into both sides and applies their norms.
  LinkedStreams read(const Tensor& x, const Norms& norms) const {
    return norms.forward(split(x, n_l));
  }
};

LinkedStack::LinkedStack(NormPlace place, std::vector<LinkedBlock> blocks,
                         std::optional<Normalization> final_norm, MemoryPolicy policy,
                         DType compute)
    : place_(place),
      blocks_(std::move(blocks)),
      final_norm_(std::move(final_norm)),
      policy_(std::move(policy)),
      compute_(compute) {
  for (LinkedBlock& b : blocks_) {
    for (Block& ff : b.ff_) ff.set_chunks(policy_.chunks);
  }
}

/// Runs the first `count` blocks. With post-norm, the norms apply to the input of the next branch
/// that reads the sum, as in a Stack.
LinkedStack::Walk LinkedStack::walk(const LinkedStreams& x, const LinkedPatterns& all, Pass pass,
                                    int64_t count) const {
  const bool pre = place_ == NormPlace::pre;
  const Tensor input = joined(x);
  const ReversibleOptions options = reversible_options(policy_, input.dtype(), 2);
  Walk w{Reversible(enter_reversible(input, options), options), {}, x.l ? x.l.dim(1) : 0};
  for (int64_t i = 0; i < count; ++i) {
    const Scope scope("layers", static_cast<long>(i));
    const LinkedBlock& b = block(i);
    const Pass site = pass.at("layers").at(i);
    const Norms own{b.norm_l_, b.norm_g_};
    const Norms of_ff{b.ff_.front().last_norm(), b.ff_.back().last_norm()};
    const auto step = [&](bool attends, const Norms& norms) {
      w.streams.step(
          std::make_shared<LinkedBlock::Residual>(b, attends, norms, all.of_layer(i), w.n_l), {},
          site.at(attends ? "attention" : "ff"));
    };
    step(true, pre ? own : w.last);
    step(false, pre ? of_ff : own);
    if (!pre) w.last = of_ff;
  }
  return w;
}

LinkedStreams LinkedStack::forward(const LinkedStreams& x, const LinkedPatterns& all,
                                   Pass pass) const {
  LinkedStreams y;
  if (is_reversible(policy_)) {
    Walk w = walk(x, all, pass, size());
    y = w.read(cast(mean_of(w.streams.finish()), compute_), w.last);
  } else {
    // Checkpoint scopes share it for their recomputations.
    const auto shared = std::make_shared<const LinkedPatterns>(all);
    std::vector<Tensor> streams{x.l, x.g};
    const auto step = [this, shared, pass](int64_t i, std::vector<Tensor>& both, bool) {
      const Scope at("layers", static_cast<long>(i));
      const LinkedStreams z =
          block(i).forward({both[0], both[1]}, shared->of_layer(i), pass.at("layers").at(i));
      both = {z.l, z.g};
    };
    run_layers(size(), streams, policy_, step);
    y = {streams[0], streams[1]};
  }
  return final_norm_ ? Norms{final_norm_, final_norm_}.forward(y) : y;
}

LinkedStreams LinkedStack::attention_input(int64_t i, const LinkedStreams& input,
                                           const LinkedPatterns& all) const {
  if (is_reversible(policy_)) {
    const Walk w = walk(input, all, Pass{}, i);
    if (place_ == NormPlace::post) return w.read(w.streams.input(), w.last);
    return block(i).attention_input(w.read(w.streams.input(), {}));
  }
  LinkedStreams x = input;
  for (int64_t k = 0; k < i; ++k) x = block(k).forward(x, all.of_layer(k), Pass{});
  return block(i).attention_input(x);
}

}  // namespace longspan
