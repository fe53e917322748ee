// The Compressive Transformer of Rae et al. 2019 in a laptop size, on streams of bytes. Prints its
// score, and how much attention each layer gives to 18 parts of its memories and the segment.
//   compressive_bytes --data wikixml.xml.gz --steps 1500
#include <cstdio>

#include "autograd/engine.h"
#include "data/streams.h"
#include "models/compressive/compressive.h"
#include "models/evaluate.h"
#include "ops/copy.h"
#include "ops/shape.h"
#include "train/config.h"
#include "train/log.h"
#include "train/optimizer.h"
#include "train/schedule.h"

using namespace longspan;

struct Options {
  CompressiveConfig model = compressive_preset("small");
  std::string data = "runs/data/wikixml.xml.gz", out = "runs/compressive";
  int64_t batch = 16, steps = 1500;
  void visit(auto& v) {
    v("model", model)("data", data)("out", out)("batch", batch)("steps", steps);
  }
};

int main(int argc, char** argv) try {
  const auto opt = parse_flags<Options>(argc, argv, "Trains a Compressive Transformer on bytes.");
  const Generator gen{1};
  const auto corpus = ByteCorpus::open(opt.data);
  const TextStreams train(corpus.train(), opt.batch, opt.model.segment, 1);
  Compressive model(opt.model, Init{gen.fork("init")});
  Adam adam(named_parameters(model));
  const Cosine schedule{.peak = 1e-3, .warmup = 200, .steps = opt.steps};
  Log log(opt.out, opt);
  SegmentMemory memory = model.empty_memory(opt.batch);
  for (int64_t step = 0; step < opt.steps; ++step) {
    const StreamBatch batch = train.at(step, 0, opt.batch);  // tokens, targets [B, L]
    const Pass pass{.training = true, .gen = gen.fork("step").fork(uint64_t(step))};
    const auto result = continue_streams(model, batch, memory, pass);
    backward(result.total());  // the loss of compression trains parameters of its own
    clip_gradients(adam, 0.25);
    adam.step(schedule(step));
    log.show({.step = step + 1, .steps = opt.steps, .loss = result.loss.item()});
  }
  const EvaluationStreams valid(corpus.valid(), 8, opt.model.segment, model.memory_tokens());
  std::printf("%.4f bits per byte\n", score_streams(model, valid, valid.streams()).bits());
  const Tensor shares = model.attention_shares(train.at(opt.steps, 0, opt.batch).tokens, memory);
  for (int64_t i = 0; i < model.layers(); ++i) {
    const auto of_layer = contiguous(select(shares, 0, i)).to_vector<double>();
    for (const double share : in_buckets(of_layer, 18)) std::printf("%.3f ", share);
    std::puts("");
  }
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
