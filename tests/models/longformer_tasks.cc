// Longformer: answers that occur at several positions, and choosing the answer among candidates.

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/engine.h"
#include "autograd/gradcheck.h"
#include "autograd/mode.h"
#include "data/choices.h"
#include "models/longformer/longformer.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/loss.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/messages.h"
#include "tests/harness/model_info.h"
#include "train/optimizer.h"

namespace longspan::test {
namespace {

constexpr int64_t kNone = ignored_target;

Tensor ids(const std::vector<int64_t>& values, const Shape& shape) {
  return Tensor::from(values, shape);
}

SpanLogits some_logits(int64_t batch, int64_t length) {
  return {normal({batch, length}, Generator{1}, 0.0, 2.0, DType::f64),
          normal({batch, length}, Generator{2}, 0.0, 2.0, DType::f64)};
}

/// Returns -log of the summed probabilities of these positions.
double surprise(const Tensor& logits, int64_t row, const std::vector<size_t>& places) {
  const std::vector<double> x = contiguous(select(logits, 0, row)).to_vector<double>();
  double all = 0, right = 0;
  for (const double z : x) all += std::exp(z);
  for (const size_t i : places) right += std::exp(x[i]);
  return std::log(all / right);
}

TEST(Longformer, AnyOfSeveralSpansIsRight) {
  const SpanLogits logits = some_logits(3, 7);
  // The first sample has two spans, one of them listed twice. The second has none.
  const Tensor starts = ids({1, 4, 1, kNone, kNone, kNone, 6, kNone, kNone}, {3, 3});
  const Tensor ends = ids({2, 4, 2, kNone, kNone, kNone, 6, kNone, kNone}, {3, 3});
  const double expected = surprise(logits.start, 0, {1, 4}) + surprise(logits.end, 0, {2, 4}) +
                          surprise(logits.start, 2, {6}) + surprise(logits.end, 2, {6});
  EXPECT_NEAR(any_span_loss(logits, starts, ends).item(), expected / 4, 1e-12);

  // With one span per sample this is the usual loss.
  const Tensor one = ids({3, 0, 5}, {3}), last = ids({4, 1, 6}, {3});
  EXPECT_NEAR(any_span_loss(logits, unsqueeze(one, 1), unsqueeze(last, 1)).item(),
              span_loss(logits, one, last).item(), 1e-12);
  // If every position is right the loss is 0. If no position is right the sample does not count.
  const Tensor every = expand(iota(7, DType::i64), {3, 7});
  EXPECT_NEAR(any_span_loss(logits, every, every).item(), 0, 1e-12);
  const Tensor none = full({3, 2}, static_cast<double>(kNone), DType::i64);
  EXPECT_EQ(any_span_loss(logits, none, none).item(), 0);
}

TEST(Longformer, AnyOfSeveralSpansLeavesOutACommonOffset) {
  for (const float c : {0.0f, 1e4f, 1e8f}) {
    const Tensor z = full({1, 4}, c);
    const Tensor places = ids({0, 2}, {1, 2});
    EXPECT_NEAR(any_span_loss({z, z}, places, places).item(), std::log(2.0), 1e-7) << c;
  }
}

TEST(Longformer, GradientsOfAnyOfSeveralSpans) {
  const SpanLogits logits = some_logits(3, 5);
  const Tensor starts = ids({1, 3, kNone, kNone, 0, kNone}, {3, 2});
  const Tensor ends = ids({2, 3, kNone, kNone, 4, 4}, {3, 2});
  const GradcheckResult all = gradcheck(
      [&](const std::vector<Tensor>& x) {
        return any_span_loss({x[0], x[1]}, starts, ends);
      },
      {logits.start, logits.end});
  EXPECT_TRUE(all) << all.message;

  // Logits of padding are -inf, and a sample without an answer contributes no gradient.
  LongformerConfig c = longformer_preset("tiny");
  c.span_head = true;
  c.globals = GlobalDefault::first;
  Longformer model(c, Init{.dtype = DType::f64});
  randomise(model, 0.3, 3);
  const Tensor tokens = some_tokens(3, 9, 18), lengths = ids({9, 6, 7}, {3});
  EXPECT_EQ(check_parameter_gradients(model,
                                      [&] {
                                        const Tensor h = model.forward(
                                            {.tokens = tokens, .lengths = lengths}, Pass{});
                                        return any_span_loss(model.spans(h, lengths), starts, ends);
                                      }),
            "");
}

TEST(Longformer, AnyOfSeveralSpansRejects) {
  const SpanLogits logits = some_logits(2, 4);
  const auto says = [&](const Tensor& starts, const Tensor& ends) {
    return message_of<ValueError>([&] { any_span_loss(logits, starts, ends); });
  };
  const Tensor good = ids({0, 1}, {2, 1});
  EXPECT_TRUE(contains(says(ids({0, 4}, {2, 1}), good), "starts[1, 0] is 4; expected 0 to 3"));
  EXPECT_TRUE(contains(says(good, ids({-1, 1}, {2, 1})), "ends[0, 0] is -1; expected 0 to 3"));
  EXPECT_TRUE(contains(says(ids({0, kNone}, {2, 1}), good), "sample 1 has ends alone"));
  EXPECT_THROW(any_span_loss(logits, ids({0, 1}, {2}), good), ShapeError);
  EXPECT_THROW(any_span_loss(logits, ids({0, 1, 2}, {3, 1}), good), ShapeError);
}

// ---- Candidates. ----

Longformer chooser(DType dtype) {
  LongformerConfig c = longformer_preset("tiny");
  c.vocab = 40;
  c.choice_head = true;
  c.mlm_head = false;
  return Longformer(c, Init{.dtype = dtype});
}

TEST(Longformer, CandidatesScoreTheMeanOfTheirMarks) {
  const NoGrad off;
  Longformer model = chooser(DType::f64);
  randomise(model, 0.3, 5);
  const Tensor hidden = normal({2, 6, 16}, Generator{3}, 0.0, 1.0, DType::f64);
  // The candidates have two marks (one in each sample), one mark and none.
  const Tensor places = ids({1, 6 + 3, 4, -1, -1, -1}, {1, 3, 2});
  const std::vector<double> scores = contiguous(model.choose(hidden, places)).to_vector<double>();
  const std::vector<double> w = parameter(model, "choice.weight").to_vector<double>();
  const std::vector<double> h = hidden.to_vector<double>();
  const auto score = [&](size_t place) {
    double s = 0;
    for (size_t i = 0; i < 16; ++i) s += w[i] * h[place * 16 + i];
    return s;
  };
  EXPECT_NEAR(scores[0], (score(1) + score(9)) / 2, 1e-12);
  EXPECT_NEAR(scores[1], score(4), 1e-12);
  EXPECT_EQ(scores[2], -INFINITY);

  EXPECT_THROW(model.choose(hidden, ids({12}, {1, 1, 1})), ValueError);
  EXPECT_THROW(model.choose(hidden, ids({1}, {1, 1})), ShapeError);
  const Longformer without(longformer_preset("tiny"), Init{.dtype = DType::f64});
  EXPECT_TRUE(
      contains(message_of<ValueError>([&] { without.choose(hidden, places); }), "choice_head"));
}

constexpr ChoiceTokens special{.begin = 1,
                               .separator = 2,
                               .question = 3,
                               .question_end = 4,
                               .candidate = 5,
                               .candidate_end = 6};

/// Tokenizes one token per word: "w7" is 17.
std::vector<Piece> words(std::string_view text) {
  std::vector<Piece> all;
  for (size_t at = 0; (at = text.find('w', at)) != std::string_view::npos; ++at) {
    all.push_back({.id = 10 + std::atoi(text.data() + at + 1)});
  }
  return all;
}

/// Builds questions in WikiHop's form. The answer is the word that follows the word of the query.
struct Questions {
  ChoiceBatch batch;
  Tensor answers;
};

Questions questions(int64_t length) {
  const std::vector<ChoiceQuestion> all = read_wikihop(R"([
    {"id": "a", "query": "w1", "candidates": ["w11", "w12", "w13"], "answer": "w12",
     "supports": ["w2 w11 w20", "w1 w12 w21 w22", "w3 w13"]},
    {"id": "b", "query": "w2", "candidates": ["w11", "w12"], "answer": "w11",
     "supports": ["w2 w11 w23", "w1 w12"]},
    {"id": "c", "query": "w3", "candidates": ["w11", "w12", "w13"], "answer": "w13",
     "supports": ["w24 w1 w12", "w2 w11 w20", "w3 w13"]},
    {"id": "d", "query": "w3", "candidates": ["w13", "w12"], "answer": "w12",
     "supports": ["w3 w12", "w25 w26 w1 w13"]}])",
                                                       "questions");
  std::vector<std::vector<ChoiceWindow>> windows;
  std::vector<int64_t> answers;
  for (const ChoiceQuestion& q : all) {
    ChoicePieces pieces{.query = words(q.query), .candidates = {}, .supports = {}};
    for (const std::string& c : q.candidates) pieces.candidates.push_back(words(c));
    for (const std::string& s : q.supports) pieces.supports.push_back(words(s));
    windows.push_back(choice_windows(pieces, special, length));
    answers.push_back(q.answer);
  }
  return {choice_batch(windows), ids(answers, {static_cast<int64_t>(answers.size())})};
}

Tensor scores_of(const Longformer& model, const ChoiceBatch& b, Pass pass) {
  return model.choose(
      model.forward({.tokens = b.tokens, .lengths = b.lengths, .global = b.global}, pass),
      b.places);
}

TEST(Longformer, GradientsOfCandidates) {
  Longformer model = chooser(DType::f64);
  randomise(model, 0.3, 5);
  const Questions q = questions(20);  // several windows
  ASSERT_GT(q.batch.places.dim(2), 1);
  EXPECT_EQ(check_parameter_gradients(
                model, [&] { return cross_entropy(scores_of(model, q.batch, Pass{}), q.answers); }),
            "");
}

TEST(Longformer, LearnsToChoose) {
  for (const int64_t length : {20, 64}) {  // in several windows and in one
    Longformer model = chooser(DType::f32);
    randomise(model, 0.2, 7);
    const Questions q = questions(length);
    Adam adam(named_parameters(model));
    for (int step = 0; step < 80; ++step) {
      backward(
          cross_entropy(scores_of(model, q.batch, Pass{.training = true, .gen = {}}), q.answers));
      adam.step(1e-2);
    }
    const NoGrad off;
    const Tensor scores = scores_of(model, q.batch, Pass{});
    EXPECT_LT(cross_entropy(scores, q.answers).item(), 0.05) << length;
    EXPECT_EQ(argmax(scores, -1).to_vector<int64_t>(), q.answers.to_vector<int64_t>()) << length;
  }
}

}  // namespace
}  // namespace longspan::test
