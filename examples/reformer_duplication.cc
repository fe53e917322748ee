// The duplication task of Kitaev et al. 2020, sec. 5: predict the second w of 0 w 0 w.
#include <cstdio>

#include "autograd/engine.h"
#include "data/tasks.h"
#include "models/evaluate.h"
#include "models/reformer/reformer.h"
#include "train/config.h"
#include "train/log.h"
#include "train/optimizer.h"
#include "train/schedule.h"
#include "train/state.h"

using namespace longspan;

struct Options {
  ReformerConfig model = reformer_preset("duplication_small");
  std::string out = "runs/duplication";
  int64_t batch = 32, steps = 600;
  void visit(auto& v) { v("model", model)("out", out)("batch", batch)("steps", steps); }
};

int main(int argc, char** argv) try {
  const Options opt = parse_flags<Options>(argc, argv, "Trains a Reformer to repeat a word.");
  const Generator gen{1};
  const DuplicateTask task{.symbols = opt.model.n_max / 2 - 1, .vocabulary = opt.model.vocab};
  const auto batch_of = [&](const char* part, int64_t step) {
    std::vector<Sample> rows;
    for (int64_t i = step * opt.batch; i < (step + 1) * opt.batch; ++i) {
      rows.push_back(task.sample({1, part, static_cast<uint64_t>(i)}));
    }
    return stack(rows);
  };
  Reformer model(opt.model, Init{gen.fork("init")});
  Adam adam(named_parameters(model));
  const Cosine schedule{.peak = 2e-3, .warmup = 200, .steps = opt.steps};
  Log log(opt.out, opt);
  for (int64_t step = 0; step < opt.steps; ++step) {
    const auto [tokens, targets] = batch_of("train", step);  // [B, L] each
    const Pass pass{.training = true, .gen = gen.fork("step").fork(uint64_t(step))};
    const Tensor loss = model.loss(tokens, targets, {}, pass).loss;
    backward(loss);
    clip_gradients(adam, 1.0);
    adam.step(schedule(step));
    log.show({.step = step + 1, .steps = opt.steps, .loss = loss.item()});
  }
  write_state(opt.out, opt.steps, named_state(model), adam.state());
  const auto [tokens, targets] = batch_of("test", 0);
  for (const int64_t rounds : {1, 2, 4, 8}) {
    ReformerConfig config = opt.model;
    config.rounds = rounds;
    Reformer other(config, Init{});
    read_parameters(checkpoint_path(opt.out, opt.steps), named_state(other));
    const double bits = score(other, tokens, targets).bits();
    std::printf("%ld rounds: %.3f bits per symbol\n", long(rounds), bits);
  }
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
