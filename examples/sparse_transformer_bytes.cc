// The Sparse Transformer of Child et al. 2019, sec. 7.2, in a laptop size: bytes of text with fixed
// attention. Prints scores for several minimum contexts, as in the paper's table 3.
//   sparse_transformer_bytes --data wikixml.xml.gz --steps 6000
#include <cstdio>

#include "autograd/engine.h"
#include "data/corpus.h"
#include "models/evaluate.h"
#include "models/sparse_transformer/sparse_transformer.h"
#include "train/config.h"
#include "train/log.h"
#include "train/optimizer.h"
#include "train/schedule.h"
#include "train/state.h"

using namespace longspan;

struct Options {
  SparseTransformerConfig model = sparse_transformer_preset("small");
  std::string data = "runs/data/wikixml.xml.gz", out = "runs/sparse";
  int64_t batch = 1, length = 1024, steps = 6000;
  double lr = 2e-3;
  uint64_t seed = 1;
  void visit(auto& v) {
    v("model", model)("data", data)("out", out)("batch", batch)("length", length);
    v("steps", steps)("lr", lr)("seed", seed);
  }
};

int main(int argc, char** argv) try {
  const Options opt = parse_flags<Options>(argc, argv, "Trains a Sparse Transformer on bytes.");
  const Generator gen{opt.seed};
  const auto corpus = ByteCorpus::open(opt.data);
  SegmentBatches train(corpus.train(), opt.batch, opt.length, {.seed = opt.seed});

  SparseTransformer model(opt.model, Init{gen.fork("init")});
  AdamW adam(decay_matrices(named_parameters(model)), {.weight_decay = 0.01});
  const Cosine schedule{.peak = opt.lr, .warmup = 200, .steps = opt.steps};
  Log log(opt.out, opt);
  for (int64_t step = 0; step < opt.steps; ++step) {
    const auto [tokens, targets] = train.next();  // [B, L] each
    const Pass pass{.training = true, .gen = gen.fork("step").fork(uint64_t(step))};
    const Tensor loss = model.loss(tokens, targets, {}, pass).loss;
    backward(loss);
    clip_gradients(adam, 1.0);
    adam.step(schedule(step));
    log.show({.step = step + 1, .steps = opt.steps, .loss = loss.item()});
  }
  write_state(opt.out, opt.steps, named_state(model), adam.state());

  const std::span<const uint8_t> bytes = corpus.valid().bytes;
  const Tensor text = Tensor::from(bytes, {std::ssize(bytes)});
  for (int64_t stride = opt.length; stride >= opt.length / 4; stride /= 2) {
    const double score = score_sliding(model, text, opt.length, stride, 4).bits();
    std::printf("least context %5ld: %.4f bits per byte\n", long(opt.length - stride), score);
  }
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
