// BlockBERT answers questions about facts that are hidden in noise, sec. 4.2 of Qiu et al. 2020.
// Documents are longer than the model's input, so it reads them in overlapping windows; the best
// span of all windows is the answer.
//   blockbert_needle_qa --steps 3000
#include <cstdio>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "data/tasks.h"
#include "models/blockbert/blockbert.h"
#include "train/config.h"
#include "train/optimizer.h"
#include "train/schedule.h"
using namespace longspan;
struct Options {
  BlockBertConfig model = blockbert_preset("needle");
  int64_t batch = 32, stride = 30, steps = 3000, warmup = 100, documents = 100;
  double lr = 2e-3, clip = 1;
  uint64_t seed = 1;
  void visit(auto& v) {
    v("model", model)("batch", batch)("stride", stride)("steps", steps)("warmup", warmup);
    v("documents", documents)("lr", lr)("clip", clip)("seed", seed);
  }
};

int main(int argc, char** argv) try {
  const Options opt = parse_flags<Options>(argc, argv, "Trains BlockBERT to find answers.");
  const Generator gen{opt.seed};
  const NeedleTask task{.length = 104, .facts = 4, .keys = 16, .values = 22, .filler = 22};
  BlockBert model(opt.model, Init{gen.fork("init")});
  AdamW adam(named_parameters(model));
  const Cosine schedule{.peak = opt.lr, .warmup = opt.warmup, .steps = opt.steps, .floor = 0.05};
  const WindowOptions cut{.length = opt.model.n_max, .stride = opt.stride};
  NeedleBatches train(task, opt.batch, cut, opt.seed);

  for (int64_t step = 0; step < opt.steps; ++step) {
    const SpanBatch b = train.next();
    const Pass pass{.training = true, .gen = gen.fork("step").fork(uint64_t(step))};
    const Tensor hidden = model.forward({b.tokens, b.lengths, b.types}, pass);
    const Tensor loss = span_loss(model.spans(hidden, b.lengths), b.starts, b.ends);
    backward(loss);
    clip_gradients(adam, opt.clip);
    adam.step(schedule(step));
    if (step % 100 == 99) std::printf("step %ld  loss %.3f\n", long(step + 1), loss.item());
  }
  const NoGrad off;
  int64_t found = 0;
  for (int64_t i = 0; i < opt.documents; ++i) {
    const auto [question, text, answer] = question_of(task.sample({opt.seed, "test", uint64_t(i)}));
    const auto windows = span_windows(question, text, nullptr, needle_ids, cut);
    const SpanBatch b = span_batch(windows);
    const SpanLogits z = model.spans(model.forward({b.tokens, b.lengths, b.types}, {}), b.lengths);
    const BestSpan best = best_span(windows, text, score_rows(z.start), score_rows(z.end), 4);
    found += best.begin == answer.begin && best.end == best.begin + int64_t(answer.text.size());
  }
  std::printf("%ld of %ld answers exactly right\n", long(found), long(opt.documents));
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
