// HIBERT (Zhang, Wei and Zhou 2019) learns to write hidden sentences of documents on a topic.
#include <cstdio>

#include "longspan.h"

using namespace longspan;
struct Options {
  HibertConfig model = hibert_preset("small");
  TopicTask task;
  int64_t batch = 16, steps = 1000;
  double lr = 1e-3;
  Options() { model.vocab = task.vocabulary() + 4; }
  void visit(auto& v) { v("model", model)("batch", batch)("steps", steps)("lr", lr); }
};

/// Returns document i with the model's own token at the ends of sentences.
TokenDocument document(const TopicTask& task, uint64_t i, const DocumentTokens& special) {
  TokenDocument d{{{}}};
  for (const int32_t token : task.sample({.seed = 1, .split = "train", .index = i}).tokens) {
    d.sentences.back().push_back(token == 0 ? special.sentence_end : token);
    if (token == 0) d.sentences.emplace_back();
  }
  d.sentences.pop_back();
  return d;
}

int main(int argc, char** argv) try {
  const Options opt = parse_flags<Options>(argc, argv, "Teaches HIBERT to write hidden sentences.");
  const Generator gen{1};
  Hibert model(opt.model, Init{gen.fork("init")});
  const DocumentTokens special = model.special();
  Adam adam(named_parameters(model));
  const Cosine schedule{.peak = opt.lr, .warmup = 200, .steps = opt.steps};
  for (int64_t step = 0; step <= opt.steps; ++step) {
    std::vector<TokenDocument> batch;
    std::vector<const TokenDocument*> rows;
    for (int64_t b = 0; b < opt.batch; ++b) {
      batch.push_back(document(opt.task, uint64_t(step * opt.batch + b), special));
    }
    for (const TokenDocument& d : batch) rows.push_back(&d);
    const auto masked = mask_sentences(rows, {.token = special.mask}, gen.fork(uint64_t(step)));
    PackedDocuments in;
    SentenceTargets written;
    for (const auto& d : masked.documents) in.add(d);
    for (const MaskedSentence& m : masked.masked) written.add(m.slot, m.original, special);
    const Pass pass{.training = true, .gen = gen.fork("step").fork(uint64_t(step))};
    const Tensor loss = model.sentence_loss(in, written, pass).loss;
    if (step % 100 == 0) std::printf("step %ld loss %.4f\n", long(step), loss.item());
    if (step == opt.steps) break;
    backward(loss);
    clip_gradients(adam, 1);
    adam.step(schedule(step));
  }
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
