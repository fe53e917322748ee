// LED (Beltagy et al. 2020, sec. 7) learns to summarize articles by their leads, and generates some
// summaries.
#include <cstdio>

#include "longspan.h"

using namespace longspan;
struct Options {
  LedConfig model = led_preset("summaries");
  std::string data_root, tokenizer = "bytes";
  int64_t batch = 1, source = 512, target = 512, steps = 600;
  double lr = 1e-3;
  void visit(auto& v) {
    v("model", model)("data-root", data_root)("tokenizer", tokenizer)("batch", batch);
    v("source", source)("target", target)("steps", steps)("lr", lr);
  }
};

int main(int argc, char** argv) try {
  const Options opt = parse_flags<Options>(argc, argv, "Teaches LED to summarise articles.");
  const auto tokenizer = open_tokenizer(opt.tokenizer);
  const SequenceIds ids(*tokenizer);
  const auto documents = open_documents("wiki-leads", {opt.data_root, ""}, 0);
  const Generator gen{1};
  const SequenceBatches train(summary_pairs(documents, *tokenizer, {opt.source, opt.target}),
                              opt.batch, ids, gen.key);
  Led model(opt.model, Init{gen.fork("init")});
  Adam adam(named_parameters(model));
  const Cosine schedule{.peak = opt.lr, .warmup = 100, .steps = opt.steps};
  for (int64_t step = 0; step < opt.steps; ++step) {
    const auto [source, lengths, tokens, targets, count, counted] = train.at(step);
    const Pass pass{.training = true, .gen = gen.fork("step").fork(uint64_t(step))};
    const Tensor loss = model.sequence_loss({source, lengths}, tokens, targets, pass).loss;
    backward(loss);
    clip_gradients(adam, 1);
    adam.step(schedule(step));
    if (step % 50 == 0) std::printf("step %ld loss %.4f\n", long(step), loss.item());
  }
  RougeScores scores;
  for (const Document& d : open_documents("wiki-leads", {opt.data_root, ""}, 1)) {
    const auto read = source_tokens(article_text(d), *tokenizer, opt.source);
    const Tensor source = Tensor::from(read, {1, int64_t(read.size())});
    const Tensor start = Tensor::from(std::vector<int32_t>{ids.end}, {1, 1});
    const Beams found = beam_search(model, start, model.start_after({source}), opt.target,
                                    {.beams = 1, .no_repeat_ngram = 3, .end = ids.end});
    const std::string text = written_text(found.tokens.to_vector<int64_t>(), *tokenizer, ids);
    std::printf("\n%s\n", text.c_str());
    scores.add(summary_sentences(text), d.summary);
  }
  std::printf("ROUGE-1 %.1f, ROUGE-2 %.1f\n", 100 * scores.rouge1, 100 * scores.rouge2);
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
