// Measures what learned spans save. Prints JSON lines on standard output.
//   bench_spans models [rounds]   CPU seconds per token of a training step (loss, gradients,
//   update) of
//                          the small Adaptive-Span model with spans up to S = 128 to 1024: those
//                          that training left, trimmed for each head and for the longest head of
//                          each layer; dynamic ones of their mean; and all at S
//   bench_spans heads [rounds]   the same for attention alone, with one long head of eight
//   bench_spans turn train|evaluation small|base   the best of a few segments in seconds per
//                          token, processor and wall clock, the share of the FMA peak of one
//                          thread that its multiply-accumulates take (three times those of the
//                          forward pass in training), and the spans: for bench/peers/streams.py
// The variants take turns; figures are medians over the rounds.

#include <fmt/format.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "bench/command_line.h"
#include "bench/harness.h"
#include "core/error.h"
#include "models/adaptive_span/adaptive_span.h"
#include "models/adaptive_span/span_attention.h"
#include "nn/after_step.h"
#include "ops/attention/block_attention.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "train/optimizer.h"

namespace longspan::bench {
namespace {

constexpr int64_t kLength = 128, kBatch = 4;
/// The spans z of each layer's heads, in tokens.
using Spans = std::vector<std::vector<double>>;
/// Those that the run of bench/results/adaptive_span learned with S = 512.
const Spans kLearned = {{29, 2, 10, 98}, {101, 86, 62, 82}, {28, 50, 17, 3}, {26, 22, 13, 67}};

enum class Kind { heads, layers, dynamic, fixed };

Tensor some_tokens(int64_t batch, int64_t length) {
  std::vector<int64_t> ids(static_cast<size_t>(length));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i) * 7919 % 251;
  return contiguous(expand(Tensor::from(ids, {1, length}), {batch, length}));
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

double seconds_of(const auto& work) {
  const std::clock_t begin = std::clock();
  work();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
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

/// The learned spans, for the heads or for the longest head of each layer; empty: all at first.
Spans spans_of(Kind kind) {
  Spans spans;
  if (kind == Kind::dynamic || kind == Kind::fixed) return spans;
  for (std::vector<double> z : kLearned) {
    if (kind == Kind::layers) z.assign(z.size(), *std::max_element(z.begin(), z.end()));
    spans.push_back(z);
  }
  return spans;
}

void set_spans(AdaptiveSpan& model, const Spans& spans, int64_t most) {
  size_t layer = 0;
  for (NamedTensor& p : named_parameters(model)) {
    if (spans.empty() || !p.name.ends_with(".span")) continue;
    const auto& z = spans[layer++];
    std::vector<float> shares;
    for (const double x : z) {
      shares.push_back(static_cast<float>(std::min(1.0, x / static_cast<double>(most))));
    }
    write_buffer(p.tensor, Tensor::from(shares, {static_cast<int64_t>(z.size())}));
  }
}

/// A model that is trained on the same tokens again and again, as a stream.
class Trained {
 public:
  /// spans  empty: as configured
  Trained(const AdaptiveSpanConfig& c, const Spans& spans, int64_t batch, int64_t length)
      : model_(c, Init{}),
        adam_(named_parameters(model_)),
        memory_(model_.empty_memory(batch)),
        tokens_(some_tokens(batch, length)) {
    set_spans(model_, spans, c.span_max);
    for (int64_t read = 0; read <= c.span_max; read += length) step();  // until it is full
  }

  void step() {
    auto result = model_.loss(tokens_, tokens_, memory_, {.training = true, .gen = Generator{1}});
    memory_ = std::move(result.memory);
    backward(result.total());
    clip_gradients(adam_, 0.25);
    adam_.step(1e-9);  // spans stay where they are
  }
  const AdaptiveSpan& model() const { return model_; }

 private:
  AdaptiveSpan model_;
  Adam adam_;
  SegmentMemory memory_;
  Tensor tokens_;
};

int compare_models(int64_t rounds) {
  for (const int64_t most : {128, 256, 512, 1024}) {
    const auto trained = [&](Kind kind) {
      return Trained(config_of(kind, most), spans_of(kind), kBatch, kLength);
    };
    Trained all[] = {trained(Kind::heads), trained(Kind::layers), trained(Kind::dynamic),
                     trained(Kind::fixed)};
    std::vector<double> seconds[4];
    for (int64_t round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < 4; ++i) {
        seconds[i].push_back(seconds_of([&] { all[i].step(); }) / (kBatch * kLength));
      }
    }
    fmt::print(
        "{{\"span_max\": {}, \"average_span\": {:.1f}, \"seconds_per_token\": {:.4g}, "
        "\"trimmed_by_layer\": {:.4g}, \"dynamic\": {:.4g}, \"fixed\": {:.4g}, \"macs\": {}, "
        "\"macs_by_layer\": {}, \"macs_fixed\": {}}}\n",
        most, all[0].model().average_span(), median(seconds[0]), median(seconds[1]),
        median(seconds[2]), median(seconds[3]), forward_macs(all[0].model(), kLength),
        forward_macs(all[1].model(), kLength), forward_macs(all[3].model(), kLength));
    std::fflush(stdout);
  }
  return 0;
}

/// Attention of 512 tokens and as many heads as `distances` has, over as many earlier keys as its
/// longest sees, and its gradients.
class Attention {
 public:
  static constexpr int64_t length = 512, width = 64;

  explicit Attention(const std::vector<int64_t>& distances)
      : pattern_(SpanAttention::pattern(distances, length, keys_of(distances))) {
    const auto heads = static_cast<int64_t>(distances.size());
    const int64_t far = keys_of(distances) - length;
    const Generator gen{1};
    const auto random = [&](const char* name, const Shape& shape) {
      Tensor x = normal(shape, gen.fork(name));
      set_requires_grad(x);
      return x;
    };
    q_ = random("q", {1, heads, length, width});
    k_ = random("k", {1, heads, far + length, width});
    v_ = random("v", {1, heads, far + length, width});
    terms_.id = {far, 0};
    terms_.relation_key = random("p", {far + 1, width});
    std::vector<float> z;
    for (const int64_t n : distances) z.push_back(static_cast<float>(n - 33));
    terms_.span = Tensor::from(z, {1, heads, 1});
    set_requires_grad(terms_.span);
    terms_.ramp = 32;
    terms_.offset = 33;
  }

  double seconds() const {
    return seconds_of([&] {
      const Keys keys[] = {{k_, v_}};
      backward(sum(block_attention(q_, keys, pattern_, terms_).out));
    });
  }

 private:
  static int64_t keys_of(const std::vector<int64_t>& distances) {
    return length + *std::max_element(distances.begin(), distances.end());
  }

  AttentionPattern pattern_;
  Tensor q_, k_, v_;
  ScoreTerms terms_;
};

int compare_heads(int64_t rounds) {
  for (const int64_t most : {1024, 2048, 4096}) {
    std::vector<int64_t> one(8, 64);
    one.back() = most;
    const Attention short_but_one(one), all_long(std::vector<int64_t>(8, most));
    std::vector<double> a, b, ratios;
    for (int64_t round = 0; round <= rounds; ++round) {
      const double x = short_but_one.seconds(), y = all_long.seconds();
      if (round == 0) continue;  // memory is allocated
      a.push_back(x), b.push_back(y), ratios.push_back(x / y);
    }
    fmt::print(
        "{{\"span_max\": {}, \"one_long_seconds\": {:.4g}, \"all_long_seconds\": {:.4g}, "
        "\"ratio\": {:.3f}, \"ratio_of_keys\": {:.3f}}}\n",
        most, median(a), median(b), median(ratios),
        static_cast<double>(most + 7 * 64) / static_cast<double>(8 * most));
    std::fflush(stdout);
  }
  return 0;
}

/// The spans of 12 layers of 8 heads as the paper finds them (figure 3): the lowest five layers see
/// the least, and above them few heads see far.
Spans spans_of_base(int64_t most) {
  Spans spans(12, std::vector<double>(8, 0));
  for (size_t layer = 5; layer < 12; ++layer) {
    for (size_t head = 0; head < 8; ++head)
      spans[layer][head] = head < 2 ? 0.75 * static_cast<double>(most) : 32;
  }
  return spans;
}

/// Reads segments of a batch of streams, with gradients and an update if `train`, and prints the
/// best seconds per token after the memory is full.
int turn(std::string_view what, std::string_view shape) {
  const bool train = what == "train", small = shape == "small";
  require(train || what == "evaluation", "bench_spans", "no turn \"{}\"", what);
  require(small || shape == "base", "bench_spans", "no shape \"{}\"", shape);
  AdaptiveSpanConfig c = adaptive_span_preset(small ? "small" : "enwik8_12");
  c.vocab = 256;
  c.dropout = 0;
  c.span_max = small ? 512 : 1024;
  const Spans spans = small ? kLearned : spans_of_base(c.span_max);
  const int64_t batch = !train ? 1 : (small ? 16 : 2), length = train && !small ? 512 : 128;
  double best = HUGE_VAL, wall = HUGE_VAL, macs = 0;
  const auto time = [&](const auto& next) {
    const MacCount counted;
    next();
    macs = with_relative_scores(counted);
    for (int i = 0; i < 3; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      best = std::min(best, seconds_of(next));
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
      wall = std::min(wall, passed.count());
    }
  };
  if (train) {
    Trained trained(c, spans, batch, length);
    time([&] { trained.step(); });
  } else {
    AdaptiveSpan model(c, Init{});
    set_spans(model, spans, c.span_max);
    const NoGrad off;
    const Tensor tokens = some_tokens(batch, length);
    SegmentMemory memory = model.evaluation_memory(batch);
    const auto next = [&] { memory = model.loss(tokens, tokens, memory, Pass{}).memory; };
    for (int64_t read = 0; read <= c.span_max; read += length) next();
    time(next);
  }
  const auto count = static_cast<double>(batch * length);
  fmt::print("{{\"cpu\": {:.4g}, \"wall\": {:.4g}, \"share_of_peak\": {:.3f}, \"spans\": {}}}\n",
             best / count, wall / count, 2 * macs * (train ? 3 : 1) / best / fma_peak(1), spans);
  return 0;
}

int run(int argc, const char* const* argv) {
  int64_t rounds = 9;
  std::string what, size;
  CommandLine command("bench_spans", "What learned spans save.");
  CommandLine m = command.part("models", "a training step of Adaptive-Span");
  CommandLine h =
      command.part("heads", "the same for attention alone, with one long head of eight");
  CommandLine t = command.part("turn", "the best of a few segments, for bench/peers/streams.py");
  for (CommandLine* part : {&m, &h}) part->option("rounds", rounds, "turns of each case");
  t.option("what", what, "train or evaluation");
  t.option("size", size, "small or base");
  t.require("what");
  t.require("size");
  command.read(argc, argv);
  if (t.chosen()) return turn(what, size);
  return h.chosen() ? compare_heads(rounds) : compare_models(rounds);
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) try {
  return longspan::bench::run(argc, argv);
} catch (const longspan::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
