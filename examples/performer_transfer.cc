// Performer of Choromanski et al. 2021, sec. 4.3, in a laptop size: loads the weights of a trained
// Transformer into a Performer, and scores it as it is and while it is fine-tuned.
//   performer_transfer --data runs/data/tinyshakespeare.txt --steps 600 --more 200
#include <cstdio>

#include "longspan.h"

using namespace longspan;

struct Options {
  PerformerConfig model = performer_preset("small");
  std::string data = "runs/data/tinyshakespeare.txt", out = "runs/transfer";
  int64_t batch = 4, length = 256, steps = 600, more = 200, score_every = 50;
  double lr = 2e-3, fine = 5e-4;
  void visit(auto& v) {
    v("model", model)("data", data)("out", out)("batch", batch)("length", length);
    v("steps", steps)("more", more)("score_every", score_every)("lr", lr)("fine", fine);
  }
};

int main(int argc, char** argv) try {
  const Options opt = parse_flags<Options>(argc, argv, "Moves a Transformer into a Performer.");
  const Generator gen{1};
  const auto corpus = ByteCorpus::open(opt.data, {.train = 90, .valid = 10, .test = 0});
  SegmentBatches train(corpus.train(), opt.batch, opt.length);
  const EvaluationSegments valid(corpus.valid(), 16, opt.length);
  Log log(opt.out, opt);
  const auto learn = [&](LanguageModel& model, int64_t steps, double lr, const char* name) {
    AdamW adam(named_parameters(model));
    const Cosine schedule{.peak = lr, .warmup = steps / 10, .steps = steps, .floor = 0.05};
    double bits = 0;
    for (int64_t step = 0; step <= steps; ++step) {
      if (step % opt.score_every == 0 || step == steps) {
        bits = score_all(model, valid).bits();
        log.row(step, {{"model", name}, {"valid_bpb", bits}});
      }
      if (step == steps) break;
      const Batch batch = train.next();
      const Pass pass{.training = true, .gen = gen.fork(name).fork(uint64_t(step))};
      const Tensor loss = model.loss(batch.tokens, batch.targets, {}, pass).loss;
      backward(loss);
      clip_gradients(adam, 0.5);
      adam.step(schedule(step));
      end_step(model, step, pass.gen.fork("end"), {});
    }
    std::printf("%s: %.4f bits per byte\n", name, bits);
  };
  Transformer exact(opt.model, Init{gen.fork("init")});
  learn(exact, opt.steps, opt.lr, "transformer");
  Performer performer(opt.model, Init{gen.fork("init")});
  start_from(performer, exact, 0);
  std::printf("performer, same weights: %.4f bits per byte\n", score_all(performer, valid).bits());
  for (const std::string& line : performer.report(valid[0].tokens)) std::puts(line.c_str());
  learn(performer, opt.more, opt.fine, "performer");
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
