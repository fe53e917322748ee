// Longformer's language model in phases (Beltagy et al. 2020, sec. 4.2): each has twice the length
// and twice the windows of the one before, and half its learning rate and batch. With --direct=true
// every phase has the length, windows and batch of the last phase, and as many steps as cost the
// same as that phase of the schedule.
//   longformer_lm_phases --data runs/data/tinyshakespeare.txt
#include <algorithm>
#include <cstdio>

#include "autograd/engine.h"
#include "data/corpus.h"
#include "models/convert.h"
#include "models/evaluate.h"
#include "models/longformer/longformer_lm.h"
#include "train/config.h"
#include "train/optimizer.h"
using namespace longspan;
struct Options {
  LongformerLMConfig model = longformer_lm_preset("small");
  std::string data = "runs/data/tinyshakespeare.txt";
  TrainingPhase first{.windows = 1, .length = 256, .batch = 4, .steps = 1200, .lr = 2e-3};
  int64_t phases = 3;
  bool direct = false;
  uint64_t seed = 1;
  void visit(auto& v) {
    v("model", model)("data", data)("direct", direct)("phases", phases)("seed", seed);
    v("length", first.length)("batch", first.batch)("steps", first.steps)("lr", first.lr);
  }
};

int main(int argc, char** argv) try {
  const Options opt = parse_flags<Options>(argc, argv, "Trains Longformer's LM in phases.");
  const Generator gen{opt.seed};
  const auto corpus = ByteCorpus::open(opt.data, {.train = 90, .valid = 10, .test = 0});
  LongformerLM model(opt.model, Init{gen.fork("init")});
  uint64_t order = opt.seed, done = 0;
  double macs = 0;
  for (const TrainingPhase& phase : opt.direct ? direct_phases(opt.model, opt.first, opt.phases)
                                               : staged_phases(opt.first, opt.phases)) {
    LongformerLM shorter = std::move(model);
    model = LongformerLM(with_windows_times(opt.model, phase.windows), Init{gen.fork("init")});
    start_from(model, shorter, 0);
    SegmentBatches train(corpus.train(), phase.batch, phase.length, {.seed = order++});
    AdamW adam(decay_matrices(named_parameters(model)), {.weight_decay = 0.01});
    for (int64_t step = 0; step < phase.steps; ++step) {
      const auto [tokens, targets] = train.next();  // [B, L] each
      const Pass pass{.training = true, .gen = gen.fork("step").fork(done++)};
      const Tensor loss = model.loss(tokens, targets, {}, pass).loss;
      backward(loss);
      clip_gradients(adam, 0.25);
      adam.step(phase.lr * std::min(1.0, double(step + 1) / double(phase.steps / 10 + 1)));
      if (step % 50 == 49) std::printf("step %ld  loss %.3f\n", long(step + 1), loss.item());
    }
    macs += 3 * phase_macs(opt.model, phase);  // forward and backward
    std::printf("length %ld, %ld steps, %.2f T multiply-accumulates, %.4f bits per byte\n",
                long(phase.length), long(phase.steps), 1e-12 * macs,
                score_all(model, EvaluationSegments(corpus.valid(), 4, phase.length)).bits());
  }
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
