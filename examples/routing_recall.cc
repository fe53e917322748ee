// The Routing Transformer of Roy et al. 2020 on copies from afar: the label at the start of a
// document is asked for at its end, further back than all local layers together see. A question
// finds the label if both are in one cluster. With --routing_layers 0 all heads are local.
#include <cstdio>
#include <vector>

#include "longspan.h"

using namespace longspan;

struct Options : RoutingConfig {
  Options() : RoutingConfig(routing_preset("recall")) {}
  int64_t length = 128, batch = 32, steps = 400;
  void visit(auto& v) {
    RoutingConfig::visit(v);
    v("length", length)("batch", batch)("steps", steps);
  }
};

Batch documents(int64_t length, const char* split, int64_t step, int64_t batch) {
  const RecallTask recall{.documents = 1, .document = length};
  std::vector<Sample> rows;
  for (int64_t i = step * batch; i < (step + 1) * batch; ++i) {
    rows.push_back(recall.sample({1, split, static_cast<uint64_t>(i)}));
  }
  return stack(rows);
}

int main(int argc, char** argv) try {
  const auto options = parse_flags<Options>(argc, argv, "Recalls labels from far back.");
  RoutingTransformer model(options, Init{Generator{1}.fork("init")});
  Adam adam(named_parameters(model));
  const Cosine rate{.peak = 3e-3, .warmup = 50, .steps = options.steps};
  for (int64_t step = 0; step < options.steps; ++step) {
    const auto [tokens, targets] = documents(options.length, "train", step, options.batch);
    const Pass pass{.training = true, .gen = Generator{1}.fork("step").fork(uint64_t(step))};
    const auto result = model.loss(tokens, targets, {}, pass);
    backward(result.total());
    clip_gradients(adam, 1.0);
    adam.step(rate(step));
    end_step(model, step, pass.gen, result.statistics);  // moves the centroids
    if ((step + 1) % 50 != 0) continue;
    const NoGrad off;
    const auto test = documents(options.length, "test", 0, 64);
    const Answers answers = count_right(model.logits(test.tokens, Pass{}), test.targets);
    std::printf("step %4ld: %5.1f %% of %ld labels recalled\n", long(step + 1), answers.percent(),
                long(answers.counted));
  }
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
