// An encoder-decoder (Vaswani et al. 2017) learns to reverse sequences: the encoder reads the
// source, and the decoder is trained with teacher forcing. It decodes greedily at the end.
#include <cstdio>

#include "autograd/engine.h"
#include "models/transformer/transformer.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "train/config.h"
#include "train/optimizer.h"
#include "train/schedule.h"

using namespace longspan;

struct Options {
  TransformerConfig model{.wiring = Wiring::encoder_decoder, .vocab = 32, .n_layer = 2};
  int64_t batch = 32, length = 12, steps = 300;
  double lr = 2e-3;
  Options() { model.positions = Positions::sinusoid, model.emb_scale = true; }
  void visit(auto& v) {
    v("model", model)("batch", batch)("length", length)("steps", steps)("lr", lr);
  }
};

int main(int argc, char** argv) try {
  const Options opt = parse_flags<Options>(argc, argv, "Teaches an encoder-decoder to reverse.");
  const Generator gen{1};
  Transformer model(opt.model, Init{gen.fork("init")});
  Adam adam(named_parameters(model));
  const Cosine schedule{.peak = opt.lr, .warmup = 50, .steps = opt.steps};
  const Tensor begin = zeros({opt.batch, 1}, DType::i64);  // 0 is the start token
  Tensor source, target;
  for (int64_t step = 0; step <= opt.steps; ++step) {
    const Generator now = gen.fork(uint64_t(step));
    source = randint({opt.batch, opt.length}, now.fork("data"), 1, opt.model.vocab);  // [B, L]
    target = flip(source, 1);
    if (step == opt.steps) break;  // the last batch is for the test below
    const Tensor input = concat({begin, narrow(target, 1, 0, opt.length - 1)}, 1);
    const Pass pass{.training = true, .gen = now};
    const Tensor hidden = model.forward({.tokens = input, .source = source}, pass);  // [B, L, D]
    const Tensor loss = model.loss(hidden, target, pass);
    backward(loss);
    adam.step(schedule(step));
    if (step % 50 == 0) std::printf("loss %.4f\n", loss.item());
  }

  const auto state = model.start_decoding(source, {});
  Tensor token = begin, right = zeros({opt.batch}, DType::f32);
  for (int64_t i = 0; i < opt.length; ++i) {
    token = argmax(model.decode(token, *state), -1, true);  // [B, 1]
    right = right + cast(equal(select(token, 1, 0), select(target, 1, i)), DType::f32);
  }
  std::printf("%.1f %% right\n", 100 * mean(right).item() / double(opt.length));
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
