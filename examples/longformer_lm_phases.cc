// Longformer's language model in phases (Beltagy et al. 2020, sec. 4.2): each has twice the length
// and twice the windows of the one before, and half its learning rate and batch.
//   longformer_lm_phases --data runs/data/tinyshakespeare.txt --steps 300
#include <algorithm>
#include <cstdio>
#include <memory>

#include "autograd/engine.h"
#include "models/convert.h"
#include "models/evaluate.h"
#include "models/longformer_lm.h"
#include "train/config.h"
#include "train/data.h"
#include "train/log.h"
#include "train/optimizer.h"
#include "train/schedule.h"
#include "train/state.h"

using namespace longspan;

struct Options {
  LongformerLMConfig model = longformer_lm_preset("small");
  std::string data = "runs/data/tinyshakespeare.txt", split = "90/10/0", out = "runs/longformer_lm";
  int64_t phases = 3, batch = 16, length = 256, steps = 300;  // of the first phase
  double lr = 2e-3, clip = 0.25;
  uint64_t seed = 1;
  void visit(auto& v) {
    v("model", model)("data", data)("split", split)("out", out)("phases", phases)("batch", batch);
    v("length", length)("steps", steps)("lr", lr)("clip", clip)("seed", seed);
  }
};

int main(int argc, char** argv) try {
  const Options opt = parse_flags<Options>(argc, argv, "Trains Longformer's LM in phases.");
  const Generator gen{opt.seed};
  const auto corpus = ByteCorpus::open(opt.data, Split::parse(opt.split));
  auto model = std::make_unique<LongformerLM>(opt.model, Init{gen.fork("init")});
  Log log(opt.out, opt);
  int64_t done = 0;
  for (int64_t phase = 0; phase < opt.phases; ++phase) {
    const int64_t factor = int64_t{1} << phase, length = opt.length * factor;
    const int64_t steps = std::max<int64_t>(opt.steps / (phase == 0 ? 1 : 3 * phase), 1);
    if (phase > 0) {
      auto wider = std::make_unique<LongformerLM>(with_windows_times(opt.model, factor), Init{});
      start_from(*wider, *model, 0);
      model = std::move(wider);
    }
    SegmentBatches train(corpus.train(), std::max<int64_t>(opt.batch / factor, 1), length,
                         {.seed = opt.seed + static_cast<uint64_t>(phase)});
    Adam adam(named_parameters(*model), {.weight_decay = 0.01});
    const double lr = opt.lr / static_cast<double>(factor);
    const int64_t warmup = steps / 10;  // then constant
    for (int64_t step = 0; step < steps; ++step, ++done) {
      const auto [tokens, targets] = train.next();  // [B, L] each
      const Pass pass{.training = true, .gen = gen.fork("step").fork(uint64_t(done))};
      const Tensor loss = model->loss(tokens, targets, {}, pass).loss;
      backward(loss);
      clip_gradients(adam, opt.clip);
      adam.step(lr * std::min(1.0, double(step + 1) / double(warmup + 1)));
      log.show({.step = step + 1, .steps = steps, .loss = loss.item()});
      if (done % 10 == 9) log.row(done + 1, {{"bpb", bits(loss.item())}});
    }
    Score all;
    const EvaluationSegments valid(corpus.valid(), 4, length);
    for (int64_t i = 0; i < valid.size(); ++i) {
      all += score(*model, valid[i].tokens, valid[i].targets);
    }
    std::printf("phase %ld: length %ld, %.4f bits per byte\n", long(phase + 1), long(length),
                all.bits());
  }
  write_state(opt.out, done, named_parameters(*model), {});
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
