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

constexpr const char* kSample = "sample";

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

/// Returns logits [B, V] with the penalty for tokens of the texts [B, n].
Tensor penalised(const Tensor& logits, const Tensor& texts, double penalty) {
  const int64_t batch = logits.dim(0), vocab = logits.dim(1), n = texts.dim(1);
  std::vector<double> values = cast(logits, DType::f64).to_vector<double>();
  const std::vector<int64_t> all = texts.to_vector<int64_t>();
  for (int64_t b = 0; b < batch; ++b) {
    penalise_repeats(std::span(all).subspan(static_cast<size_t>(b * n), static_cast<size_t>(n)),
                     penalty, std::span(values).subspan(static_cast<size_t>(b * vocab)));
  }
  return Tensor::from(values, {batch, vocab}, logits.device());
}

}  // namespace

void penalise_repeats(std::span<const int64_t> text, double penalty, std::span<double> scores) {
  if (penalty == 1) return;
  std::vector<int64_t> tokens(text.begin(), text.end());
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  for (const int64_t token : tokens) {
    double& score = scores[static_cast<size_t>(token)];
    score = score < 0 ? score * penalty : score / penalty;
  }
}

Tensor sample(const Tensor& logits, const Sampling& s, const Generator& gen) {
  require_floating(kSample, logits, "logits");
  require_rank_is(kSample, logits, 2, "logits");
  require<ShapeError>(logits.dim(1) >= 1, kSample, "there are no tokens to choose from");
  require(s.temperature >= 0 && std::isfinite(s.temperature), kSample,
          "temperature is {}; expected 0 or more", s.temperature);
  require(s.top_k >= 0, kSample, "top_k is {}; expected 0 (all) or more", s.top_k);
  require(s.top_p > 0 && s.top_p <= 1, kSample, "top_p is {}; expected 0 < p <= 1", s.top_p);
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
    require(std::isfinite(largest), kSample, "the largest logit of row {} is {}; expected a number",
            b, largest);
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
  require(sampling.repetition_penalty > 0 && std::isfinite(sampling.repetition_penalty), "generate",
          "repetition_penalty is {}; expected a number above 0", sampling.repetition_penalty);
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
    Tensor logits = decoder.decode(fresh, *state);
    if (sampling.repetition_penalty != 1) {
      logits = penalised(logits, contiguous(concat(text, 1)), sampling.repetition_penalty);
    }
    const Tensor ids = sample(logits, sampling, gen.fork(static_cast<uint64_t>(t)));
    if (each) each(ids);
    fresh = unsqueeze(ids, 1);  // [B, 1]
    text.push_back(fresh);
  }
  return newest(count);
}

namespace {

/// A prompt and what follows it, as far as it is known and as far as the model has read it.
struct Text {
  std::vector<int64_t> tokens;
  size_t read = 0, prompt = 0;
  size_t index = 0;  // of the prompt
  bool done = false;
};

/// Returns the last `n` tokens that each text has read, [B, n].
Tensor newest_of(std::span<const Text> texts, size_t n, Device device) {
  std::vector<int64_t> all;
  for (const Text& text : texts) {
    const auto end = text.tokens.begin() + static_cast<std::ptrdiff_t>(text.read);
    all.insert(all.end(), end - static_cast<std::ptrdiff_t>(n), end);
  }
  return Tensor::from(all, {std::ssize(texts), static_cast<int64_t>(n)}, device);
}

/// Continues texts of which the shortest prompt fits the model.
void continue_texts(const LanguageModel& model, std::span<Text> texts, int64_t count,
                    const Sampling& sampling, const Generator& gen, int64_t end,
                    const std::function<void(size_t, int64_t)>& each) {
  const auto& decoder = need<ContinuesSequences>(model);
  const int64_t limit = model.max_length(), batch = std::ssize(texts);
  size_t read = texts[0].prompt;
  for (const Text& text : texts) read = std::min(read, text.prompt);
  for (Text& text : texts) text.read = read;
  auto state = decoder.start_decoding(batch);
  Tensor fresh =
      newest_of(texts, std::min(read, static_cast<size_t>(std::min<int64_t>(limit, INT32_MAX))),
                model.device());
  while (true) {
    if (state->position + fresh.dim(1) > limit) {
      state = decoder.start_decoding(batch);
      const auto half = static_cast<size_t>(std::max<int64_t>(limit / 2, 1));
      fresh = newest_of(texts, std::min(half, texts[0].read), model.device());
    }
    const Tensor logits = decoder.decode(fresh, *state);
    bool all_done = true;
    for (int64_t b = 0; b < batch; ++b) {
      Text& text = texts[static_cast<size_t>(b)];
      if (text.read == text.tokens.size() && text.done) {
        text.tokens.push_back(text.tokens.back());  // read, and nothing comes of it
      } else if (text.read == text.tokens.size()) {
        Tensor own = narrow(logits, 0, b, 1);
        if (sampling.repetition_penalty != 1) {
          const Tensor seen = Tensor::from(text.tokens, {1, std::ssize(text.tokens)});
          own = penalised(own, seen, sampling.repetition_penalty);
        }
        const uint64_t step = text.tokens.size() - text.prompt;
        const auto id = static_cast<int64_t>(sample(own, sampling, gen.fork(step)).item());
        text.tokens.push_back(id);
        if (each) each(text.index, id);
        text.done = id == end || static_cast<int64_t>(step) + 1 == count;
      }
      ++text.read;
      all_done = all_done && text.done;
    }
    if (all_done) return;
    fresh = newest_of(texts, 1, model.device());
  }
}

}  // namespace

std::vector<std::vector<int64_t>> generate(const LanguageModel& model,
                                           std::span<const std::vector<int32_t>> prompts,
                                           int64_t count, const Sampling& sampling,
                                           const Generator& gen, int64_t end,
                                           const std::function<void(size_t, int64_t)>& each) {
  require(count >= 0, "generate", "count is {}; expected 0 or more", count);
  require(sampling.repetition_penalty > 0 && std::isfinite(sampling.repetition_penalty), "generate",
          "repetition_penalty is {}; expected a number above 0", sampling.repetition_penalty);
  const NoGrad off;
  std::vector<Text> together, alone;
  std::vector<std::pair<bool, size_t>> place;  // of each prompt: alone, and where
  for (const std::vector<int32_t>& prompt : prompts) {
    require<ShapeError>(!prompt.empty(), "generate",
                        "a prompt is empty; begin with at least one token");
    Text text{{prompt.begin(), prompt.end()}, 0, prompt.size(), place.size()};
    // The end of a prompt that the model cannot read as a whole is no step of others.
    const bool long_one = std::ssize(prompt) > model.max_length();
    std::vector<Text>& to = long_one ? alone : together;
    place.emplace_back(long_one, to.size());
    to.push_back(std::move(text));
  }
  if (count > 0 && !together.empty()) {
    continue_texts(model, together, count, sampling, gen, end, each);
  }
  for (Text& text : alone) {
    if (count > 0) continue_texts(model, {&text, 1}, count, sampling, gen, end, each);
  }
  std::vector<std::vector<int64_t>> all;
  for (const auto& [long_one, at] : place) {
    const Text& text = (long_one ? alone : together)[at];
    std::vector<int64_t> own(text.tokens.begin() + static_cast<std::ptrdiff_t>(text.prompt),
                             text.tokens.end());
    if (std::ssize(own) > count) own.resize(static_cast<size_t>(count));
    const auto last = std::find(own.begin(), own.end(), end);
    if (last != own.end()) own.erase(last + 1, own.end());
    all.push_back(std::move(own));
  }
  return all;
}

}  // namespace longspan
