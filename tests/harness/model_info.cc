#include "tests/harness/model_info.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "models/capabilities.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "tests/harness/hooks.h"
#include "tests/harness/stream_laws.h"
#include "train/optimizer.h"
#include "train/step_graph.h"

namespace longspan::test {
namespace {

std::vector<ModelInfo>& model_table() {
  static std::vector<ModelInfo> models;
  return models;
}

class ModelTest : public testing::Test {
 public:
  explicit ModelTest(std::function<void()> body) : body_(std::move(body)) {}
  void TestBody() override { body_(); }

 private:
  std::function<void()> body_;
};

Init init_f64(uint64_t seed = 7) { return {Generator{seed}, Device{}, DType::f64}; }

/// Positions that a masked objective masks: every fourth, from the second on.
bool hidden(int64_t t) { return t % 4 == 1; }

struct Example {
  Tensor tokens, targets;
};

/// Returns a batch for the model's objective: `text(b, t)` is predicted or masked.
Example example(const ModelInfo& m, const LanguageModel& model, int64_t batch, int64_t length,
                const std::function<int64_t(int64_t, int64_t)>& text, int64_t counted_from) {
  std::vector<int64_t> tokens, targets;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t t = 0; t < length; ++t) {
      if (m.masked) {
        tokens.push_back(hidden(t) ? mask_token(model) : text(b, t));
        targets.push_back(hidden(t) && t >= counted_from ? text(b, t) : ignored_target);
      } else {
        tokens.push_back(text(b, t));
        targets.push_back(t >= counted_from ? text(b, t + 1) : ignored_target);
      }
    }
  }
  return {Tensor::from(tokens, {batch, length}), Tensor::from(targets, {batch, length})};
}

Example random_example(const ModelInfo& m, const LanguageModel& model, int64_t batch,
                       uint64_t seed = 99) {
  const int64_t symbols = m.masked ? model.vocab() - 1 : model.vocab();
  const auto text = [&](int64_t b, int64_t t) {
    return static_cast<int64_t>(philox_word(seed, b * 1000 + t) % static_cast<uint64_t>(symbols));
  };
  return example(m, model, batch, m.length, text, 0);
}

Tensor loss_of(const LanguageModel& model, const Example& e, const Pass& pass) {
  LanguageModel::Losses l =
      model.loss(e.tokens, e.targets, empty_memory(model, e.tokens.dim(0)), pass);
  return l.total();
}

/// reach[i][j]: whether input j can affect output i after n layers.
std::vector<std::vector<bool>> reach(const ModelInfo& m, int64_t layers) {
  const auto n = static_cast<size_t>(m.length);
  std::vector<std::vector<bool>> r(n, std::vector<bool>(n, false));
  for (size_t i = 0; i < n; ++i) r[i][i] = true;
  for (int64_t layer = 0; layer < layers; ++layer) {
    std::vector<std::vector<bool>> next = r;
    for (size_t i = 0; i < n; ++i) {
      for (size_t k = 0; k < n; ++k) {
        if (i == k || !m.sees(static_cast<int64_t>(i), static_cast<int64_t>(k))) continue;
        for (size_t j = 0; j < n; ++j) next[i][j] = next[i][j] || r[k][j];
      }
    }
    r = next;
  }
  return r;
}

void influence(const ModelInfo& m) {
  const auto model = m.make(init_f64());
  randomise(*model, 0.3, 3);
  const Tensor tokens = longspan::iota(m.length);  // each row of the table belongs to one position
  Tensor table_of_tokens = parameter(*model, "embed.token.weight");
  const auto expected = reach(m, model->layers());
  for (int64_t i = 0; i < m.length; ++i) {
    set_grad(table_of_tokens, {});
    const Tensor y = select(model->logits(unsqueeze(tokens, 0), Pass{}), 1, i);
    Tensor dy = Tensor::from(std::vector<double>(static_cast<size_t>(y.numel()), 0.0), y.shape());
    for (int64_t v = 0; v < y.numel(); ++v) {
      dy.mut().as<double>()[v] = std::cos(static_cast<double>(v + 1));
    }
    backward(y, dy);
    const std::vector<double> dx = grad(table_of_tokens).to_vector<double>();
    const int64_t width = table_of_tokens.dim(1);
    for (int64_t j = 0; j < m.length; ++j) {
      double largest = 0;
      for (int64_t c = 0; c < width; ++c) {
        largest = std::max(largest, std::abs(dx[static_cast<size_t>(j * width + c)]));
      }
      if (expected[static_cast<size_t>(i)][static_cast<size_t>(j)]) {
        EXPECT_GT(largest, 0.0) << "output " << i << " must depend on input " << j;
      } else {
        EXPECT_EQ(largest, 0.0) << "output " << i << " must not depend on input " << j;
      }
    }
  }
}

/// Returns how often a head of a layer attends to each pair, in row-major order.
std::vector<int> pairs_of(const AttentionOutline& outline, int64_t head) {
  std::vector<int> pairs(static_cast<size_t>(outline.rows * outline.columns), 0);
  const OutlineCount n = count_pairs(outline, head, [&](int64_t row, int64_t column) {
    ++pairs[static_cast<size_t>(row * outline.columns + column)];
  });
  EXPECT_EQ(n.attended, std::accumulate(pairs.begin(), pairs.end(), int64_t{0}));
  EXPECT_GE(n.computed, n.attended);
  return pairs;
}

void outline(const ModelInfo& m) {
  const auto model = m.make(init_f64());
  randomise(*model, 0.3, 3);
  const auto n = static_cast<size_t>(m.length);
  std::vector<std::vector<bool>> reached(n, std::vector<bool>(n, false));
  for (size_t i = 0; i < n; ++i) reached[i][i] = true;
  bool whole = true;  // whether the map covers exactly the tokens
  for (int64_t layer = 0; layer < model->layers(); ++layer) {
    const AttentionOutline o = need<ShowsAttention>(*model).attention_outline(layer, m.length);
    Tensor map;
    try {
      map = need<ShowsAttention>(*model).attention_map(unsqueeze(longspan::iota(m.length), 0),
                                                       layer);  // [H, rows, columns]
    } catch (const NotImplemented&) {
    }
    whole = whole && o.rows == m.length && o.columns == m.length;
    std::vector<std::vector<bool>> next = reached;
    for (int64_t head = 0; head < o.heads; ++head) {
      const std::vector<int> pairs = pairs_of(o, head);
      for (size_t at = 0; at < pairs.size(); ++at) EXPECT_LE(pairs[at], 1) << at;
      for (size_t at = 0; whole && at < pairs.size(); ++at) {
        for (size_t j = 0; pairs[at] > 0 && j < n; ++j) {
          if (reached[at % n][j]) next[at / n][j] = true;
        }
      }
      if (!map) continue;
      const std::vector<float> p = contiguous(select(map, 0, head)).to_vector<float>();
      ASSERT_EQ(p.size(), pairs.size());
      for (size_t at = 0; at < p.size(); ++at) EXPECT_EQ(p[at] > 0, pairs[at] > 0) << at;
    }
    reached = std::move(next);
  }
  if (whole) {
    EXPECT_EQ(reached, reach(m, model->layers()));
  }
}

void gradients_hold(const ModelInfo& m) {
  const auto model = m.make_with_dropout(init_f64(), {});
  randomise(*model, 0.3, 5);
  const Example e = random_example(m, *model, 2);
  const Pass pass{.training = true, .gen = Generator{11}};
  EXPECT_EQ(check_parameter_gradients(*model, [&] { return loss_of(*model, e, pass); }), "");
}

/// Plain Adam for f32 parameters.
class PlainAdam {
 public:
  PlainAdam(std::vector<Tensor> parameters, double lr) : x_(std::move(parameters)), lr_(lr) {
    for (const Tensor& x : x_) {
      m_.emplace_back(static_cast<size_t>(x.numel()), 0.0);
      v_.emplace_back(static_cast<size_t>(x.numel()), 0.0);
    }
  }
  void step() {
    ++t_;
    const double c1 = 1 - std::pow(0.9, t_), c2 = 1 - std::pow(0.99, t_);
    for (size_t p = 0; p < x_.size(); ++p) {
      const Tensor dx = grad(x_[p]);
      if (!dx) continue;
      const std::vector<float> g = dx.to_vector<float>();
      auto* x = x_[p].mut().as<float>();
      for (size_t i = 0; i < g.size(); ++i) {
        m_[p][i] += 0.1 * (g[i] - m_[p][i]);
        v_[p][i] += 0.01 * (double{g[i]} * g[i] - v_[p][i]);
        x[i] -= static_cast<float>(lr_ * (m_[p][i] / c1) / (std::sqrt(v_[p][i] / c2) + 1e-8));
      }
      set_grad(x_[p], {});
    }
  }

 private:
  std::vector<Tensor> x_;
  double lr_;
  int t_ = 0;
  std::vector<std::vector<double>> m_, v_;
};

void learning(const ModelInfo& m) {
  const auto model = m.make(Init{.gen = Generator{1}});
  PlainAdam adam(parameters(*model), m.lr);
  double first = 0;
  for (int64_t step = 0; step < m.steps; ++step) {
    const auto text = [&](int64_t b, int64_t t) { return m.task(step * 8 + b, t); };
    const Example e = example(m, *model, 8, m.length, text, m.counted_from);
    const Pass pass{.training = true, .gen = Generator{2}.fork(static_cast<uint64_t>(step))};
    const Tensor loss = loss_of(*model, e, pass);
    if (step == 0) first = loss.item();
    backward(loss);
    adam.step();
  }
  const NoGrad off;
  const auto unseen = [&](int64_t b, int64_t t) { return m.task(1'000'000 + b, t); };
  const double last =
      loss_of(*model, example(m, *model, 8, m.length, unseen, m.counted_from), Pass{}).item();
  EXPECT_GT(first, 0.8 * std::log(static_cast<double>(model->vocab())) - 0.5);
  EXPECT_LT(last, m.reach) << "from " << first;
}

void round_trip(const ModelInfo& m) {
  const auto a = m.make(Init{.gen = Generator{1}});
  const auto b = m.make(Init{.gen = Generator{2}});
  const Tensor tokens = some_tokens(2, m.length, a->vocab());
  const NoGrad off;
  EXPECT_FALSE(same_bits(a->logits(tokens, Pass{}), b->logits(tokens, Pass{})));
  copy_parameters(*a, *b);
  const TensorList given = named_buffers(*a);
  TensorList buffers = named_buffers(*b);
  for (size_t i = 0; i < buffers.size(); ++i) {
    assign(buffers[i].tensor, cast(given.at(i).tensor, DType::f64).to_vector<double>());
  }
  EXPECT_TRUE(same_bits(a->logits(tokens, Pass{}), b->logits(tokens, Pass{})));
}

void bytes(const ModelInfo& m) {
  const int64_t before = memory_tracker().live()[Category::parameter];
  {
    const auto model = m.make(Init{.gen = Generator{1}});
    int64_t visited = 0;
    for (const NamedTensor& p : named_state(*model)) {
      visited += memory::block_bytes(p.tensor.nbytes());
    }
    for (const Tensor& p : parameters(*model)) EXPECT_TRUE(requires_grad(p));
    for (const NamedTensor& b : named_buffers(*model))
      EXPECT_FALSE(requires_grad(b.tensor)) << b.name;
    EXPECT_EQ(memory_tracker().live()[Category::parameter] - before, visited);
    const int64_t planned = memory_tracker().allocations();
    const auto plan = m.make(Init{.meta = true});
    EXPECT_EQ(parameter_count(*plan), parameter_count(*model));
    EXPECT_GT(memory_tracker().allocations(), planned);
  }
  EXPECT_EQ(memory_tracker().live()[Category::parameter], before);

  const auto model = m.make(Init{.gen = Generator{1}});
  const Example e = random_example(m, *model, 2);
  const Pass pass{.training = true, .gen = Generator{11}};
  Usage after_one;
  for (int step = 0; step < 3; ++step) {
    backward(loss_of(*model, e, pass));
    for (const Tensor& p : parameters(*model)) set_grad(p, {});
    if (step == 0) after_one = memory_tracker().live();
  }
  EXPECT_EQ(memory_tracker().live().total(), after_one.total()) << "memory grows from step to step";
  EXPECT_EQ(memory_tracker().live()[Category::saved], after_one[Category::saved]);
}

void macs(const ModelInfo& m) {
  const int64_t expected = m.macs(m.length);
  {
    const auto model = m.make(Init{.gen = Generator{1}});
    const NoGrad off;
    const Example e = random_example(m, *model, 1);
    const MacCount here;
    model->loss(e.tokens, e.targets, empty_memory(*model, 1), Pass{});
    EXPECT_EQ(here.total(), expected);
  }
  EXPECT_EQ(forward_macs(*m.make(Init{.device = meta_device}), m.length), expected);

  struct Step {
    int64_t forward, again;
  };
  const auto train = [&](const MemoryPolicy& policy) -> Step {
    const auto model = m.make_with_dropout(Init{.device = meta_device}, policy);
    const Tensor tokens = zeros({2, m.length}, DType::i64, meta_device);
    const MacCount macs;
    const Tensor loss = loss_of(*model, {tokens, tokens}, {.training = true, .gen = Generator{11}});
    const int64_t forward = macs.total();
    backward(loss);
    return {forward, macs.total() - forward};
  };
  const Step standard = train("standard");
  const int64_t of_two = forward_macs(*m.make(Init{.device = meta_device}), m.length, 2);
  EXPECT_GT(of_two, expected);
  EXPECT_LE(of_two, 2 * expected);      // what all samples share counts once
  EXPECT_GE(standard.forward, of_two);  // training may have auxiliary losses
  EXPECT_EQ(standard.again, 0);
  EXPECT_GT(train("checkpoint").again, 0);
  for (const char* text : {"checkpoint", "checkpoint:2:1", "lean", "selective", "standard",
                           "reversible", "reversible:exact:stored"}) {
    for (const int64_t chunks : {1, 3}) {
      MemoryPolicy policy = text;
      policy.chunks = chunks;
      SCOPED_TRACE(policy.text());
      try {
        EXPECT_EQ(train(policy).forward, standard.forward);
      } catch (const NotImplemented&) {  // what the tests `policies` expect of the message
      }
    }
  }
}

void draws(const ModelInfo& m) {
  const auto model = m.make_with_dropout(Init{.gen = Generator{1}}, {});
  const Example e = random_example(m, *model, 2);
  const Pass pass{.training = true, .gen = Generator{11}};
  const RngReuseCheck watch;
  loss_of(*model, e, pass);
  EXPECT_GT(watch.draws(), 0u);
  EXPECT_THROW(loss_of(*model, e, pass), ValueError) << "the watch does not see the draws";
}

/// Returns the loss and the gradients of a training pass.
std::vector<Tensor> trained(const ModelInfo& m, const MemoryPolicy& memory) {
  const auto model = m.make_with_dropout(Init{.gen = Generator{1}}, memory);
  const Example e = random_example(m, *model, 2);
  const Tensor loss = loss_of(*model, e, {.training = true, .gen = Generator{11}});
  backward(loss);
  std::vector<Tensor> all{loss.detach()};
  for (const Tensor& p : parameters(*model)) {
    if (grad(p)) all.push_back(grad(p));
  }
  return all;
}

void policies(const ModelInfo& m) {
  const auto same = [](const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << i;
  };
  const std::vector<Tensor> expected = trained(m, "standard");
  const auto unless_refused = [&](const MemoryPolicy& policy, auto&& test) {
    SCOPED_TRACE(policy.text());
    try {
      test(trained(m, policy));
    } catch (const NotImplemented& e) {
      const std::string what = policy.chunks > 1 ? "chunks" : policy.text();
      EXPECT_NE(std::string(e.what()).find(what), std::string::npos) << e.what();
    }
  };
  same(expected, trained(m, "checkpoint"));
  for (const char* policy : {"checkpoint:2", "checkpoint:2:1", "lean", "selective"}) {
    unless_refused(policy, [&](const std::vector<Tensor>& all) { same(expected, all); });
  }
  for (const char* policy : {"standard", "checkpoint", "lean"}) {
    MemoryPolicy pieces = policy;
    pieces.chunks = 3;
    unless_refused(pieces, [&](const std::vector<Tensor>& all) {
      ASSERT_EQ(all.size(), expected.size());
      EXPECT_TRUE(same_bits(all[0], expected[0]));
      for (size_t i = 1; i < all.size(); ++i) EXPECT_LT(distance(all[i], expected[i]), 1e-5) << i;
    });
  }
  unless_refused("reversible:exact", [&](const std::vector<Tensor>& all) {
    same(trained(m, "reversible:exact:stored"), all);
  });
}

void threads(const ModelInfo& m) {
  const int before = num_threads();
  std::vector<std::vector<Tensor>> runs;
  for (const int n : {1, 2, 3}) {
    set_num_threads(n);
    const auto model = m.make_with_dropout(Init{.gen = Generator{1}}, {});
    const Example e = random_example(m, *model, 3);
    const Pass pass{.training = true, .gen = Generator{11}};
    const Tensor loss = loss_of(*model, e, pass);
    backward(loss);
    runs.push_back({loss.detach()});
    for (const Tensor& p : parameters(*model)) {
      if (grad(p)) runs.back().push_back(grad(p));
    }
  }
  set_num_threads(before);
  for (size_t i = 0; i < runs[0].size(); ++i) {
    EXPECT_TRUE(same_bits(runs[0][i], runs[1][i]) && same_bits(runs[0][i], runs[2][i])) << i;
  }
}

void decoding(const ModelInfo& m) {
  const auto model = m.make(init_f64());
  randomise(*model, 0.3, 9);
  const Tensor tokens = some_tokens(2, m.length, model->vocab());
  const NoGrad off;
  const Tensor whole = model->logits(tokens, Pass{});
  for (const int64_t piece : {int64_t{1}, int64_t{3}, m.length}) {
    const auto state = need<ContinuesSequences>(*model).start_decoding(2);
    for (int64_t t = 0; t < m.length; t += piece) {
      const int64_t n = std::min(piece, m.length - t);
      const Tensor y = need<Decodes>(*model).decode(contiguous(narrow(tokens, 1, t, n)), *state);
      EXPECT_LT(distance(y, contiguous(select(whole, 1, t + n - 1))), 1e-12)
          << "pieces of " << piece << ", at " << t;
    }
    EXPECT_EQ(state->position, m.length);
  }
}

/// Compares two training steps and a decoded token on a device and on the CPU.
void parity(const ModelInfo& m) {
  struct Outcome {
    std::vector<Tensor> losses, gradients, parameters;
    Tensor logits;
  };
  const auto run = [&](Device device) {
    Outcome o;
    const auto model = m.make(Init{.gen = Generator{1}, .device = device});
    Example e = random_example(m, *model, 3);
    e.tokens = to_device(e.tokens, device);
    e.targets = to_device(e.targets, device);
    // With a small eps, the update of a gradient that is zero up to rounding, such as that of key
    // biases, would be as large as any other.
    AdamW optimizer(named_parameters(*model), {.eps = 1e-2});
    for (uint64_t step = 0; step < 2; ++step) {
      const Tensor loss = loss_of(*model, e, {.training = true, .gen = Generator{11}.fork(step)});
      backward(loss);
      o.losses.push_back(to_device(loss.detach(), {}));
      for (const Tensor& p : parameters(*model)) {
        if (grad(p)) o.gradients.push_back(to_device(grad(p), {}));
      }
      clip_gradients(optimizer, 1.0);
      optimizer.step(1e-2);
    }
    for (const Tensor& p : parameters(*model)) o.parameters.push_back(to_device(p.detach(), {}));
    const NoGrad off;
    if (m.decodes) {
      const auto state = need<ContinuesSequences>(*model).start_decoding(3);
      need<Decodes>(*model).decode(contiguous(narrow(e.tokens, 1, 0, 4)), *state);
      o.logits = to_device(
          need<Decodes>(*model).decode(contiguous(narrow(e.tokens, 1, 4, 1)), *state), {});
    } else {
      o.logits = to_device(model->logits(e.tokens, Pass{}), {});
    }
    return o;
  };
  const Outcome here = run({}), there = run({DeviceKind::cuda, 0});
  const auto compare = [](const std::vector<Tensor>& a, const std::vector<Tensor>& b,
                          double tolerance, const char* what) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      double scale = 1e-2;
      for (const float x : contiguous(a[i]).to_vector<float>()) {
        scale = std::max(scale, std::abs(static_cast<double>(x)));
      }
      EXPECT_LE(distance(a[i], b[i]), tolerance * scale) << what << " " << i;
    }
  };
  compare(here.losses, there.losses, 1e-5, "loss");
  compare(here.gradients, there.gradients, 2e-5, "gradient");
  compare({here.logits}, {there.logits}, 1e-5, "logits");
  compare(here.parameters, there.parameters, 1e-5, "parameter");
}

/// Results of training steps, each with its own batches, learning rate and gradient norms, and with
/// two forward passes: losses and final parameters. `replay` says whether steps are replayed.
struct Trained {
  std::vector<Tensor> losses, parameters;
  std::string refusal;
};
Trained train_on_device(const ModelInfo& m, const MemoryPolicy& policy, bool replay) {
  constexpr Device device{DeviceKind::cuda, 0};
  Trained t;
  const auto model = m.make_with_dropout(Init{.gen = Generator{1}, .device = device}, policy);
  AdamW optimizer(named_parameters(*model));
  StepGraph graph(device, optimizer);
  const auto body = [&](const std::vector<Tensor>& in, Generator gen) {
    std::vector<Tensor> losses;
    for (size_t i = 0; i < in.size(); i += 2) {
      const Pass pass{.training = true, .gen = gen.fork(i)};
      const Tensor loss = loss_of(*model, {in[i], in[i + 1]}, pass);
      backward(mul(loss, 0.5));
      losses.push_back(loss.detach());
    }
    return losses;
  };
  for (uint64_t step = 0; step < 6; ++step) {
    std::vector<Tensor> in;
    for (uint64_t i = 0; i < 2; ++i) {
      const Example e = random_example(m, *model, 3, 2 * step + i);
      in.push_back(to_device(e.tokens, device));
      in.push_back(to_device(e.targets, device));
    }
    const Generator gen = Generator{11}.fork(step);
    for (const Tensor& loss : replay ? graph.gradients(in, gen, body) : body(in, gen)) {
      t.losses.push_back(to_device(loss, {}));
    }
    clip_gradients(optimizer, 0.5);
    const double lr = 1e-2 / static_cast<double>(step + 1);
    replay ? graph.update(lr) : optimizer.step(lr);
  }
  EXPECT_EQ(graph.update_refusal(), "");
  EXPECT_EQ(graph.replays(), replay && graph.refusal().empty());
  t.refusal = graph.refusal();
  for (const Tensor& p : parameters(*model)) t.parameters.push_back(to_device(p.detach(), {}));
  return t;
}

void recorded(const ModelInfo& m) {
  for (const char* policy : {"standard", "checkpoint", "lean", "reversible", "reversible:exact"}) {
    SCOPED_TRACE(policy);
    Trained run;
    try {
      run = train_on_device(m, policy, false);
    } catch (const NotImplemented&) {
      continue;  // the model does not support this policy
    }
    const Trained again = train_on_device(m, policy, true);
    if (m.unrecorded.empty()) {
      EXPECT_EQ(again.refusal, "");
    } else {
      EXPECT_NE(again.refusal.find(m.unrecorded), std::string::npos) << again.refusal;
    }
    ASSERT_EQ(run.losses.size(), again.losses.size());
    for (size_t i = 0; i < run.losses.size(); ++i) {
      EXPECT_TRUE(same_bits(run.losses[i], again.losses[i])) << "loss " << i;
    }
    for (size_t i = 0; i < run.parameters.size(); ++i) {
      EXPECT_TRUE(same_bits(run.parameters[i], again.parameters[i])) << "parameter " << i;
    }
  }
}

void add(const ModelInfo& m, const char* what, void (*test)(const ModelInfo&)) {
  testing::RegisterTest(
      "Models", (m.name + "_" + what).c_str(), nullptr, nullptr, __FILE__, __LINE__,
      [m, test]() -> testing::Test* { return new ModelTest([m, test] { test(m); }); });
}

void register_model_tests() {
  const bool device = is_available({DeviceKind::cuda, 0});
  for (const ModelInfo& m : model_table()) {
    if (device) add(m, "parity", parity);
    if (device) add(m, "recorded", recorded);
    add(m, "influence", influence);
    if (m.outlined) add(m, "outline", outline);
    add(m, "gradients", gradients_hold);
    add(m, "learning", learning);
    add(m, "round_trip", round_trip);
    add(m, "bytes", bytes);
    add(m, "macs", macs);
    add(m, "draws", draws);
    add(m, "policies", policies);
    add(m, "threads", threads);
    if (m.decodes) add(m, "decoding", decoding);
    if (memory_length(*m.make(Init{.meta = true})) == 0) continue;
    if (m.cuts) add(m, "cuts", cuts);
    add(m, "streams_apart", streams_apart);
    add(m, "segments_in_training", segments_in_training);
  }
}

}  // namespace

const std::vector<ModelInfo>& registered_models() { return model_table(); }

RegisteredModel::RegisteredModel(ModelInfo info) {
  if (model_table().empty()) before_tests().push_back(register_model_tests);
  model_table().push_back(std::move(info));
}

Tensor some_tokens(int64_t batch, int64_t length, int64_t vocab, uint64_t seed) {
  std::vector<int64_t> ids(static_cast<size_t>(batch * length));
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int64_t>(philox_word(seed, static_cast<int64_t>(i)) %
                                  static_cast<uint64_t>(vocab));
  }
  return Tensor::from(ids, {batch, length});
}

std::string check_parameter_gradients(Module& module, const std::function<Tensor()>& loss,
                                      int64_t elements, double tolerance) {
  for (const NamedTensor& p : named_parameters(module)) set_grad(p.tensor, {});
  backward(loss());
  const NoGrad off;
  std::string wrong;
  double scale = 0;
  for (const NamedTensor& p : named_parameters(module)) {
    if (!grad(p.tensor)) continue;
    for (const double g : grad(p.tensor).to_vector<double>()) scale = std::max(scale, std::abs(g));
  }
  for (NamedTensor& p : named_parameters(module)) {
    const int64_t n = p.tensor.numel();
    std::vector<double> analytic(static_cast<size_t>(n), 0.0);
    if (grad(p.tensor)) analytic = grad(p.tensor).to_vector<double>();
    for (int64_t k = 0; k < std::min(n, elements); ++k) {
      const int64_t i = k * n / std::min(n, elements);
      const double x = p.tensor.view().as<double>()[i], h = 1e-5;
      const auto at = [&](double value) {
        p.tensor.mut().as<double>()[i] = value;
        return loss().item();
      };
      const double numeric = (at(x + h) - at(x - h)) / (2 * h);
      at(x);
      const double error = std::abs(numeric - analytic[static_cast<size_t>(i)]);
      if (!(error <= tolerance * std::max(scale, 1e-2))) {
        wrong += fmt::format("{}[{}]: {} by differences, {} by backward\n", p.name, i, numeric,
                             analytic[static_cast<size_t>(i)]);
      }
    }
    set_grad(p.tensor, {});
  }
  return wrong;
}

double distance(const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape())) return 1e300;
  const std::vector<double> x = cast(a.detach(), DType::f64).to_vector<double>();
  const std::vector<double> y = cast(b.detach(), DType::f64).to_vector<double>();
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double d = std::abs(x[i] - y[i]);
    largest = d >= largest ? d : (std::isnan(d) ? 1e300 : largest);
  }
  return largest;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape()) || a.dtype() != b.dtype()) return false;
  const NoGrad off;
  const Tensor x = contiguous(a.detach()), y = contiguous(b.detach());
  return x.numel() == 0 ||
         std::memcmp(x.view().data, y.view().data, static_cast<size_t>(x.nbytes())) == 0;
}

void assign(Tensor& parameter, const std::vector<double>& values) {
  ASSERT_EQ(parameter.numel(), static_cast<int64_t>(values.size()));
  visit_floating(parameter.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    auto* x = parameter.mut().template as<T>();
    for (size_t i = 0; i < values.size(); ++i) x[i] = static_cast<T>(static_cast<float>(values[i]));
    if constexpr (std::is_same_v<T, double>) std::copy(values.begin(), values.end(), x);
  });
}

Tensor parameter(Module& module, const std::string& name) {
  for (NamedTensor& p : named_parameters(module)) {
    if (p.name == name) return p.tensor;
  }
  ADD_FAILURE() << "no parameter " << name;
  return {};
}

void copy_parameters(Module& from, Module& to) {
  const TensorList a = named_state(from);
  TensorList b = named_state(to);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].name, b[i].name);
    assign(b[i].tensor, cast(a[i].tensor.detach(), DType::f64).to_vector<double>());
  }
}

void randomise(Module& module, double deviation, uint64_t seed) {
  uint64_t n = 0;
  for (NamedTensor& p : named_parameters(module)) {
    const bool gain = p.name.find("norm") != std::string::npos && p.name.ends_with("weight");
    std::vector<double> values(static_cast<size_t>(p.tensor.numel()));
    const uint64_t key = Generator{seed}.fork(n++).key;
    for (size_t i = 0; i < values.size(); ++i) {
      const auto at = static_cast<int64_t>(2 * i);
      const double u = (philox_word(key, at) + 0.5) / 4294967296.0;
      const double angle = 2 * 3.14159265358979323846 * philox_word(key, at + 1) / 4294967296.0;
      values[i] = deviation * std::sqrt(-2 * std::log(u)) * std::cos(angle) + (gain ? 1 : 0);
    }
    assign(p.tensor, values);
  }
}

}  // namespace longspan::test
