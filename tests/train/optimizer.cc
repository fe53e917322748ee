#include "train/optimizer.h"

#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <memory>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "core/error.h"
#include "core/generator.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"
#include "tests/harness/scratch.h"
#include "train/state.h"

namespace longspan {
namespace {

using test::contains;
using test::Folder;
using test::message_of;

Tensor parameter(const std::vector<double>& values, const Shape& shape) {
  Tensor p = Tensor::from(values, shape);
  p.set_category(Category::parameter);
  return set_requires_grad(p);
}

/// Returns random values that depend only on the seed.
std::vector<float> noise(uint64_t seed, int64_t n) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(to_uniform(philox_word(seed, i)) - 0.5f);
  return values;
}

using Make = std::function<std::unique_ptr<Optimizer>(const TensorList&)>;

/// Holds the options of a golden file by name. A test must read each option.
class Values {
 public:
  explicit Values(const Metadata& metadata) {
    for (const auto& [key, value] : metadata) {
      if (key.rfind("xxh3", 0) != 0) values_[key] = value;
    }
  }
  ~Values() { EXPECT_TRUE(values_.empty()) << "unused: " << values_.begin()->first; }

  double number(const char* key, double otherwise) {
    const std::string text = take(key);
    return text.empty() ? otherwise : std::strtod(text.c_str(), nullptr);
  }
  bool flag(const char* key) { return take(key) == "true"; }

 private:
  std::string take(const char* key) {
    const auto found = values_.find(key);
    if (found == values_.end()) return {};
    std::string text = found->second;
    values_.erase(found);
    return text;
  }
  std::map<std::string, std::string> values_;
};

/// Replays six steps of a reference implementation in f64.
void expect_golden(
    const std::string& name,
    const std::function<std::unique_ptr<Optimizer>(const TensorList&, Values&)>& make,
    bool relative_lr = false) {
  SCOPED_TRACE(name);
  const std::string path =
      std::string(LONGSPAN_SOURCE_DIR) + "/tests/oracles/golden/optimizer_" + name + ".safetensors";
  std::map<std::string, Tensor> golden;
  for (const NamedTensor& t : read_tensors(path)) golden[t.name] = t.tensor;
  Values values(read_tensor_header(path).metadata);
  const double lr = relative_lr ? 1 : values.number("lr", 1);

  TensorList parameters;
  for (const auto& [key, tensor] : golden) {
    if (key.rfind("before.", 0) != 0) continue;
    parameters.push_back({key.substr(7), parameter(tensor.to_vector<double>(), tensor.shape())});
  }
  ASSERT_EQ(parameters.size(), 4u);
  const std::unique_ptr<Optimizer> optimizer = make(parameters, values);
  int steps = 0;
  for (;; ++steps) {
    const std::string step = "step" + std::to_string(steps + 1);
    if (golden.count(step + ".gradient.matrix") == 0) break;
    for (const NamedTensor& p : parameters)
      set_grad(p.tensor, golden[step + ".gradient." + p.name]);
    optimizer->step(lr);
    for (const NamedTensor& p : parameters) {
      const auto got = p.tensor.to_vector<double>();
      const auto want = golden[step + ".after." + p.name].to_vector<double>();
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(got[i], want[i], 1e-12 * std::max(1.0, std::abs(want[i]))) << step << p.name;
      }
    }
  }
  EXPECT_EQ(steps, 6);
}

TEST(OptimizerGolden, Sgd) {
  const auto make = [](const TensorList& p, Values& v) {
    return std::make_unique<Sgd>(p, SgdOptions{.momentum = v.number("momentum", 0),
                                               .weight_decay = v.number("weight_decay", 0),
                                               .nesterov = v.flag("nesterov")});
  };
  expect_golden("sgd", make);
  expect_golden("sgd_momentum", make);
  expect_golden("sgd_nesterov", make);
}

TEST(OptimizerGolden, Adagrad) {
  expect_golden("adagrad", [](const TensorList& p, Values& v) {
    return std::make_unique<Adagrad>(
        p, AdagradOptions{.eps = v.number("eps", 0),
                          .initial_sum = v.number("initial_accumulator_value", 0)});
  });
}

AdamOptions adam_options(Values& v) {
  return {.beta1 = v.number("betas.0", 0),
          .beta2 = v.number("betas.1", 0),
          .eps = v.number("eps", 0),
          .weight_decay = v.number("weight_decay", 0)};
}

// The authors' optimizer of Adaptive-Span, which clips the step of each tensor; a norm has 1e-10
// more there, to divide by it.
TEST(Optimizer, AdagradClipsTheStepsOfEachTensor) {
  constexpr double clip = 0.03, lr = 0.07, scale = 0.5;
  Tensor a = parameter({1, -2, 0.5, 3}, {2, 2}), b = parameter({0.1, 0.2}, {2});
  Adagrad adagrad(TensorList{{"a", a}, {"b", b}}, AdagradOptions{.step_clip = clip});
  std::vector<std::vector<double>> x{{1, -2, 0.5, 3}, {0.1, 0.2}}, sums{{0, 0, 0, 0}, {0, 0}};
  // Gradients of b are shorter than the clip at first, zero, then longer.
  const std::vector<std::vector<std::vector<double>>> steps{
      {{1, 2, -3, 0}, {0.01, -0.02}}, {{0.1, 0.2, 0.3, 0.4}, {0, 0}}, {{5, 0, 1e-3, 2}, {4, 0.1}}};
  for (const auto& gradients : steps) {
    set_grad(a, Tensor::from(gradients[0], {2, 2}));
    set_grad(b, Tensor::from(gradients[1], {2}));
    adagrad.scale_gradients(scale);
    adagrad.step(lr);
    for (size_t t = 0; t < 2; ++t) {
      double norm = 0;
      for (const double g : gradients[t]) norm += scale * g * scale * g;
      const double rate = lr * std::min(1.0, clip / (std::sqrt(norm) + 1e-10));
      for (size_t i = 0; i < x[t].size(); ++i) {
        const double g = scale * gradients[t][i];
        sums[t][i] += g * g;
        x[t][i] -= rate * g / (std::sqrt(sums[t][i]) + 1e-10);
        EXPECT_NEAR((t == 0 ? a : b).to_vector<double>()[i], x[t][i], 2e-10 * std::abs(x[t][i]));
      }
    }
  }
}

TEST(OptimizerGolden, Adam) {
  const auto make = [](const TensorList& p, Values& v) {
    return std::make_unique<Adam>(p, adam_options(v));
  };
  expect_golden("adam", make);
  expect_golden("adam_l2", make);
  expect_golden("adamw", [](const TensorList& p, Values& v) {
    return std::make_unique<AdamW>(p, adam_options(v));
  });
}

TEST(OptimizerGolden, Adafactor) {
  const auto make = [](const TensorList& p, Values& v) {
    return std::make_unique<Adafactor>(
        p, AdafactorOptions{.beta1 = v.number("beta1", 0),
                            .eps = v.number("eps.0", 0),
                            .parameter_eps = v.number("eps.1", 0),
                            .clip = v.number("clip_threshold", 0),
                            .decay_exponent = -v.number("decay_rate", 0),
                            .weight_decay = v.number("weight_decay", 0),
                            .scale_parameter = v.flag("scale_parameter"),
                            .relative_step = v.flag("relative_step"),
                            .warmup_init = v.flag("warmup_init")});
  };
  expect_golden("adafactor", make);
  expect_golden("adafactor_relative", make, true);
}

const std::pair<const char*, Make> makers[] = {
    {"sgd", [](const TensorList& p) { return std::make_unique<Sgd>(p); }},
    {"momentum",
     [](const TensorList& p) { return std::make_unique<Sgd>(p, SgdOptions{.momentum = 0.9}); }},
    {"adagrad", [](const TensorList& p) { return std::make_unique<Adagrad>(p); }},
    {"adagrad with clipped steps",
     [](const TensorList& p) {
       return std::make_unique<Adagrad>(p, AdagradOptions{.step_clip = 0.03});
     }},
    {"adam", [](const TensorList& p) { return std::make_unique<Adam>(p); }},
    {"adamw", [](const TensorList& p) { return std::make_unique<AdamW>(p); }},
    {"lamb", [](const TensorList& p) { return std::make_unique<Lamb>(p); }},
    {"adafactor", [](const TensorList& p) { return std::make_unique<Adafactor>(p); }},
    {"adafactor with a first moment",
     [](const TensorList& p) {
       return std::make_unique<Adafactor>(p, AdafactorOptions{.beta1 = 0.9});
     }},
};

/// Returns f32 parameters, some larger than one thread pool task.
TensorList some_parameters() {
  TensorList all;
  for (const Shape& shape : {Shape{300, 257}, Shape{33}, Shape{}, Shape{2, 3, 5}, Shape{0, 4}}) {
    Tensor p = Tensor::from(noise(all.size() + 1, numel(shape)), shape);
    set_requires_grad(p);
    all.push_back({"p" + std::to_string(all.size()), p});
  }
  return all;
}

void set_gradients(const TensorList& parameters, uint64_t step) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& p = parameters[i].tensor;
    set_grad(p, Tensor::from(noise(1000 * step + i, p.numel()), p.shape()));
  }
}

std::vector<float> values_of(const TensorList& tensors) {
  std::vector<float> all;
  for (const NamedTensor& t : tensors) {
    if (t.tensor.dtype() != DType::f32) continue;
    const auto values = t.tensor.to_vector<float>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST(Optimizer, ContinuesBitwiseFromAFile) {
  for (const auto& [name, make] : makers) {
    SCOPED_TRACE(name);
    const Folder run;
    const TensorList a = some_parameters(), b = some_parameters();
    const auto first = make(a);
    for (uint64_t step = 0; step < 3; ++step) {
      set_gradients(a, step);
      first->step(0.01);
    }
    write_state(run.path(), 3, a, first->state());
    const auto second = make(b);
    read_state(newest_checkpoint(run.path()), b, second->state());
    EXPECT_EQ(second->steps(), 3);
    for (uint64_t step = 3; step < 6; ++step) {
      set_gradients(a, step);
      set_gradients(b, step);
      first->step(0.01);
      second->step(0.01);
    }
    EXPECT_EQ(values_of(a), values_of(b));
    EXPECT_EQ(values_of(first->state()), values_of(second->state()));
    EXPECT_EQ(first->steps(), 6);
  }
}

TEST(Optimizer, SameBitsForAnyNumberOfThreads) {
  const int before = num_threads();
  for (const auto& [name, make] : makers) {
    SCOPED_TRACE(name);
    std::vector<float> one;
    for (const int threads : {1, 2, 3}) {
      set_num_threads(threads);
      const TensorList p = some_parameters();
      const auto optimizer = make(p);
      for (uint64_t step = 0; step < 3; ++step) {
        set_gradients(p, step);
        clip_gradients(*optimizer, 0.5);
        optimizer->step(0.01);
      }
      if (threads == 1) one = values_of(p);
      EXPECT_EQ(values_of(p), one) << threads;
    }
  }
  set_num_threads(before);
}

TEST(Optimizer, StateOfAnotherModelIsRefused) {
  const Folder folder;
  const TensorList p{{"a", parameter({1, 2}, {2})}}, other{{"b", parameter({1, 2}, {2})}};
  write_tensors(folder / "x", Adam(p).state());
  const Adam adam(other);
  EXPECT_TRUE(
      contains(message_of<IoError>([&] { load_tensors(folder / "x", adam.state()); }), "\"b.m\""));
  const Sgd sgd(p);
  EXPECT_TRUE(contains(message_of<IoError>([&] { load_tensors(folder / "x", sgd.state()); }),
                       "nothing here takes"));
}

TEST(Optimizer, CountsItsBytes) {
  const TensorList p{{"a", parameter({1, 2, 3, 4, 5, 6}, {2, 3})}};
  const int64_t before = memory_tracker().live()[Category::optimizer];
  {
    const Adam adam(p);
    EXPECT_EQ(memory_tracker().live()[Category::optimizer] - before,
              2 * memory::block_bytes(6 * 8) + memory::block_bytes(8));
  }
  EXPECT_EQ(memory_tracker().live()[Category::optimizer], before);
}

TEST(Optimizer, DropsGradientsAndPassesOverWhatHasNone) {
  const Tensor a = parameter({1}, {1}), b = parameter({1}, {1});
  Adam adam({{"a", a}, {"b", b}});
  set_grad(a, Tensor::from(std::vector<double>{1}, {1}));
  adam.step(0.5);
  EXPECT_NEAR(a.to_vector<double>()[0], 0.5, 1e-7);
  EXPECT_EQ(b.to_vector<double>()[0], 1);
  EXPECT_FALSE(grad(a));
  adam.step(0.5);
  EXPECT_NEAR(a.to_vector<double>()[0], 0.5, 1e-7);
  EXPECT_EQ(adam.steps(), 2);
}

TEST(Optimizer, ReadsStridedGradients) {
  const Tensor a = parameter({0, 0, 0, 0, 0, 0}, {2, 3});
  Sgd sgd({{"a", a}});
  const Tensor g = Tensor::from(std::vector<double>{1, 2, 3, 4, 5, 6}, {3, 2});
  set_grad(a, g.alias({2, 3}, {1, 2}, 0));
  EXPECT_DOUBLE_EQ(clip_gradients(sgd, 0), std::sqrt(91.0));
  sgd.step(1);
  EXPECT_EQ(a.to_vector<double>(), (std::vector<double>{-1, -3, -5, -2, -4, -6}));
}

// ETC's optimiser, step by step from its formula.
TEST(Etc, LambStepEqualsTheScalarFormula) {
  const LambOptions options{.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.1};
  const Tensor matrix = parameter({1, -2, 3, 0.5, 0, -1}, {2, 3}), bias = parameter({4, -3}, {2}),
               zero = parameter({0, 0}, {1, 2});
  Lamb lamb(decay_matrices({{"matrix", matrix}, {"bias", bias}, {"zero", zero}}), options);
  struct Plain {
    Tensor p;
    double decay;
    std::vector<double> x, m, v;
  };
  std::vector<Plain> plain;
  for (const Tensor& p : {matrix, bias, zero}) {
    const std::vector<double> none(static_cast<size_t>(p.numel()), 0.0);
    plain.push_back(
        {p, p.rank() >= 2 ? options.weight_decay : 0, p.to_vector<double>(), none, none});
  }
  for (int t = 1; t <= 4; ++t) {
    for (Plain& s : plain) {
      std::vector<double> g, u;
      double size = 0, length = 0;
      for (size_t i = 0; i < s.x.size(); ++i) {
        g.push_back(std::sin(1.7 * t + static_cast<double>(i)));
        s.m[i] = options.beta1 * s.m[i] + (1 - options.beta1) * 0.5 * g[i];
        s.v[i] = options.beta2 * s.v[i] + (1 - options.beta2) * 0.25 * g[i] * g[i];
        const double m = s.m[i] / (1 - std::pow(options.beta1, t));
        const double v = s.v[i] / (1 - std::pow(options.beta2, t));
        u.push_back(m / (std::sqrt(v) + options.eps) + s.decay * s.x[i]);
        size += s.x[i] * s.x[i];
        length += u[i] * u[i];
      }
      const double ratio = size > 0 && length > 0 ? std::sqrt(size) / std::sqrt(length) : 1;
      for (size_t i = 0; i < s.x.size(); ++i) s.x[i] -= 0.05 * ratio * u[i];
      set_grad(s.p, Tensor::from(g, s.p.shape()));
    }
    lamb.scale_gradients(0.5);
    lamb.step(0.05);
    for (const Plain& s : plain) {
      const std::vector<double> got = s.p.to_vector<double>();
      for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], s.x[i], 1e-13) << t;
    }
  }
}

TEST(Optimizer, Groups) {
  const Tensor matrix = parameter({1, 1}, {1, 2}), bias = parameter({1}, {1});
  const TensorList all{{"bias", bias}, {"matrix", matrix}};
  std::vector<ParameterGroup> groups = decay_matrices(all);
  ASSERT_EQ(groups.size(), 2u);
  groups[1].lr_scale = 3;
  AdamW adam(groups, {.weight_decay = 0.1});
  for (const Tensor& p : {matrix, bias}) set_grad(p, Tensor::zeros(p.shape(), DType::f64));
  adam.step(0.5);
  EXPECT_DOUBLE_EQ(matrix.to_vector<double>()[0], 1 - 0.5 * 0.1);
  EXPECT_EQ(bias.to_vector<double>()[0], 1);
  set_grad(bias, Tensor::from(std::vector<double>{1e9}, {1}));
  adam.step(0.5);  // two steps: m = 0.1, v = 0.001, both corrected
  EXPECT_NEAR(bias.to_vector<double>()[0],
              1 - 0.5 * 3 * (0.1 / 0.19) / std::sqrt(0.001 / (1 - 0.999 * 0.999)), 1e-9);
}

TEST(Optimizer, Rejects) {
  const Tensor a = parameter({1, 2}, {2});
  const auto refuse = [](const TensorList& p, const char* part) {
    const std::string message = message_of<ValueError>([&] { Adam adam(p); });
    EXPECT_TRUE(contains(message, part)) << message;
  };
  refuse({{"a", a}, {"a", parameter({1}, {1})}}, "two parameters are called \"a\"");
  refuse({{"a", a}, {"tied", a}}, "\"tied\" shares its storage");
  refuse({{"a", Tensor()}}, "undefined");
  refuse({{"a", Tensor::zeros({2, 2}).alias({2}, {2}, 0)}}, "not contiguous");
  EXPECT_THROW(Adam({{"a", Tensor::zeros({2}, DType::f16)}}), DTypeError);
  EXPECT_THROW(Adam({{"a", Tensor::zeros({2}, DType::i64)}}), DTypeError);
  const TensorList p{{"a", a}};
  EXPECT_TRUE(contains(message_of<ValueError>([&] { Adam(p, {.beta1 = 1}); }), "beta1 is 1"));
  EXPECT_THROW(Adam(p, {.beta2 = -0.1}), ValueError);
  EXPECT_THROW(Adam(p, {.eps = 0}), ValueError);
  EXPECT_THROW(Adam(p, {.weight_decay = -1}), ValueError);
  EXPECT_THROW(Lamb(p, {.beta1 = 1}), ValueError);
  EXPECT_THROW(Lamb(p, {.weight_decay = -1}), ValueError);
  EXPECT_THROW(Sgd(p, {.momentum = 2}), ValueError);
  EXPECT_THROW(Sgd(p, {.nesterov = true}), ValueError);
  EXPECT_THROW(Adagrad(p, {.initial_sum = -1}), ValueError);
  EXPECT_THROW(Adafactor(p, {.warmup_init = true}), ValueError);
  EXPECT_THROW(Adafactor(p, {.clip = 0}), ValueError);
  EXPECT_THROW(Adam({{p, -1}}), ValueError);
  Adam adam(p);
  EXPECT_THROW(adam.step(-1), ValueError);
  EXPECT_THROW(adam.step(std::nan("")), ValueError);
  EXPECT_EQ(adam.steps(), 0);
}

// What cannot be trained is refused where it is given, by its name, and not at the first step.
TEST(Optimizer, RefusesConstantsAndResults) {
  const Tensor w = parameter({1, 2}, {2}), constant = Tensor::zeros({2}, DType::f64);
  const Tensor result = w * 2.0;
  Tensor frozen = parameter({3}, {1});
  set_requires_grad(frozen, false);
  for (const auto& [kind, make] : makers) {
    SCOPED_TRACE(kind);
    const auto refuse = [&](const char* name, const Tensor& x, const char* part) {
      const auto& of_this = make;
      const std::string said = message_of<GradientError>([&] { of_this({{"w", w}, {name, x}}); });
      EXPECT_TRUE(contains(said, name)) << said;
      EXPECT_TRUE(contains(said, part)) << said;
    };
    refuse("bias.c", constant, "requires no gradient");
    refuse("bias.f", frozen, "requires no gradient");
    refuse("head.y", result, "result of an op");
    EXPECT_EQ(make({{"w", w}})->steps(), 0);
  }
}

// A parameter may be frozen between steps, with a gradient that has arrived, and later go on.
TEST(Optimizer, LeavesFrozenParametersAsTheyAre) {
  for (const auto& [kind, make] : makers) {
    SCOPED_TRACE(kind);
    Tensor w = parameter({1, 2}, {2}), u = parameter({3, 4}, {2});
    const auto optimizer = make({{"w", w}, {"u", u}});
    const auto step = [&, &optimizer = optimizer] {
      const auto before = std::pair{w.to_vector<double>(), u.to_vector<double>()};
      if (requires_grad(w) || requires_grad(u)) backward(sum(mul(w, u)));
      optimizer->step(0.1);
      return std::pair{w.to_vector<double>() != before.first,
                       u.to_vector<double>() != before.second};
    };
    EXPECT_EQ(step(), std::pair(true, true));
    backward(sum(mul(w, u)));
    set_requires_grad(u, false);
    EXPECT_FALSE(grad(u));
    EXPECT_EQ(step(), std::pair(true, false));
    EXPECT_EQ(step(), std::pair(true, false));
    set_requires_grad(u);
    EXPECT_EQ(step(), std::pair(true, true));
  }
}

/// Runs three steps of an optimizer for `w` alone, of a loss that has `other` too. Returns what
/// standard error gets.
std::string said_in_three_steps(const Tensor& w, const Tensor& other) {
  testing::internal::CaptureStderr();
  Adam adam({{"w", w}});
  for (int i = 0; i < 3; ++i) {
    backward(sum(w * other));
    adam.step(0.1);
  }
  return testing::internal::GetCapturedStderr();
}

TEST(Optimizer, SaysThatGradientsStay) {
  const Tensor w = parameter({1, 2}, {2});
  Tensor other = parameter({3, 4}, {2});
  const auto live = [] { return memory_tracker(Device{}).live()[Category::gradient]; };
  const int64_t before = live();
  const std::string said = said_in_three_steps(w, other);
  EXPECT_TRUE(contains(said, "bytes of gradients stay")) << said;
  EXPECT_EQ(said.find("stay"), said.rfind("stay")) << "once: " << said;
  EXPECT_GT(live(), before);
  set_grad(other, {});
  {
    Sgd others({{"other", other}});  // has them
    EXPECT_EQ(said_in_three_steps(w, other), "");
    others.clear_gradients();
  }
  set_requires_grad(other, false);  // freezes
  EXPECT_EQ(said_in_three_steps(w, other), "");
  EXPECT_EQ(live(), before);
}

TEST(ClipGradients, ScalesToTheNorm) {
  const Tensor a = parameter({0, 0}, {2}), b = parameter({0}, {1});
  Sgd sgd({{"a", a}, {"b", b}});
  const auto set = [&] {
    set_grad(a, Tensor::from(std::vector<double>{2, 3}, {2}));
    set_grad(b, Tensor::from(std::vector<double>{6}, {1}));
  };
  set();
  EXPECT_EQ(clip_gradients(sgd, 0), 7);
  EXPECT_EQ(clip_gradients(sgd, 7), 7);
  EXPECT_EQ(sgd.gradient_scale(), 1);
  EXPECT_EQ(clip_gradients(sgd, 0.5), 7);
  sgd.step(1);
  EXPECT_DOUBLE_EQ(a.to_vector<double>()[0], -2 * 0.5 / 7);
  EXPECT_DOUBLE_EQ(b.to_vector<double>()[0], -6 * 0.5 / 7);
  EXPECT_EQ(sgd.gradient_scale(), 1);
  EXPECT_EQ(clip_gradients(sgd, 1), 0);  // no gradients
  set();
  sgd.scale_gradients(0.5);
  EXPECT_EQ(clip_gradients(sgd, 1), 3.5);
  EXPECT_THROW(clip_gradients(sgd, -1), ValueError);
}

TEST(ClipGradients, ClipsGroupsApart) {
  const Tensor a = parameter({0, 0}, {2}), b = parameter({0}, {1}), c = parameter({0}, {1}),
               d = parameter({0}, {1});
  Sgd sgd({{"a", a}, {"b", b, "copy"}, {"c", c}, {"d", d, "other"}});
  EXPECT_EQ(sgd.clip_groups(), (std::vector<std::string>{"", "copy", "other"}));
  const auto set = [&](double of_b) {
    set_grad(a, Tensor::from(std::vector<double>{2, 3}, {2}));
    set_grad(b, Tensor::from(std::vector<double>{of_b}, {1}));
    set_grad(c, Tensor::from(std::vector<double>{6}, {1}));
  };
  set(1000);
  const std::vector<GroupNorm> norms = clip_by_group(sgd, 3.5);
  ASSERT_EQ(norms.size(), 3u);
  EXPECT_EQ(norms[0].norm, 7);
  EXPECT_EQ(norms[1].group, "copy");
  EXPECT_EQ(norms[1].norm, 1000);
  EXPECT_EQ(norms[2].norm, 0);  // no gradients
  EXPECT_EQ(sgd.gradient_scale(0), 0.5);
  EXPECT_EQ(sgd.gradient_scale(1), 0.0035);
  EXPECT_EQ(sgd.gradient_scale(2), 1);
  sgd.step(1);
  EXPECT_EQ(a.to_vector<double>()[1], -1.5);  // whatever the gradient of another group
  EXPECT_DOUBLE_EQ(b.to_vector<double>()[0], -3.5);
  EXPECT_EQ(c.to_vector<double>()[0], -3);
  EXPECT_EQ(d.to_vector<double>()[0], 0);
  EXPECT_EQ(sgd.gradient_scale(1), 1);
  set(2);
  sgd.scale_gradients(0.5);  // all of them
  EXPECT_EQ(clip_gradients(sgd, 10), 3.5);
  EXPECT_EQ(clip_by_group(sgd, 0)[1].norm, 1);
  set(std::nan(""));
  const std::string message = message_of<ValueError>([&] { clip_gradients(sgd, 1); });
  EXPECT_TRUE(contains(message, "belongs to \"b\"")) << message;
}

// Every optimizer multiplies each gradient by the factor of its own clip group.
TEST(ClipGradients, GroupsOfEveryOptimizer) {
  for (const auto& [name, make] : makers) {
    SCOPED_TRACE(name);
    std::vector<std::vector<double>> found;
    for (const bool scaled : {false, true}) {
      const Tensor a = parameter({1, 2}, {2}), b = parameter({3, 4}, {2});
      const auto optimizer = make({{"a", a}, {"b", b, "apart"}});
      set_grad(a, Tensor::from(std::vector<double>{1, -2}, {2}));
      set_grad(b, Tensor::from(std::vector<double>{scaled ? 8.0 : 4.0, scaled ? -2.0 : -1.0}, {2}));
      if (scaled) optimizer->scale_gradients(0.5, 1);
      optimizer->step(0.1);
      found.push_back(a.to_vector<double>());
      found.push_back(b.to_vector<double>());
    }
    EXPECT_EQ(found[0], found[2]);
    EXPECT_EQ(found[1], found[3]);
  }
}

TEST(ClipGradients, NamesTheFirstThatIsNotFinite) {
  const Tensor a = parameter({1}, {1}), b = parameter({1, 1}, {2}), c = parameter({1}, {1});
  Adam adam({{"a", a}, {"layers.3.b", b}, {"c", c}});
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    set_grad(a, Tensor::from(std::vector<double>{1}, {1}));
    set_grad(b, Tensor::from(std::vector<double>{1, bad}, {2}));
    set_grad(c, Tensor::from(std::vector<double>{bad}, {1}));
    const std::string message = message_of<ValueError>([&] { clip_gradients(adam, 1); });
    EXPECT_TRUE(contains(message, "\"layers.3.b\"")) << message;
  }
  EXPECT_EQ(a.to_vector<double>()[0], 1);
}

TEST(LossScale, Dynamic) {
  const Tensor a = parameter({1}, {1});
  Sgd sgd({{"a", a}});
  LossScale loss_scale = LossScale::dynamic(1024, 2);
  const auto gradient = [&](double g) { set_grad(a, Tensor::from(std::vector<double>{g}, {1})); };

  gradient(1024 * 0.5);
  EXPECT_TRUE(loss_scale.accept(sgd));
  EXPECT_DOUBLE_EQ(clip_gradients(sgd, 0), 0.5);
  sgd.step(1);
  EXPECT_EQ(a.to_vector<double>()[0], 0.5);

  gradient(std::numeric_limits<double>::infinity());
  EXPECT_FALSE(loss_scale.accept(sgd));
  EXPECT_EQ(loss_scale.value(), 512);
  EXPECT_EQ(loss_scale.skipped(), 1);
  EXPECT_FALSE(grad(a));
  EXPECT_EQ(a.to_vector<double>()[0], 0.5);

  LossScale resumed = LossScale::dynamic(1, 2);
  resumed.restore(parse_json(to_string(Json(loss_scale.values()))));
  for (LossScale* s : {&loss_scale, &resumed}) {
    for (int i = 0; i < 2; ++i) {
      gradient(1);
      EXPECT_TRUE(s->accept(sgd));
      sgd.clear_gradients();  // a later failure: the step is repeated
      EXPECT_EQ(s->values()[1].value.integer(), (i + 1) % 2);
      gradient(1);
      EXPECT_TRUE(s->accept(sgd));
      EXPECT_EQ(s->values()[1].value.integer(), (i + 1) % 2);
      sgd.step(0);
    }
  }
  EXPECT_EQ(loss_scale.value(), 1024);  // two steps without overflow
  EXPECT_EQ(resumed.values(), loss_scale.values());

  // A fixed scale ignores the value in a saved state, and its state does not change a dynamic
  // scale.
  LossScale fixed = LossScale::fixed(8), dynamic = LossScale::dynamic(64);
  fixed.restore(Json(loss_scale.values()));
  EXPECT_EQ(fixed.value(), 8);
  EXPECT_EQ(fixed.skipped(), 1);
  dynamic.restore(Json(fixed.values()));
  EXPECT_EQ(dynamic.value(), 64);

  const auto overflow_for_ever = [&] {
    for (int i = 0; i < 100; ++i) {
      gradient(std::nan(""));
      loss_scale.accept(sgd);
    }
  };
  EXPECT_TRUE(contains(message_of<ValueError>(overflow_for_ever), "any loss scale"));
}

TEST(LossScale, GrowsUpToItsLimit) {
  const Tensor a = parameter({1}, {1});
  Sgd sgd({{"a", a}});
  LossScale loss_scale = LossScale::dynamic(0x1p23, 1);
  for (const double expected : {0x1p24, 0x1p24}) {
    set_grad(a, Tensor::from(std::vector<double>{1}, {1}));
    EXPECT_TRUE(loss_scale.accept(sgd));
    sgd.step(0);
    EXPECT_EQ(loss_scale.value(), expected);
  }
}

TEST(LossScale, Fixed) {
  const Tensor a = parameter({1}, {1});
  Sgd sgd({{"a", a}});
  LossScale loss_scale = LossScale::fixed(8);
  set_grad(a, Tensor::from(std::vector<double>{8}, {1}));
  EXPECT_TRUE(loss_scale.accept(sgd));
  EXPECT_EQ(clip_gradients(sgd, 0), 1);
  sgd.clear_gradients();
  set_grad(a, Tensor::from(std::vector<double>{std::nan("")}, {1}));
  EXPECT_TRUE(loss_scale.accept(sgd));
  EXPECT_THROW(clip_gradients(sgd, 0), ValueError);
  EXPECT_EQ(loss_scale.value(), 8);
  EXPECT_THROW(LossScale::fixed(0), ValueError);
  EXPECT_THROW(LossScale::dynamic(1, 0), ValueError);
}

TEST(Optimizer, EveryOneFindsAMinimum) {
  // f(x) = sum (x - target)^2 / 2, whose gradient is x - target.
  const std::pair<const char*, double> rates[] = {{"sgd", 0.2},
                                                  {"momentum", 0.05},
                                                  {"adagrad", 0.5},
                                                  {"adagrad with clipped steps", 3},
                                                  {"adam", 0.05},
                                                  {"adamw", 0.05},
                                                  {"lamb", 0.05},
                                                  {"adafactor", 0.05},
                                                  {"adafactor with a first moment", 0.05}};
  for (size_t k = 0; k < std::size(makers); ++k) {
    ASSERT_STREQ(makers[k].first, rates[k].first);
    Tensor p = Tensor::from(noise(1, 12), {3, 4});
    set_requires_grad(p);
    const auto target = noise(2, 12);
    const auto optimizer = makers[k].second({{"p", p}});
    double last = 0;
    for (int step = 0; step < 400; ++step) {
      auto x = p.to_vector<float>();
      last = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        x[i] -= target[i];
        last += 0.5 * x[i] * x[i];
      }
      set_grad(p, Tensor::from(x, {3, 4}));
      optimizer->step(rates[k].second * (step < 200 ? 1 : 0.1));
    }
    EXPECT_LT(last, 1e-3) << makers[k].first;
  }
}

}  // namespace
}  // namespace longspan
