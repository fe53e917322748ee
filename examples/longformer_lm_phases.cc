// Longformer's language model in phases (Beltagy et al. 2020, sec. 4.2): each has twice the length
// and twice the windows of the one before, and half its learning rate and batch. With --direct=true
// every phase has length, windows and batch of the last, and as many steps as cost the same.
//   longformer_lm_phases --data runs/data/tinyshakespeare.txt
#include <algorithm>
#include <cmath>
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
  int64_t phases = 3, batch = 4, length = 256, steps = 1200;  // of the first phase
  double lr = 2e-3, clip = 0.25;
  bool direct = false;
  uint64_t seed = 1;
  void visit(auto& v) {
    v("model", model)("data", data)("split", split)("out", out)("phases", phases)("batch", batch);
    v("length", length)("steps", steps)("lr", lr)("clip", clip)("direct", direct);
    v("seed", seed);
  }
};

struct Phase {
  int64_t factor, length, batch, steps;
  /// Multiply-accumulates of a forward pass over one batch.
  double cost(const LongformerLMConfig& c) const {
    const LongformerLM model(with_windows_times(c, factor), Init{.plan = true});
    return static_cast<double>(batch * model.macs(length));
  }
};

Phase make_phase(const Options& opt, int64_t phase) {
  const auto of = [&](int64_t p) {
    const int64_t factor = int64_t{1} << p;
    return Phase{factor, opt.length * factor, std::max<int64_t>(opt.batch / factor, 1),
                 std::max<int64_t>(opt.steps / (p == 0 ? 1 : 3 * p), 1)};
  };
  const Phase staged = of(phase);
  if (!opt.direct) return staged;
  Phase direct = of(opt.phases - 1);
  const double each = direct.cost(opt.model);
  const double all = static_cast<double>(staged.steps) * staged.cost(opt.model);
  direct.steps = std::max<int64_t>(std::llround(all / each), 1);
  return direct;
}

int main(int argc, char** argv) try {
  const Options opt = parse_flags<Options>(argc, argv, "Trains Longformer's LM in phases.");
  const Generator gen{opt.seed};
  const auto corpus = ByteCorpus::open(opt.data, Split::parse(opt.split));
  std::unique_ptr<LongformerLM> model;
  Log log(opt.out, opt);
  int64_t done = 0;
  double cost = 0;  // forward and backward
  for (int64_t phase = 0; phase < opt.phases; ++phase) {
    const Phase now = make_phase(opt, phase);
    cost += 3e-12 * double(now.steps) * now.cost(opt.model);
    auto next = std::make_unique<LongformerLM>(with_windows_times(opt.model, now.factor),
                                               Init{gen.fork("init")});
    if (model) start_from(*next, *model, 0);
    model = std::move(next);
    SegmentBatches train(corpus.train(), now.batch, now.length,
                         {.seed = opt.seed + static_cast<uint64_t>(phase)});
    AdamW adam(decay_matrices(named_parameters(*model)), {.weight_decay = 0.01});
    const double lr = opt.lr / static_cast<double>(int64_t{1} << phase);
    const int64_t warmup = now.steps / 10;  // then constant
    for (int64_t step = 0; step < now.steps; ++step, ++done) {
      const auto [tokens, targets] = train.next();  // [B, L] each
      const Pass pass{.training = true, .gen = gen.fork("step").fork(uint64_t(done))};
      const Tensor loss = model->loss(tokens, targets, {}, pass).loss;
      backward(loss);
      clip_gradients(adam, opt.clip);
      adam.step(lr * std::min(1.0, double(step + 1) / double(warmup + 1)));
      log.show({.step = step + 1, .steps = now.steps, .loss = loss.item()});
      if (done % 10 == 9) log.row(done + 1, {{"bpb", bits(loss.item())}});
    }
    Score all;
    const EvaluationSegments valid(corpus.valid(), 4, now.length);
    for (int64_t i = 0; i < valid.size(); ++i) {
      all += score(*model, valid[i].tokens, valid[i].targets);
    }
    std::printf(
        "phase %ld: length %ld, %ld steps, %.2f T multiply-accumulates, %.4f bits per byte\n",
        long(phase + 1), long(now.length), long(now.steps), cost, all.bits());
  }
  write_state(opt.out, done, named_parameters(*model), {});
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
