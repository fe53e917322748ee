// Performer of Choromanski et al. 2021, sec. 4.4, in a laptop size: guesses hidden residues of
// proteins from both sides, with ReLU features in place of a softmax.
//   performer_proteins --steps 800
#include <cstdio>

#include "longspan.h"

using namespace longspan;

struct Options {
  PerformerConfig model = performer_preset("proteins");
  std::string data = "data/samples/uniprot-500.fasta.gz", out = "runs/proteins";
  int64_t batch = 8, length = 256, steps = 800;
  double lr = 2e-3;
  uint64_t seed = 1;
  void visit(auto& v) {
    v("model", model)("data", data)("out", out)("batch", batch)("length", length)("steps", steps);
    v("lr", lr)("seed", seed);
  }
};

int main(int argc, char** argv) try {
  const Options opt = parse_flags<Options>(argc, argv, "Trains a Performer on proteins.");
  const Generator gen{opt.seed};
  const Corpus corpus = open_corpus("proteins", {.root = "", .data = "proteins=" + opt.data});
  Performer model(opt.model, Init{gen.fork("init")});
  BatchOptions hiding{.objective = model.objective(), .seed = opt.seed};
  hiding.mask_token = model.mask_token();
  SegmentBatches train(corpus.train, opt.batch, opt.length, hiding);
  AdamW adam(named_parameters(model));
  const Cosine schedule{.peak = opt.lr, .warmup = 80, .steps = opt.steps, .floor = 0.05};
  Log log(opt.out, opt);
  for (int64_t step = 0; step < opt.steps; ++step) {
    const Batch batch = train.next();  // [B, L] each
    const Pass pass{.training = true, .gen = gen.fork("step").fork(uint64_t(step))};
    const Tensor loss = model.loss(batch.tokens, batch.targets, {}, pass).loss;
    backward(loss);
    clip_gradients(adam, 0.5);
    adam.step(schedule(step));
    end_step(model, step, pass.gen.fork("end"), {});  // draws new projections
    log.show({.step = step + 1, .steps = opt.steps, .loss = loss.item()});
    if (step % 10 == 9) log.row(step + 1, {{"bits", bits(loss.item())}, {"unit", "residue"}});
  }
  const NoGrad off;
  Answers right;
  const EvaluationSegments test(corpus.test, 8, opt.length, hiding);
  for (int64_t i = 0; i < test.size(); ++i) {
    right += count_right(model.logits(test[i].tokens, Pass{}), test[i].targets);
  }
  std::printf("%.4f bits per residue, %.2f %% right\n", score_all(model, test).bits(),
              right.percent());
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
