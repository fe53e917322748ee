// Trains on the device: small enough for a sanitizer, and repeatedly to compare bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "core/backends.h"
#include "core/deferred.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/scope.h"
#include "models/transformer/transformer.h"
#include "ops/attention/block_attention.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "ops/sort.h"
#include "tests/harness/device.h"
#include "tests/harness/messages.h"
#include "tests/harness/model_info.h"
#include "train/optimizer.h"

namespace longspan {
namespace {

using test::cuda;
using test::has_device;

using test::message_of;
using Bytes = std::vector<std::vector<uint8_t>>;

void keep(const Tensor& x, Bytes& all) {
  const Tensor flat = contiguous(x.detach());
  std::vector<uint8_t> bytes(static_cast<size_t>(flat.nbytes()));
  if (!bytes.empty()) copy_to_host(flat.device(), bytes.data(), flat.view().data, flat.nbytes());
  all.push_back(std::move(bytes));
}

/// Runs two training steps of a small model with dropout and returns every bit of the results.
Bytes run(int64_t window, int64_t length) {
  Bytes all;
  TransformerConfig c;
  c.vocab = 61;
  c.n_layer = 2;
  c.n_head = 2;
  c.d_model = 64;
  c.d_ff = 96;
  c.n_max = length;
  c.dropout = 0.1f;
  c.window = window;
  if (window > 0) c.local = Locality::exact;
  Transformer model(c, Init{.gen = Generator{3}, .device = cuda});
  const Tensor tokens = to_device(test::some_tokens(3, length, c.vocab), cuda);
  const Tensor targets = to_device(test::some_tokens(3, length, c.vocab, 2), cuda);
  AdamW optimizer(named_parameters(model));
  for (uint64_t step = 0; step < 2; ++step) {
    const Pass pass{.training = true, .gen = Generator{5}.fork(step)};
    const Tensor loss = model.loss(tokens, targets, {}, pass).loss;
    backward(loss);
    keep(loss, all);
    clip_gradients(optimizer, 1.0);
    optimizer.step(1e-3);
  }
  for (const Tensor& p : parameters(model)) keep(p, all);
  return all;
}

TEST(Kernels, TrainAModel) {
  if (!has_device()) GTEST_SKIP() << "skipped: no device";
  for (const int64_t window : {0, 16}) EXPECT_FALSE(run(window, 37).empty());
}

TEST(Kernels, GiveTheSameBitsTwentyTimes) {
  if (!has_device()) GTEST_SKIP() << "skipped: no device";
  for (const int64_t window : {0, 16}) {
    const Bytes first = run(window, 100);
    for (int i = 1; i < 20; ++i) ASSERT_TRUE(run(window, 100) == first) << "run " << i;
  }
}

// Ids and targets are checked on the device; the host gets the error at its next read.
TEST(Kernels, AStepWaitsForNoCheck) {
  if (!has_device()) GTEST_SKIP() << "skipped: no device";
  Tensor weight = full({61, 16}, 0.5, DType::f32, cuda);
  set_requires_grad(weight);
  const Tensor tokens = to_device(test::some_tokens(3, 32, 61), cuda);
  const Tensor targets = to_device(test::some_tokens(3, 32, 61, 2), cuda);
  const long before = copy_to_host.calls(cuda.kind), waits = wait_for_device.calls(cuda.kind);
  const Tensor logits = matmul(embedding(weight, tokens), transpose(weight));
  const Tensor direct = cross_entropy(logits, targets);
  const Tensor head =
      linear_cross_entropy(embedding(weight, tokens), weight, {}, targets, {.ignore = 7});
  const Tensor some = tokens.alias({32}, {1}, 0);
  const Tensor moved = permute_rows(take(weight, some), inverse_permutation(argsort(some)));
  const Tensor pairs =
      binary_cross_entropy_with_logits(logits, full(logits.shape(), 0.5, DType::f32, cuda));
  const Tensor loss = add(add(direct, head), add(pairs, mean(moved)));
  backward(loss);
  EXPECT_EQ(copy_to_host.calls(cuda.kind), before);
  EXPECT_EQ(wait_for_device.calls(cuda.kind), waits);
  EXPECT_GT(loss.item(), 0);
  EXPECT_EQ(copy_to_host.calls(cuda.kind), before + 2);  // of the checks, and the value
}

// On a device, rows without a target enter the product as zeros, so their values reach no gradient.
TEST(Kernels, RowsWithoutATargetReachNoGradient) {
  if (!has_device()) GTEST_SKIP() << "skipped: no device";
  for (const LossGradient when : {LossGradient::recompute, LossGradient::in_forward}) {
    const auto gradients_of = [&](float ignored, Device device) {
      std::vector<float> values(6 * 4);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = i / 4 % 2 == 0 ? ignored : 0.1f * static_cast<float>(i);
      }
      Tensor x = to_device(Tensor::from(values, {6, 4}), device);
      Tensor weight = to_device(normal({5, 4}, Generator{1}), device);
      set_requires_grad(x);
      set_requires_grad(weight);
      const Tensor targets =
          to_device(Tensor::from(std::vector<int64_t>{-100, 1, -100, 4, -100, 0}, {6}), device);
      backward(linear_cross_entropy(x, weight, {}, targets, {.gradient = when}));
      Bytes all;
      keep(grad(x), all);
      keep(grad(weight), all);
      const std::vector<float> dx = grad(x).to_vector<float>();
      for (size_t i = 0; i < dx.size(); ++i) {
        if (i / 4 % 2 == 0) {
          EXPECT_EQ(dx[i], 0);
        }
      }
      return all;
    };
    EXPECT_TRUE(gradients_of(NAN, cuda) == gradients_of(3, cuda));
  }
}

TEST(Kernels, BadIdsAreNamedAtTheNextRead) {
  if (!has_device()) GTEST_SKIP() << "skipped: no device";
  const Tensor weight = to_device(Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, {3, 2}), cuda);
  const auto ids_of = [](auto bad) {
    using T = decltype(bad);
    const std::vector<T> ids = {2, 1, 0, 1, bad, 2};
    return to_device(Tensor::from(ids, {2, 3}), cuda);
  };
  const std::string expected = "embedding: ids holds 3 at [1, 1]; it must be at least 0";
  const int64_t before = memory_tracker(cuda).live().total();
  for (const Tensor& ids : {ids_of(int64_t{3}), ids_of(int32_t{3}), ids_of(uint8_t{3})}) {
    Tensor y;
    EXPECT_NO_THROW(y = embedding(weight, ids));
    EXPECT_EQ(message_of<ValueError>([&] { y.to_vector<float>(); }).find(expected), 0u);
    // The error is thrown once. The row that was read in place of the missing one exists.
    EXPECT_EQ(y.to_vector<float>(), (std::vector<float>{5, 6, 3, 4, 1, 2, 3, 4, 1, 2, 5, 6}));
    EXPECT_EQ(ids.dtype() == DType::i64 ? ids.to_vector<int64_t>()[4] : 3, 3);  // not changed
    const Tensor transposed = embedding(weight, transpose(ids));
    EXPECT_NE(message_of<ValueError>([] { synchronize(cuda); }).find("ids holds 3 at [1, 1]"),
              std::string::npos);
  }
  // Throws the first of several errors, with the scope in which it was found.
  {
    const Scope scope("model");
    embedding(weight, ids_of(int64_t{7}));
  }
  embedding(weight, ids_of(int64_t{8}));
  const auto settled_within_a_scope = [] {
    const Scope scope("head");
    return message_of<ValueError>([] { synchronize(cuda); });
  };
  const std::string first = settled_within_a_scope();
  EXPECT_NE(first.find("holds 7"), std::string::npos) << first;
  EXPECT_TRUE(first.ends_with("\n  in model")) << first;
  embedding(weight, ids_of(int64_t{8}));
  EXPECT_EQ(settled_within_a_scope().find("  in "), std::string::npos);
  EXPECT_NO_THROW(synchronize(cuda));
  // A table without rows has no row to read in place of a missing one.
  const auto from_no_rows = [&] {
    embedding(Tensor::zeros({0, 2}, DType::f32, cuda), ids_of(int64_t{0}));
  };
  EXPECT_NE(message_of<ValueError>(from_no_rows).find("less than 0"), std::string::npos);
  EXPECT_EQ(memory_tracker(cuda).live().total(), before);
}

TEST(Kernels, BadTargetsAndOrdersAreNamedAtTheNextRead) {
  if (!has_device()) GTEST_SKIP() << "skipped: no device";
  const Tensor x = to_device(Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, {3, 2}), cuda);
  const auto on_device = [](const std::vector<int64_t>& ids) {
    return to_device(Tensor::from(ids, {static_cast<int64_t>(ids.size())}), cuda);
  };
  const Tensor loss = cross_entropy(x, on_device({0, -100, 2}), {.ignore = -100});
  EXPECT_EQ(message_of<ValueError>([&] {
              loss.item();
            }).find("cross_entropy: target 2 at position 2 is not"),
            0u);
  EXPECT_NO_THROW(cross_entropy(x, on_device({0, -100, 1}), {.ignore = -100}).item());
  const Tensor rows = permute_rows(x, on_device({0, 5, -1}));
  EXPECT_NE(message_of<ValueError>([&] { to_device(rows, {}); }).find("order holds 5 at [1]"),
            std::string::npos);
  const Tensor inverse = inverse_permutation(on_device({2, 0, 2}));
  EXPECT_NO_THROW(take(x, inverse));
  EXPECT_NE(message_of<ValueError>([] {
              synchronize(cuda);
            }).find("row 0 contains an index twice, the second time at 2"),
            std::string::npos);
  inverse_permutation(on_device({2, 0, 3}));
  EXPECT_NE(message_of<ValueError>([] { synchronize(cuda); }).find("order holds 3 at [2]"),
            std::string::npos);
  const Tensor above = to_device(Tensor::from(std::vector<float>{0, 1, 1.5f}, {3}), cuda);
  binary_cross_entropy_with_logits(above, above);
  EXPECT_NE(
      message_of<ValueError>([] { synchronize(cuda); }).find("target 1.5 at position 2 is not in"),
      std::string::npos);
  AttentionPattern labelled = patterns::dense();
  const auto labels = [](const std::vector<int32_t>& values, const Shape& shape) {
    return to_device(Tensor::from(values, shape), cuda);
  };
  labelled.mask.q_class = labels({0, 1, 0}, {1, 3});
  labelled.mask.k_class = labels({0, 2, 1}, {1, 3});
  labelled.mask.class_id = labels({0, -1, 0, 0}, {1, 2, 2});
  const Tensor q = Tensor::zeros({1, 1, 3, 4}, DType::f32, cuda);
  EXPECT_NO_THROW(block_attention(q, q, q, labelled));
  EXPECT_NE(message_of<ValueError>([] { synchronize(cuda); }).find("k_class holds 2 at [0, 1]"),
            std::string::npos);
  // After very many checks without a read, pending errors are raised on the way.
  const std::string text = message_of<ValueError>([&] {
    for (int i = 0; i < 1000; ++i) take(x, on_device({i == 3 ? 9 : 0}));
  });
  EXPECT_NE(text.find("ids holds 9"), std::string::npos) << text;
  synchronize(cuda);
}

TEST(Kernels, AFailedCheckLeavesNoPendingError) {
  if (!has_device()) GTEST_SKIP() << "skipped: no device";
  const auto check = [](bool fails) {
    deferred::check(
        cuda,
        [&](View found) {
          const int64_t outcome[] = {3, 7};
          copy_from_host(cuda, found.data, outcome, sizeof outcome);
          require<DeviceError>(!fails, "check", "refused");
        },
        [](int64_t at, int64_t what) { fail<ValueError>("check", "{} at {}", what, at); });
  };
  EXPECT_THROW(check(true), DeviceError);
  synchronize(cuda);
  check(false);
  EXPECT_THROW(check(true), DeviceError);
  EXPECT_EQ(test::message_of<ValueError>([] { synchronize(cuda); }).find("check: 7 at 3"), 0u);
}

}  // namespace
}  // namespace longspan
