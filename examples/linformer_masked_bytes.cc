// Linformer of Wang et al. 2020, sec. 4, in a laptop size: predicts masked bytes among 512. Every
// byte attends to 64 rows, into which learned matrices project all keys and values.
//   linformer_masked_bytes --data runs/data/tinyshakespeare.txt --steps 1000
#include <cstdio>

#include "autograd/engine.h"
#include "data/corpus.h"
#include "models/evaluate.h"
#include "models/linformer/linformer.h"
#include "train/config.h"
#include "train/log.h"
#include "train/optimizer.h"
#include "train/schedule.h"
#include "train/state.h"
using namespace longspan;
struct Options {
  LinformerConfig model = linformer_preset("small");
  std::string data = "runs/data/tinyshakespeare.txt", split = "90/10/0", out = "runs/linformer";
  int64_t batch = 4, length = 512, steps = 1000, warmup = 100;
  double lr = 2e-3, clip = 1;
  uint64_t seed = 1;
  void visit(auto& v) {
    v("model", model)("data", data)("split", split)("out", out)("batch", batch);
    v("length", length)("steps", steps)("warmup", warmup)("lr", lr)("clip", clip)("seed", seed);
  }
};

int main(int argc, char** argv) try {
  const Options opt = parse_flags<Options>(argc, argv, "Trains Linformer to guess hidden bytes.");
  const Generator gen{opt.seed};
  const auto corpus = ByteCorpus::open(opt.data, Split::parse(opt.split));
  Linformer model(opt.model, Init{gen.fork("init")});
  BatchOptions hiding{.objective = Objective::masked_token, .seed = opt.seed};
  hiding.mask_token = model.mask_token();
  SegmentBatches train(corpus.train(), opt.batch, opt.length, hiding);
  Adam adam(named_parameters(model));
  const Cosine schedule{.peak = opt.lr, .warmup = opt.warmup, .steps = opt.steps, .floor = 0.05};
  Log log(opt.out, opt);

  for (int64_t step = 0; step < opt.steps; ++step) {
    const Batch batch = train.next();  // [B, L] each
    const Pass pass{.training = true, .gen = gen.fork("step").fork(uint64_t(step))};
    const Tensor loss = model.loss(batch.tokens, batch.targets, {}, pass).loss;
    backward(loss);
    clip_gradients(adam, opt.clip);
    adam.step(schedule(step));
    log.show({.step = step + 1, .steps = opt.steps, .loss = loss.item()});
    if (step % 10 == 9) log.row(step + 1, {{"bpb", bits(loss.item())}, {"unit", "hidden byte"}});
  }

  const EvaluationSegments valid(corpus.valid(), 4, opt.length, hiding);
  const Score all = score_all(model, valid);
  std::printf("%.4f bits per hidden byte\n", all.bits());
  write_state(opt.out, opt.steps, named_state(model), adam.state());
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
