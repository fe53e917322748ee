// Transformer-XL of Dai et al. 2019 in a laptop size: reads streams of bytes segment by segment and
// passes the memory on. Prints scores for several lengths of the memory, as in the paper's figures
// 4 and 5.
//   transformer_xl_streams --data wikixml.xml.gz --steps 1500
#include <cstdio>

#include "longspan.h"

using namespace longspan;

struct Options {
  TransformerXLConfig model = transformer_xl_preset("small");
  std::string data = "runs/data/wikixml.xml.gz", out = "runs/transformer_xl";
  int64_t batch = 16, length = 128, steps = 1500;
  double lr = 1e-3;
  void visit(auto& v) {
    v("model", model)("data", data)("out", out)("batch", batch)("length", length);
    v("steps", steps)("lr", lr);
  }
};

int main(int argc, char** argv) try {
  const Options opt = parse_flags<Options>(argc, argv, "Trains a Transformer-XL on bytes.");
  const Generator gen{1};
  const auto corpus = ByteCorpus::open(opt.data);
  const TextStreams train(corpus.train(), opt.batch, opt.length, 1);
  TransformerXL model(opt.model, Init{gen.fork("init")});
  Adam adam(named_parameters(model));
  const Cosine schedule{.peak = opt.lr, .warmup = 200, .steps = opt.steps};
  Log log(opt.out, opt);
  SegmentMemory memory = model.empty_memory(opt.batch);
  for (int64_t step = 0; step < opt.steps; ++step) {
    const StreamBatch batch = train.at(step, 0, opt.batch);  // tokens, targets [B, L]
    const Pass pass{.training = true, .gen = gen.fork("step").fork(uint64_t(step))};
    const auto result = continue_streams(model, batch, memory, pass);
    backward(result.loss);
    clip_gradients(adam, 0.25);
    adam.step(schedule(step));
    log.show({.step = step + 1, .steps = opt.steps, .loss = result.loss.item()});
  }
  write_state(opt.out, opt.steps, named_state(model), adam.state());
  for (int64_t rows = 0; rows <= 4 * opt.model.mem_len; rows = rows > 0 ? 2 * rows : 64) {
    TransformerXLConfig longer = opt.model;  // parameters do not depend on the memory
    longer.mem_len = rows;
    longer.clamp = (opt.model.mem_len + opt.length) * 4 / 5;  // distances as in training
    TransformerXL other(longer, Init{});
    start_from(other, model, 0);
    const EvaluationStreams valid(corpus.valid(), 8, opt.length, rows);
    std::printf("memory of %4ld: %.4f bits per byte\n", long(rows),
                score_streams(other, valid, valid.streams()).bits());
  }
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
