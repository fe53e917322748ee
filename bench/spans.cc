// Measures what learned spans save. Prints JSON lines on standard output.
//   bench_spans [rounds]   CPU seconds per token of a training step (loss, gradients, update) of
//                          the small Adaptive-Span model with spans up to S = 128 to 1024: those
//                          that training left, trimmed for each head and for the longest head of
//                          each layer; dynamic ones of their mean; and all at S
// The variants take turns; figures are medians over the rounds.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "core/error.h"
#include "models/adaptive_span/adaptive_span.h"
#include "nn/after_step.h"
#include "ops/copy.h"
#include "train/optimizer.h"

namespace longspan::bench {
namespace {

constexpr int64_t kLength = 128, kBatch = 4;
/// The spans z of 4 layers of 4 heads, in tokens, that the run of bench/results/adaptive_span
/// learned with S = 512.
constexpr double kLearned[4][4] = {
    {29, 2, 10, 98}, {101, 86, 62, 82}, {28, 50, 17, 3}, {26, 22, 13, 67}};

enum class Kind { heads, layers, dynamic, fixed };

Tensor some_tokens() {
  std::vector<int64_t> ids(static_cast<size_t>(kBatch * kLength));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i) * 7919 % 251;
  return Tensor::from(ids, {kBatch, kLength});
}

AdaptiveSpanConfig config_of(Kind kind, int64_t most) {
  AdaptiveSpanConfig c = adaptive_span_preset("small");
  c.span_max = most;
  c.dynamic = kind == Kind::dynamic;
  if (kind == Kind::fixed) c.span_init = 1;
  if (kind == Kind::dynamic)
    c.span_init = 43.5 / static_cast<double>(most);  // the mean of the table
  return c;
}

/// A model that is trained on the same tokens again and again, as a stream.
class Trained {
 public:
  Trained(Kind kind, int64_t most)
      : model_(config_of(kind, most), Init{}),
        adam_(named_parameters(model_)),
        memory_(model_.empty_memory(kBatch)),
        tokens_(some_tokens()) {
    size_t layer = 0;
    for (NamedTensor& p : named_parameters(model_)) {
      if (kind == Kind::dynamic || kind == Kind::fixed || !p.name.ends_with(".span")) continue;
      const auto& z = kLearned[layer++];
      std::vector<float> shares;
      for (const double x : z) {
        const double longest = kind == Kind::layers ? *std::max_element(z, z + 4) : x;
        shares.push_back(static_cast<float>(std::min(1.0, longest / static_cast<double>(most))));
      }
      write_buffer(p.tensor, Tensor::from(shares, {4}));
    }
    for (int64_t read = 0; read <= most; read += kLength) step();  // until the memory is full
  }

  double seconds() {
    const std::clock_t begin = std::clock();
    step();
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC / (kBatch * kLength);
  }
  const AdaptiveSpan& model() const { return model_; }

 private:
  void step() {
    auto result = model_.loss(tokens_, tokens_, memory_, {.training = true, .gen = Generator{1}});
    memory_ = std::move(result.memory);
    backward(result.total());
    clip_gradients(adam_, 0.25);
    adam_.step(1e-9);  // spans stay where they are
  }

  AdaptiveSpan model_;
  Adam adam_;
  SegmentMemory memory_;
  Tensor tokens_;
};

int run(int64_t rounds) {
  for (const int64_t most : {128, 256, 512, 1024}) {
    Trained all[] = {
        {Kind::heads, most}, {Kind::layers, most}, {Kind::dynamic, most}, {Kind::fixed, most}};
    std::vector<double> seconds[4];
    for (int64_t round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < 4; ++i) seconds[i].push_back(all[i].seconds());
    }
    const auto median = [&](size_t i) {
      std::sort(seconds[i].begin(), seconds[i].end());
      return seconds[i][seconds[i].size() / 2];
    };
    const double heads = median(0), layers = median(1), dynamic = median(2), fixed = median(3);
    fmt::print(
        "{{\"span_max\": {}, \"average_span\": {:.1f}, \"seconds_per_token\": {:.4g}, "
        "\"trimmed_by_layer\": {:.4g}, \"dynamic\": {:.4g}, \"fixed\": {:.4g}, \"macs\": {}, "
        "\"macs_by_layer\": {}, \"macs_fixed\": {}}}\n",
        most, all[0].model().average_span(), heads, layers, dynamic, fixed,
        forward_macs(all[0].model(), kLength), forward_macs(all[1].model(), kLength),
        forward_macs(all[3].model(), kLength));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) try {
  return longspan::bench::run(argc > 1 ? std::max(1L, std::atol(argv[1])) : 9);
} catch (const longspan::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
