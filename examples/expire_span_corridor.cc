// Expire-Span of Sukhbaatar et al. 2021 in a corridor: the model is asked for the colour of a mark,
// one of two, 501 to 1000 steps later. At first all memories live long; the penalty makes the model
// forget.
#include <cstdio>

#include "longspan.h"

using namespace longspan;

const CorridorTask corridor{.length = 2048, .nearest = 501, .distance = 1000};

struct Options : ExpireSpanConfig {
  Options() : ExpireSpanConfig(expire_span_preset("corridor")) {}
};

/// Prints how much is recalled in the test split, and how long tokens are remembered.
void test(const ExpireSpan& model, int64_t step, int64_t segments) {
  const SampleStreams streams(corridor, "test", 32, 128);
  SegmentMemory memory = model.empty_memory(32);
  Answers answers;
  ClassMeans span(4);  // of questions, the colours and noise
  double living = 0;
  for (int64_t i = 0; i < segments; ++i) {
    const StreamBatch batch = streams.at(i, 0, 32);
    const Tensor& x = batch.tokens;
    if (batch.reset) memory = forget(memory, batch.reset);
    span.add(model.token_spans(x, memory)[0].to_vector<float>(), x.to_vector<int32_t>());
    answers += count_right(model.logits_after(memory, x), batch.targets);
    living += model.living(memory)[0] / double(segments);
  }
  std::printf("step %3ld: %5.1f %% of %3ld right, %.1f memories; spans: ", long(step),
              answers.percent(), long(answers.counted), living);
  std::printf("colours %.0f and %.0f, noise %.0f, questions %.0f\n", span[1], span[2], span[3],
              span[0]);
}

int main(int argc, char** argv) try {
  const auto config = parse_flags<Options>(argc, argv, "Recalls rare marks from long ago.");
  ExpireSpan model(config, Init{Generator{1}.fork("init")});
  Adam adam(named_parameters(model));
  const SampleStreams train(corridor, "train", 32, 128);
  SegmentMemory memory = model.empty_memory(32);
  for (int64_t step = 0; step < 640; ++step) {
    const StreamBatch batch = train.at(step, 0, 32);
    const Pass pass{.training = true, .gen = Generator{1}.fork("step").fork(uint64_t(step))};
    const auto result = continue_streams(model, batch, memory, pass);
    if (count_targets(batch.targets) > 0) {  // else nothing is asked
      backward(result.total());
      clip_gradients(adam, 0.3);
      adam.step(Cosine{.peak = 3e-3, .warmup = 10, .steps = 640}(step));
    }
    if ((step + 1) % 64 == 0) test(model, step + 1, step + 1 < 640 ? 16 : 128);
  }
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
