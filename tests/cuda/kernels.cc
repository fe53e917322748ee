// Training on the device: small enough for a sanitizer, and again and again for the bits.
#include <gtest/gtest.h>

#include <cstring>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "models/transformer.h"
#include "ops/copy.h"
#include "tests/harness/model_info.h"
#include "tests/harness/shadow.h"
#include "train/optimizer.h"

namespace longspan {
namespace {

constexpr Device cuda{DeviceKind::cuda, 0};

bool has_device() {
  test::enable_shadow_device_if_asked();
  return is_available(cuda);
}

using Bytes = std::vector<std::vector<uint8_t>>;

void keep(const Tensor& x, Bytes& all) {
  const Tensor flat = contiguous(x.detach());
  std::vector<uint8_t> bytes(static_cast<size_t>(flat.nbytes()));
  if (!bytes.empty()) copy_to_host(flat.device(), bytes.data(), flat.view().data, flat.nbytes());
  all.push_back(std::move(bytes));
}

/// Two training steps of a small model with dropout: every bit that came out.
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

}  // namespace
}  // namespace longspan
