#include "ops/attention/linear_attention.h"

#include <cmath>
#include <memory>
#include <vector>

#include "autograd/record.h"
#include "core/kernels/block_attention.h"
#include "ops/attention/heads.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kLinearAttention = "linear_attention";
// Tokens of a causal chunk, whose pairs MacCount counts.
constexpr int64_t kChunkTokens = 64;
constexpr int64_t kMostFeatures = 1 << 20;

using Inputs = kernels::LinearAttentionInputsOf<Tensor>;

bool needs_projection(FeatureMap f) {
  return kernels::norm_sign(f) != 0 || kernels::is_oscillating(f);
}
bool takes_epsilon(FeatureMap f) {
  return !kernels::is_exponential(f) && !kernels::is_oscillating(f);
}

void check_operands(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
  for (const Named& x : {Named{"q", q}, Named{"k", k}, Named{"v", v}}) {
    require<ValueError>(static_cast<bool>(x.tensor), kLinearAttention, "{} is not given", x.name);
    require_rank_is(kLinearAttention, x.tensor, 4, x.name);
    require_floating(kLinearAttention, x.tensor, x.name);
    require_same_dtype(kLinearAttention, {"q", q}, x);
    require_same_device(kLinearAttention, {"q", q}, x);
  }
  for (int axis = 0; axis < 2; ++axis) {
    if (q.dim(axis) != k.dim(axis) || q.dim(axis) != v.dim(axis)) {
      fail_with<ShapeError>(kLinearAttention, "q, k and v must have the same batch and heads",
                            {{"q", q}, {"k", k}, {"v", v}});
    }
  }
  if (k.dim(2) != v.dim(2)) {
    fail_with<ShapeError>(kLinearAttention, "k and v must have the same length",
                          {{"k", k}, {"v", v}});
  }
  if (q.dim(3) != k.dim(3)) {
    fail_with<ShapeError>(kLinearAttention, "q and k must have the same width",
                          {{"q", q}, {"k", k}});
  }
  if (causal && q.dim(2) != k.dim(2)) {
    fail_with<ShapeError>(kLinearAttention,
                          "causal attention needs as many keys as queries; earlier keys "
                          "belong to the state",
                          {{"q", q}, {"k", k}});
  }
  if (std::min(q.dim(3), v.dim(3)) < 1 ||
      std::max(q.dim(3), v.dim(3)) > kernels::kAttentionMaxWidth) {
    fail_with<ShapeError>(kLinearAttention,
                          fmt::format("widths must be 1 to {}", kernels::kAttentionMaxWidth),
                          {{"q", q}, {"v", v}});
  }
}

void check_projection(const Tensor& q, const Tensor& projection, const Tensor& phase,
                      FeatureMap features) {
  require<ValueError>(projection || !needs_projection(features), kLinearAttention,
                      "projection is not given; these features need one");
  require<ValueError>(phase || features != FeatureMap::phase, kLinearAttention,
                      "phase is not given; the features `phase` need it");
  require<ValueError>(!phase || features == FeatureMap::phase, kLinearAttention,
                      "phase is given; only the features `phase` use it");
  const DType dtype = accumulator_of(q.dtype());
  const int64_t heads = q.dim(1), d = q.dim(3);
  const auto check = [&](const Named& x, int rank) {
    require<DTypeError>(x.tensor.dtype() == dtype, kLinearAttention,
                        "{} is {}; expected {} for q of {}", x.name, name_of(x.tensor.dtype()),
                        name_of(dtype), name_of(q.dtype()));
    require_same_device(kLinearAttention, {"q", q}, x);
    return x.tensor.rank() == rank || (x.tensor.rank() == rank + 1 && x.tensor.dim(0) == heads);
  };
  if (projection) {
    const bool shaped = check({"projection", projection}, 2);
    if (!shaped || projection.dim(-1) != d || projection.dim(-2) < 1 ||
        projection.dim(-2) > kMostFeatures) {
      fail_with<ShapeError>(kLinearAttention,
                            fmt::format("projection must be [m, {}] or [{}, m, {}], 1 <= m <= {}",
                                        d, heads, d, kMostFeatures),
                            {{"q", q}, {"projection", projection}});
    }
  }
  if (phase && (!check({"phase", phase}, 1) || phase.dim(-1) != projection.dim(-2))) {
    fail_with<ShapeError>(kLinearAttention,
                          fmt::format("phase must be [{}] or [{}, {}]", projection.dim(-2), heads,
                                      projection.dim(-2)),
                          {{"projection", projection}, {"phase", phase}});
  }
}

void check_masks(const Tensor& q, const Tensor& k, const Tensor& lengths, const Tensor& hidden) {
  const int64_t batch = k.dim(0), length = k.dim(2);
  if (lengths) {
    require<DTypeError>(lengths.dtype() == DType::i64, kLinearAttention,
                        "key_lengths is {}; expected i64", name_of(lengths.dtype()));
    require_same_device(kLinearAttention, {"q", q}, {"key_lengths", lengths});
    require<ShapeError>(lengths.shape() == Shape{batch}, kLinearAttention,
                        "key_lengths has shape {}; expected [{}]", to_string(lengths.shape()),
                        batch);
  }
  if (!hidden) return;
  require<DTypeError>(hidden.dtype() == DType::u8, kLinearAttention,
                      "hidden_keys is {}; expected u8", name_of(hidden.dtype()));
  require_same_device(kLinearAttention, {"q", q}, {"hidden_keys", hidden});
  require<ShapeError>(hidden.rank() == 2 && hidden.dim(1) == length &&
                          (hidden.dim(0) == 1 || hidden.dim(0) == batch),
                      kLinearAttention, "hidden_keys has shape {}; expected [1 or {}, {}]",
                      to_string(hidden.shape()), batch, length);
}

void check_numbers(const LinearAttentionOptions& o) {
  require(std::isfinite(o.scale) && o.scale >= 0, kLinearAttention,
          "scale is {}; expected 0 or more", o.scale);
  require(std::isfinite(o.epsilon) && o.epsilon >= 0, kLinearAttention,
          "epsilon is {}; expected 0 or more", o.epsilon);
  require(o.epsilon == 0 || takes_epsilon(o.features), kLinearAttention,
          "epsilon is {}; features that are exponential or oscillate take none, since what it adds "
          "would depend on the largest exponent",
          o.epsilon);
  require(std::isfinite(o.floor), kLinearAttention, "floor is {}; expected a finite number",
          o.floor);
  require(o.floor <= 0 || !kernels::is_exponential(o.features), kLinearAttention,
          "floor is {}; denominators of exponential features are positive and need none", o.floor);
}

void check_state(const Tensor& q, const LinearAttentionState& state, const Shape& sums) {
  require<ValueError>(static_cast<bool>(state.sums) == static_cast<bool>(state.top),
                      kLinearAttention, "{} of the state is not given",
                      state.sums ? "top" : "sums");
  if (!state.sums) return;
  const DType dtype = accumulator_of(q.dtype());
  const Shape top = {sums[0], sums[1], sums[2]};
  for (const Named& x : {Named{"state.sums", state.sums}, Named{"state.top", state.top}}) {
    require<DTypeError>(x.tensor.dtype() == dtype, kLinearAttention,
                        "{} is {}; expected {} for q of {}", x.name, name_of(x.tensor.dtype()),
                        name_of(dtype), name_of(q.dtype()));
    require_same_device(kLinearAttention, {"q", q}, x);
  }
  if (state.sums.shape() != sums || state.top.shape() != top) {
    fail_with<ShapeError>(kLinearAttention,
                          fmt::format("the state of these features must be {} and {}",
                                      to_string(sums), to_string(top)),
                          {{"q", q}, {"state.sums", state.sums}, {"state.top", state.top}});
  }
}

// Returns x without history, contiguous, with a first axis of size 1 if it has one axis less.
Tensor prepared(const Tensor& x, int rank) {
  if (!x) return {};
  const Tensor y = contiguous(x.detach());
  return y.rank() == rank ? y : unsqueeze(y, 0);
}

kernels::LinearAttentionInputs view_of(const Inputs& in) {
  return {in.q.view(),     in.k.view(),       in.v.view(),        in.projection.view(),
          in.phase.view(), in.k_valid.view(), in.k_hidden.view(), in.sums.view(),
          in.top.view(),   in.numbers};
}

/// The results that exist: out, normalizer, then reference and the state if they are wanted.
struct ResultList {
  bool reference = false, state = false;

  size_t count() const { return 2 + (reference ? 1 : 0) + (state ? 2 : 0); }
  size_t at_sums() const { return reference ? 3 : 2; }
};

struct LinearAttentionNode final : autograd::Node {
  explicit LinearAttentionNode(const kernels::LinearAttentionNumbers& n)
      : Node(kLinearAttention), numbers(n) {}

  Grads backward(std::span<const Tensor> dy) override {
    const Inputs in{saved(0), saved(1), saved(2), saved(3), saved(4),
                    saved(5), saved(6), saved(7), saved(8), numbers};
    const Tensor &normalizer = saved(9), &reference = saved(10), &top = saved(11);
    const Tensor dout = dy[0] ? detail::last_dim_contiguous(dy[0]) : Tensor{};
    const Tensor dsums = dy.size() > 1 && dy[1] ? contiguous(dy[1]) : Tensor{};
    Tensor dq = detail::empty_gradient(in.q);
    Tensor dk = detail::empty_gradient(in.k);
    Tensor dv = detail::empty_gradient(in.v);
    Tensor dstate = in.sums && wants(3) ? Tensor::like(in.sums) : Tensor{};
    if (in.q.dim(0) * in.q.dim(1) > 0) {
      Tensor means = Tensor::empty(normalizer.shape(), normalizer.dtype(), normalizer.device(),
                                   Category::workspace);
      kernels::linear_attention_backward(
          in.q.device(), view_of(in), {{}, normalizer.view(), reference.view(), {}, top.view()},
          {dout.view(), dsums.view()},
          {dq.mut(), dk.mut(), dv.mut(), dstate ? dstate.mut() : View{}, means.mut()});
    }
    return {wants(0) ? dq : Tensor{}, wants(1) ? dk : Tensor{}, wants(2) ? dv : Tensor{}, dstate};
  }

  kernels::LinearAttentionNumbers numbers;
};

/// Multiply-adds of features, and of sums and the pairs within chunks.
void count_macs(const Inputs& in, int64_t features) {
  if (!MacCount::active()) return;
  const int64_t heads = in.q.dim(0) * in.q.dim(1), queries = in.q.dim(2), keys = in.k.dim(2);
  const int64_t width = in.v.dim(3);
  if (in.projection) {
    MacCount::add_products(heads * (queries + keys) * in.projection.dim(1) * in.q.dim(3));
  }
  int64_t pairs = 0;
  if (in.numbers.causal) {
    const int64_t rest = queries % kChunkTokens;
    pairs =
        queries / kChunkTokens * (kChunkTokens * (kChunkTokens + 1) / 2) + rest * (rest + 1) / 2;
  }
  MacCount::add_attention(heads *
                          ((queries + keys) * features * width + pairs * (features + width)));
}

std::vector<Tensor> compute(const Inputs& in, int64_t features, const ResultList& list) {
  count_macs(in, features);
  const int64_t batch = in.q.dim(0), heads = in.q.dim(1), length = in.q.dim(2);
  const int64_t width = in.v.dim(3);
  const DType dtype = accumulator_of(in.q.dtype());
  const Device device = in.q.device();
  std::vector<Tensor> y = {detail::empty_blhd(in.q, length, width),
                           Tensor::empty({batch, heads, length}, dtype, device)};
  if (list.reference) y.push_back(Tensor::empty({batch, heads, length}, dtype, device));
  if (list.state) {
    y.push_back(Tensor::empty({batch, heads, features, width + 1}, dtype, device));
    y.push_back(Tensor::empty({batch, heads, features}, dtype, device));
  }
  if (batch * heads == 0) return y;
  const size_t sums = list.at_sums();
  kernels::linear_attention_forward(
      device, view_of(in),
      {y[0].mut(), y[1].mut(), list.reference ? y[2].mut() : View{},
       list.state ? y[sums].mut() : View{}, list.state ? y[sums + 1].mut() : View{}});
  return y;
}

/// Returns the results, computed or, in a recomputation, those that a checkpoint scope saved.
template <size_t N>
std::vector<Tensor> results_of(std::span<const Tensor> inputs, const Inputs& in, int64_t features,
                               const ResultList& list) {
  if (list.count() != N) {
    if constexpr (N < 5) return results_of<N + 1>(inputs, in, features, list);
  }
  const auto y =
      autograd::reuse_or_recompute<N>(kLinearAttention, inputs, {}, [&]() -> std::array<Tensor, N> {
        const std::vector<Tensor> made = compute(in, features, list);
        std::array<Tensor, N> all;
        std::copy_n(made.begin(), N, all.begin());
        return all;
      });
  return {y.begin(), y.end()};
}

}  // namespace

LinearAttentionResult linear_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                       const Tensor& projection,
                                       const LinearAttentionOptions& options) {
  const FeatureMap map = options.features;
  check_numbers(options);
  check_operands(q, k, v, options.causal);
  check_projection(q, projection, options.phase, map);
  check_masks(q, k, options.key_lengths, options.hidden_keys);
  const int64_t features =
      kernels::feature_halves(map) * (projection ? projection.dim(-2) : q.dim(3));
  check_state(q, options.state, {q.dim(0), q.dim(1), features, v.dim(3) + 1});
  require<NotImplemented>(kernels::linear_attention_forward.has(q.device().kind), kLinearAttention,
                          "has no kernel for {} yet; move the tensors to the CPU",
                          name_of(q.device()));
  kernels::LinearAttentionNumbers numbers{map, options.causal, options.scale, options.epsilon,
                                          options.floor};
  if (numbers.scale == 0) {
    numbers.scale = needs_projection(map) ? std::pow(static_cast<double>(q.dim(3)), -0.25) : 1;
  }
  if (numbers.floor < 0) numbers.floor = kernels::is_oscillating(map) ? 1e-6 : 0;
  const Inputs in{detail::last_dim_contiguous(q),   detail::last_dim_contiguous(k),
                  detail::last_dim_contiguous(v),   prepared(projection, 3),
                  prepared(options.phase, 2),       prepared(options.key_lengths, 1),
                  prepared(options.hidden_keys, 2), prepared(options.state.sums, 4),
                  prepared(options.state.top, 3),   numbers};
  const ResultList list{kernels::is_oscillating(map), options.keep_state};
  const Tensor inputs[] = {q, k, v, options.state.sums};
  std::vector<Tensor> y = results_of<2>(inputs, in, features, list);
  LinearAttentionResult result{y[0], y[1], {}};
  if (list.state) result.state = {y[list.at_sums()], y[list.at_sums() + 1]};
  const auto make = [&] {
    auto node = std::make_shared<LinearAttentionNode>(numbers);
    node->save({in.q, in.k, in.v, in.projection, in.phase, in.k_valid, in.k_hidden, in.sums, in.top,
                result.normalizer, list.reference ? y[2] : Tensor{}, result.state.top});
    return node;
  };
  if (list.state) {
    record_node(kLinearAttention, inputs, std::array{&result.out, &result.state.sums}, make);
  } else {
    record_node(kLinearAttention, inputs, std::array{&result.out}, make);
  }
  return result;
}

}  // namespace longspan
