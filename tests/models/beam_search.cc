// Beam search against exhaustive search, greedy decoding and the package's beam search.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "autograd/mode.h"
#include "models/all/registry.h"
#include "models/generate.h"
#include "models/longformer/longformer_lm.h"
#include "models/sparse_transformer/sparse_transformer.h"
#include "models/transformer/transformer.h"
#include "ops/copy.h"
#include "ops/shape.h"
#include "tests/harness/model_info.h"
#include "tests/models/golden_file.h"

namespace longspan::test {
namespace {

constexpr int64_t kBeamVocab = 7, kBeamEnd = 2;

Transformer beam_model(Wiring wiring) {
  TransformerConfig c = transformer_preset("tiny");
  c.vocab = kBeamVocab;
  c.wiring = wiring;
  c.positions = Positions::sinusoid;
  c.head_bias = true;
  return randomised<Transformer>(c, in_f64, 0.4);
}

/// Returns log p of every continuation of a prompt [1, n] that has ended or has `count` tokens.
std::map<std::vector<int64_t>, double> all_continuations(const Transformer& model,
                                                         const Tensor& prompt, int64_t count) {
  std::map<std::vector<int64_t>, double> ended, open{{{}, 0.0}};
  for (int64_t t = 0; t < count; ++t) {
    std::map<std::vector<int64_t>, double> next;
    for (const auto& [tokens, log_p] : open) {
      std::vector<Tensor> parts{prompt};
      if (t > 0) parts.push_back(Tensor::from(tokens, {1, t}));
      const Tensor logits = model.logits(concat(parts, 1), Pass{});
      const auto row = contiguous(select(logits, 1, -1)).to_vector<double>();
      double sum = 0;
      for (const double x : row) sum += std::exp(x);
      for (int64_t v = 0; v < kBeamVocab; ++v) {
        std::vector<int64_t> longer = tokens;
        longer.push_back(v);
        const double p = log_p + row[static_cast<size_t>(v)] - std::log(sum);
        (v == kBeamEnd || t + 1 == count ? ended : next)[longer] = p;
      }
    }
    open = std::move(next);
  }
  return ended;
}

std::vector<int64_t> sequence(const Beams& found, int64_t b, int64_t i) {
  const int64_t n =
      found.lengths.to_vector<int64_t>()[static_cast<size_t>(b * found.lengths.dim(1) + i)];
  const Tensor row = select(select(found.tokens, 0, b), 0, i);
  return contiguous(narrow(row, 0, 0, n)).to_vector<int64_t>();
}

TEST(BeamSearch, WithRoomForAllFindsTheBestOfAll) {
  const NoGrad off;
  const Transformer model = beam_model(Wiring::decoder);
  const Tensor prompt = some_tokens(1, 3, kBeamVocab);
  for (const double penalty : {0.0, 1.0, 2.0}) {
    const BeamSearch search{.beams = 60, .length_penalty = penalty, .end = kBeamEnd};
    const Beams found = beam_search(model, prompt, model.start_decoding(1), 3, search);
    std::multimap<double, std::vector<int64_t>, std::greater<>> expected;
    for (const auto& [tokens, p] : all_continuations(model, prompt, 3)) {
      expected.emplace(p / std::pow(static_cast<double>(tokens.size()), penalty), tokens);
    }
    auto best = expected.begin();
    const auto scores = found.scores.to_vector<double>();
    for (int64_t i = 0; i < 3; ++i, ++best) {
      EXPECT_EQ(sequence(found, 0, i), best->second) << penalty << " " << i;
      EXPECT_NEAR(scores[static_cast<size_t>(i)], best->first, 1e-12);
    }
  }
}

// Wu et al. 2016 (1609.08144, eq. 14): log p / ((5 + n) / 6)^penalty.
TEST(BeamSearch, DividesByThePenaltyOfWu2016) {
  const NoGrad off;
  const Transformer model = beam_model(Wiring::decoder);
  const Tensor prompt = some_tokens(1, 3, kBeamVocab);
  const BeamSearch search{
      .beams = 60, .length_penalty = 0.8, .end = kBeamEnd, .divisor = LengthDivisor::wu2016};
  const Beams found = beam_search(model, prompt, model.start_decoding(1), 3, search);
  const auto all = all_continuations(model, prompt, 3);
  const auto scores = found.scores.to_vector<double>();
  for (int64_t i = 0; i < 10; ++i) {
    const std::vector<int64_t> tokens = sequence(found, 0, i);
    const double length = (5 + static_cast<double>(tokens.size())) / 6;
    EXPECT_NEAR(scores[static_cast<size_t>(i)], all.at(tokens) / std::pow(length, 0.8), 1e-12);
  }
}

TEST(BeamSearch, TiesGoToTheLowestToken) {
  const NoGrad off;
  Transformer model = beam_model(Wiring::decoder);
  randomise(model, 0, 1);  // every token is as likely as every other
  const Beams found =
      beam_search(model, some_tokens(1, 3, kBeamVocab), model.start_decoding(1), 2, {.beams = 3});
  EXPECT_EQ(flatten(found.tokens).to_vector<int64_t>(), (std::vector<int64_t>{0, 0, 0, 1, 0, 2}));
}

TEST(BeamSearch, ScoresAreThoseOfTeacherForcing) {
  const NoGrad off;
  const Transformer model = beam_model(Wiring::encoder_decoder);
  const Tensor source = some_tokens(2, 6, kBeamVocab, 5), start = some_tokens(2, 2, kBeamVocab, 9);
  const Tensor lengths = Tensor::from(std::vector<int64_t>{6, 3}, {2});
  const BeamSearch search{.beams = 3, .length_penalty = 0, .end = kBeamEnd};
  const Beams found = beam_search(model, start, model.start_decoding(source, lengths), 8, search);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t i = 0; i < 3; ++i) {
      const std::vector<int64_t> y = sequence(found, b, i);
      const auto n = static_cast<int64_t>(y.size());
      ASSERT_GE(n, 1);
      const Tensor text = concat({narrow(start, 0, b, 1), Tensor::from(y, {1, n})}, 1);
      const Tensor hidden = model.forward({.tokens = contiguous(narrow(text, 1, 0, n + 1)),
                                           .lengths = contiguous(narrow(lengths, 0, b, 1)),
                                           .source = contiguous(narrow(source, 0, b, 1))},
                                          Pass{});
      const auto logits = model.head(hidden).to_vector<double>();
      double expected = 0;
      for (int64_t t = 0; t < n; ++t) {
        double sum = 0;
        for (int64_t v = 0; v < kBeamVocab; ++v) {
          sum += std::exp(logits[static_cast<size_t>((t + 1) * kBeamVocab + v)]);
        }
        expected += logits[static_cast<size_t>((t + 1) * kBeamVocab + y[static_cast<size_t>(t)])] -
                    std::log(sum);
      }
      const auto at = static_cast<size_t>(b * 3 + i);
      EXPECT_NEAR(found.scores.to_vector<double>()[at], expected, 1e-11);
    }
  }
}

TEST(BeamSearch, OneBeamIsGreedy) {
  const NoGrad off;
  const Transformer model = beam_model(Wiring::decoder);
  const Tensor prompt = some_tokens(3, 4, kBeamVocab);
  const Tensor greedy = generate(model, prompt, 9, {.temperature = 0}, Generator{1});
  const Beams one = beam_search(model, prompt, model.start_decoding(3), 9, {.beams = 1});
  EXPECT_EQ(flatten(one.tokens).to_vector<int64_t>(), flatten(greedy).to_vector<int64_t>());

  const Beams ended = beam_search(model, prompt, model.start_decoding(3), 9,
                                  {.beams = 1, .length_penalty = 3, .end = kBeamEnd});
  for (int64_t b = 0; b < 3; ++b) {
    std::vector<int64_t> y = contiguous(select(greedy, 0, b)).to_vector<int64_t>();
    const auto end = std::find(y.begin(), y.end(), kBeamEnd);
    if (end != y.end()) y.erase(end + 1, y.end());
    EXPECT_EQ(sequence(ended, b, 0), y);
  }
}

// The decoding state of a beam moves with it, whatever a model stores.
TEST(BeamSearch, MemoriesOfSparseModelsFollowTheirBeams) {
  const NoGrad off;
  SparseTransformer sparse(sparse_transformer_preset("tiny"), in_f64);
  LongformerLM windows(longformer_lm_preset("tiny"), in_f64);
  for (LanguageModel* model :
       {static_cast<LanguageModel*>(&sparse), static_cast<LanguageModel*>(&windows)}) {
    randomise(*model, 0.4, 21);
    const Tensor prompt = some_tokens(2, 3, model->vocab());
    const Beams found =
        beam_search(*model, prompt, need<ContinuesSequences>(*model).start_decoding(2), 9,
                    {.beams = 3, .length_penalty = 0});
    const auto scores = found.scores.to_vector<double>();
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t i = 0; i < 3; ++i) {
        const std::vector<int64_t> y = sequence(found, b, i);
        ASSERT_EQ(y.size(), 9u);
        const Tensor text = concat({narrow(prompt, 0, b, 1), Tensor::from(y, {1, 9})}, 1);
        const auto logits = model->logits(text, Pass{}).to_vector<double>();
        double expected = 0;
        for (size_t t = 0; t < 9; ++t) {
          const auto vocab = static_cast<size_t>(model->vocab());
          const double* row = logits.data() + (t + 2) * vocab;
          double sum = 0;
          for (size_t v = 0; v < vocab; ++v) sum += std::exp(row[v]);
          expected += row[y[t]] - std::log(sum);
        }
        EXPECT_NEAR(scores[static_cast<size_t>(b * 3 + i)], expected, 1e-11) << b << " " << i;
      }
    }
  }
}

// So does that of every decoder: the score of a text is that of decoding it alone.
TEST(BeamSearch, EveryDecoderFollowsItsBeams) {
  const NoGrad off;
  int decoders = 0;
  for (const ModelEntry& entry : models()) {
    const bool tiny = std::any_of(entry.presets.begin(), entry.presets.end(),
                                  [](const Preset& p) { return p.name == "tiny"; });
    const auto model =
        entry.make(tiny ? "tiny" : "small")->build({.gen = Generator{7}, .dtype = DType::f64});
    if (model->objective() != Objective::next_token) continue;
    SCOPED_TRACE(entry.name);
    ++decoders;
    randomise(*model, 0.4, 21);
    constexpr int64_t count = 6;
    const Tensor prompt = some_tokens(1, 3, std::min<int64_t>(model->vocab(), 50));
    const Beams found =
        beam_search(*model, prompt, need<ContinuesSequences>(*model).start_decoding(1), count,
                    {.beams = 3, .length_penalty = 0});
    for (int64_t i = 0; i < 3; ++i) {
      const std::vector<int64_t> y = sequence(found, 0, i);
      ASSERT_EQ(y.size(), static_cast<size_t>(count));
      const auto state = need<ContinuesSequences>(*model).start_decoding(1);
      Tensor fresh = cast(prompt, DType::i64);
      double expected = 0;
      for (const int64_t token : y) {
        const auto row =
            cast(need<Decodes>(*model).decode(fresh, *state), DType::f64).to_vector<double>();
        const double largest = *std::max_element(row.begin(), row.end());
        double sum = 0;
        for (const double z : row) sum += std::exp(z - largest);
        expected += row[static_cast<size_t>(token)] - largest - std::log(sum);
        fresh = Tensor::from(std::vector<int64_t>{token}, {1, 1});
      }
      EXPECT_NEAR(found.scores.to_vector<double>()[static_cast<size_t>(i)], expected, 1e-9);
    }
  }
  EXPECT_GT(decoders, 9);
}

TEST(BeamSearch, RepeatsNoNgramAndKeepsTheLeastCount) {
  const Transformer model = beam_model(Wiring::decoder);
  const Tensor prompt = Tensor::from(std::vector<int64_t>{1, 3, 1}, {1, 3});
  for (const int64_t n : {1, 2, 3}) {
    const BeamSearch search{.beams = 3, .no_repeat_ngram = n, .min_count = 2, .end = kBeamEnd};
    const int64_t count = n == 1 ? 4 : 20;
    const Beams found = beam_search(model, prompt, model.start_decoding(1), count, search);
    for (int64_t i = 0; i < 3; ++i) {
      std::vector<int64_t> text{1, 3, 1};
      const std::vector<int64_t> y = sequence(found, 0, i);
      ASSERT_GE(y.size(), 3u);
      text.insert(text.end(), y.begin(), y.end());
      std::map<std::vector<int64_t>, int> seen;
      for (size_t t = 0; t + static_cast<size_t>(n) <= text.size(); ++t) {
        const auto at = text.begin() + static_cast<std::ptrdiff_t>(t);
        const bool in_prompt = t + static_cast<size_t>(n) <= 3;
        EXPECT_LE(++seen[std::vector<int64_t>(at, at + n)], in_prompt ? 2 : 1);
      }
    }
  }
}

// A search that ends only when no beam can come to score better finds texts that score no worse,
// and some that the usual rule misses; one that ends at the first chance finds none that are
// better.
TEST(BeamSearch, LaterEndsFindBetterTexts) {
  const NoGrad off;
  int better = 0, worse = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Transformer model = beam_model(Wiring::decoder);
    randomise(model, 0.6, seed);
    const Tensor prompt = some_tokens(1, 2, kBeamVocab);
    const auto best = [&](EarlyStopping rule) {
      const BeamSearch search{.beams = 2, .length_penalty = 2, .end = 1, .early_stopping = rule};
      const Beams found = beam_search(model, prompt, model.start_decoding(1), 9, search);
      return found.scores.to_vector<double>()[0];
    };
    const double usual = best(EarlyStopping::false_);
    EXPECT_GE(best(EarlyStopping::never), usual) << seed;
    EXPECT_LE(best(EarlyStopping::true_), usual) << seed;
    better += best(EarlyStopping::never) > usual ? 1 : 0;
    worse += best(EarlyStopping::true_) < usual ? 1 : 0;
  }
  EXPECT_GT(better, 0);
  EXPECT_GT(worse, 0);
}

TEST(BeamSearch, ASampleDoesNotDependOnTheOthers) {
  const Transformer model = beam_model(Wiring::decoder);
  const Tensor prompt = some_tokens(3, 4, kBeamVocab);
  const BeamSearch search{.beams = 3, .end = kBeamEnd};
  const Beams all = beam_search(model, prompt, model.start_decoding(3), 7, search);
  for (int64_t b = 0; b < 3; ++b) {
    const Tensor own = contiguous(narrow(prompt, 0, b, 1));
    const Beams one = beam_search(model, own, model.start_decoding(1), 7, search);
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(sequence(all, b, i), sequence(one, 0, i));
    EXPECT_TRUE(same_bits(contiguous(select(all.scores, 0, b)), flatten(one.scores)));
  }
}

TEST(BeamSearch, PromptsOfAnyLengthAreSearchedAsTheyWouldBeAlone) {
  const Transformer model = beam_model(Wiring::decoder);
  const std::vector<std::vector<int32_t>> prompts = {{1, 3, 4}, {5}, {6, 3, 1, 1, 4}};
  for (const BeamSearch& search :
       {BeamSearch{.beams = 1, .end = kBeamEnd}, BeamSearch{.beams = 3, .end = kBeamEnd},
        BeamSearch{.beams = 3, .repetition_penalty = 1.5, .no_repeat_ngram = 2, .end = kBeamEnd}}) {
    const Beams found = beam_search(model, prompts, 6, search);
    for (int64_t i = 0; i < 3; ++i) {
      const std::vector<int32_t>& own = prompts[static_cast<size_t>(i)];
      const Beams alone = beam_search(model, Tensor::from(own, {1, std::ssize(own)}),
                                      model.start_decoding(1), 6, search);
      EXPECT_EQ(contiguous(select(found.tokens, 0, i)).to_vector<int64_t>(),
                alone.tokens.to_vector<int64_t>());
      const auto scores = contiguous(select(found.scores, 0, i)).to_vector<double>();
      EXPECT_NEAR(scores[0], alone.scores.to_vector<double>()[0], 1e-9);
    }
  }
  EXPECT_THROW(beam_search(model, std::vector<std::vector<int32_t>>{}, 3, {}), ShapeError);
}

TEST(BeamSearch, BeginsAndEndsAsItMust) {
  const Transformer model = beam_model(Wiring::decoder);
  const Tensor prompt = Tensor::from(std::vector<int32_t>{1, 3}, {1, 2});
  const Beams found = beam_search(
      model, prompt, model.start_decoding(1), 4,
      {.beams = 2, .min_count = 3, .end = kBeamEnd, .force_begin = 6, .force_end = true});
  const std::vector<int64_t> tokens = found.tokens.to_vector<int64_t>();
  EXPECT_EQ(tokens[0], 6);
  EXPECT_EQ(tokens[4], 6);
  EXPECT_EQ(tokens[3], kBeamEnd);
  EXPECT_THROW(
      beam_search(model, prompt, model.start_decoding(1), 4, {.beams = 2, .force_end = true}),
      ValueError);
}

TEST(BeamSearch, Rejects) {
  const Transformer model = beam_model(Wiring::decoder);
  const Tensor prompt = some_tokens(1, 2, kBeamVocab);
  const auto run = [&](const BeamSearch& search, int64_t count = 3) {
    beam_search(model, prompt, model.start_decoding(1), count, search);
  };
  EXPECT_THROW(run({.beams = 0}), ValueError);
  EXPECT_THROW(run({.length_penalty = NAN}), ValueError);
  EXPECT_THROW(run({.no_repeat_ngram = -1}), ValueError);
  EXPECT_THROW(run({.end = kBeamVocab}), ValueError);
  EXPECT_THROW(run({.end = -2}), ValueError);
  EXPECT_THROW(run({.min_count = 3}), ValueError);
  EXPECT_THROW(run({}, 0), ValueError);
  EXPECT_THROW(
      beam_search(model, Tensor::zeros({1, 0}, DType::i64), model.start_decoding(1), 3, {}),
      ShapeError);
  EXPECT_THROW(beam_search(model, Tensor::zeros({1, 2}), model.start_decoding(1), 3, {}),
               DTypeError);
}

// A NaN or +inf logit is an error anywhere in the row. -inf marks a token that is never chosen.
TEST(BeamSearch, RejectsLogitsThatAreNoNumbers) {
  const Tensor prompt = some_tokens(2, 2, kBeamVocab);
  const double infinity = std::numeric_limits<double>::infinity();
  const auto run = [&](int64_t token, double logit) {
    Transformer model = beam_model(Wiring::decoder);
    int changed = 0;
    for (NamedTensor& p : named_parameters(model)) {
      if (p.name != "head.bias") continue;
      static_cast<double*>(p.tensor.mut().data)[token] = logit;
      ++changed;
    }
    EXPECT_EQ(changed, 1);
    return beam_search(model, prompt, model.start_decoding(2), 3, {.beams = 2});
  };
  for (const int64_t token : {int64_t{0}, int64_t{3}, kBeamVocab - 1}) {
    for (const double bad : {std::nan(""), infinity}) {
      try {
        run(token, bad);
        ADD_FAILURE() << bad << " at " << token << " was taken";
      } catch (const ValueError& e) {
        EXPECT_NE(std::string(e.what()).find("beam_search: "), std::string::npos) << e.what();
        EXPECT_NE(std::string(e.what()).find("logit"), std::string::npos) << e.what();
      }
    }
    const Beams found = run(token, -infinity);
    for (const int64_t made : found.tokens.to_vector<int64_t>()) EXPECT_NE(made, token);
  }
}

TEST(BeamSearch, FindsWhatTransformersFinds) {
  const GoldenFile golden("long_documents", "beams_bart");
  Transformer model = golden.build<Transformer, TransformerConfig>(DType::f64);
  const Tensor start = Tensor::from(std::vector<int64_t>{2, 2}, {2, 1});
  int searches = 0;
  for (; golden["search." + std::to_string(searches) + ".tokens"]; ++searches) {
    const std::string name = "search." + std::to_string(searches) + ".";
    const auto o = golden[name + "options"].to_vector<int64_t>();
    const BeamSearch search{
        .beams = o[0],
        .length_penalty = golden[name + "length_penalty"].item(),
        .no_repeat_ngram = o[1],
        .min_count = o[2],
        .end = 2,
        .early_stopping = o[3] != 0 ? EarlyStopping::true_ : EarlyStopping::false_};
    const Beams found = beam_search(
        model, start, model.start_decoding(golden["input.source"], golden["input.lengths"]), o[4],
        search);
    const Tensor expected = golden[name + "tokens"];
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t i = 0; i < o[0]; ++i) {
        std::vector<int64_t> y =
            contiguous(select(select(expected, 0, b), 0, i)).to_vector<int64_t>();
        const auto end = std::find(y.begin(), y.end(), 2);
        if (end != y.end()) y.erase(end + 1, y.end());
        EXPECT_EQ(sequence(found, b, i), y) << name << b << " " << i;
      }
    }
    if (o[0] > 1) {
      EXPECT_LE(distance(found.scores, golden[name + "scores"]), 1e-5) << name;
    }
  }
  EXPECT_EQ(searches, 6);
}

}  // namespace
}  // namespace longspan::test
