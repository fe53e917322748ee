// Expire-Span of Sukhbaatar et al. 2021 in a corridor: a mark of one of two colours, asked for
// after 501 to 1000 steps of noise. At first all memories live long; the penalty makes the model
// forget.
#include <cstdio>

#include "autograd/engine.h"
#include "data/memory_tasks.h"
#include "models/evaluate.h"
#include "models/expire_span/expire_span.h"
#include "ops/copy.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "train/config.h"
#include "train/optimizer.h"
#include "train/schedule.h"

using namespace longspan;

struct Options {
  ExpireSpanConfig model = expire_span_preset("small");
  int64_t steps = 640;
  double lr = 3e-3;
  Options() {
    model.vocab = 19, model.n_layer = 1, model.d_model = 64, model.d_ff = 128, model.positions = 4;
    model.span_max = 1050, model.span_init = 0.995, model.pre_div = 0.25;
    model.max_memory = 0, model.overflow = Overflow::error;
  }
  void visit(auto& v) { v("model", model)("steps", steps)("lr", lr); }
};

/// Calls f(tokens, targets, memory) for the 16 segments of a batch of 32 samples.
void play(const ExpireSpan& model, std::string_view split, int64_t batch, auto&& f) {
  std::vector<Sample> samples;
  for (int64_t i = 32 * batch; i < 32 * (batch + 1); ++i) {
    const CorridorTask task{.length = 2048, .nearest = 501, .distance = 1000};
    samples.push_back(task.sample({.split = split, .index = uint64_t(i)}));
  }
  const Batch all = stack(samples);
  const auto part = [](const Tensor& x, int64_t at) { return contiguous(narrow(x, 1, at, 128)); };
  SegmentMemory memory = model.empty_memory(32);
  for (int64_t at = 0; at < 2048; at += 128) f(part(all.tokens, at), part(all.targets, at), memory);
}

/// Prints how much is recalled in batches of the test split, and how long tokens are remembered.
void test(const ExpireSpan& model, int64_t step, int64_t batches) {
  double asked = 0, right = 0, living = 0, span[4] = {}, count[4] = {};
  for (int64_t i = 0; i < batches; ++i) {
    play(model, "test", i, [&](const Tensor& x, const Tensor& y, SegmentMemory& memory) {
      const auto ids = x.to_vector<int32_t>(), labels = y.to_vector<int32_t>();
      const auto e = model.token_spans(x, memory)[0].to_vector<float>();
      const auto best = argmax(model.logits_after(memory, x), -1).to_vector<int64_t>();
      for (size_t t = 0; t < ids.size(); ++t) {
        const auto kind = size_t(std::min(ids[t], 3));  // the question, the colours, noise
        span[kind] += e[t], count[kind] += 1;
        asked += labels[t] != ignored_target, right += best[t] == labels[t];
      }
      living += model.living(memory)[0] / double(16 * batches);
    });
  }
  std::printf("step %3ld: %5.1f %% of %3.0f right, %.1f memories; spans: ", long(step),
              100 * right / asked, asked, living);
  std::printf("colours %.0f and %.0f, noise %.0f, questions %.0f\n", span[1] / count[1],
              span[2] / count[2], span[3] / count[3], span[0] / count[0]);
}

int main(int argc, char** argv) try {
  const Options opt = parse_flags<Options>(argc, argv, "Recalls rare marks from long ago.");
  const Generator gen{1};
  ExpireSpan model(opt.model, Init{gen.fork("init")});
  Adam adam(named_parameters(model));
  const Cosine schedule{.peak = opt.lr, .warmup = 10, .steps = opt.steps};
  for (int64_t step = 0; step < opt.steps;) {
    play(model, "train", step / 16, [&](auto&& x, auto&& y, auto& memory) {
      const Pass pass{.training = true, .gen = gen.fork("step").fork(uint64_t(step))};
      auto result = model.loss(x, y, memory, pass);
      memory = std::move(result.memory);
      const double rate = schedule(step++);
      if (count_targets(y) == 0) return;  // nothing is asked
      backward(result.total());
      clip_gradients(adam, 0.3);
      adam.step(rate);
    });
    if (step % 64 == 0) test(model, step, step < opt.steps ? 1 : 8);
  }
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
