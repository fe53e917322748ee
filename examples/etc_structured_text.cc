// ETC, Ainslie et al. 2020, on structured text: globals represent sentences within paragraphs
// within a document (sec. 2.4). Whole words and whole sentences are masked (sec. 2.5).
#include <cstdio>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "data/corpus.h"
#include "data/structured.h"
#include "models/etc/etc.h"
#include "models/evaluate.h"
#include "train/config.h"
#include "train/optimizer.h"
#include "train/schedule.h"

using namespace longspan;

struct Options {
  EtcConfig model = etc_preset("structured");
  std::string data = "runs/data/tinyshakespeare.txt", split = "90/10/0";
  int64_t batch = 8, steps = 500;
  int64_t owners = 1;  // what owns a byte: its sentence; 2: its paragraph too; 3: the document too
  void visit(auto& v) {
    v("model", model)("data", data)("split", split)("batch", batch);
    v("steps", steps)("owners", owners);
  }
};

Etc::Pretraining losses(const Etc& model, const StructuredBatch& b, Pass pass) {
  const LinkedStructure who{b.owner, b.example, b.global_example};
  return model.pretraining_loss(model.structured(b.tokens, who, b.level, b.parent), b.targets,
                                model.alone(b.places, b.hidden, b.hidden_example), pass);
}

int main(int argc, char** argv) try {
  const Options opt = parse_flags<Options>(argc, argv, "Trains ETC on sentences in paragraphs.");
  const auto corpus = ByteCorpus::open(opt.data, Split::parse(opt.split));
  const StructuredOptions windows{
      .n_long = opt.model.n_long, .mask_token = opt.model.mask_id, .owners = opt.owners};
  const StructuredBatches train(corpus.train().bytes, opt.batch, windows);
  Etc model(opt.model, Init{Generator{1}.fork("init")});
  AdamW adam(decay_matrices(named_parameters(model)));
  const Cosine schedule{.peak = 2e-3, .warmup = 50, .steps = opt.steps, .floor = 0.05};
  for (int64_t step = 0; step < opt.steps; ++step) {
    const Pass pass{.training = true, .gen = Generator{1}.fork(uint64_t(step))};
    const auto loss = losses(model, train.at(step), pass);
    backward(loss.loss);
    clip_gradients(adam, 1);
    adam.step(schedule(step));
    if (step % 50 == 0) std::printf("step %ld loss %.4f\n", long(step), loss.mlm.item());
  }
  const NoGrad off;
  Score all;
  const StructuredBatches valid(corpus.valid().bytes, 16, windows);
  for (int64_t i = 0; i < valid.size(); ++i) {
    const StructuredBatch batch = valid.in_order(i);
    const int64_t n = count_targets(batch.targets);
    all += {losses(model, batch, Pass{}).mlm.item() * double(n), n};
  }
  std::printf("%.4f bits per masked byte\n", all.bits());
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
