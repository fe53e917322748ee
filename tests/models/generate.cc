#include "models/generate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "autograd/mode.h"
#include "models/all/registry.h"
#include "models/evaluate.h"
#include "models/transformer/transformer.h"
#include "ops/copy.h"
#include "ops/shape.h"
#include "tests/harness/model_info.h"
#include "tests/models/small_models.h"

namespace longspan::test {
namespace {

Transformer generating_model(const std::function<void(TransformerConfig&)>& change =
                                 [](TransformerConfig&) {}) {
  TransformerConfig c = transformer_preset("tiny");
  change(c);
  return randomised<Transformer>(c, in_f32);
}

std::vector<int64_t> draws(const std::vector<double>& logits, const Sampling& s, int64_t n) {
  const auto v = static_cast<int64_t>(logits.size());
  const Tensor rows = contiguous(expand(Tensor::from(logits, {1, v}), {n, v}));
  return sample(rows, s, Generator{5}).to_vector<int64_t>();
}

std::map<int64_t, double> shares(const std::vector<double>& logits, const Sampling& s) {
  std::map<int64_t, double> share;
  const int64_t n = 40'000;
  for (const int64_t id : draws(logits, s, n)) share[id] += 1.0 / static_cast<double>(n);
  return share;
}

TEST(Sample, FollowsTheDistribution) {
  const std::vector<double> p{0.5, 0.1, 0.3, 0.1};
  std::vector<double> logits;
  for (const double x : p) logits.push_back(std::log(x) + 3);
  auto s = shares(logits, {});
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(s[static_cast<int64_t>(i)], p[i], 0.01);

  s = shares(logits, {.temperature = 0.5});  // squared and renormalised
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(s[static_cast<int64_t>(i)], p[i] * p[i] / 0.36, 0.01);
  }
}

TEST(Sample, TopKAndTopPCutTheTail) {
  const std::vector<double> logits{std::log(0.5), std::log(0.1), std::log(0.3), std::log(0.1)};
  auto s = shares(logits, {.top_k = 2});
  EXPECT_EQ(s.size(), 2u);
  EXPECT_NEAR(s[0], 0.625, 0.01);
  s = shares(logits, {.top_p = 0.5});
  EXPECT_EQ(s.size(), 1u);
  s = shares(logits, {.top_p = 0.55});
  EXPECT_EQ(s.size(), 2u);
  EXPECT_NEAR(s[0], 0.625, 0.01);
  s = shares(logits, {.top_p = 0.85});  // a tie goes to the lower id
  EXPECT_EQ(s.size(), 3u);
  EXPECT_EQ(s.count(1), 1u);
  EXPECT_EQ(s.count(3), 0u);
  s = shares(logits, {.top_k = 1, .top_p = 1});
  EXPECT_EQ(s.size(), 1u);
  s = shares(logits, {.temperature = 0});
  EXPECT_EQ(s.size(), 1u);
  EXPECT_EQ(s.count(0), 1u);
}

TEST(Sample, GreedyTakesTheFirstOfEquals) {
  EXPECT_EQ(draws({1, 7, 7, 0}, {.temperature = 0}, 3), (std::vector<int64_t>{1, 1, 1}));
  EXPECT_EQ(draws({1, 7, 7, 0}, {.temperature = 1e-300}, 3).size(), 3u);
  EXPECT_EQ(draws({-INFINITY, -2000, -INFINITY}, {}, 3), (std::vector<int64_t>{1, 1, 1}));
}

TEST(Sample, MoreThanThereIsIsAll) {
  const std::vector<double> logits{0.3, -0.2, 1};
  const std::vector<int64_t> all = draws(logits, {}, 50);
  EXPECT_EQ(draws(logits, {.top_k = 3}, 50), all);
  EXPECT_EQ(draws(logits, {.top_k = 4}, 50), all);
  EXPECT_EQ(draws(logits, {.top_k = std::numeric_limits<int64_t>::max()}, 50), all);
  EXPECT_EQ(draws(logits, {.top_p = 1}, 50), all);
  EXPECT_EQ(draws(logits, {.top_p = 1e-300}, 2), (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(draws({4}, {}, 2), (std::vector<int64_t>{0, 0}));
}

TEST(Sample, Rejects) {
  const Tensor logits = Tensor::from(std::vector<float>{1, 2}, {1, 2});
  const Generator gen{1};
  EXPECT_THROW(sample(logits, {.temperature = -1}, gen), ValueError);
  EXPECT_THROW(sample(logits, {.temperature = NAN}, gen), ValueError);
  EXPECT_THROW(sample(logits, {.top_k = -1}, gen), ValueError);
  EXPECT_THROW(sample(logits, {.top_p = 0}, gen), ValueError);
  EXPECT_THROW(sample(logits, {.top_p = 1.5}, gen), ValueError);
  EXPECT_THROW(sample(flatten(logits), {}, gen), ShapeError);
  EXPECT_THROW(sample(Tensor::from(std::vector<int64_t>{1}, {1, 1}), {}, gen), DTypeError);
  EXPECT_THROW(sample(Tensor::zeros({2, 0}), {}, gen), ShapeError);
  for (const float bad : {NAN, INFINITY}) {
    EXPECT_THROW(sample(Tensor::from(std::vector<float>{1, bad}, {1, 2}), {}, gen), ValueError);
  }
  const Tensor nothing = Tensor::from(std::vector<float>{1, 2, -INFINITY, -INFINITY}, {2, 2});
  for (const double temperature : {0.0, 1.0}) {
    EXPECT_THROW(sample(nothing, {.temperature = temperature}, gen), ValueError);
  }
}

TEST(Generate, IsDeterministicAndIndependentOfTheBatch) {
  const Transformer model = generating_model();
  const Tensor prompt = some_tokens(2, 3, 17);
  const auto run = [&](const Tensor& p, uint64_t seed) {
    return generate(model, p, 12, {.temperature = 0.8, .top_k = 10}, Generator{seed})
        .to_vector<int64_t>();
  };
  EXPECT_EQ(run(prompt, 1), run(prompt, 1));
  EXPECT_NE(run(prompt, 1), run(prompt, 2));
  const std::vector<int64_t> both = run(prompt, 1),
                             first = run(contiguous(narrow(prompt, 0, 0, 1)), 1);
  EXPECT_EQ(std::vector<int64_t>(both.begin(), both.begin() + 12), first);
}

TEST(Generate, GreedyIsTheArgmaxOfTheFullPass) {
  for (const int64_t window : {0, 3}) {
    const Transformer model = generating_model([&](TransformerConfig& c) {
      c.local = window > 0 ? Locality::exact : Locality::none;
      c.window = window;
    });
    const NoGrad off;
    Tensor text = some_tokens(1, 4, 17);
    std::vector<int64_t> seen;
    const Tensor y =
        generate(model, text, 8, {.temperature = 0}, Generator{1},
                 [&](const Tensor& ids) { seen.push_back(ids.to_vector<int64_t>()[0]); });
    for (int64_t t = 0; t < 8; ++t) {
      const Tensor last = contiguous(select(model.logits(text, Pass{}), 1, -1));
      const Tensor next = sample(last, {.temperature = 0}, Generator{1});
      EXPECT_EQ(next.to_vector<int64_t>()[0], y.to_vector<int64_t>()[static_cast<size_t>(t)]);
      text = concat({text, unsqueeze(next, 1)}, 1);
    }
    EXPECT_EQ(seen, y.to_vector<int64_t>());
  }
}

TEST(Generate, GoesOnBeyondALearnedTable) {
  const Transformer model = generating_model([](TransformerConfig& c) {
    c.positions = Positions::learned;
    c.n_max = 8;
  });
  const Tensor y = generate(model, some_tokens(1, 20, 17), 30, {}, Generator{1});
  EXPECT_EQ(to_string(y.shape()), "[1, 30]");
}

// The table has 8 positions. They are used up before half of them is read anew.
TEST(Generate, UsesTheWholeTableBeforeItBeginsAnew) {
  const Transformer model = generating_model([](TransformerConfig& c) {
    c.positions = Positions::learned;
    c.n_max = 8;
  });
  const NoGrad off;
  Tensor text = some_tokens(1, 3, 17);
  const Tensor y = generate(model, text, 8, {.temperature = 0}, Generator{1});
  for (int64_t t = 0; t < 8; ++t) {
    // 8 tokens are read; then the newest 4, and with each step one more.
    const int64_t n = text.dim(1), from = n <= 8 ? 0 : 5;
    const Tensor seen = contiguous(narrow(text, 1, from, n - from));
    const Tensor last = contiguous(select(model.logits(seen, Pass{}), 1, -1));
    const Tensor next = sample(last, {.temperature = 0}, Generator{1});
    EXPECT_EQ(next.to_vector<int64_t>()[0], y.to_vector<int64_t>()[static_cast<size_t>(t)]) << t;
    text = concat({text, unsqueeze(next, 1)}, 1);
  }
}

TEST(Generate, PromptsOfAnyLengthGoOnAsTheyWouldAlone) {
  const std::vector<std::vector<int32_t>> prompts = {{1, 2, 3}, {4}, {5, 6, 1, 2, 3, 4, 5}, {2, 2}};
  for (const char* name : {"transformer:tiny", "transformer_xl:tiny", "reformer:tiny"}) {
    SCOPED_TRACE(name);
    const std::unique_ptr<LanguageModel> model = find_model(name)->build(Init{.gen = Generator{3}});
    randomise(*model, 0.3, 5);
    for (const Sampling& how :
         {Sampling{.temperature = 0}, Sampling{}, Sampling{.repetition_penalty = 1.4}}) {
      const auto found = generate(*model, prompts, 9, how, Generator{4});
      ASSERT_EQ(found.size(), prompts.size());
      for (size_t i = 0; i < prompts.size(); ++i) {
        const Tensor start = Tensor::from(prompts[i], {1, std::ssize(prompts[i])});
        EXPECT_EQ(found[i], generate(*model, start, 9, how, Generator{4}).to_vector<int64_t>());
      }
    }
  }
}

TEST(Generate, PromptsEndWithTheirEnd) {
  const std::unique_ptr<LanguageModel> model =
      find_model("transformer:tiny")->build(Init{.gen = Generator{3}});
  randomise(*model, 0.3, 5);
  const std::vector<std::vector<int32_t>> prompts = {{1, 2, 3}, {4}};
  const auto all = generate(*model, prompts, 9, Sampling{}, Generator{4});
  const int64_t end = all[0][3];
  const auto found = generate(*model, prompts, 9, Sampling{}, Generator{4}, end);
  for (size_t i = 0; i < 2; ++i) {
    const auto at = std::find(all[i].begin(), all[i].end(), end);
    const std::vector<int64_t> expected(all[i].begin(), at == all[i].end() ? at : at + 1);
    EXPECT_EQ(found[i], expected);
  }
  EXPECT_LE(found[0].size(), 4u);
  EXPECT_TRUE(generate(*model, prompts, 0, Sampling{}, Generator{4})[1].empty());
  EXPECT_TRUE(generate(*model, std::vector<std::vector<int32_t>>{}, 3, {}, Generator{4}).empty());
  const std::vector<std::vector<int32_t>> empty = {{1}, {}};
  EXPECT_THROW(generate(*model, empty, 3, Sampling{}, Generator{4}), ShapeError);
}

TEST(Generate, PromptsLongerThanATableAreReadAsTheyWouldBeAlone) {
  TransformerConfig c = transformer_preset("tiny");
  c.positions = Positions::learned;
  c.n_max = 8;
  Transformer model(c, Init{.gen = Generator{3}});
  randomise(model, 0.3, 5);
  const std::vector<std::vector<int32_t>> prompts = {{1, 2, 3}, std::vector<int32_t>(11, 4), {7}};
  const auto found = generate(model, prompts, 12, Sampling{.temperature = 0}, Generator{4});
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Tensor start = Tensor::from(prompts[i], {1, std::ssize(prompts[i])});
    EXPECT_EQ(
        found[i],
        generate(model, start, 12, Sampling{.temperature = 0}, Generator{4}).to_vector<int64_t>());
  }
}

TEST(Generate, PenaltyForRepeatsIsThatOfCtrl) {
  std::vector<double> scores = {2, -2, 0, 4};
  const std::vector<int64_t> text = {0, 1, 1, 0};
  penalise_repeats(text, 2, scores);
  EXPECT_EQ(scores, (std::vector<double>{1, -4, 0, 4}));
}

TEST(Generate, Rejects) {
  const Transformer model = generating_model();
  EXPECT_THROW(generate(model, Tensor::zeros({1, 0}, DType::i64), 3, {}, Generator{1}), ShapeError);
  EXPECT_THROW(generate(model, some_tokens(1, 2, 17), -1, {}, Generator{1}), ValueError);
  EXPECT_THROW(generate(model, Tensor::zeros({1, 2}), 3, {}, Generator{1}), DTypeError);
  const Transformer encoder =
      generating_model([](TransformerConfig& c) { c.wiring = Wiring::encoder; });
  EXPECT_THROW(generate(encoder, some_tokens(1, 2, 17), 1, {}, Generator{1}), NotImplemented);
}

/// Returns the negative log-likelihood of token t after text[from] ... text[t - 1].
double nats(const Transformer& model, const Tensor& text, int64_t from, int64_t t) {
  const Tensor tokens = unsqueeze(contiguous(narrow(text, 0, from, t - from)), 0);
  const std::vector<float> y =
      contiguous(select(model.logits(tokens, Pass{}), 1, -1)).to_vector<float>();
  double sum = 0;
  for (const float v : y) sum += std::exp(double{v});
  return std::log(sum) -
         double{y[static_cast<size_t>(text.to_vector<int64_t>()[static_cast<size_t>(t)])]};
}

TEST(Evaluate, ScoresEveryTokenOnceWithTheContextItSays) {
  const Transformer model = generating_model();
  const NoGrad off;
  for (const int64_t n : {1, 5, 12, 23}) {
    const Tensor text = flatten(some_tokens(1, n + 1, 17));
    for (const auto& [length, stride] :
         {std::pair<int64_t, int64_t>{6, 0}, {6, 1}, {6, 4}, {6, 6}, {40, 3}}) {
      double expected = 0;
      for (int64_t t = 1; t <= n; ++t) {
        int64_t from = (t - 1) / length * length;  // segments
        if (stride > 0) {
          const int64_t end =
              t <= length ? std::min(length, n)
                          : std::min(length + (t - length + stride - 1) / stride * stride, n);
          from = std::max<int64_t>(end - length, 0);
        }
        expected += nats(model, text, from, t);
      }
      for (const int64_t batch : {1, 3}) {
        const Score s = stride > 0 ? score_sliding(model, text, length, stride, batch)
                                   : score_segments(model, text, length, batch);
        EXPECT_EQ(s.count, n);
        EXPECT_NEAR(s.nats, expected, 1e-4 * static_cast<double>(n)) << length << " " << stride;
      }
    }
  }
}

TEST(Evaluate, Rejects) {
  const Transformer model = generating_model();
  const Tensor text = flatten(some_tokens(1, 9, 17));
  EXPECT_THROW(score_segments(model, text, 0), ValueError);
  EXPECT_THROW(score_segments(model, text, 4, 0), ValueError);
  EXPECT_THROW(score_sliding(model, text, 4, 5), ValueError);
  EXPECT_THROW(score_sliding(model, text, 4, 0), ValueError);
  EXPECT_THROW(score_segments(model, unsqueeze(text, 0), 4), ShapeError);
  EXPECT_THROW(score_segments(model, Tensor::zeros({4}), 4), DTypeError);
  EXPECT_EQ(score_segments(model, narrow(text, 0, 0, 1), 4).count, 0);
  EXPECT_EQ(Score{}.bits(), 0);
  EXPECT_NEAR((Score{std::log(2.0) * 6, 3}.bits()), 2, 1e-15);
}

}  // namespace
}  // namespace longspan::test
