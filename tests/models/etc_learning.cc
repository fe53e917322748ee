// The purpose of labels: with them ETC follows structure to the answer, without them it cannot.

#include <gtest/gtest.h>

#include <algorithm>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "models/etc/etc.h"
#include "ops/loss.h"
#include "ops/reduce.h"
#include "tests/harness/model_info.h"
#include "train/optimizer.h"

namespace longspan::test {
namespace {

constexpr int64_t kRecords = 6, kValues = 10, kBatch = 32;

struct Records {
  EtcInputs in;
  Tensor answers;  // [B]
};

/// Builds records (entity, attribute) in random order, each with its own context. One global token
/// is linked by a label to the entity whose attribute is asked for. Entities are tokens 10 to 19.
Records records(const EtcConfig& c, uint64_t seed) {
  std::vector<int64_t> tokens, contexts, classes, answers;
  const auto draw = [&](int64_t i) {
    return static_cast<int64_t>(philox_word(seed, i) % static_cast<uint64_t>(kValues));
  };
  for (int64_t b = 0; b < kBatch; ++b) {
    const int64_t asked = draw(1'000 * b) % kRecords;
    for (int64_t i = 0; i < kRecords; ++i) {
      const int64_t attribute = draw(1'000 * b + 2 * i + 2);
      tokens.insert(tokens.end(), {kValues + draw(1'000 * b + 2 * i + 1), attribute});
      contexts.insert(contexts.end(), {i, i});
      classes.insert(classes.end(), {i == asked ? 1 : 0, 0});
      if (i == asked) answers.push_back(attribute);
    }
  }
  const RelationLabels labels{c.max_distance};
  const Shape shape{kBatch, 2 * kRecords};
  EtcInputs in{.tokens = Tensor::from(tokens, shape),
               .globals = Tensor::from(std::vector<int64_t>(kBatch, c.global_id), {kBatch, 1})};
  in.structure.context = Tensor::from(contexts, shape);
  in.structure.link_class = Tensor::from(classes, shape);
  in.structure.link_labels =
      Tensor::from(std::vector<int64_t>{labels.unlinked(), labels.linked()}, {1, 2, 1});
  return {in, Tensor::from(answers, {kBatch})};
}

/// Returns the share of right answers after some training.
double accuracy(bool labels) {
  EtcConfig c = etc_preset("tiny");
  c.labels = labels;
  c.hard_g2l = false;
  c.d_model = 32;
  c.d_ff = 64;
  c.init_std = 0.1;
  c.classes = kValues;
  Etc model(c, Init{.gen = Generator{1}});
  AdamW adam(named_parameters(model));
  for (uint64_t step = 0; step < 300; ++step) {
    const Records r = records(c, Generator{2}.fork(step).key);
    const Pass pass{.training = true, .gen = Generator{3}.fork(step)};
    backward(cross_entropy(model.classify(model.forward(r.in, pass), pass), r.answers));
    clip_gradients(adam, 1);
    adam.step(step < 200 ? 3e-3 : 1e-3);
  }
  const NoGrad off;
  int64_t right = 0;
  for (uint64_t i = 0; i < 8; ++i) {
    const Records r = records(c, Generator{4}.fork(i).key);
    const auto best = argmax(model.classify(model.forward(r.in, Pass{}), Pass{}), 1);
    const auto got = best.to_vector<int64_t>(), want = r.answers.to_vector<int64_t>();
    for (size_t b = 0; b < want.size(); ++b) right += got[b] == want[b];
  }
  return static_cast<double>(right) / (8.0 * kBatch);
}

// Guessing any attribute that occurs is right in about three of ten cases.
TEST(Etc, LabelsSolveWhatStructurePointsAt) {
  EXPECT_GT(accuracy(true), 0.95);
  EXPECT_LT(accuracy(false), 0.45);
}

}  // namespace
}  // namespace longspan::test
