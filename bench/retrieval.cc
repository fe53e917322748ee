// Which keys the questions of the task retrieval use, in a trained Transformer of two layers.
//   bench_retrieval CHECKPOINT softmax|entmax|learned    the checkpoint of a run of learning.sh:
//                                                        transformer-retrieval, -entmax, -learned
// Prints a JSON line for each layer and head: the share of the keys that a question sees to which
// it gives any weight, their number, and the weight of the one fact that answers it; means over the
// questions of 64 test samples.

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

#include "autograd/mode.h"
#include "core/error.h"
#include "data/tasks.h"
#include "models/transformer/transformer.h"
#include "train/state.h"

namespace longspan::bench {
namespace {

/// Sums over the questions of one head.
struct Used {
  double share = 0, keys = 0, weight = 0;
};

TransformerConfig config_of(const std::string& kind) {
  TransformerConfig c = transformer_preset("small");
  c.n_layer = 2;
  c.d_model = 64;
  c.d_ff = 128;
  c.positions = Positions::sinusoid;
  if (kind == "entmax") c.alpha = 1.5;
  if (kind == "learned") c.learn_alpha = true;
  return c;
}

void run(const std::string& checkpoint, const std::string& kind) {
  require(kind == "softmax" || kind == "entmax" || kind == "learned", "bench_retrieval",
          "got \"{}\"; expected softmax, entmax or learned", kind);
  const NoGrad off;
  const RetrievalTask task{.length = 128, .questions = 8};
  Transformer model(config_of(kind), Init{});
  read_parameters(checkpoint, named_parameters(model));
  constexpr int64_t samples = 64;
  std::vector<std::vector<Used>> layers(2, std::vector<Used>(4));
  for (uint64_t i = 0; i < samples; ++i) {
    const Sample s = task.sample({.split = "test", .index = i});
    const Tensor tokens = Tensor::from(s.tokens, {1, task.length});
    for (int64_t layer = 0; layer < 2; ++layer) {
      const auto p = model.attention_map(tokens, layer).to_vector<float>();
      for (int64_t row = task.length - task.questions; row < task.length; ++row) {
        const auto at = static_cast<size_t>(row);
        const int64_t key = s.tokens[at] - task.question(0);
        const int64_t fact = task.fact(key, s.targets[at]);
        for (int64_t head = 0; head < 4; ++head) {
          Used& used = layers[static_cast<size_t>(layer)][static_cast<size_t>(head)];
          for (int64_t j = 0; j <= row; ++j) {
            const double w = p[static_cast<size_t>((head * task.length + row) * task.length + j)];
            used.keys += w > 0;
            used.share += (w > 0) / static_cast<double>(row + 1);
            if (s.tokens[static_cast<size_t>(j)] == fact) used.weight += w;
          }
        }
      }
    }
  }
  const auto questions = static_cast<double>(samples * task.questions);
  for (size_t layer = 0; layer < 2; ++layer) {
    for (size_t head = 0; head < 4; ++head) {
      const Used& u = layers[layer][head];
      std::puts(fmt::format("{{\"kind\":\"{}\",\"layer\":{},\"head\":{},\"share_of_keys\":{:.4f},"
                            "\"keys\":{:.1f},\"weight_of_the_answer\":{:.3f}}}",
                            kind, layer, head, u.share / questions, u.keys / questions,
                            u.weight / questions)
                    .c_str());
    }
  }
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) try {
  longspan::require(argc == 3, "bench_retrieval", "expected CHECKPOINT softmax|entmax|learned");
  longspan::bench::run(argv[1], argv[2]);
} catch (const longspan::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
