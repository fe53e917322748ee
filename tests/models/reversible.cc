// Every model with two reversible streams.

#include <gtest/gtest.h>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/memory.h"
#include "models/all/registry.h"
#include "models/capabilities.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/model_info.h"
#include "train/optimizer.h"

namespace longspan::test {
namespace {

constexpr int64_t kPairBatch = 2, kPairLength = 33;

/// Makes a configuration small, enables dropout and sets the memory policy.
class Adapted final : public Fields {
 public:
  Adapted(std::string_view policy, std::string_view precision, int64_t chunks)
      : policy_(policy), precision_(precision), chunks_(chunks) {}

 private:
  void field(std::string_view, bool&) override {}
  void field(std::string_view n, int64_t& x) override {
    if (n == "n_layer") x = 3;
    if (n == "chunks") x = chunks_;
    if (n == "vocab") x = 300;
    if (n == "mask_id") x = 299;
  }
  void field(std::string_view, uint64_t&) override {}
  void field(std::string_view n, float& x) override {
    if (n == "dropout") x = 0.1f;
  }
  void field(std::string_view, double&) override {}
  void field(std::string_view, std::string&) override {}
  void field(std::string_view, std::vector<int64_t>&) override {}
  void field(std::string_view, std::vector<std::string>&) override {}
  void choice(std::string_view n, int& x, std::span<const std::string_view> names) override {
    for (size_t i = 0; n == "precision" && i < names.size(); ++i) {
      if (names[i] == precision_) x = static_cast<int>(i);
    }
  }
  void written(std::string_view n, std::string& text, bool (*)(std::string_view),
               std::string_view) override {
    if (n == "memory") text = policy_;
  }
  void enter(std::string_view) override {}
  void leave() override {}

  std::string policy_, precision_;
  int64_t chunks_;
};

std::unique_ptr<LanguageModel> adapted(const ModelEntry& entry, std::string_view policy,
                                       std::string_view precision = "f32", int64_t chunks = 1) {
  const auto spec = entry.make(entry.presets.front().name);
  Adapted fields(policy, precision, chunks);
  spec->visit(fields);
  return spec->build(Init{.gen = Generator{1}});
}

Tensor loss_of(const LanguageModel& model, const Pass& pass) {
  const Tensor tokens = some_tokens(kPairBatch, kPairLength, model.vocab()),
               targets = some_tokens(kPairBatch, kPairLength, 64, 2);
  if (model.objective() == Objective::sequence) {
    return need<WritesSequences>(model).sequence_loss({tokens}, tokens, targets, pass).loss;
  }
  const LanguageModel::Losses l =
      model.loss(tokens, targets, empty_memory(model, kPairBatch), pass);
  return l.total();
}

/// Returns the loss of a training step and the gradients of every parameter.
std::vector<Tensor> training_step(const ModelEntry& entry, std::string_view policy,
                                  std::string_view precision = "f32", int64_t chunks = 1) {
  const auto model = adapted(entry, policy, precision, chunks);
  const Pass pass{.training = true, .gen = Generator{11}};
  const Tensor loss = loss_of(*model, pass);
  backward(loss);
  std::vector<Tensor> all{loss.detach()};
  for (const Tensor& w : parameters(*model)) all.push_back(grad(w));
  return all;
}

TEST(Memory, EveryModelHasTheGradientsOfItsStoredStreams) {
  for (const ModelEntry& entry : models()) {
    for (const auto& [precision, chunks] : {std::pair{"f32", 1}, {"f32", 3}, {"bf16", 1}}) {
      const auto expected = training_step(entry, "reversible:exact:stored", precision, chunks);
      const auto found = training_step(entry, "reversible:exact", precision, chunks);
      ASSERT_EQ(found.size(), expected.size()) << entry.name;
      for (size_t i = 0; i < found.size(); ++i) {
        ASSERT_EQ(static_cast<bool>(found[i]), static_cast<bool>(expected[i])) << entry.name;
        if (found[i]) {
          EXPECT_TRUE(same_bits(found[i], expected[i])) << entry.name << " " << i;
        }
      }
    }
    const auto inverted = training_step(entry, "reversible"),
               other = training_step(entry, "reversible:stored");
    ASSERT_EQ(inverted.size(), other.size()) << entry.name;
    for (size_t i = 0; i < inverted.size(); ++i) {
      if (!other[i]) continue;
      const double norm = std::sqrt(sum(square(other[i])).item());
      EXPECT_LE(std::sqrt(sum(square(sub(inverted[i], other[i]))).item()), 1e-4 * norm + 1e-6)
          << entry.name << " " << i;
    }
  }
}

/// Returns the losses of 200 training steps.
std::vector<Tensor> curve(std::string_view policy) {
  const auto model = adapted(models().front(), policy);
  Adam adam(named_parameters(*model));
  std::vector<Tensor> losses;
  for (uint64_t i = 0; i < 200; ++i) {
    const Tensor tokens = some_tokens(1, 9, model->vocab(), i % 4);
    const Pass pass{.training = true, .gen = Generator{11}.fork(i)};
    const Tensor loss =
        model->loss(narrow(tokens, 1, 0, 8), narrow(tokens, 1, 1, 8), {}, pass).loss;
    backward(loss);
    adam.step(1e-3);
    losses.push_back(loss.detach());
  }
  EXPECT_LT(losses.back().item(), 0.5 * losses.front().item());
  return losses;
}

TEST(Memory, CurvesOf200StepsAreThoseOfTheStoredStreams) {
  const std::vector<Tensor> inverted = curve("reversible:exact"),
                            stored = curve("reversible:exact:stored");
  for (size_t i = 0; i < stored.size(); ++i) EXPECT_TRUE(same_bits(inverted[i], stored[i])) << i;
}

/// Returns the mean sum of the rows of a map [H, L, T] that are not empty: layers may have rows for
/// some tokens only.
double mean_sum(const Tensor& map) {
  double rows = 0, all = 0;
  for (const float p : sum(map, {-1}).to_vector<float>()) {
    rows += p > 0 ? 1 : 0;
    all += p;
  }
  return all / rows;
}

/// The attention of the first layer equals that of one stream, because both streams start as the
/// embedding.
TEST(Memory, EveryReversibleModelShowsItsAttention) {
  int drawn = 0;
  for (const ModelEntry& entry : models()) {
    const auto two = adapted(entry, "reversible:exact"), one = adapted(entry, "standard");
    const Tensor tokens = some_tokens(1, kPairLength, two->vocab());
    Tensor maps[2];
    try {
      maps[0] = need<ShowsAttention>(*one).attention_map(tokens, 0);
      maps[1] = need<ShowsAttention>(*two).attention_map(tokens, 0);
    } catch (const NotImplemented&) {
      continue;
    }
    EXPECT_LT(distance(maps[0], maps[1]), 1e-4) << entry.name;
    const Tensor second = need<ShowsAttention>(*one).attention_map(tokens, 1);
    EXPECT_GT(distance(second, need<ShowsAttention>(*two).attention_map(tokens, 1)), 1e-6)
        << entry.name;
    EXPECT_NEAR(mean_sum(need<ShowsAttention>(*two).attention_map(tokens, 2)), mean_sum(second),
                1e-2)
        << entry.name;
    ++drawn;
  }
  EXPECT_GE(drawn, 8);
}

TEST(Memory, EveryReversibleModelDecodesWhatItWasTrainedAs) {
  int decoded = 0;
  for (const ModelEntry& entry : models()) {
    const auto model = adapted(entry, "reversible:exact");
    if (model->objective() != Objective::next_token) continue;
    if (entry.name == "reformer") continue;  // later tokens move earlier ones to other chunks
    const NoGrad off;
    const Tensor tokens = some_tokens(kPairBatch, kPairLength, model->vocab());
    const Tensor whole = model->logits(tokens, Pass{});
    const auto state = need<ContinuesSequences>(*model).start_decoding(kPairBatch);
    for (int64_t t = 0; t < kPairLength; ++t) {
      const Tensor row = need<Decodes>(*model).decode(contiguous(narrow(tokens, 1, t, 1)), *state);
      EXPECT_LT(distance(row, select(whole, 1, t)), 1e-3) << entry.name << " " << t;
    }
    ++decoded;
  }
  EXPECT_GE(decoded, 3);
}

}  // namespace
}  // namespace longspan::test
