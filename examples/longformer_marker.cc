// Shows what global tokens are for: a classifier reads only the first token and says whether the
// text contains a marker. With --model.globals=none the first token gets information from only
// layers x window tokens (Beltagy et al. 2020, sec. 3.1).
#include <cstdio>

#include "longspan.h"

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
  const int64_t b = opt.batch;
  const MarkerTask task{.length = opt.length, .vocabulary = opt.model.vocab};
  const Generator gen{1};
  Longformer model(opt.model, Init{gen.fork("init")});
  Adam adam(named_parameters(model));
  const Cosine schedule{.peak = 2e-3, .warmup = opt.steps / 10, .steps = opt.steps};
  double right = 0;
  for (int64_t step = 0; step < opt.steps + 20; ++step) {  // the last 20 are a test
    std::vector<int32_t> ids;
    std::vector<int64_t> labels;
    for (int64_t i = step * b; i < (step + 1) * b; ++i) {
      const Sample s = task.sample({.index = uint64_t(i)});
      ids.insert(ids.end(), s.tokens.begin(), s.tokens.end());
      labels.push_back(s.targets[0]);
    }
    const Tensor tokens = Tensor::from(ids, {b, opt.length}), label = Tensor::from(labels, {b});
    const Pass pass{.training = step < opt.steps, .gen = gen.fork("data").fork(uint64_t(step))};
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
