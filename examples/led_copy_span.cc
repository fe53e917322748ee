// LED (Beltagy et al. 2020, sec. 7) learns to copy the tokens after token 1 of a long source.
#include <cstdio>

#include "autograd/engine.h"
#include "models/generate.h"
#include "models/longformer/led.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "train/config.h"
#include "train/optimizer.h"
#include "train/schedule.h"

using namespace longspan;

struct Options {
  LedConfig model = led_preset("small");
  int64_t batch = 8, source = 512, target = 32, steps = 600;
  void visit(auto& v) {
    v("model", model)("batch", batch)("source", source)("target", target)("steps", steps);
  }
};

int main(int argc, char** argv) try {
  const Options opt = parse_flags<Options>(argc, argv, "Teaches LED to copy a marked span.");
  const int64_t b = opt.batch, n = opt.target, start = opt.model.start_token;
  const Generator gen{1};
  Led model(opt.model, Init{gen.fork("init")});
  Adam adam(named_parameters(model));
  const Cosine schedule{.peak = 1e-3, .warmup = 50, .steps = opt.steps};
  for (int64_t step = 0;; ++step) {
    const Generator now = gen.fork("data").fork(uint64_t(step));
    const Tensor noise = randint({b, opt.source}, now.fork("tokens"), 3, opt.model.vocab);
    const Tensor mark = randint({b, 1}, now.fork("place"), 1, opt.source - n);
    const Tensor source = where(equal(iota(opt.source), mark), ones_like(noise), noise);
    const Tensor from = add(cast(mark, DType::f64), arange(1, double(n + 1), 1, DType::f64));
    const Tensor target = take_along_axis(source, cast(from, DType::i64), 1);  // [B, n]
    if (step == opt.steps) {
      const Tensor first = full({b, 1}, double(start), DType::i64);
      const Beams found = beam_search(model, first, model.start_after({source}), n, {.beams = 4});
      const Tensor same = equal(select(found.tokens, 1, 0), target);
      std::printf("%.1f %% of the tokens right\n", 100 * mean(cast(same, DType::f32)).item());
      return 0;
    }
    const Pass pass{.training = true, .gen = now};
    const Tensor loss =
        model.sequence_loss({source}, shifted_right(target, start), target, pass).loss;
    backward(loss);
    clip_gradients(adam, 1);
    adam.step(schedule(step));
    if (step % 50 == 0) std::printf("step %ld loss %.4f\n", long(step), loss.item());
  }
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
