// Memory policies on every registered model, and steps that run out of memory.

#include <gtest/gtest.h>

#include <algorithm>

#include "autograd/checkpoint_scope.h"
#include "autograd/engine.h"
#include "autograd/node.h"
#include "core/matmul_library.h"
#include "core/memory.h"
#include "models/all/registry.h"
#include "models/capabilities.h"
#include "models/transformer/transformer.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "tests/harness/model_info.h"
#include "train/config.h"
#include "train/optimizer.h"

namespace longspan::test {
namespace {

/// Returns the loss and the gradients of one training step of a model's tiny configuration. If the
/// model has a d_ff field, `d_ff` > 0 replaces its value.
std::vector<Tensor> trained_tiny(const ModelEntry& entry, const char* policy, int64_t chunks = 1,
                                 int64_t d_ff = 0) {
  const auto spec = entry.make("tiny");
  const Json fields = to_json(*spec);
  if (d_ff > 0 && fields.find("d_ff") != nullptr) {
    set_fields(*spec, {{"d_ff", d_ff, "test"}});
  }
  set_fields(*spec,
             {{"memory", policy, "test"}, {"chunks", chunks, "test"}, {"dropout", 0.2, "test"}});
  const auto model = spec->build(Init{.gen = Generator{1}});
  const int64_t length =
      std::min({spec->defaults().length, model->max_length(), max_input_length(*model)});
  const Tensor tokens = some_tokens(2, length, model->vocab());
  const Pass pass{.training = true, .gen = Generator{2}};
  const LanguageModel::Losses l =
      model->objective() == Objective::sequence
          ? need<WritesSequences>(*model).sequence_loss({some_tokens(2, length, model->vocab(), 3)},
                                                        tokens, tokens, pass)
          : model->loss(tokens, tokens, empty_memory(*model, 2), pass);
  backward(l.total());
  std::vector<Tensor> all{l.loss.detach()};
  for (const Tensor& w : parameters(*model)) {
    if (grad(w)) all.push_back(grad(w));
  }
  return all;
}

TEST(Memory, EveryModelOfTheRegistryTrainsUnderEveryPolicy) {
  for (const ModelEntry& entry : models()) {
    SCOPED_TRACE(entry.name);
    const std::vector<Tensor> standard = trained_tiny(entry, "standard");
    const std::vector<Tensor> streams = trained_tiny(entry, "reversible:exact:stored");
    int refused = 0;
    for (const char* policy : {"checkpoint", "checkpoint:2", "checkpoint:2:1", "lean", "selective",
                               "reversible:exact"}) {
      SCOPED_TRACE(policy);
      const auto& expected =
          MemoryPolicy(policy).kind == MemoryKind::reversible_exact ? streams : standard;
      try {
        const std::vector<Tensor> all = trained_tiny(entry, policy);
        ASSERT_EQ(all.size(), expected.size());
        for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(same_bits(all[i], expected[i])) << i;
      } catch (const NotImplemented& e) {
        EXPECT_NE(std::string(e.what()).find(policy), std::string::npos) << e.what();
        ++refused;
      }
    }
    EXPECT_EQ(refused, 0);
    for (const char* policy : {"standard", "checkpoint", "reversible:exact:stored"}) {
      SCOPED_TRACE(policy);
      const auto& expected = MemoryPolicy(policy).stored ? streams : standard;
      const std::vector<Tensor> all = trained_tiny(entry, policy, 3);
      ASSERT_EQ(all.size(), expected.size());
      EXPECT_TRUE(same_bits(all[0], expected[0]));
      for (size_t i = 1; i < all.size(); ++i) EXPECT_LT(distance(all[i], expected[i]), 1e-5) << i;
    }
  }
}

// OpenBLAS may round a row differently at another row index, but a recomputation uses the same
// index. Policies that do not chunk rows still match `standard` bit for bit, and chunks are
// recomputed exactly.
TEST(Memory, OnOpenBlasWhatRunsAgainHasTheSameBits) {
  constexpr int64_t wide = 900;  // longer sums than our kernels compute in one block
  int64_t other = 0;
  for (const ModelEntry& entry : models()) {
    SCOPED_TRACE(entry.name);
    const std::vector<Tensor> own = trained_tiny(entry, "standard", 1, wide);
    const WithMatmulLibrary openblas(MatmulLibrary::openblas);
    const autograd::CheckReplays check;
    const std::vector<Tensor> standard = trained_tiny(entry, "standard", 1, wide);
    const std::vector<Tensor> streams = trained_tiny(entry, "reversible:exact:stored", 1, wide);
    ASSERT_EQ(standard.size(), own.size());
    for (size_t i = 0; i < own.size(); ++i) {
      EXPECT_LT(distance(standard[i], own[i]), 1e-5) << i;
      other += same_bits(standard[i], own[i]) ? 0 : 1;
    }
    for (const char* policy : {"checkpoint", "lean", "selective", "reversible:exact"}) {
      SCOPED_TRACE(policy);
      const auto& expected =
          MemoryPolicy(policy).kind == MemoryKind::reversible_exact ? streams : standard;
      const std::vector<Tensor> all = trained_tiny(entry, policy, 1, wide);
      ASSERT_EQ(all.size(), expected.size());
      for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(same_bits(all[i], expected[i])) << i;
    }
    const std::vector<Tensor> pieces = trained_tiny(entry, "checkpoint", 3, wide);
    ASSERT_EQ(pieces.size(), standard.size());
    for (size_t i = 0; i < pieces.size(); ++i) {
      EXPECT_LT(distance(pieces[i], standard[i]), 1e-5) << i;
    }
  }
  EXPECT_GT(other, 0) << "OpenBLAS gives the bits of our kernels, or is not used";
}

/// Holds a model, its optimiser and one batch.
struct Training {
  explicit Training(const MemoryPolicy& policy) : model(config(policy), Init{.gen = gen}) {}

  static TransformerConfig config(const MemoryPolicy& policy) {
    TransformerConfig c = transformer_preset("tiny");
    c.n_layer = 2;
    c.dropout = 0.2f;
    c.memory = policy;
    return c;
  }
  void step() {
    const Pass pass{.training = true, .gen = gen.fork(static_cast<uint64_t>(adam.steps()))};
    backward(model.loss(tokens, tokens, {}, pass).loss);
    clip_gradients(adam, 0.1);
    adam.step(1e-2);
  }
  /// Returns copies of the parameters and of the optimiser's state, including the step count.
  std::vector<Tensor> state() {
    std::vector<Tensor> all;
    for (const Tensor& w : parameters(model)) all.push_back(clone(w));
    for (const NamedTensor& s : adam.state()) all.push_back(clone(s.tensor));
    return all;
  }

  const Generator gen{3};
  Transformer model;
  AdamW adam{named_parameters(model)};
  const Tensor tokens = some_tokens(2, 7, 16);
};

void expect_equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << i;
}

TEST(OutOfMemory, AtAnyAllocationOfAStepChangesNothing) {
  for (const char* text : {"standard", "checkpoint:2:1", "lean", "selective", "reversible:exact"}) {
    SCOPED_TRACE(text);
    MemoryPolicy policy = text;
    if (policy.kind == MemoryKind::checkpoint) policy.chunks = 2;
    Training plain(policy), unlucky(policy);
    plain.step();
    unlucky.step();
    const std::vector<Tensor> before = unlucky.state();
    plain.step();
    const std::vector<Tensor> after = plain.state();
    const Usage live = memory_tracker().live();
    int64_t failures = 0;
    for (bool failed = true; failed; failures += failed ? 1 : 0) {
      fail_allocation_after({}, failures);
      try {
        unlucky.step();
        failed = false;
      } catch (const OutOfMemory&) {
        unlucky.adam.clear_gradients();
      }
      fail_allocation_after({}, -1);
      if (!failed) break;
      EXPECT_EQ(memory_tracker().live().total() - memory_tracker().live()[Category::cache],
                live.total() - live[Category::cache])
          << failures;
      if (failures % 16 == 0) expect_equal(unlucky.state(), before);
    }
    EXPECT_GT(failures, 100);
    expect_equal(unlucky.state(), after);  // the retry after the last failure
  }
}

}  // namespace
}  // namespace longspan::test
