#include "models/parts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "models/scoring.h"
#include "nn/objective.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/loss.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"

namespace longspan {

DType compute_dtype(Precision precision, DType parameters) {
  if (parameters == DType::f64) return DType::f64;
  if (precision == Precision::bf16) return DType::bf16;
  return precision == Precision::f16 ? DType::f16 : DType::f32;
}

Scheme uniform_of(int64_t inputs) {
  return Scheme::uniform(1 / std::sqrt(static_cast<double>(inputs)));
}

void require_heads(std::string_view model, int64_t d_model, int64_t n_head) {
  require(d_model >= 1 && n_head >= 1, model,
          "d_model is {} and n_head {}; expected 1 or more of each", d_model, n_head);
  constexpr int64_t widest = std::numeric_limits<int32_t>::max();
  require(d_model <= widest, model, "d_model is {}; expected {} or less", d_model, widest);
  if (d_model % n_head == 0) return;
  std::string divisors, large;  // divisors h, and their cofactors
  for (int64_t h = 1; h * h <= d_model; ++h) {
    if (d_model % h != 0) continue;
    divisors += (divisors.empty() ? "" : ", ") + std::to_string(h);
    if (h * h < d_model) large = ", " + std::to_string(d_model / h) + large;
  }
  divisors += large;
  fail(model, "d_model {} is not a multiple of n_head {}; expected n_head = one of {}", d_model,
       n_head, divisors);
}

std::string_view extend_table(std::string_view field, int64_t& rows, int64_t length) {
  if (rows >= length) return {};
  rows = length;
  return field;
}

void require_no_memory(std::string_view model, const SegmentMemory& memory) {
  require(memory.layers.empty(), model, "got a memory of {} layers; this model keeps none",
          memory.layers.size());
}

TokenTransform::TokenTransform(int64_t width, int64_t table, Activation f, double eps,
                               const Init& init, const Scheme& weights)
    : activation(f == Activation::geglu        ? Activation::gelu_erf
                 : f == Activation::geglu_tanh ? Activation::gelu_tanh
                                               : f),
      dense(width, table, true, init.at("dense"), weights),
      norm(NormKind::layer, table, eps, init.at("norm")) {}

Tensor TokenTransform::forward(const Tensor& hidden) const {
  return norm.forward(activate(activation, dense.forward(hidden)));
}

PoolActivation pool_activation(Activation f) {
  switch (f) {
    case Activation::relu:
      return PoolActivation::relu;
    case Activation::gelu_erf:
      return PoolActivation::gelu_erf;
    case Activation::gelu_tanh:
      return PoolActivation::gelu_tanh;
    case Activation::gelu_sigmoid:
      return PoolActivation::gelu_sigmoid;
    case Activation::silu:
      return PoolActivation::silu;
    case Activation::geglu:
    case Activation::geglu_tanh:
      break;
  }
  fail("pool_activation", "{} takes an input of twice the width; expected an activation of one",
       name_of_value(f));
}

std::vector<int64_t> first_places(const Tensor& tokens, int64_t id) {
  const int64_t batch = tokens.dim(0), length = tokens.dim(1);
  const std::vector<int64_t> ids = cast(to_device(tokens, {}), DType::i64).to_vector<int64_t>();
  std::vector<int64_t> places;
  for (int64_t b = 0; b < batch; ++b) {
    const auto row = ids.begin() + b * length;
    const auto at = std::find(row, row + length, id);
    places.push_back(at == row + length ? -1 : at - row);
  }
  return places;
}

namespace {

Tensor pooled_by(PoolActivation f, const Tensor& x) {
  switch (f) {
    case PoolActivation::tanh:
      return tanh(x);
    case PoolActivation::relu:
      return relu(x);
    case PoolActivation::gelu_erf:
      return gelu_erf(x);
    case PoolActivation::gelu_tanh:
      return gelu_tanh(x);
    case PoolActivation::gelu_sigmoid:
      return sigmoid_gelu(x);
    case PoolActivation::silu:
      break;
  }
  return silu(x);
}

}  // namespace

PooledHead::PooledHead(int64_t width, int64_t classes, const Init& init, const Scheme& weights,
                       PoolActivation f, int64_t from)
    : activation(f),
      pool(from > 0 ? from : width, width, true, init.at("pool"), weights),
      classifier(width, classes, true, init.at("classifier"), weights) {}

Tensor PooledHead::forward(const Tensor& hidden, float p, Pass pass) const {
  const Tensor pooled = pooled_by(activation, pool.forward(select(hidden, 1, 0)));  // [B, D]
  return classifier.forward(dropout(pooled, p, pass.at("classifier")));             // [B, classes]
}

PhraseHead::PhraseHead(int64_t width, int64_t longest, Activation f, const Init& init,
                       const Scheme& weights)
    : activation(f) {
  for (int64_t m = 1; m <= longest; ++m) {
    mix.emplace_back(m * width, width, true, init.at(m).at("mix"), weights);
    score.emplace_back(width, 1, true, init.at(m).at("score"), weights);
  }
}

Tensor PhraseHead::forward(const Tensor& x) const {
  constexpr double never = -std::numeric_limits<double>::infinity();
  const int64_t length = x.dim(1);
  std::vector<Tensor> scores;
  for (size_t i = 0; i < mix.size(); ++i) {
    const auto m = static_cast<int64_t>(i) + 1;
    const int64_t starts = std::max<int64_t>(0, length - m + 1);
    if (starts == 0) {
      scores.push_back(full({x.dim(0), length, 1}, never, x.dtype(), x.device()));
      continue;
    }
    std::vector<Tensor> words;
    for (int64_t w = 0; w < m; ++w) words.push_back(narrow(x, 1, w, starts));
    const Tensor mixed = activate(activation, mix[i].forward(concat(words, 2)));  // [B, starts, D]
    scores.push_back(pad(score[i].forward(mixed), 1, 0, length - starts, never));
  }
  return concat(scores, 2);
}

Init attention_init(const Init& init, int64_t i) { return init.at("layers").at(i).at("attention"); }

Stack attention_stack(const StackOptions& o, std::vector<std::unique_ptr<Layer>> attention,
                      const Init& init) {
  const auto norm = [&](double eps, const Init& at) {
    return Normalization(NormKind::layer, o.ff.d_model, eps, at);
  };
  std::vector<Block> blocks;
  for (auto& layer : attention) {
    const Init at = init.at("layers").at(static_cast<int64_t>(blocks.size()));
    std::vector<Branch> branches;
    branches.push_back({"attention", norm(o.norm_eps, at.at("norm1")), std::move(layer)});
    if (o.ff.d_ff > 0) {
      branches.push_back({"ff", norm(o.norm_eps, at.at("norm2")),
                          std::make_unique<FeedForward>(o.ff, at.at("ff"))});
    }
    blocks.emplace_back(o.norm, o.dropout, std::move(branches));
  }
  std::optional<Normalization> last;
  if (o.norm == NormPlace::pre && o.final_norm) {
    last = norm(o.final_norm_eps > 0 ? o.final_norm_eps : o.norm_eps, init.at("final_norm"));
  }
  return Stack(std::move(blocks), std::move(last), o.memory);
}

void require_token_targets(std::string_view model, const Tensor& hidden, const Tensor& targets) {
  if (targets.rank() == 2 && hidden.rank() == 3 && targets.dim(0) == hidden.dim(0) &&
      targets.dim(1) == hidden.dim(1)) {
    return;
  }
  fail_with<ShapeError>(model, "targets must be [B, L] for hidden [B, L, D]",
                        {{"hidden", hidden}, {"targets", targets}});
}

Tensor token_loss(const Tensor& h, const Linear& classifier, const Tensor& targets,
                  const HeadOptions& head, bool training, double smoothing) {
  const Tensor& weight = classifier.weight;
  const Tensor bias = classifier.bias ? cast(classifier.bias, h.dtype()) : Tensor{};
  const bool each = !training && Scoring::on();
  const Tensor loss =
      linear_cross_entropy(h, cast(weight, h.dtype()), bias, targets,
                           {.smoothing = training ? smoothing : 0,
                            .ignore = ignored_target,
                            .reduction = each ? Reduction::none : Reduction::mean,
                            .z_loss = training ? head.z_loss : 0,
                            .soft_cap = head.soft_cap,
                            .gradient = each ? LossGradient::recompute : head.loss_gradient});
  return each ? mean_of_targets(loss, targets) : loss;
}

Tensor mean_of_targets(const Tensor& losses, const Tensor& targets) {
  const Tensor ignored = full({}, ignored_target, DType::i64, targets.device());
  const Tensor counted = cast(not_equal(cast(targets, DType::i64), ignored), DType::f64);
  const Tensor one = ones({}, DType::f64, targets.device());
  return div(sum(cast(losses, DType::f64)), maximum(sum(counted), one));
}

Tensor token_logits(const Tensor& h, const Linear& classifier, const HeadOptions& head) {
  const Tensor z = classifier.forward(cast(h, classifier.weight.dtype()));
  return head.soft_cap > 0 ? mul(tanh(mul(z, 1 / head.soft_cap)), head.soft_cap) : z;
}

}  // namespace longspan
