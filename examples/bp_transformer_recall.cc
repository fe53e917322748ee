// BP-Transformer, Ye et al. 2019, on recall from afar: the label after a mark at the start is asked
// for at the end, among other labels in the noise between. Samples grow from 16 tokens to 259:
// spans learn to find labels in short samples, and then find them in long ones too.
#include <cstdio>
#include <vector>

#include "longspan.h"

using namespace longspan;

struct Options : BpTransformerConfig {
  Options() : BpTransformerConfig(bp_transformer_preset("recall")) {}
  int64_t length = 259, steps = 300;
  bool decoys = true;
  void visit(auto& v) {
    BpTransformerConfig::visit(v);
    v("length", length)("steps", steps)("decoys", decoys);
  }
};

Batch marked(const Options& o, int64_t length, const char* split, int64_t from, int64_t rows) {
  const MarkedRecallTask task{.length = length, .decoys = o.decoys};
  std::vector<Sample> samples;
  for (int64_t i = from; i < from + rows; ++i) {
    samples.push_back(task.sample({1, split, static_cast<uint64_t>(i)}));
  }
  return stack(samples);
}

int main(int argc, char** argv) try {
  const auto options = parse_flags<Options>(argc, argv, "Recalls marked labels from far back.");
  BpTransformer model(options, Init{Generator{1}.fork("init")});
  Adam adam(named_parameters(model));
  const Constant rate{.peak = 2e-3, .warmup = 20};
  for (int64_t step = 0; step < options.steps; ++step) {
    const double done = double(step) / double(options.steps);
    const int64_t length = done < 0.6 ? 16 : done < 0.8 ? 64 : options.length;
    const int64_t rows = length == 16 ? 64 : 16;
    const auto [tokens, targets] = marked(options, length, "train", step * 64, rows);
    const Pass pass{.training = true, .gen = Generator{1}.fork("step").fork(uint64_t(step))};
    backward(model.loss(tokens, targets, {}, pass).total());
    clip_gradients(adam, 0.25);
    adam.step(rate(step));
    if ((step + 1) % 30 != 0) continue;
    const NoGrad off;
    Answers answers;
    for (int64_t from = 0; from < 256; from += 16) {
      const auto test = marked(options, options.length, "test", from, 16);
      answers += count_right(model.logits(test.tokens, Pass{}), test.targets);
    }
    std::printf("step %4ld: %5.1f %% of %ld labels recalled from %ld tokens\n", long(step + 1),
                answers.percent(), long(answers.counted), long(options.length));
  }
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
