#include "models/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "autograd/mode.h"
#include "ops/copy.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kOp = "sample";

/// Draws the token of one row, u in [0, 1).
int64_t draw(const double* logits, int64_t vocab, const Sampling& s, double u,
             std::vector<int64_t>& order, std::vector<double>& weight) {
  const auto likelier = [&](int64_t a, int64_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  order.resize(static_cast<size_t>(vocab));
  std::iota(order.begin(), order.end(), int64_t{0});
  if (s.temperature == 0) return *std::min_element(order.begin(), order.end(), likelier);
  std::sort(order.begin(), order.end(), likelier);
  size_t n = order.size();
  if (s.top_k > 0) n = std::min(n, static_cast<size_t>(s.top_k));
  weight.resize(n);
  double total = 0;
  for (size_t i = 0; i < n; ++i) {
    weight[i] = std::exp((logits[order[i]] - logits[order[0]]) / s.temperature);
    total += weight[i];
  }
  if (s.top_p < 1) {
    double reached = 0;
    size_t kept = 0;
    while (kept < n && reached < s.top_p * total) reached += weight[kept++];
    n = std::max<size_t>(kept, 1);
    total = reached;
  }
  double below = 0;
  for (size_t i = 0; i + 1 < n; ++i) {
    below += weight[i];
    if (u * total < below) return order[i];
  }
  return order[n - 1];
}

}  // namespace

Tensor sample(const Tensor& logits, const Sampling& s, const Generator& gen) {
  require_floating(kOp, logits, "logits");
  require_rank_is(kOp, logits, 2, "logits");
  require<ShapeError>(logits.dim(1) >= 1, kOp, "there are no tokens to choose from");
  require(s.temperature >= 0 && std::isfinite(s.temperature), kOp,
          "temperature is {}; expected 0 or more", s.temperature);
  require(s.top_k >= 0, kOp, "top_k is {}; expected 0 (all) or more", s.top_k);
  require(s.top_p > 0 && s.top_p <= 1, kOp, "top_p is {}; expected 0 < p <= 1", s.top_p);
  const NoGrad off;
  const int64_t batch = logits.dim(0), vocab = logits.dim(1);
  const std::vector<double> values = cast(logits, DType::f64).to_vector<double>();
  std::vector<int64_t> ids(static_cast<size_t>(batch));
  std::vector<int64_t> order;
  std::vector<double> weight;
  for (int64_t b = 0; b < batch; ++b) {
    const double* row = values.data() + b * vocab;
    const double largest = *std::max_element(row, row + vocab, [](double x, double y) {
      return !std::isnan(x) && (std::isnan(y) || x < y);  // NaN ranks highest
    });
    require(std::isfinite(largest), kOp, "the largest logit of row {} is {}; expected a number", b,
            largest);
    const double u = to_uniform(philox_word(gen.key, b));
    ids[static_cast<size_t>(b)] = draw(row, vocab, s, u, order, weight);
  }
  return Tensor::from(ids, {batch}, logits.device());
}

Tensor generate(const LanguageModel& model, const Tensor& prompt, int64_t count,
                const Sampling& sampling, const Generator& gen,
                const std::function<void(const Tensor&)>& each) {
  require_integer("generate", prompt, "prompt");
  require_rank_is("generate", prompt, 2, "prompt");
  require<ShapeError>(prompt.dim(1) >= 1, "generate",
                      "the prompt is empty; begin with at least one token");
  require(count >= 0, "generate", "count is {}; expected 0 or more", count);
  const NoGrad off;
  const int64_t batch = prompt.dim(0), limit = model.max_length();
  std::vector<Tensor> text{cast(prompt, DType::i64)};  // [B, n], then [B, 1] for each step
  const auto newest = [&](int64_t n) {
    const Tensor all = concat(text, 1);
    return contiguous(slice(all, 1, std::max<int64_t>(all.dim(1) - n, 0)));
  };
  const auto& decoder = need<ContinuesSequences>(model);
  auto state = decoder.start_decoding(batch);
  Tensor fresh = newest(limit);
  for (int64_t t = 0; t < count; ++t) {
    if (state->position + fresh.dim(1) > limit) {
      state = decoder.start_decoding(batch);
      fresh = newest(std::max<int64_t>(limit / 2, 1));
    }
    const Tensor ids =
        sample(decoder.decode(fresh, *state), sampling, gen.fork(static_cast<uint64_t>(t)));
    if (each) each(ids);
    fresh = unsqueeze(ids, 1);  // [B, 1]
    text.push_back(fresh);
  }
  return newest(count);
}

}  // namespace longspan
