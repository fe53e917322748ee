// Tests recordings of a device's work, on the host-backed test device of harness/host_device.h or
// on a real one.
#include "core/graph.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "core/backends.h"
#include "core/kernels/copy.h"
#include "core/kernels/gradient.h"
#include "core/memory.h"
#include "core/scope.h"
#include "models/transformer/transformer.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/optim.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "tests/harness/device.h"
#include "tests/harness/messages.h"
#include "tests/harness/model_info.h"
#include "train/step_graph.h"
#include "train/step_memory.h"

namespace longspan {
namespace {

using test::cuda;

class Graphs : public testing::Test {
 protected:
  void SetUp() override {
    if (!is_available(cuda)) GTEST_SKIP() << "skipped: no device";
  }
};

Tensor there(const std::vector<float>& values) {
  return to_device(Tensor::from(values, {static_cast<int64_t>(values.size())}), cuda);
}

using Floats = std::vector<float>;

int64_t live_there() { return memory_tracker(cuda).live().total(); }

TEST_F(Graphs, RunNothingBeforeAReplay) {
  const Tensor x = there({1, 2, 3});
  Tensor sums = there({0, 0, 0}), y;
  const auto graph = Graph::record(cuda, [&] {
    y = mul(x, 2.0);
    Tensor to = sums.detach();
    kernels::copy(cuda, add(sums, y).view(), to.mut());
  });
  EXPECT_EQ(sums.to_vector<float>(), Floats({0, 0, 0}));
  graph->replay();
  EXPECT_EQ(y.to_vector<float>(), Floats({2, 4, 6}));
  graph->replay();
  EXPECT_EQ(sums.to_vector<float>(), Floats({4, 8, 12}));
}

TEST_F(Graphs, ReadLiveNumbersAtEachReplay) {
  Tensor p = there({1, 1});
  const Tensor g = there({1, 2});
  double lr = 0.5;
  const auto graph = Graph::record(cuda, [&] {
    sgd_update(p, g, {}, {.lr = live([&] { return lr; }), .scale = live([&] { return 2 * lr; })});
  });
  graph->replay();  // 1 - 0.5 * 1 * g
  EXPECT_EQ(p.to_vector<float>(), Floats({0.5f, 0}));
  lr = 0.25;
  graph->replay();  // - 0.25 * 0.5 * g
  EXPECT_EQ(p.to_vector<float>(), Floats({0.375f, -0.25f}));
}

// Uses more device scalars than fit into one block.
TEST_F(Graphs, DrawAnewAtEachReplay) {
  Generator source{1};
  std::vector<Tensor> drawn;
  const auto draw = [&](Generator gen) {
    std::vector<Tensor> all;
    const Pass pass{.training = true, .gen = gen.fork("layers")};
    exp(full({512}, 1, DType::f64, cuda));  // allocates memory that is reused
    for (int i = 0; i < 700; ++i) {
      all.push_back(dropout(full({5}, 1, DType::f32, cuda), 0.5, pass.at("drop").at(i)));
    }
    all.push_back(uniform({7}, gen.fork(7), -1, 1, DType::f32, cuda));
    all.push_back(normal({7}, gen, 0, 1, DType::f32, cuda));
    all.push_back(cast(randint({7}, gen.fork(8), 0, 1000, DType::i64, cuda), DType::f32));
    all.push_back(bernoulli({7}, gen.fork(9), 0.5, DType::f32, cuda));
    return all;
  };
  const auto graph = Graph::record(cuda, [&] { drawn = draw(live(source)); });
  Floats before;
  for (uint64_t key = 1; key < 4; ++key) {
    source = Generator{key};
    graph->replay();
    const std::vector<Tensor> expected = draw(source);
    Floats all;
    for (size_t i = 0; i < drawn.size(); ++i) {
      const Floats row = drawn[i].to_vector<float>();
      ASSERT_EQ(row, expected[i].to_vector<float>()) << i;
      all.insert(all.end(), row.begin(), row.end());
    }
    EXPECT_NE(all, before);
    before = all;
  }
}

TEST_F(Graphs, RefuseAHostThatReads) {
  const Tensor x = there({1, 2, 3});
  const int64_t before = live_there();
  const auto refused = [&](const std::function<void()>& f) {
    const Scope scope("model");
    const std::string text = test::message_of<NotImplemented>([&] { Graph::record(cuda, f); });
    EXPECT_NE(text.find("cannot be recorded in model"), std::string::npos) << text;
    EXPECT_EQ(live_there(), before);
  };
  refused([&] { sum(x).item(); });
  refused([&] { mul(x, 2.0).to_vector<float>(); });
  refused([&] { to_device(x, {}); });
  refused([&] { synchronize(cuda); });
  refused([&] {
    bool finite = false;
    kernels::all_finite(cuda, x.view(), &finite);
  });
  refused([&] { embedding(Tensor::zeros({0, 2}, DType::f32, cuda), cast(x, DType::i64)); });
  // The device still works.
  EXPECT_EQ(mul(x, 2.0).to_vector<float>(), Floats({2, 4, 6}));
  EXPECT_NE(
      test::message_of<NotImplemented>([] { Graph::record({}, [] {}); }).find("no recordings"),
      std::string::npos);
  EXPECT_NE(test::message_of<ValueError>([] {
              Graph::record(cuda, [] { Graph::record(cuda, [] {}); });
            }).find("is recording already"),
            std::string::npos);
  EXPECT_EQ(live_there(), before);
}

TEST_F(Graphs, KeepTheirMemoryToThemselves) {
  const int64_t before = live_there();
  {
    const Tensor x = full({1000}, 1, DType::f32, cuda);
    Tensor y;
    const auto graph = Graph::record(cuda, [&] { y = add(exp(mul(x, 2.0)), sum(x)); });
    const int64_t with = live_there();
    EXPECT_EQ(with, before + graph->bytes() + memory::block_bytes(x.nbytes()));
    EXPECT_GT(memory_tracker(cuda).live()[Category::graph], 0);
    graph->replay();
    const Floats expected = y.to_vector<float>();
    for (int i = 0; i < 3; ++i) {
      // Whatever memory other tensors get and write now, the next replay reads its own values.
      std::vector<Tensor> others;
      for (int n = 1; n < 3000; n += 100) {
        others.push_back(full({n}, std::nan(""), DType::f32, cuda));
      }
      graph->replay();
      EXPECT_EQ(y.to_vector<float>(), expected);
      for (const Tensor& other : others) EXPECT_TRUE(std::isnan(other.to_vector<float>()[0]));
    }
    EXPECT_EQ(live_there(), with);
  }
  EXPECT_EQ(live_there(), before);
}

// Recorded work may read an outside tensor that was dropped during the recording. A result may
// outlive its graph.
TEST_F(Graphs, KeepWhatTheyRead) {
  const int64_t before = live_there();
  {
    Tensor x = full({4096}, 3, DType::f32, cuda), y;
    auto graph = Graph::record(cuda, [&] {
      y = mul(x, 2.0);
      x = {};
    });
    const Tensor other = full({4096}, 5, DType::f32, cuda);
    graph->replay();
    EXPECT_EQ(y.to_vector<float>()[9], 6);
    graph.reset();
    const Tensor next = full({4096}, 7, DType::f32, cuda);
    EXPECT_EQ(y.to_vector<float>()[9], 6);
    y = {};
  }
  EXPECT_EQ(live_there(), before);
}

// Calls of other threads during a recording would be recorded too, so they throw.
TEST_F(Graphs, TellOtherThreadsToWait) {
  const Tensor x = there({1, 2, 3});
  Tensor y;
  auto other = Graph::record(cuda, [&] { mul(x, 5.0); });
  other->replay();
  const auto on_a_thread = [](const std::function<void()>& f) { std::thread(f).join(); };
  const auto graph = Graph::record(cuda, [&] {
    y = mul(x, 2.0);
    on_a_thread([&] {
      for (const std::function<void()>& use : std::initializer_list<std::function<void()>>{
               [&] { add(x, x); }, [&] { x.to_vector<float>(); },
               [&] { Graph::record(cuda, [] {}); }}) {
        const std::string text = test::message_of<DeviceError>(use);
        EXPECT_NE(text.find("another thread records a step of cuda"), std::string::npos) << text;
      }
      EXPECT_TRUE(is_available(cuda));
      other.reset();
    });
    y = add(y, x);
  });
  graph->replay();
  EXPECT_EQ(y.to_vector<float>(), Floats({3, 6, 9}));
  on_a_thread([&] { EXPECT_EQ(add(x, x).to_vector<float>(), Floats({2, 4, 6})); });
  EXPECT_EQ(test::message_of<ValueError>([] {
              Graph::record(cuda, [] { fail("f", "is broken"); });
            }).find("f: is broken"),
            0u);
  on_a_thread([&] { EXPECT_EQ(mul(x, 2.0).to_vector<float>(), Floats({2, 4, 6})); });
}

// The first graph's result is read in the second recording, and then both are dropped there.
TEST_F(Graphs, AreDroppedInARecordingOfAnother) {
  const int64_t before = live_there();
  {
    const Tensor x = there({1, 2, 3});
    Tensor y, z;
    auto first = Graph::record(cuda, [&] { y = mul(x, 2.0); });
    first->replay();
    const auto second = Graph::record(cuda, [&] {
      z = add(y, x);
      y = {};
      first.reset();
    });
    std::vector<Tensor> others;
    for (int i = 0; i < 100; ++i) others.push_back(full({3}, std::nan(""), DType::f32, cuda));
    for (int i = 0; i < 2; ++i) {
      second->replay();
      EXPECT_EQ(z.to_vector<float>(), Floats({3, 6, 9}));
    }
  }
  EXPECT_EQ(live_there(), before);
}

TEST_F(Graphs, TakeConstantsAlong) {
  const Tensor x = there({1, 2, 3, 4});
  Tensor y;
  const auto graph = Graph::record(cuda, [&] {
    // A constant that reuses the memory of an earlier tensor has its values in every replay.
    y = log(exp(x));
    y = mul(x, there({1, 10, 100, 1000}));
    y = add(y, there({5, 6, 7, 8}));
  });
  for (int i = 0; i < 2; ++i) {
    graph->replay();
    EXPECT_EQ(y.to_vector<float>(), Floats({6, 26, 307, 4008}));
  }
}

TEST_F(Graphs, TellRecordingsApart) {
  const Tensor x = there({1, 2, 3, 4});
  const auto signature = [&](double factor, const Floats& constant, int64_t rows) {
    return Graph::record(cuda,
                         [&] {
                           const Tensor y = mul(add(x, there(constant)), factor);
                           exp(y.alias({rows}, {1}, 0));
                         })
        ->signature();
  };
  const uint64_t first = signature(2, {1, 2, 3, 4}, 3);
  EXPECT_EQ(signature(2, {1, 2, 3, 4}, 3), first);
  EXPECT_NE(signature(3, {1, 2, 3, 4}, 3), first);
  EXPECT_NE(signature(2, {1, 2, 3, 5}, 3), first);
  EXPECT_NE(signature(2, {1, 2, 3, 4}, 2), first);
}

// So they do for tensors that a kernel is given in a group.
TEST_F(Graphs, TellRecordingsOfProjectionsApart) {
  const auto signature = [&](int64_t rows, int64_t last) {
    const Tensor x = Tensor::zeros({rows, 3}, DType::f32, cuda);
    const Projection to[] = {{Tensor::zeros({4, 3}, DType::f32, cuda)},
                             {Tensor::zeros({last, 3}, DType::f32, cuda)}};
    return Graph::record(cuda, [&] { projections(x, to); })->signature();
  };
  const uint64_t first = signature(2, 5);
  EXPECT_EQ(signature(2, 5), first);
  EXPECT_NE(signature(3, 5), first);
  EXPECT_NE(signature(2, 6), first);
}

TEST_F(Graphs, CheckAtEachReplay) {
  const Tensor weight = there({1, 2, 3});
  Tensor ids = to_device(Tensor::from(std::vector<int64_t>{0, 1}, {2}), cuda), y;
  const auto graph = Graph::record(cuda, [&] { y = take(weight, ids); });
  const auto set = [&](std::vector<int64_t> values) {
    copy_from_host(cuda, ids.mut().data, values.data(), 16);
  };
  graph->replay();
  EXPECT_EQ(y.to_vector<float>(), Floats({1, 2}));
  set({2, 9});
  graph->replay();
  EXPECT_NE(test::message_of<ValueError>([&] { y.to_vector<float>(); }).find("ids holds 9 at [1]"),
            std::string::npos);
  EXPECT_EQ(y.to_vector<float>(), Floats({3, 1}));
  // Nothing has read the error yet: the next replay throws it before it overwrites what the check
  // found.
  graph->replay();
  set({1, 1});
  EXPECT_NE(test::message_of<ValueError>([&] { graph->replay(); }).find("ids holds 9"),
            std::string::npos);
  graph->replay();
  EXPECT_EQ(y.to_vector<float>(), Floats({2, 2}));
}

using Make = std::function<std::unique_ptr<Optimizer>(const TensorList& parameters)>;

template <class O, class... Options>
Make made(const Options&... options) {
  return [=](const TensorList& p) { return std::make_unique<O>(p, options...); };
}

/// A classifier with every kind of value that changes from step to step.
struct Small {
  explicit Small(const Make& make = made<AdamW>())
      : owned(make({{"weight", weight}, {"bias", bias}})) {}

  static Tensor parameter(const Shape& shape) {
    Tensor p = normal(shape, Generator{1}, 0, 1, DType::f32, cuda);
    set_requires_grad(p);
    return p;
  }
  Tensor weight = parameter({12, 6}), bias = parameter({6});
  std::unique_ptr<Optimizer> owned;
  Optimizer& optimizer = *owned;

  std::vector<Tensor> step(const std::vector<Tensor>& in, Generator gen) const {
    const Pass pass{.training = true, .gen = gen};
    const Tensor x = dropout(add(embedding(weight, in[0]), bias), 0.3, pass);
    const Tensor loss = cross_entropy(x, in[1]);
    backward(loss);
    return {loss.detach()};
  }
  static std::vector<Tensor> batch(int64_t rows, uint64_t seed) {
    const Generator gen = Generator{seed}.fork("batch");
    return {randint({rows}, gen, 0, 12, DType::i64, cuda),
            randint({rows}, gen.fork(1), 0, 6, DType::i64, cuda)};
  }
  Floats parameters() const {
    Floats all = weight.to_vector<float>();
    const Floats more = bias.to_vector<float>();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

/// Runs six steps with batches of rows[i % rows.size()] rows. Returns the losses and the final
/// parameters.
Floats six_steps(bool replay, const std::vector<int64_t>& rows, StepGraph* given = nullptr,
                 Small* model = nullptr) {
  std::optional<Small> own;
  if (model == nullptr) model = &own.emplace();
  std::optional<StepGraph> graph;
  if (given == nullptr) given = &graph.emplace(cuda, model->optimizer);
  const auto body = [&](const std::vector<Tensor>& in, Generator gen) {
    return model->step(in, gen);
  };
  Floats all;
  for (uint64_t i = 0; i < 6; ++i) {
    const auto in = Small::batch(rows[i % rows.size()], i);
    const Generator gen = Generator{3}.fork(i);
    const Tensor loss = replay ? given->gradients(in, gen, body)[0] : body(in, gen)[0];
    all.push_back(static_cast<float>(loss.item()));
    clip_gradients(model->optimizer, 0.1);
    const double lr = 0.1 / static_cast<double>(i + 1);
    replay ? given->update(lr) : model->optimizer.step(lr);
  }
  const Floats parameters = model->parameters();
  all.insert(all.end(), parameters.begin(), parameters.end());
  return all;
}

TEST_F(Graphs, StepsHaveTheirBits) {
  const Floats expected = six_steps(false, {9});
  const int64_t before = live_there();
  Small model;
  StepGraph graph(cuda, model.optimizer);
  EXPECT_EQ(six_steps(true, {9}, &graph, &model), expected);
  EXPECT_TRUE(graph.replays());
  EXPECT_GT(graph.bytes(), 0);
  EXPECT_EQ(graph.refusal() + graph.update_refusal(), "");
  EXPECT_GT(live_there(), before);
}

/// Returns a decoder with dropout on elements and in attention.
Transformer decoder(Device device) {
  TransformerConfig c;
  c.vocab = 61;
  c.n_layer = 2;
  c.n_head = 2;
  c.d_model = 64;
  c.d_ff = 96;
  c.n_max = 37;
  c.dropout = 0.1f;
  return Transformer(c, Init{.gen = Generator{3}, .device = device});
}

/// Returns the losses and parameters of 24 steps of a decoder.
std::vector<Floats> steps_of_a_decoder(bool replay) {
  Transformer model = decoder(cuda);
  AdamW optimizer(named_parameters(model));
  StepGraph graph(cuda, optimizer);
  const auto body = [&](const std::vector<Tensor>& in, Generator gen) {
    const Tensor loss = model.loss(in[0], in[1], {}, {.training = true, .gen = gen}).loss;
    backward(loss);
    return std::vector<Tensor>{loss.detach()};
  };
  std::vector<Floats> all(1);
  for (uint64_t step = 0; step < 24; ++step) {
    std::vector<Tensor> in;
    for (uint64_t i = 0; i < 2; ++i) {
      in.push_back(to_device(test::some_tokens(3, 37, model.vocab(), 2 * step + i), cuda));
    }
    const Generator gen = Generator{5}.fork(step);
    const Tensor loss = replay ? graph.gradients(in, gen, body)[0] : body(in, gen)[0];
    all[0].push_back(loss.to_vector<float>()[0]);
    clip_gradients(optimizer, 0.5);
    const double lr = 1e-3 * static_cast<double>(24 - step);
    replay ? graph.update(lr) : optimizer.step(lr);
  }
  EXPECT_EQ(graph.replays(), replay) << graph.refusal();
  for (const Tensor& p : parameters(model)) all.push_back(p.detach().to_vector<float>());
  return all;
}

TEST_F(Graphs, TwentyReplaysOfADecoderHaveTheBitsOfItsSteps) {
  EXPECT_EQ(steps_of_a_decoder(true), steps_of_a_decoder(false));
}

TEST_F(Graphs, RecordedStepsNeedWhatIsMeasured) {
  const std::pair<const char*, Make> makers[] = {{"adamw", made<AdamW>()}, {"lamb", made<Lamb>()}};
  for (const auto& [name, make] : makers) {
    for (const auto& [rows, passes] : {std::pair{1, 1}, std::pair{16, 1}, std::pair{1, 3}}) {
      SCOPED_TRACE(fmt::format("{}, {} rows, {} passes", name, rows, passes));
      const auto loss_of = [](const Transformer& model, const std::vector<Tensor>& in,
                              size_t pass = 0) {
        const Pass train{.training = true, .gen = Generator{5}};
        return model.loss(in[2 * pass], in[2 * pass + 1], {}, train).loss;
      };
      const auto batches = [&, rows = rows](int64_t count) {
        std::vector<Tensor> in(static_cast<size_t>(2 * count));
        for (Tensor& x : in) {
          x = to_device(test::some_tokens(rows, 37, 61), cuda);
          x.set_category(Category::data);
        }
        return in;
      };
      const int64_t before = live_there();
      StepMemory measured[2];
      for (const bool graph : {false, true}) {
        Transformer model = decoder(cuda);
        const auto optimizer = make(named_parameters(model));
        const auto loss = [&] { return loss_of(model, batches(1)); };
        MeasureOptions options{.clip = 1, .passes = passes};
        measure_step(cuda, *optimizer, loss, options);  // fills caches
        options.base = memory_tracker(cuda).live();
        for (const Category c : {Category::parameter, Category::optimizer}) options.base[c] = 0;
        options.graph = graph;
        measured[graph] = measure_step(cuda, *optimizer, loss, options);
      }
      EXPECT_EQ(measured[0].graph, 0);
      EXPECT_EQ(measured[1].saved, measured[0].saved);
      Transformer model = decoder(cuda);
      const auto optimizer = make(named_parameters(model));
      StepGraph graph(cuda, *optimizer);
      int64_t peak = 0;
      for (uint64_t step = 0; step < 5; ++step) {
        memory_tracker(cuda).reset_peak();
        graph.gradients(batches(passes), Generator{step}, [&](const auto& in, Generator) {
          std::vector<Tensor> losses;
          for (size_t pass = 0; pass < in.size() / 2; ++pass) {
            const Tensor loss = loss_of(model, in, pass);
            backward(loss);
            losses.push_back(loss.detach());
          }
          return losses;
        });
        clip_gradients(*optimizer, 1);
        graph.update(1e-3);
        const Usage usage = memory_tracker(cuda).peak();
        peak = std::max(peak, usage.total() - usage[Category::cache] - before);
      }
      ASSERT_TRUE(graph.replays()) << graph.refusal();
      const int64_t numbers = 64 << 10;  // device scalars and constants
      // Requests in another order may leave gaps, so that the region grows once, by an eighth.
      EXPECT_GE(measured[1].peak() + numbers, peak);
      EXPECT_LE(measured[1].peak(), peak + numbers + measured[1].graph / 8);
      EXPECT_NEAR(static_cast<double>(measured[1].graph), static_cast<double>(graph.bytes()),
                  numbers);
      EXPECT_GT(peak, measured[0].peak());
    }
  }
}

// A step that is not recorded because another thread records is recorded later.
TEST_F(Graphs, StepsAreNotRefusedForGoodWhereAnotherThreadRecords) {
  const Floats expected = six_steps(false, {9});
  const auto on_another_thread_in_a_recording = [](const std::function<void()>& f) {
    std::string text;
    Graph::record(cuda,
                  [&] { std::thread([&] { text = test::message_of<DeviceError>(f); }).join(); });
    EXPECT_NE(text.find("another thread records a step"), std::string::npos) << text;
  };
  for (const uint64_t busy : {1, 2}) {  // the steps that are to be recorded
    SCOPED_TRACE(busy);
    Small model;
    StepGraph graph(cuda, model.optimizer);
    Floats all;
    for (uint64_t i = 0; i < 6; ++i) {
      const auto in = Small::batch(9, i);
      const auto gradients = [&] {
        return graph.gradients(in, Generator{3}.fork(i), [&](const auto& inputs, Generator gen) {
          return model.step(inputs, gen);
        })[0];
      };
      if (i == busy) on_another_thread_in_a_recording(gradients);
      all.push_back(static_cast<float>(gradients().item()));
      clip_gradients(model.optimizer, 0.1);
      graph.update(0.1 / static_cast<double>(i + 1));
    }
    const Floats parameters = model.parameters();
    all.insert(all.end(), parameters.begin(), parameters.end());
    EXPECT_EQ(all, expected);
    EXPECT_TRUE(graph.replays());
    EXPECT_EQ(graph.refusal(), "");
  }

  Small model;
  StepGraph graph(cuda, model.optimizer);
  for (uint64_t i = 0; i < 3; ++i) {
    graph.gradients(Small::batch(9, i), Generator{i},
                    [&](const auto& in, Generator gen) { return model.step(in, gen); });
    if (i == 2) on_another_thread_in_a_recording([&] { graph.update(0.1); });
    const int64_t bytes = graph.bytes();
    graph.update(0.1);
    EXPECT_EQ(graph.bytes() > bytes, i == 2);
  }
  EXPECT_EQ(graph.update_refusal(), "");
}

TEST_F(Graphs, BatchesOfOtherShapesRunAsEver) {
  const std::vector<int64_t> rows = {9, 9, 9, 5, 9, 7};
  EXPECT_EQ(six_steps(true, rows), six_steps(false, rows));
}

TEST_F(Graphs, ABodyThatDependsOnItsDataIsRefused) {
  Small model;
  StepGraph graph(cuda, model.optimizer);
  int step = 0;
  for (uint64_t i = 0; i < 4; ++i) {
    graph.gradients(Small::batch(9, i), Generator{i}, [&](const auto& in, Generator gen) {
      auto losses = model.step(in, gen);
      return std::vector<Tensor>{mul(losses[0], 1.0 + ++step)};
    });
    graph.update(0.1);
  }
  EXPECT_NE(graph.refusal().find("depends on its data"), std::string::npos) << graph.refusal();
  EXPECT_FALSE(graph.replays());
}

TEST_F(Graphs, EveryOptimizerIsReplayed) {
  const std::pair<const char*, Make> makers[] = {
      {"momentum", made<Sgd>(SgdOptions{.momentum = 0.9, .weight_decay = 0.01, .nesterov = true})},
      {"adagrad", made<Adagrad>()},
      {"adam", made<Adam>()},
      {"lamb", made<Lamb>()},
      {"adafactor", made<Adafactor>()},
      {"adafactor with a first moment",
       made<Adafactor>(AdafactorOptions{.beta1 = 0.9, .relative_step = true})},
      {"adafactor without the size", made<Adafactor>(AdafactorOptions{.scale_parameter = false})}};
  for (const auto& [name, make] : makers) {
    SCOPED_TRACE(name);
    Small here(make), there(make);
    StepGraph graph(cuda, there.optimizer);
    EXPECT_EQ(six_steps(true, {9}, &graph, &there), six_steps(false, {9}, nullptr, &here));
    EXPECT_TRUE(graph.replays());
    EXPECT_EQ(graph.update_refusal(), "");
    for (const NamedTensor& p : here.optimizer.parameters()) set_grad(p.tensor, p.tensor.detach());
    const long reads = copy_to_host.calls(cuda.kind), waits = wait_for_device.calls(cuda.kind);
    here.optimizer.step(0.1);
    EXPECT_EQ(copy_to_host.calls(cuda.kind), reads);
    EXPECT_EQ(wait_for_device.calls(cuda.kind), waits);
  }
}

/// Descends by the signs of sums of gradients, which the host reads.
class Reader final : public Optimizer {
 public:
  explicit Reader(const TensorList& parameters) : Optimizer(one_group(parameters)) {}

 private:
  void update(Slot& slot, const Tensor& g, DeviceScalar<double> lr, DeviceScalar<double>,
              const Workspace&) override {
    sgd_update(slot.parameter.tensor, g, {}, {.lr = sum(g).item() > 0 ? double{lr} : 0});
  }
};

TEST_F(Graphs, OptimizersThatReadAreRefusedForUpdatesAlone) {
  Small model(made<Reader>());
  StepGraph graph(cuda, model.optimizer);
  for (uint64_t i = 0; i < 4; ++i) {
    graph.gradients(Small::batch(9, i), Generator{i},
                    [&](const auto& in, Generator gen) { return model.step(in, gen); });
    graph.update(0.1);
  }
  EXPECT_TRUE(graph.replays());
  EXPECT_NE(graph.update_refusal().find("cannot be recorded"), std::string::npos);
}

// Whichever allocation fails, steps continue with the same bits and no memory leaks.
TEST_F(Graphs, AFailureLeavesEverythingUsable) {
  const Floats expected = six_steps(false, {9});
  const int64_t before = live_there();
  int refused = 0;
  for (int64_t n = 0; n < 60; ++n) {
    SCOPED_TRACE(n);
    {
      Small model;
      StepGraph graph(cuda, model.optimizer);
      const auto body = [&](const std::vector<Tensor>& in, Generator gen) {
        if (graph::recording() && n >= 0) fail_allocation_after(cuda, n);
        auto losses = model.step(in, gen);
        fail_allocation_after(cuda, -1);
        return losses;
      };
      Floats all;
      for (uint64_t i = 0; i < 6; ++i) {
        const auto in = Small::batch(9, i);
        all.push_back(
            static_cast<float>(graph.gradients(in, Generator{3}.fork(i), body)[0].item()));
        fail_allocation_after(cuda, -1);
        clip_gradients(model.optimizer, 0.1);
        graph.update(0.1 / static_cast<double>(i + 1));
      }
      const Floats parameters = model.parameters();
      all.insert(all.end(), parameters.begin(), parameters.end());
      EXPECT_EQ(all, expected);
      if (!graph.refusal().empty()) ++refused;
      EXPECT_EQ(graph.refusal().empty(), graph.replays());
    }
    EXPECT_EQ(live_there(), before);
  }
  EXPECT_GT(refused, 5);
  EXPECT_LT(refused, 60);  // the last ones have enough memory
}

}  // namespace
}  // namespace longspan
