// Reformer against transformers, and properties of its attention in a whole model.

#include "models/reformer/reformer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "core/memory.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/models/golden_file.h"

namespace longspan::test {
namespace {

class ReformerGoldens : public testing::TestWithParam<std::string> {};

/// Compares every output and, if the file has them, every gradient.
void expect_reformer_golden(const std::string& name, DType dtype, double tolerance) {
  const GoldenFile golden("reformer", name);
  Reformer model = golden.build<Reformer, ReformerConfig>(dtype);
  // The file has [H, d, R, w].
  const Tensor rotations = contiguous(permute(golden["input.rotations"], {0, 2, 1, 3}));
  model.set_rotations(unsqueeze(rotations, 0));

  const Tensor lengths = golden["input.lengths"];
  const Tensor hidden =
      model.forward({.tokens = golden["input.tokens"], .lengths = lengths}, training).hidden;
  golden.expect("output.hidden", without_padding(hidden, lengths), tolerance);
  golden.expect("output.logits", without_padding(model.head(hidden), lengths), tolerance);
  const Tensor loss = model.loss(hidden, golden["input.targets"]);
  golden.expect("output.loss", loss, tolerance);
  if (!golden["gradient.head.weight"]) return;
  backward(loss);
  golden.expect_gradients(model, tolerance);
}

TEST_P(ReformerGoldens, EveryOutputAndGradient) {
  expect_reformer_golden(GetParam(), DType::f64, 1e-10);
}
TEST_P(ReformerGoldens, InF32) { expect_reformer_golden(GetParam(), DType::f32, 1e-5); }

INSTANTIATE_TEST_SUITE_P(Reformer, ReformerGoldens, testing::ValuesIn(golden_names("reformer")),
                         own_name);

ReformerConfig alternating() {
  ReformerConfig c = reformer_preset("tiny");
  c.vocab = 32;
  c.layers = "lsh,local";
  c.local_chunk = 5;
  return c;
}

Reformer randomised_reformer(const ReformerConfig& c, DType dtype = DType::f64) {
  return randomised<Reformer>(c, Init{.gen = Generator{4}, .dtype = dtype}, 0.3, 9);
}

TEST(Reformer, NothingFlowsBackInAWholeModelWithBucketsFrozen) {
  for (const char* layers : {"lsh", "local", "lsh,local"}) {
    ReformerConfig c = alternating();
    c.layers = layers;
    Reformer model = randomised_reformer(c);
    const Tensor tokens = unsqueeze(iota(27), 0);  // each token occurs once
    const std::vector<Tensor> buckets = model.forward({.tokens = tokens}, Pass{}).buckets;
    Tensor table = parameter(model, "embed.token.weight");
    for (const int64_t i : {0, 1, 7, 20, 26}) {
      set_grad(table, {});
      const Tensor h = model.forward({tokens, {}, buckets}, Pass{}).hidden;
      backward(sum(square(select(h, 1, i))));
      const std::vector<double> dx = grad(table).to_vector<double>();
      for (size_t at = 0; at < dx.size(); ++at) {
        if (static_cast<int64_t>(at) / 16 <= i) continue;
        ASSERT_EQ(dx[at], 0.0) << i << " from " << at / 16;
      }
    }
  }
}

TEST(Reformer, PaddingLeavesAWholeModelAlone) {
  const NoGrad off;
  for (const bool causal : {true, false}) {
    ReformerConfig c = alternating();
    c.causal = causal;
    c.look_ahead = c.local_ahead = causal ? 0 : 1;
    const Reformer model = randomised_reformer(c);
    const Tensor tokens = some_tokens(2, 32, 32);
    for (const int64_t length : {5, 16, 27}) {
      const Tensor part = contiguous(narrow(tokens, 1, 0, length));
      const Tensor lengths = full({2}, static_cast<double>(length), DType::i64);
      const Tensor alone = model.forward({.tokens = part}, Pass{}).hidden;
      const Tensor with = model.forward({tokens, lengths, {}}, Pass{}).hidden;
      EXPECT_LE(distance(contiguous(narrow(with, 1, 0, length)), alone), 1e-13) << length;
    }
  }
}

// Section 10: short sequences use full attention, and remark() says so. The result equals one chunk
// of all tokens.
TEST(Reformer, ShortSequencesAreSeenInFullWhereAsked) {
  ReformerConfig c = alternating();
  c.n_max = 64;
  const auto gradients_of = [](const ReformerConfig& config, const Tensor& tokens) {
    const Reformer model = randomised_reformer(config);
    const Tensor loss = model.loss(tokens, tokens, {}, training).loss;
    backward(loss);
    std::vector<Tensor> all{loss.detach()};
    for (const Tensor& p : parameters(const_cast<Reformer&>(model))) all.push_back(grad(p));
    return all;
  };
  const Tensor tokens = some_tokens(2, 27, 32);
  ReformerConfig whole = c;
  whole.chunk = 27;
  whole.rounds = 1;
  whole.look_back = whole.look_ahead = 0;
  whole.same_bucket = false;
  const std::vector<Tensor> expected = gradients_of(whole, tokens);
  const std::vector<Tensor> hashed = gradients_of(c, tokens);
  EXPECT_FALSE(same_bits(hashed[0], expected[0]));
  for (const int64_t below : {-1, 28}) {  // -1: 2 rounds of 2 chunks of 8 are 32 keys
    c.full_below = below;
    const std::vector<Tensor> full = gradients_of(c, tokens);
    for (size_t i = 0; i < full.size(); ++i) EXPECT_TRUE(same_bits(full[i], expected[i])) << i;
    EXPECT_NE(randomised_reformer(c).remark(27).find("27 tokens are attended to in full"),
              std::string::npos);
  }
  c.full_below = 27;
  EXPECT_TRUE(same_bits(gradients_of(c, tokens)[0], hashed[0]));
  EXPECT_NE(randomised_reformer(c).remark(27).find("hashed into 2 rounds"), std::string::npos);
  ReformerConfig filled = c;  // full_below counts tokens padded to whole chunks
  filled.layers = "lsh";
  filled.whole_chunks = true;
  filled.full_below = 28;
  EXPECT_NE(randomised_reformer(filled).remark(24).find("sequences up to 24"), std::string::npos);
  EXPECT_NE(randomised_reformer(filled).remark(25).find("hashed into 2 rounds"), std::string::npos);
  c.layers = "local";
  EXPECT_EQ(randomised_reformer(c).remark(27), "");
  c.full_below = -2;
  EXPECT_THROW(randomised_reformer(c), ValueError);
}

TEST(Reformer, GradientsOfTheWholeTinyModel) {
  for (const ReformerVariant variant : {ReformerVariant::paper, ReformerVariant::trax2,
                                        ReformerVariant::hf, ReformerVariant::lucid}) {
    ReformerConfig c = reformer_variant(alternating(), variant);
    c.activation = Activation::gelu_erf;  // relu's kinks would break finite differences
    Reformer model = randomised_reformer(c);
    const Tensor tokens = some_tokens(2, 32, 32), targets = some_tokens(2, 32, 32, 5);
    const std::vector<Tensor> buckets = model.forward({.tokens = tokens}, training).buckets;
    const auto loss = [&] {
      return model.loss(model.forward({tokens, {}, buckets}, training).hidden, targets);
    };
    EXPECT_EQ(check_parameter_gradients(model, loss), "") << static_cast<int>(variant);
  }
}

/// Returns the loss and the gradients of every parameter with a memory policy, with dropout on.
std::vector<Tensor> step_with(const char* memory, DType dtype, int64_t layers) {
  ReformerConfig c = alternating();
  c.n_layer = layers;
  c.dropout = c.dropout_attn = c.dropout_local = 0.1f;
  c.memory = memory;
  Reformer model = randomised_reformer(c, dtype);
  const Tensor tokens = some_tokens(2, 32, 32), targets = some_tokens(2, 32, 32, 5);
  const Tensor loss = model.loss(tokens, targets, {}, training).loss;
  backward(loss);
  std::vector<Tensor> all = {loss.detach()};
  for (const Tensor& p : parameters(model)) all.push_back(grad(p));
  return all;
}

TEST(Reformer, ReversibleGradientsAreThoseOfTheStoredStreams) {
  const std::vector<Tensor> stored = step_with("standard", DType::f64, 6);
  const std::vector<Tensor> inverted = step_with("reversible", DType::f64, 6);
  for (size_t i = 0; i < stored.size(); ++i) {
    EXPECT_LE(distance(inverted[i], stored[i]), 1e-10 * std::max(1e-3, largest_of(stored[i]))) << i;
  }
  // Checkpointing recomputes the same values, buckets included, bit for bit.
  const std::vector<Tensor> repeated = step_with("checkpoint", DType::f64, 6);
  for (size_t i = 0; i < stored.size(); ++i) EXPECT_TRUE(same_bits(repeated[i], stored[i])) << i;
  for (const char* policy : {"checkpoint:2", "checkpoint:4:1", "lean", "selective"}) {
    const std::vector<Tensor> all = step_with(policy, DType::f64, 6);
    for (size_t i = 0; i < stored.size(); ++i) EXPECT_TRUE(same_bits(all[i], stored[i])) << policy;
  }
  // In f32 the results agree to rounding. With reversible:exact, inversion on the grid is exact,
  // and the backward pass replays the forward pass exactly.
  const std::vector<Tensor> f32 = step_with("standard", DType::f32, 6);
  const std::vector<Tensor> back = step_with("reversible", DType::f32, 6);
  for (size_t i = 0; i < f32.size(); ++i) {
    EXPECT_LE(distance(back[i], f32[i]), 1e-4 * std::max(1e-2, largest_of(f32[i]))) << i;
  }
  const std::vector<Tensor> grid = step_with("reversible:exact", DType::f32, 6);
  for (size_t i = 0; i < f32.size(); ++i) {
    EXPECT_LE(distance(grid[i], f32[i]), 5e-3 * std::max(1e-1, largest_of(f32[i]))) << i;
  }
}

TEST(Reformer, SavedBytesGrowWithDepthByBucketsAlone) {
  const auto saved = [](const char* memory, int64_t layers) {
    ReformerConfig c = alternating();
    c.layers = "lsh";
    c.n_layer = layers;
    c.memory = memory;
    Reformer model = randomised_reformer(c, DType::f32);
    const Tensor tokens = some_tokens(2, 32, 32), targets = some_tokens(2, 32, 32, 5);
    MemoryTracker& tracker = memory_tracker({});
    const int64_t before = tracker.live()[Category::saved];
    const Tensor loss = model.loss(tokens, targets, {}, training).loss;
    const int64_t bytes = tracker.live()[Category::saved] - before;
    backward(loss);
    EXPECT_EQ(tracker.live()[Category::saved], before);
    return bytes;
  };
  const int64_t ids = 2 * 2 * 2 * 32 * 4;  // B H R L, i32
  for (const char* memory : {"reversible", "reversible:exact"}) {
    const int64_t two = saved(memory, 2);
    for (const int64_t layers : {4, 8, 16}) {
      EXPECT_EQ(saved(memory, layers), two + (layers - 2) * ids) << memory << " " << layers;
    }
  }
  // Segments of K layers save the two streams at their boundaries, and the buckets of every layer.
  const int64_t stream = 2 * 32 * 16 * 4;
  for (const auto& [memory, k] : {std::pair{"checkpoint", 1}, {"checkpoint:4", 4}}) {
    EXPECT_EQ(saved(memory, 16) - saved(memory, 8), 8 / k * 2 * stream + 8 * ids) << memory;
  }
  EXPECT_GT(saved("standard", 4), saved("standard", 2) + 20 * ids);
}

TEST(Reformer, RotationsAreFreshInTrainingAndFixedOtherwise) {
  const NoGrad off;
  ReformerConfig c = alternating();
  c.layers = "lsh";
  const Reformer model = randomised_reformer(c);
  const Tensor tokens = some_tokens(2, 32, 32);
  const auto buckets = [&](const Reformer& m, Pass pass) {
    return m.forward({.tokens = tokens}, pass).buckets;
  };
  const std::vector<Tensor> a = buckets(model, training), b = buckets(model, training);
  const std::vector<Tensor> next = buckets(model, {.training = true, .gen = Generator{2}});
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(same_bits(a[i], b[i])) << "the same pass hashes the same way";
    EXPECT_FALSE(same_bits(a[i], next[i]));
  }
  const std::vector<Tensor> still = buckets(model, Pass{});
  EXPECT_TRUE(same_bits(still[0], buckets(model, {.gen = Generator{77}})[0]));
  c.hash_seed = 5;
  EXPECT_FALSE(same_bits(still[0], buckets(randomised_reformer(c), Pass{})[0]));
  c.hash_seed = 0;
  c.rounds = 5;  // the first rounds stay the same
  const Tensor more = buckets(randomised_reformer(c), Pass{})[0];
  EXPECT_TRUE(same_bits(still[0], contiguous(narrow(more, 2, 0, 2))));
}

/// Returns the largest difference between token-by-token decoding and one pass over all tokens so
/// far.
double reformer_decoding_error(const Reformer& model, const Tensor& tokens, int64_t prompt) {
  const NoGrad off;
  const auto state = model.start_decoding(tokens.dim(0));
  double worst = 0;
  for (int64_t t = 0; t < tokens.dim(1);) {
    const int64_t n = t == 0 ? prompt : 1;
    const Tensor y = model.decode(contiguous(narrow(tokens, 1, t, n)), *state);
    t += n;
    const Tensor all = model.logits(contiguous(narrow(tokens, 1, 0, t)), Pass{});
    worst = std::max(worst, distance(y, contiguous(select(all, 1, -1))));
  }
  return worst;
}

TEST(Reformer, DecodesAsOnePassDoesWhereBucketsFitIntoChunks) {
  ReformerConfig c = alternating();
  c.rounds = 3;
  c.buckets = {2};
  c.chunk = 32;  // no bucket is larger than a chunk
  const Tensor tokens = some_tokens(2, 32, 32);
  EXPECT_LE(reformer_decoding_error(randomised_reformer(c), tokens, 1), 1e-12);
  EXPECT_LE(reformer_decoding_error(randomised_reformer(c), tokens, 11), 1e-12);
  // The rotations may have another number of rounds than the configuration.
  for (const int64_t rounds : {1, 5}) {
    Reformer model = randomised_reformer(c);
    model.set_rotations(lsh_rotations(Generator{6}, 2, rounds, 8, {2, 1}, DType::f64));
    EXPECT_LE(reformer_decoding_error(model, tokens, 3), 1e-12) << rounds;
  }
  // A single layer sees exactly the keys of the last row of a pass over all tokens so far, whatever
  // its windows. This holds for variants of other implementations, which hide no bucket.
  for (const ReformerVariant variant :
       {ReformerVariant::trax2, ReformerVariant::hf, ReformerVariant::lucid}) {
    ReformerConfig other = reformer_variant(c, variant);
    other.n_layer = 1;
    other.chunk = 4;
    EXPECT_LE(reformer_decoding_error(randomised_reformer(other), tokens, 1), 1e-12)
        << static_cast<int>(variant);
  }
  // With small chunks the keys differ, and so do the results, but they stay finite.
  c.chunk = 4;
  const double error = reformer_decoding_error(randomised_reformer(c), tokens, 1);
  EXPECT_GT(error, 1e-6);
  EXPECT_TRUE(std::isfinite(error));
}

TEST(Reformer, SaysWhatDoesNotFitTogether) {
  const auto refuses = [](const auto& change) {
    ReformerConfig c = reformer_preset("tiny");
    change(c);
    EXPECT_THROW(Reformer(c, Init{}), ValueError);
  };
  refuses([](ReformerConfig& c) { c.layers = "lsh,global"; });
  refuses([](ReformerConfig& c) { c.layers = ""; });
  refuses([](ReformerConfig& c) { c.buckets = {3}; });
  refuses([](ReformerConfig& c) { c.buckets = {2, 2, 2}; });
  refuses([](ReformerConfig& c) { c.position_shape = {4, 4}; });
  refuses([](ReformerConfig& c) { c.position_widths = {4, 4}; });
  refuses([](ReformerConfig& c) { c.n_head = 3; });
  refuses([](ReformerConfig& c) { c.dropout = 1; });
  refuses([](ReformerConfig& c) { c.chunk = 0; });
  Reformer model = randomised_reformer(reformer_preset("tiny"));
  EXPECT_THROW(model.logits(some_tokens(1, 33, 17), Pass{}), ValueError);
  EXPECT_THROW(model.attention_outline(0, 8), NotImplemented);
  ReformerConfig both = reformer_preset("tiny");
  both.causal = false;
  EXPECT_THROW(randomised_reformer(both).start_decoding(1), NotImplemented);
}

}  // namespace
}  // namespace longspan::test
