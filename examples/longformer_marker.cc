// Shows what global tokens are for: a classifier reads only the first token and says whether the
// text contains a marker. With --model.globals=none that token attends to layers x window tokens
// (Beltagy et al. 2020, sec. 3.1).
#include <cstdio>

#include "autograd/engine.h"
#include "models/longformer.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/loss.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "train/config.h"
#include "train/optimizer.h"
#include "train/schedule.h"

using namespace longspan;

struct Options {
  LongformerConfig model = longformer_preset("small");
  int64_t batch = 16, length = 256, steps = 500;
  Options() {
    model.n_layer = 2, model.vocab = 64, model.classes = 2, model.mlm_head = false;
    model.globals = GlobalDefault::first;
  }
  void visit(auto& v) { v("model", model)("batch", batch)("length", length)("steps", steps); }
};

int main(int argc, char** argv) try {
  const Options opt = parse_flags<Options>(argc, argv, "Classifies by a marker far away.");
  const int64_t b = opt.batch, l = opt.length, marker = opt.model.vocab - 1;
  const Generator gen{1};
  Longformer model(opt.model, Init{gen.fork("init")});
  Adam adam(named_parameters(model));
  const Cosine schedule{.peak = 2e-3, .warmup = opt.steps / 10, .steps = opt.steps};
  double right = 0;
  for (int64_t step = 0; step < opt.steps + 20; ++step) {  // the last 20 are a test
    const Generator now = gen.fork("data").fork(uint64_t(step));
    const Tensor label = randint({b}, now.fork("label"), 0, 2);
    const Tensor place = randint({b, 1}, now.fork("place"), l / 2, l);  // in the second half
    const Tensor noise = randint({b, l}, now.fork("tokens"), 0, marker);
    const Tensor marked = where(equal(iota(l), place), full({b, l}, marker, DType::i64), noise);
    const Tensor tokens = where(equal(unsqueeze(label, 1), ones_like(place)), marked, noise);
    const Pass pass{.training = step < opt.steps, .gen = now};
    const Tensor logits = model.classify(model.forward({.tokens = tokens}, pass), pass);  // [B, 2]
    if (step >= opt.steps) {
      right += mean(cast(equal(argmax(logits, -1), label), DType::f32)).item() / 20;
      continue;
    }
    const Tensor loss = cross_entropy(logits, label);
    backward(loss);
    clip_gradients(adam, 1);
    adam.step(schedule(step));
    if (step % 20 == 0) std::printf("step %ld loss %.4f\n", long(step), loss.item());
  }
  std::printf("%.1f %% right\n", 100 * right);
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
