// ETC, Ainslie et al. 2020, on structured text: bytes are long tokens, and globals stand for
// sentences within paragraphs within a document, linked by labels (sec. 2.4). Pre-training as in
// sec. 2.5: whole words and whole sentences are hidden, the latter told apart by their globals.
//   etc_structured_text --data runs/data/tinyshakespeare.txt --steps 500
#include <algorithm>
#include <cstdio>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "models/etc.h"
#include "models/evaluate.h"
#include "train/config.h"
#include "train/data.h"
#include "train/log.h"
#include "train/optimizer.h"
#include "train/schedule.h"
#include "train/state.h"
#include "train/structured.h"

using namespace longspan;

struct Options {
  EtcConfig model = etc_preset("structured");
  std::string data = "runs/data/tinyshakespeare.txt", split = "90/10/0", out = "runs/etc";
  int64_t batch = 8, steps = 500, warmup = 50;
  double lr = 2e-3, clip = 1;
  uint64_t seed = 1;
  void visit(auto& v) {
    v("model", model)("data", data)("split", split)("out", out)("batch", batch)("steps", steps);
    v("warmup", warmup)("lr", lr)("clip", clip)("seed", seed);
  }
};

Etc::Pretraining losses(const Etc& model, const StructuredBatch& b, Pass pass) {
  const EtcStructure who{
      .owner = b.owner, .example = b.example, .global_example = b.global_example};
  return model.pretraining_loss(model.structured(b.tokens, who, b.level, b.parent), b.targets,
                                model.alone(b.places, b.hidden, b.hidden_example), pass);
}

int main(int argc, char** argv) try {
  const Options opt = parse_flags<Options>(argc, argv, "Trains ETC on sentences in paragraphs.");
  const Generator gen{opt.seed};
  const auto corpus = ByteCorpus::open(opt.data, Split::parse(opt.split));
  const StructuredOptions windows{.n_long = opt.model.n_long, .mask_token = opt.model.mask_id};
  const StructuredBatches train(corpus.train().bytes, opt.batch, windows);

  Etc model(opt.model, Init{gen.fork("init")});
  AdamW adam(decay_matrices(named_parameters(model)));
  const Cosine schedule{.peak = opt.lr, .warmup = opt.warmup, .steps = opt.steps, .floor = 0.05};
  Log log(opt.out, opt);
  for (int64_t step = 0; step < opt.steps; ++step) {
    const Pass pass{.training = true, .gen = gen.fork("step").fork(uint64_t(step))};
    const auto loss = losses(model, train.at(step), pass);
    backward(loss.loss);
    clip_gradients(adam, opt.clip);
    adam.step(schedule(step));
    log.show({.step = step + 1, .steps = opt.steps, .loss = loss.mlm.item()});
    if (step % 10 == 9) {
      log.row(step + 1, {{"masked_bits", bits(loss.mlm.item())},
                         {"contrast", loss.cpc ? loss.cpc.item() : 0}});
    }
  }

  const NoGrad off;
  Score all;
  const StructuredBatches valid(corpus.valid().bytes, 16, windows);
  for (int64_t i = 0; i < valid.size(); ++i) {
    const StructuredBatch batch = valid.in_order(i);
    const auto y = batch.targets.to_vector<int32_t>();
    const int64_t n = std::ssize(y) - std::count(y.begin(), y.end(), ignored_target);
    all += {losses(model, batch, Pass{}).mlm.item() * double(n), n};
  }
  std::printf("%.4f bits per masked byte\n", all.bits());
  write_state(opt.out, opt.steps, named_parameters(model), adam.state());
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
