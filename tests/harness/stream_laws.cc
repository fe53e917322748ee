#include "tests/harness/stream_laws.h"

#include <gtest/gtest.h>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/memory.h"
#include "models/capabilities.h"
#include "nn/segment.h"
#include "ops/copy.h"
#include "ops/shape.h"

namespace longspan::test {
namespace {

/// Returns the logits of segments of these lengths, joined, after a memory.
Tensor logits_of(const LanguageModel& model, const Tensor& tokens, SegmentMemory memory,
                 const std::vector<int64_t>& lengths) {
  std::vector<Tensor> parts;
  int64_t at = 0;
  for (const int64_t n : lengths) {
    parts.push_back(
        need<Streams>(model).logits_after(memory, contiguous(narrow(tokens, 1, at, n))));
    at += n;
  }
  EXPECT_EQ(memory.position, tokens.dim(1));
  return concat(parts, 1);
}

Tensor batch_rows(const Tensor& x, int64_t first, int64_t n = 1) {
  return contiguous(narrow(x, 0, first, n));
}

/// What two segments of training give.
struct TwoSegments {
  std::vector<Tensor> values;  ///< losses, gradients, tensors of both memories
};

void expect_like(const TensorList& memory, const TensorList& first) {
  ASSERT_EQ(memory.size(), first.size());
  for (size_t i = 0; i < memory.size(); ++i) {
    EXPECT_EQ(memory[i].name, first[i].name);
    EXPECT_EQ(memory[i].tensor.shape(), first[i].tensor.shape()) << memory[i].name;
    EXPECT_EQ(memory[i].tensor.dtype(), first[i].tensor.dtype()) << memory[i].name;
    EXPECT_FALSE(requires_grad(memory[i].tensor)) << memory[i].name;
  }
}

TwoSegments trained_segments(const ModelInfo& m, const MemoryPolicy& policy) {
  const auto model = m.make_with_dropout(Init{.gen = Generator{1}}, policy);
  const int64_t n = m.length;
  const Tensor tokens = some_tokens(2, 2 * n + 1, model->vocab(), 5);
  const auto part = [&](int64_t at) { return contiguous(narrow(tokens, 1, at, n)); };
  SegmentMemory memory = empty_memory(*model, 2);
  const TensorList first = named_tensors(memory);
  const Pass pass{.training = true, .gen = Generator{11}};
  TwoSegments two;
  Usage live;
  for (int64_t i = 0; i < 2; ++i) {
    auto result = model->loss(part(i * n), part(i * n + 1), memory, pass.at(uint64_t(i)));
    backward(result.total());
    two.values.push_back(result.total().detach());
    expect_like(named_tensors(result.memory), first);
    memory = std::move(result.memory);
    result = {};
    const Usage now = memory_tracker().live();
    if (i > 0) {
      EXPECT_EQ(now[Category::memory], live[Category::memory]) << policy.text();
      EXPECT_EQ(now[Category::saved], live[Category::saved]) << policy.text();
    }
    live = now;
    for (const NamedTensor& x : named_tensors(memory)) two.values.push_back(clone(x.tensor));
  }
  for (const Tensor& p : parameters(*model)) {
    if (grad(p)) two.values.push_back(grad(p));
  }
  return two;
}

}  // namespace

void cuts(const ModelInfo& m) {
  const auto model = m.make(Init{Generator{7}, Device{}, DType::f64});
  randomise(*model, 0.3, 9);
  const int64_t n = m.length;
  const Tensor tokens = some_tokens(3, n, model->vocab());
  const Tensor whole = logits_of(*model, tokens, empty_memory(*model, 3), {n});
  for (const int64_t piece : {int64_t{1}, int64_t{2}, int64_t{4}, n - 1, n}) {
    std::vector<int64_t> lengths;
    for (int64_t t = 0; t < n; t += piece) lengths.push_back(std::min(piece, n - t));
    EXPECT_LT(distance(logits_of(*model, tokens, empty_memory(*model, 3), lengths), whole), 1e-12)
        << "segments of " << piece;
    const SegmentMemory memory = evaluation_memory(*model, 3);
    EXPECT_LT(distance(logits_of(*model, tokens, memory, lengths), whole), 1e-12)
        << "segments of " << piece << " in evaluation";
  }
}

void streams_apart(const ModelInfo& m) {
  const auto model = m.make(Init{Generator{7}, Device{}, DType::f64});
  randomise(*model, 0.3, 9);
  const int64_t n = m.length;
  const Tensor tokens = some_tokens(3, 2 * n, model->vocab());
  const Tensor first = contiguous(narrow(tokens, 1, 0, n)),
               second = contiguous(narrow(tokens, 1, n, n));
  SegmentMemory memory = empty_memory(*model, 3);
  need<Streams>(*model).logits_after(memory, first);
  const auto after = [&](SegmentMemory before, const Tensor& part) {
    return need<Streams>(*model).logits_after(before, part);
  };
  const SegmentMemory reset = forget(memory, Tensor::from(std::vector<uint8_t>{0, 1, 0}, {3}));
  const Tensor mixed = after(reset, second);
  for (int64_t b = 0; b < 3; ++b) {
    SegmentMemory own = empty_memory(*model, 1);
    if (b != 1) need<Streams>(*model).logits_after(own, batch_rows(first, b));
    EXPECT_LT(distance(batch_rows(mixed, b), after(own, batch_rows(second, b))), 1e-12) << b;
  }
  const Tensor order = Tensor::from(std::vector<int64_t>{2, 0, 0}, {3});
  const Tensor again =
      after(take_rows(memory, order, true), batch_rows(second, 2).alias({3, n}, {0, 1}, 0));
  const Tensor from2 = after(take_rows(memory, Tensor::from(std::vector<int64_t>{2}, {1}), true),
                             batch_rows(second, 2));
  const Tensor from0 = after(take_rows(memory, Tensor::from(std::vector<int64_t>{0}, {1}), true),
                             batch_rows(second, 2));
  EXPECT_LT(distance(batch_rows(again, 0), from2), 1e-12);
  EXPECT_LT(distance(batch_rows(again, 1), from0), 1e-12);
  EXPECT_LT(distance(batch_rows(again, 2), from0), 1e-12);
  EXPECT_GT(distance(from0, from2), 1e-6);  // the memory matters
}

void segments_in_training(const ModelInfo& m) {
  const int64_t before = memory_tracker().live()[Category::memory];
  const TwoSegments expected = trained_segments(m, "standard");
  for (const char* policy : {"checkpoint", "checkpoint:2", "lean", "selective"}) {
    SCOPED_TRACE(policy);
    try {
      const TwoSegments two = trained_segments(m, policy);
      ASSERT_EQ(two.values.size(), expected.values.size());
      for (size_t i = 0; i < two.values.size(); ++i) {
        EXPECT_TRUE(same_bits(two.values[i], expected.values[i])) << i;
      }
    } catch (const NotImplemented& e) {
      EXPECT_NE(std::string(e.what()).find(policy), std::string::npos) << e.what();
    }
  }
  EXPECT_EQ(memory_tracker().live()[Category::memory], before);
}

}  // namespace longspan::test
