// The effects of a failing operator new, for each call in a training step, an update, saving a
// checkpoint and loading one.
#include <gtest/gtest.h>

#include <cstdlib>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "core/error.h"
#include "models/all/registry.h"
#include "nn/reversible.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "tests/faults/sweep.h"
#include "tests/harness/host_device.h"
#include "tests/harness/scratch.h"
#include "train/config.h"
#include "train/optimizer.h"
#include "train/state.h"
#include "train/step_graph.h"

namespace longspan::test {
namespace {

/// Holds the bits of tensors, and can restore them.
class Bits {
 public:
  explicit Bits(const TensorList& tensors) {
    for (const NamedTensor& t : tensors) all_.push_back(bits_of(t.tensor));
  }
  bool are(const TensorList& tensors) const {
    for (size_t i = 0; i < all_.size(); ++i) {
      if (bits_of(tensors[i].tensor) != all_[i]) return false;
    }
    return true;
  }
  void put_into(const TensorList& tensors) const {
    for (size_t i = 0; i < all_.size(); ++i) {
      Tensor t = tensors[i].tensor;
      if (!all_[i].empty()) copy_from_host(t.device(), t.mut().data, all_[i].data(), t.nbytes());
    }
  }

 private:
  static std::vector<char> bits_of(const Tensor& t) {
    std::vector<char> bits(static_cast<size_t>(t.nbytes()));
    if (!bits.empty()) copy_to_host(t.device(), bits.data(), t.view().data, t.nbytes());
    return bits;
  }
  std::vector<std::vector<char>> all_;
};

std::unique_ptr<Optimizer> make_optimizer(std::string_view name, const TensorList& p) {
  if (name == "adam") return std::make_unique<Adam>(p);
  if (name == "adamw") return std::make_unique<AdamW>(decay_matrices(p));
  if (name == "adagrad") return std::make_unique<Adagrad>(p);
  if (name == "sgd") return std::make_unique<Sgd>(p, SgdOptions{.momentum = 0.9});
  if (name == "lamb") return std::make_unique<Lamb>(decay_matrices(p));
  return std::make_unique<Adafactor>(p, AdafactorOptions{.beta1 = 0.9});
}

struct Case {
  std::string_view model, memory, optimizer;
};

/// Builds a small model by its registered name.
std::unique_ptr<LanguageModel> build(const Case& c) {
  const auto spec = find_model(c.model);
  const Json fields = to_json(*spec);
  Settings small{{"memory", Json(c.memory), ""}};
  const std::pair<const char*, int64_t> sizes[] = {{"n_layer", 2}, {"d_model", 16}, {"d_ff", 24},
                                                   {"n_head", 2},  {"n_max", 64},   {"block", 8},
                                                   {"window", 8},  {"chunks", 2}};
  for (const auto& [name, size] : sizes) {
    const Json* field = fields.find(name);
    if (field != nullptr && field->is_integer()) small.push_back({name, Json(size), ""});
  }
  set_fields(*spec, small);
  return spec->build(Init{Generator{1}.fork("init")});
}

/// A small run: a model, its optimizer and its loss scale.
struct SmallRun {
  explicit SmallRun(const Case& c)
      : model(build(c)),
        end(*model),
        weights(named_parameters(*model)),
        optimizer(make_optimizer(c.optimizer, weights)) {
    for (const NamedTensor& t : optimizer->state()) everything.push_back(t);
    for (const NamedTensor& t : weights) everything.push_back(t);
    const Generator gen{2};
    for (uint64_t i = 0; i < 2; ++i) {
      batches.push_back(randint({2, 64}, gen.fork(i), 5, 200, DType::i32));
    }
  }

  /// Runs two passes, clipping and an update.
  void step() {
    optimizer->clear_gradients();
    std::vector<Statistics> statistics;
    const Pass pass{.training = true, .gen = Generator{3}.fork(uint64_t(optimizer->steps()))};
    for (uint64_t i = 0; i < batches.size(); ++i) {
      auto result = model->loss(batches[i], batches[i], {}, pass.at(i));
      backward(mul(result.total(), 0.5 * scale.value()));
      add_statistics(statistics, std::move(result.statistics));
    }
    if (!scale.accept(*optimizer)) return;
    clip_gradients(*optimizer, 0.1);
    end.prepare(optimizer->steps(), Generator{4}, std::move(statistics));
    optimizer->step(1e-2);
    end.run();
  }

  std::unique_ptr<LanguageModel> model;
  EndOfStep end;
  TensorList weights, everything;
  std::unique_ptr<Optimizer> optimizer;
  LossScale scale = LossScale::dynamic(8, 2);
  std::vector<Tensor> batches;
};

/// Tests the second step of a run.
class StepTrial final : public Trial {
 public:
  explicit StepTrial(const Case& c) : run_(c) {
    run_.step();
    before_.emplace(run_.everything);
    scale_before_ = Json(run_.scale.values());
    run_.step();
    after_.emplace(run_.everything);
    scale_after_ = Json(run_.scale.values());
  }

  void reset() override {
    before_->put_into(run_.everything);
    run_.optimizer->clear_gradients();
    run_.scale.restore(scale_before_);
  }
  void act() override { run_.step(); }
  bool unchanged() override { return before_->are(run_.everything); }
  bool finished() override {
    return after_->are(run_.everything) && Json(run_.scale.values()) == scale_after_;
  }

 private:
  SmallRun run_;
  std::optional<Bits> before_, after_;
  Json scale_before_, scale_after_;
};

/// Tests the same step with memory tracing on.
class TracedTrial final : public Trial {
 public:
  explicit TracedTrial(const Case& c) : step_(c) {}
  void reset() override { step_.reset(); }
  void act() override {
    const MemoryTrace trace(Device{});
    step_.act();
  }
  bool unchanged() override { return step_.unchanged(); }
  bool finished() override { return step_.finished(); }

 private:
  StepTrial step_;
};

/// Tests three steps on a device that records them: two recordings of passes, one of the update,
/// then replays.
class RecordedTrial final : public Trial {
 public:
  RecordedTrial() {
    enable_host_device();
    const Generator gen{4};
    for (uint64_t i = 0; i < 2; ++i) {
      Tensor p = normal({6, 6}, gen.fork(i), 0, 1, DType::f32, there);
      set_requires_grad(p);
      parameters_.push_back({std::to_string(i), p});
    }
    inputs_.push_back(normal({5, 6}, gen.fork(9), 0, 1, DType::f32, there));
    optimizer_ = std::make_unique<Lamb>(parameters_);
    graph_.emplace(there, *optimizer_);
    all_ = optimizer_->state();
    all_.insert(all_.end(), parameters_.begin(), parameters_.end());
    step();
    for (int64_t i = 0; i < steps; ++i) {
      after_.emplace_back(all_);
      step();
    }
    after_.emplace_back(all_);
  }

  void reset() override {
    graph_->forget();
    after_[0].put_into(all_);
    optimizer_->clear_gradients();
  }
  void act() override {
    while (optimizer_->steps() <= steps) step();
  }
  bool unchanged() override {
    return after_[static_cast<size_t>(optimizer_->steps() - 1)].are(all_);
  }
  bool finished() override { return optimizer_->steps() == steps + 1 && unchanged(); }

 private:
  static constexpr Device there{DeviceKind::cuda, 0};
  static constexpr int64_t steps = 3;

  void step() {
    optimizer_->clear_gradients();
    const auto body = [&](const std::vector<Tensor>& in, Generator) {
      const Tensor y = matmul(relu(matmul(in[0], parameters_[0].tensor)), parameters_[1].tensor);
      const Tensor loss = sum(mul(y, y));
      backward(loss);
      return std::vector<Tensor>{loss.detach()};
    };
    graph_->gradients(inputs_, Generator{5}.fork(uint64_t(optimizer_->steps())), body);
    clip_gradients(*optimizer_, 0.1);
    graph_->update(1e-2);
  }

  TensorList parameters_, all_;
  std::vector<Tensor> inputs_;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<StepGraph> graph_;
  std::vector<Bits> after_;
};

/// Tests the first step of a process.
class FirstStepTrial final : public Trial {
 public:
  explicit FirstStepTrial(const Case& c) : case_(c), run_(c) { before_.emplace(run_.everything); }
  void reset() override {}
  void act() override { run_.step(); }
  bool unchanged() override { return before_->are(run_.everything); }
  bool finished() override {
    SmallRun again(case_);
    again.step();
    return Bits(again.everything).are(run_.everything);
  }

 private:
  Case case_;
  SmallRun run_;
  std::optional<Bits> before_;
};

/// Tests saving a checkpoint beside an older one.
class SaveTrial final : public Trial {
 public:
  explicit SaveTrial(const Case& c) : run_(c) {
    other_.emplace(run_.everything);
    write_state(folder_.path(), 1, run_.weights, run_.optimizer->state(), {{"name", "first"}});
    first_ = text_of(1);
    run_.step();
    now_.emplace(run_.everything);
    act();
    second_ = text_of(2);
  }

  void reset() override { std::filesystem::remove_all(checkpoint_path(folder_.path(), 2)); }
  void act() override {
    write_state(folder_.path(), 2, run_.weights, run_.optimizer->state(), second_values_);
  }
  bool unchanged() override {
    return text_of(1) == first_ && saved_steps(folder_.path()) == std::vector<int64_t>{1};
  }
  // Expects two checkpoints and nothing else.
  bool finished() override {
    int64_t entries = 0;
    for (const auto& e : std::filesystem::directory_iterator(folder_ / "checkpoints")) {
      entries += e.exists() ? 1 : 0;
    }
    return entries == 2 && text_of(1) == first_ && text_of(2) == second_;
  }

 private:
  std::string text_of(int64_t step) const {
    std::string all;
    for (const char* name : {"/model.safetensors", "/optimizer.safetensors", "/state.json"}) {
      all += read_bytes(checkpoint_path(folder_.path(), step) + name);
    }
    return all;
  }

  Folder folder_;
  SmallRun run_;
  std::optional<Bits> other_, now_;
  std::string first_, second_;
  const Members second_values_{{"name", "second"}};
};

/// Tests reading a checkpoint into a model with other values.
class LoadTrial final : public Trial {
 public:
  explicit LoadTrial(const Case& c) : run_(c) {
    other_.emplace(run_.everything);
    run_.step();
    saved_.emplace(run_.everything);
    write_state(folder_.path(), 1, run_.weights, run_.optimizer->state());
  }
  void reset() override { other_->put_into(run_.everything); }
  void act() override {
    read_state(newest_checkpoint(folder_.path()), run_.weights, run_.optimizer->state());
  }
  bool unchanged() override { return other_->are(run_.everything); }
  bool finished() override { return saved_->are(run_.everything); }

 private:
  Folder folder_;
  SmallRun run_;
  std::optional<Bits> other_, saved_;
};

/// Tests an update alone, of parameters of many shapes, some with non-contiguous gradients.
class UpdateTrial final : public Trial {
 public:
  explicit UpdateTrial(std::string_view name) {
    const Generator gen{4};
    for (const Shape& shape : {Shape{5, 7}, Shape{3}, Shape{2, 3, 4}, Shape{40, 30}, Shape{0}}) {
      const auto i = static_cast<uint64_t>(parameters_.size());
      Tensor p = normal(shape, gen.fork(i));
      set_requires_grad(p);
      parameters_.push_back({std::to_string(i), p});
      Shape swapped = shape;
      if (shape.rank() == 2) std::swap(swapped[0], swapped[1]);
      gradients_.push_back(normal(swapped, gen.fork(i + 100)));
    }
    optimizer_ = make_optimizer(name, parameters_);
    all_ = optimizer_->state();
    all_.insert(all_.end(), parameters_.begin(), parameters_.end());
    act();
    before_.emplace(all_);
    act();
    after_.emplace(all_);
  }

  void reset() override { before_->put_into(all_); }
  void act() override {
    optimizer_->clear_gradients();
    for (size_t i = 0; i < gradients_.size(); ++i) {
      const Tensor& p = parameters_[i].tensor;
      Tensor g = gradients_[i];
      if (g.shape() != p.shape()) g = g.alias(p.shape(), {1, p.dim(0)}, 0);
      set_grad(p, g);
    }
    optimizer_->scale_gradients(0.5);
    optimizer_->step(1e-2);
  }
  bool unchanged() override { return before_->are(all_); }
  bool finished() override { return after_->are(all_); }

 private:
  TensorList parameters_, all_;
  std::vector<Tensor> gradients_;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<Bits> before_, after_;
};

void expect_good(const Tally& t, const std::string& what) {
  std::printf("%-44s %s\n", what.c_str(), to_string(t).c_str());
  std::fflush(stdout);
  EXPECT_GT(t.injected, 0) << what;
  EXPECT_EQ(t.aborted + t.half + t.other_bits + t.unnamed, 0) << what << ": " << to_string(t);
}

constexpr Case cases[] = {{"local_transformer", "checkpoint", "adam"},
                          {"reformer", "reversible", "adafactor"},
                          {"bigbird", "standard", "lamb"}};
constexpr std::string_view optimizers[] = {"adam", "adamw", "adagrad", "sgd", "lamb", "adafactor"};

std::string name_of(const Case& c, const char* what) {
  return fmt::format("{} of {}, {}, {}", what, c.model, c.memory, c.optimizer);
}

template <class T>
auto maker(const Case& c) {
  return [c] { return std::make_unique<T>(c); };
}

void sweep_all(int64_t stride) {
  for (const Case& c : cases) {
    expect_good(sweep(maker<StepTrial>(c), stride), name_of(c, "a step"));
    expect_good(sweep(maker<SaveTrial>(c), stride), name_of(c, "saving"));
    expect_good(sweep(maker<LoadTrial>(c), stride), name_of(c, "loading"));
  }
}

TEST(Faults, AnUpdateIsAllOrNothing) {
  for (const std::string_view name : optimizers) {
    expect_good(sweep([&] { return std::make_unique<UpdateTrial>(name); }), std::string(name));
  }
}

TEST(Faults, RecordedStepsAreAllOrNothing) {
  expect_good(sweep([] { return std::make_unique<RecordedTrial>(); }, 3), "recorded steps");
}

TEST(Faults, SomeOfATracedStep) {
  expect_good(sweep(maker<TracedTrial>(cases[0]), 97), name_of(cases[0], "a traced step"));
}

TEST(Faults, SomeOfAStepOfSavingAndOfLoading) { sweep_all(29); }

/// Returns LONGSPAN_FAULTS_STRIDE, which selects every n-th failure, or 1 if it is not set.
int64_t stride_of_slow() {
  const char* text = std::getenv("LONGSPAN_FAULTS_STRIDE");
  return text != nullptr ? std::atoll(text) : 1;
}

TEST(FaultsSlow, AllOfAStepOfSavingAndOfLoading) { sweep_all(stride_of_slow()); }

// A first step creates what a process creates once, such as layouts, tables and the thread pool.
void sweep_first(int64_t stride) {
  for (const Case& c : cases) {
    expect_good(sweep(maker<FirstStepTrial>(c), stride, 0, true), name_of(c, "a first step"));
  }
}

TEST(FaultsSlow, AllOfAFirstStep) { sweep_first(stride_of_slow()); }

}  // namespace
}  // namespace longspan::test
