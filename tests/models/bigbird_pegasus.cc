// BigBird: BigBird's encoder-decoder against the package; coupling, decoding and loss.

#include "models/bigbird/bigbird_pegasus.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "models/bigbird/bigbird.h"
#include "models/convert.h"
#include "models/generate.h"
#include "nn/objective.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/shape.h"
#include "tests/harness/model_info.h"
#include "tests/models/costs.h"
#include "tests/models/golden_file.h"

namespace longspan::test {
namespace {

BigBirdPegasusConfig tiny_pegasus(const std::function<void(BigBirdPegasusConfig&)>& change = {}) {
  BigBirdPegasusConfig c = bigbird_pegasus_preset("tiny");
  if (change) change(c);
  return c;
}

BigBirdPegasus randomised_pegasus(const BigBirdPegasusConfig& c) {
  return randomised<BigBirdPegasus>(c, Init{.gen = Generator{1}, .dtype = DType::f64}, 0.3, 7);
}

void couple(BigBirdPegasusConfig& c) {
  c.couple = c.bias = c.emb_norm = true;
  c.emb_scale = false;
  c.norm = NormPlace::post;
}

/// Returns a source of 12 blocks, the last one short, with padding.
SequenceInputs pegasus_inputs() {
  return {.source = some_tokens(2, 45, 23),
          .lengths = Tensor::from(std::vector<int64_t>{45, 31}, {2}),
          .tokens = some_tokens(2, 11, 23, 5)};
}

Tensor some_targets() {
  std::vector<int64_t> ids = some_tokens(2, 11, 23, 8).to_vector<int64_t>();
  for (const size_t i : {9, 10, 20, 21}) ids[i] = ignored_target;
  return Tensor::from(ids, {2, 11});
}

class BigBirdPegasusGoldens : public testing::TestWithParam<std::string> {
 public:
  static void expect_golden(DType dtype, double tolerance) {
    const GoldenFile golden("bigbird_pegasus", GetParam());
    BigBirdPegasus model = golden.build<BigBirdPegasus, BigBirdPegasusConfig>(dtype);
    model.set_random_blocks(golden["input.random_blocks"]);
    const SequenceInputs in{.source = golden["input.source"],
                            .lengths = golden["input.lengths"],
                            .tokens = golden["input.tokens"]};
    golden.expect("output.context", without_padding(model.encode(in, training), in.lengths),
                  tolerance);
    const Tensor hidden = model.forward(in, training);
    golden.expect("output.hidden", hidden, tolerance);
    golden.expect("output.logits", model.head(hidden), tolerance);
    const Tensor loss = model.loss(hidden, golden["input.targets"], training);
    golden.expect("output.loss", loss, tolerance);
    backward(loss);
    golden.expect_gradients(model, tolerance);
  }
};

TEST_P(BigBirdPegasusGoldens, InF64) { expect_golden(DType::f64, 1e-10); }
TEST_P(BigBirdPegasusGoldens, InF32) { expect_golden(DType::f32, 1e-5); }
INSTANTIATE_TEST_SUITE_P(BigBird, BigBirdPegasusGoldens,
                         testing::ValuesIn(golden_names("bigbird_pegasus")), own_name);

/// Returns the name in a separate decoder of a parameter that the coupled encoder shares, or an
/// empty name if it is not shared.
std::string twin(std::string name) {
  if (name == "embed.position.weight") return "embed.source_position.weight";
  if (name.starts_with("embed.norm")) return name.replace(6, 4, "source_norm");
  if (!name.starts_with("encoder.")) return {};
  name.replace(0, 7, "decoder");
  if (const size_t at = name.find("norm2"); at != std::string::npos) name.replace(at, 5, "norm3");
  return name;
}

// A shared parameter gets the sum of the gradients of two separate copies with the same values.
// Cross-attention belongs to the decoder alone.
TEST(BigBird, SharedTensorsGetTheSumOfGradients) {
  for (const NormPlace norm : {NormPlace::post, NormPlace::pre}) {
    BigBirdPegasusConfig c = tiny_pegasus(couple);
    c.norm = norm;
    c.label_smoothing = 0;
    BigBirdPegasus coupled = randomised_pegasus(c);
    c.couple = false;
    c.n_max_target = c.n_max;  // tables as long as the shared one
    BigBirdPegasus apart = randomised_pegasus(c);
    std::map<std::string, Tensor> own;
    for (const NamedTensor& p : named_parameters(apart)) own[p.name] = p.tensor;
    int shared = 0, cross = 0;
    for (const NamedTensor& p : named_parameters(coupled)) {
      assign(own.at(p.name), p.tensor.to_vector<double>());
      if (own.contains(twin(p.name))) {
        assign(own.at(twin(p.name)), p.tensor.to_vector<double>());
        ++shared;
      }
      cross += p.name.find(".cross.") != std::string::npos ? 1 : 0;
    }
    EXPECT_EQ(parameter_count(coupled) < parameter_count(apart), true);
    const int layers = 2 * (8 + 4 + 2 * 2);  // projections, feed-forward, two norms
    EXPECT_EQ(shared, layers + 3 + (norm == NormPlace::pre ? 2 : 0)) << "tables and norms";
    EXPECT_EQ(cross, 2 * 8);
    EXPECT_EQ(named_parameters(apart).size(), named_parameters(coupled).size() + size_t(shared));

    const SequenceInputs in = pegasus_inputs();
    const Pass pass{.training = true, .gen = Generator{3}};
    const Tensor y = coupled.forward(in, pass), z = apart.forward(in, pass);
    EXPECT_TRUE(same_bits(y, z));
    backward(coupled.loss(y, some_targets(), pass));
    backward(apart.loss(z, some_targets(), pass));
    for (const NamedTensor& p : named_parameters(coupled)) {
      Tensor expected = grad(own.at(p.name));
      if (own.contains(twin(p.name))) {
        const Tensor other = grad(own.at(twin(p.name)));
        EXPECT_TRUE(other) << p.name;
        expected = add(expected, other);
      }
      EXPECT_LE(distance(grad(p.tensor), expected), 1e-12) << p.name;
    }
  }
}

TEST(BigBird, CoupledGradientsAreThoseOfTheLoss) {
  BigBirdPegasusConfig c = tiny_pegasus(couple);
  c.dropout = 0.1f;
  BigBirdPegasus model = randomised_pegasus(c);
  const SequenceInputs in = pegasus_inputs();
  const Pass pass{.training = true, .gen = Generator{6}};
  EXPECT_EQ(
      check_parameter_gradients(
          model, [&] { return model.loss(model.forward(in, pass), some_targets(), pass); }, 3),
      "");
}

// Token-by-token decoding after a long source equals teacher forcing.
TEST(BigBird, DecodingAfterASourceEqualsTheFullPass) {
  const NoGrad off;
  for (const bool coupled : {false, true}) {
    const BigBirdPegasus model =
        randomised_pegasus(coupled ? tiny_pegasus(couple) : tiny_pegasus());
    const SequenceInputs in = pegasus_inputs();
    const Tensor logits = model.head(model.forward(in, Pass{}));  // [B, L, V]
    const auto state = model.start_decoding(in);
    for (int64_t t = 0; t < 11; ++t) {
      const Tensor step = model.decode(contiguous(narrow(in.tokens, 1, t, 1)), *state);
      EXPECT_LE(distance(step, contiguous(select(logits, 1, t))), 1e-12) << t;
    }
    // Beam search with one beam is greedy decoding.
    const Tensor start = full({2, 1}, 2, DType::i64);
    const Beams one = beam_search(model, start, model.start_decoding(in), 9, {.beams = 1});
    const auto greedy = model.start_decoding(in);
    Tensor token = start;
    for (int64_t t = 0; t < 9; ++t) {
      token = unsqueeze(sample(model.decode(token, *greedy), {.temperature = 0}, Generator{1}), 1);
      EXPECT_EQ(flatten(token).to_vector<int64_t>(),
                contiguous(select(select(one.tokens, 1, 0), 1, t)).to_vector<int64_t>());
    }
  }
}

// 9. score = log P / ((5 + tokens) / 6)^alpha, with log P from one forward pass over the result.
TEST(BigBird, LengthPenaltyIsTheFormula) {
  const NoGrad off;
  const BigBirdPegasus model = randomised_pegasus(tiny_pegasus());
  const SequenceInputs in = pegasus_inputs();
  const Tensor start = full({2, 1}, 2, DType::i64);
  std::set<int64_t> seen;
  for (int64_t end = 0; end < 23; ++end) {
    const double alphas[] = {0.0, 0.7, 0.8, 2.0}, alpha = alphas[end % 4];
    const Beams beams = beam_search(
        model, start, model.start_decoding(in), 9,
        {.beams = 5, .length_penalty = alpha, .end = end, .divisor = LengthDivisor::wu2016});
    const auto lengths = beams.lengths.to_vector<int64_t>();
    const auto scores = beams.scores.to_vector<double>();
    for (int64_t i = 0; i < 5; ++i) {
      SequenceInputs forced = in;
      const Tensor found = contiguous(select(beams.tokens, 1, i));  // [B, 9]
      forced.tokens = shifted_right(found, 2);
      const auto logits = model.head(model.forward(forced, Pass{})).to_vector<double>();
      const auto tokens = found.to_vector<int64_t>();
      for (int64_t b = 0; b < 2; ++b) {
        const int64_t n = lengths[static_cast<size_t>(b * 5 + i)];
        seen.insert(n);
        double likelihood = 0;
        for (int64_t t = 0; t < n; ++t) {
          const double* row = &logits[static_cast<size_t>((b * 9 + t) * 23)];
          double sum = 0;
          for (int64_t v = 0; v < 23; ++v) sum += std::exp(row[v]);
          likelihood += row[tokens[static_cast<size_t>(b * 9 + t)]] - std::log(sum);
        }
        EXPECT_NEAR(scores[static_cast<size_t>(b * 5 + i)],
                    likelihood / std::pow((5.0 + static_cast<double>(n)) / 6.0, alpha), 1e-10);
      }
    }
  }
  EXPECT_GT(seen.size(), 1u) << "continuations of several lengths";
}

/// Computes the released loss scalar by scalar over the targets that count. With `pad`, ignored
/// targets count as token 0.
double smoothed(const Tensor& logits, const Tensor& targets, double s, bool pad) {
  const auto z = logits.to_vector<double>();
  const auto y = targets.to_vector<int64_t>();
  const auto vocab = static_cast<size_t>(logits.dim(-1));
  double total = 0, count = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    if (y[i] != ignored_target) ++count;
    if (y[i] == ignored_target && !pad) continue;
    double sum = 0;
    for (size_t v = 0; v < vocab; ++v) sum += std::exp(z[i * vocab + v]);
    for (size_t v = 0; v < vocab; ++v) {
      const bool target = static_cast<int64_t>(v) == std::max<int64_t>(y[i], 0);
      const double q = target ? 1 - s : s / static_cast<double>(vocab - 1);
      if (q > 0) total += q * (std::log(q) - (z[i * vocab + v] - std::log(sum)));
    }
  }
  return total / count;
}

// Label smoothing over the V - 1 other classes, minus the entropy. With s = 0 it is
// cross-entropy.
TEST(BigBird, LabelSmoothingEqualsTheScalarReference) {
  const Pass pass{.training = true, .gen = Generator{6}};
  const SequenceInputs in = pegasus_inputs();
  const Tensor targets = some_targets();
  for (const double s : {0.0, 0.1, 0.35}) {
    for (const bool pad : {false, true}) {
      BigBirdPegasusConfig c = tiny_pegasus();
      c.label_smoothing = s;
      c.count_pad_loss = pad;
      BigBirdPegasus model = randomised_pegasus(c);
      const Tensor hidden = model.forward(in, pass).detach();
      const Tensor logits = model.head(hidden).detach();
      EXPECT_NEAR(model.loss(hidden, targets, pass).item(), smoothed(logits, targets, s, pad),
                  1e-11);
      EXPECT_NEAR(model.loss(hidden, targets, Pass{}).item(), smoothed(logits, targets, 0, false),
                  1e-11)
          << "scores are not smoothed";
      const Tensor none = full_like(targets, static_cast<double>(ignored_target));
      EXPECT_EQ(model.loss(hidden, none, pass).item(), 0) << "no target counts";
      if (s == 0.1) {
        EXPECT_EQ(check_parameter_gradients(
                      model, [&] { return model.loss(model.forward(in, pass), targets, pass); }, 2),
                  "");
      }
    }
  }
}

TEST(BigBird, PaddingOfTheSourceChangesNoBit) {
  const NoGrad off;
  const BigBirdPegasus model = randomised_pegasus(tiny_pegasus());
  SequenceInputs in = pegasus_inputs();
  const Tensor before = model.forward(in, Pass{});
  in.source = concat({in.source, some_tokens(2, 9, 23, 3)}, 1);
  EXPECT_TRUE(same_bits(model.forward(in, Pass{}), before));
}

// Sec. 4.1: the base model starts from an encoder. Cross-attention is newly initialised.
TEST(BigBirdPegasus, StartsFromAnEncoder) {
  BigBirdConfig e = bigbird_preset("tiny");
  BigBird encoder(e, Init{.gen = Generator{1}, .dtype = DType::f64});
  randomise(encoder, 0.3, 3);
  for (const bool coupled : {true, false}) {
    BigBirdPegasusConfig c = tiny_pegasus(couple);
    c.couple = coupled;
    c.norm_eps = e.norm_eps;
    BigBirdPegasus model = randomised_pegasus(c);
    const Tensor cross = clone(parameter(model, "decoder.layers.1.cross.q.weight").detach());
    const std::vector<std::string> kept = start_from_encoder(model, encoder, 0);
    EXPECT_EQ(kept.size(), size_t(2 * (8 + 2) + 1)) << "cross-attention, its norm, and a bias";
    const NoGrad off;
    const SequenceInputs in = pegasus_inputs();
    const Tensor x = encoder.forward({.tokens = in.source, .lengths = in.lengths}, Pass{});
    EXPECT_LE(distance(without_padding(model.encode(in, Pass{}), in.lengths),
                       without_padding(x, in.lengths)),
              1e-12);
    EXPECT_TRUE(same_bits(parameter(model, "decoder.layers.1.cross.q.weight").detach(), cross));
    if (coupled) continue;
    EXPECT_TRUE(same_bits(parameter(model, "decoder.layers.1.ff.in.weight").detach(),
                          parameter(encoder, "layers.1.ff.in.weight").detach()));
    EXPECT_TRUE(same_bits(parameter(model, "decoder.layers.0.norm3.bias").detach(),
                          parameter(encoder, "layers.0.norm2.bias").detach()));
  }
  BigBirdPegasus wide = randomised_pegasus(tiny_pegasus([](auto& c) { c.d_ff = 40; }));
  EXPECT_THROW(start_from_encoder(wide, encoder, 0), ValueError) << "a final norm is missing";
}

TEST(BigBirdPegasus, Rejects) {
  EXPECT_THROW(randomised_pegasus(tiny_pegasus([](auto& c) { c.block = 0; })), ValueError);
  EXPECT_THROW(randomised_pegasus(tiny_pegasus([](auto& c) { c.n_head = 3; })), ValueError);
  EXPECT_THROW(randomised_pegasus(tiny_pegasus([](auto& c) { c.vocab = 1; })), ValueError);
  EXPECT_THROW(randomised_pegasus(tiny_pegasus([](auto& c) { c.label_smoothing = 1; })),
               ValueError);
  EXPECT_THROW(randomised_pegasus(tiny_pegasus([](auto& c) {
                 couple(c);
                 c.n_max_target = 65;
               })),
               ValueError);
  const BigBirdPegasus model = randomised_pegasus(tiny_pegasus());
  SequenceInputs in = pegasus_inputs();
  in.global = zeros({2, 45}, DType::i32);
  EXPECT_THROW(model.forward(in, Pass{}), ValueError);
  in.global = {};
  in.source = some_tokens(2, 65, 23);
  EXPECT_THROW(model.forward(in, Pass{}), ValueError);  // beyond the position table
  EXPECT_EQ(ask<ContinuesSequences>(model), nullptr);
  EXPECT_THROW(bigbird_pegasus_preset("none"), ValueError);
}

// A source and a target of the same length, on the meta device too.
TEST(BigBirdPegasus, Macs) {
  const NoGrad off;
  const BigBirdPegasus model =
      randomised_pegasus(tiny_pegasus([](auto& c) { c.n_max_target = 64; }));
  const MacCount counted;
  const Tensor source = some_tokens(1, 45, 23), tokens = some_tokens(1, 45, 23, 2);
  model.head(model.forward({.source = source, .tokens = tokens}, Pass{}));
  const int64_t expected = macs_of(model.config(), outlined_pairs(model, 45), 45);
  EXPECT_EQ(counted.total(), expected);
  EXPECT_EQ(forward_macs(BigBirdPegasus(model.config(), Init{.device = meta_device}), 45),
            expected);
}

}  // namespace
}  // namespace longspan::test
