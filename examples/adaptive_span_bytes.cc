// Adaptive-Span of Sukhbaatar et al. 2019 in a laptop size: heads on streams of bytes learn how far
// back they attend. Prints the multiply-adds that this saves, and the span of every head.
//   adaptive_span_bytes --data wikixml.xml.gz --steps 1500
#include <cstdio>

#include "autograd/engine.h"
#include "data/streams.h"
#include "models/adaptive_span/adaptive_span.h"
#include "models/evaluate.h"
#include "nn/after_step.h"
#include "train/config.h"
#include "train/log.h"
#include "train/optimizer.h"

using namespace longspan;

struct Options {
  AdaptiveSpanConfig model = adaptive_span_preset("small");
  std::string data = "runs/data/wikixml.xml.gz", out = "runs/adaptive_span";
  int64_t batch = 16, length = 128, steps = 1500;
  double lr = 0.07;
  uint64_t seed = 1;
  void visit(auto& v) {
    v("model", model)("data", data)("out", out)("batch", batch)("length", length);
    v("steps", steps)("lr", lr)("seed", seed);
  }
};

int main(int argc, char** argv) try {
  const Options opt = parse_flags<Options>(argc, argv, "Trains an Adaptive-Span model on bytes.");
  const Generator gen{opt.seed};
  const auto corpus = ByteCorpus::open(opt.data);
  const TextStreams train(corpus.train(), opt.batch, opt.length, opt.seed);
  AdaptiveSpan model(opt.model, Init{gen.fork("init")});
  Adagrad adagrad(named_parameters(model), {.step_clip = 0.03});
  Log log(opt.out, opt);
  SegmentMemory memory = model.empty_memory(opt.batch);
  for (int64_t step = 0; step < opt.steps; ++step) {
    const StreamBatch batch = train.at(step, 0, opt.batch);  // tokens, targets [B, L]
    const Pass pass{.training = true, .gen = gen.fork("step").fork(uint64_t(step))};
    const auto result = continue_streams(model, batch, memory, pass);
    backward(result.total());  // with the penalty of the spans
    adagrad.step(opt.lr * std::min(1.0, double(step + 1) / 200));
    end_step(model, step, pass.gen, {});  // clamps the spans
    log.show({.step = step + 1, .steps = opt.steps, .loss = result.loss.item()});
  }

  std::puts(model.remark(opt.length).c_str());  // multiply-adds with and without trimming
  for (const auto& layer : model.spans()) {
    for (const int64_t span : layer) std::printf(" %5ld", long(span));
    std::printf("\n");
  }
  const EvaluationStreams valid(corpus.valid(), 8, opt.length, opt.model.span_max);
  std::printf("%.4f bits per byte\n", score_streams(model, valid, valid.streams()).bits());
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
