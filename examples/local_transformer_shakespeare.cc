// The Local Transformer of Roy et al. 2020, sec. 5, in a laptop size: every byte attends to itself
// and the 63 before it, in every layer. Trains on any text; data/samples/README.md has one.
//   local_transformer_shakespeare --data runs/data/tinyshakespeare.txt --steps 2000
#include <cstdio>

#include "autograd/engine.h"
#include "data/corpus.h"
#include "models/evaluate.h"
#include "models/transformer/transformer.h"
#include "train/config.h"
#include "train/log.h"
#include "train/optimizer.h"
#include "train/schedule.h"
#include "train/state.h"

using namespace longspan;

struct Options {
  TransformerConfig model = local_transformer_preset("small");
  std::string data = "runs/data/tinyshakespeare.txt", split = "90/10/0", out = "runs/local";
  int64_t batch = 4, length = 256, steps = 2000, warmup = 200;
  double lr = 3e-3, clip = 0.25;
  uint64_t seed = 1;
  void visit(auto& v) {
    v("model", model)("data", data)("split", split)("out", out)("batch", batch);
    v("length", length)("steps", steps)("warmup", warmup)("lr", lr)("clip", clip)("seed", seed);
  }
};

int main(int argc, char** argv) try {
  const Options opt = parse_flags<Options>(argc, argv, "Trains a Local Transformer on a text.");
  const Generator gen{opt.seed};
  const auto corpus = ByteCorpus::open(opt.data, Split::parse(opt.split));
  SegmentBatches train(corpus.train(), opt.batch, opt.length, {.seed = opt.seed});

  Transformer model(opt.model, Init{gen.fork("init")});
  Adam adam(named_parameters(model));
  const Cosine schedule{.peak = opt.lr, .warmup = opt.warmup, .steps = opt.steps, .floor = 0.05};
  Log log(opt.out, opt);

  for (int64_t step = 0; step < opt.steps; ++step) {
    const auto [tokens, targets] = train.next();  // [B, L] each
    const Pass pass{.training = true, .gen = gen.fork("step").fork(uint64_t(step))};
    const Tensor loss = model.loss(tokens, targets, {}, pass).loss;
    backward(loss);
    clip_gradients(adam, opt.clip);
    adam.step(schedule(step));
    log.show({.step = step + 1, .steps = opt.steps, .loss = loss.item()});
    if (step % 10 == 9) log.row(step + 1, {{"bpb", bits(loss.item())}, {"unit", "byte"}});
  }

  const EvaluationSegments valid(corpus.valid(), 16, opt.length);
  const Score all = score_all(model, valid);
  std::printf("%.4f bits per byte\n", all.bits());
  write_state(opt.out, opt.steps, named_state(model), adam.state());
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
