#include "train/optimizer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <map>
#include <unordered_set>
#include <utility>

#include "autograd/node.h"
#include "core/error.h"
#include "core/graph.h"
#include "core/kernels/gradient.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "ops/copy.h"
#include "ops/optim.h"

namespace longspan {
namespace {

void require_share(std::string_view name, double value) {
  require(value >= 0 && value < 1, "optimizer", "{} is {}: expected 0 to below 1", name, value);
}

void require_not_negative(std::string_view name, double value) {
  require(value >= 0 && std::isfinite(value), "optimizer", "{} is {}: expected 0 or more", name,
          value);
}

void require_positive(std::string_view name, double value) {
  require(value > 0 && std::isfinite(value), "optimizer", "{} is {}: expected above 0", name,
          value);
}

std::atomic<int> optimizers = 0;  // that exist: gradients may be another one's

constexpr int64_t rate_numbers = 8;  // the rate is in the first elements of a workspace

/// Returns the bias correction of a moment that started at 0: 1 - beta^t.
DeviceScalar<double> bias_correction(const Optimizer& optimizer, double beta) {
  return live(
      [&optimizer, beta] { return 1 - std::pow(beta, static_cast<double>(optimizer.steps())); });
}

// Checks the options and creates the state of Adam and LAMB: two moments per parameter.
template <class Options, class Slots, class Zeros>
void begin_moments(const Options& options, Slots& slots, const Zeros& zeros) {
  require_share("beta1", options.beta1);
  require_share("beta2", options.beta2);
  require_positive("eps", options.eps);
  require_not_negative("weight_decay", options.weight_decay);
  for (auto& slot : slots) {
    const Shape& shape = slot.parameter.tensor.shape();
    slot.states = {{"m", zeros(slot, shape)}, {"v", zeros(slot, shape)}};
  }
}

/// Returns the norm of the gradients of one clip group, or of all.
double norm_of_gradients(const Optimizer& optimizer, std::optional<size_t> clip_group = {}) {
  return with_memory_for("optimizer", [&] {
    if (optimizer.shared() != nullptr) return optimizer.shared()->norm(clip_group);
    return global_norm(optimizer.gradients(clip_group));
  });
}

[[noreturn]] void fail_for_norm(const Optimizer& optimizer, double norm) {
  const std::string first = optimizer.shared() != nullptr
                                ? optimizer.shared()->first_nonfinite()
                                : first_nonfinite_gradient(optimizer.parameters());
  fail("optimizer",
       "the norm of the gradients is {}; the first that is not finite belongs to \"{}\": lower "
       "the learning rate, or look for the op with AnomalyMode",
       norm, first);
}

/// Throws GradientError unless gradients arrive at a parameter.
void require_trainable(const NamedTensor& p) {
  if (!requires_grad(p.tensor)) {
    fail_with<GradientError>("optimizer",
                             "a parameter requires no gradient: call set_requires_grad() first, "
                             "or leave it out if it is to stay as it is",
                             {{p.name, p.tensor}});
  }
  if (p.tensor.meta()->node) {
    fail_with<GradientError>("optimizer",
                             "a parameter is the result of an op, and gradients stay at leaves: "
                             "expected what it was computed from, or its detach() as a leaf of "
                             "its own",
                             {{p.name, p.tensor}});
  }
}

}  // namespace

std::string first_nonfinite_gradient(const TensorList& parameters) {
  for (const NamedTensor& p : parameters) {
    const Tensor g = grad(p.tensor);
    if (!g) continue;
    bool finite = true;
    kernels::all_finite(g.device(), g.view(), &finite);
    if (!finite) return p.name;
  }
  return "none";
}

std::vector<ParameterGroup> decay_matrices(const TensorList& parameters) {
  ParameterGroup matrices, others;
  others.weight_decay = false;
  for (const NamedTensor& p : parameters) {
    (p.tensor.rank() >= 2 ? matrices : others).parameters.push_back(p);
  }
  return {std::move(matrices), std::move(others)};
}

Optimizer::Optimizer(const std::vector<ParameterGroup>& groups) {
  std::unordered_set<std::string_view> names;
  std::unordered_set<const void*> places;
  for (const ParameterGroup& group : groups) {
    require_not_negative("lr_scale", group.lr_scale);
    for (const NamedTensor& p : group.parameters) {
      require(static_cast<bool>(p.tensor), "optimizer", "the parameter \"{}\" is undefined",
              p.name);
      if (p.tensor.dtype() != DType::f32 && p.tensor.dtype() != DType::f64) {
        fail_with<DTypeError>("optimizer", "parameters are f32 or f64", {{p.name, p.tensor}});
      }
      require(p.tensor.contiguous(), "optimizer", "the parameter \"{}\" is not contiguous", p.name);
      require_trainable(p);
      require(names.insert(p.name).second, "optimizer", "two parameters are called \"{}\"", p.name);
      require(p.tensor.numel() == 0 || places.insert(p.tensor.view().data).second, "optimizer",
              "\"{}\" shares its storage with a parameter before it: list a tied one once", p.name);
      slots_.push_back({p, clip_group_of(p), group.lr_scale, group.weight_decay, {}});
    }
  }
  step_ = Tensor::zeros({}, DType::i64, {}, Category::optimizer);
  ++optimizers;
}

Optimizer::~Optimizer() { --optimizers; }

size_t Optimizer::clip_group_of(const NamedTensor& parameter) {
  const auto known = std::find(clip_groups_.begin(), clip_groups_.end(), parameter.clip_group);
  const auto index = static_cast<size_t>(known - clip_groups_.begin());
  if (known == clip_groups_.end()) {
    clip_groups_.push_back(parameter.clip_group);
    scales_.push_back(1);
  }
  return index;
}

void Optimizer::scale_gradients(double factor) {
  for (double& scale : scales_) scale *= factor;
}

Tensor Optimizer::zeros(const Slot& slot, const Shape& shape) {
  const Tensor& p = slot.parameter.tensor;
  return Tensor::zeros(shape, p.dtype(), p.device(), Category::optimizer);
}

void Optimizer::step(double lr) {
  with_memory_for("optimizer", [&] {
    Counted counted(*this, lr);
    update_all();
    counted.keep();
  });
  clear_gradients();
  say_what_stays();
}

void Optimizer::say_what_stays() {
  if (stays_said_ || slots_.empty()) return;
  const Device device = slots_[0].parameter.tensor.device();
  const int64_t before = std::exchange(stays_, memory_tracker(device).live()[Category::gradient]);
  // A gradient may be looked at after a step; one that two steps leave is in nobody's list.
  if (before == 0 || stays_ == 0 || optimizers > 1) return;
  stays_said_ = true;
  std::fprintf(stderr,
               "optimizer: %lld bytes of gradients stay after each step, of tensors that no "
               "optimizer has; every backward pass adds to them. set_requires_grad(x, false) "
               "freezes a parameter and saves that work, set_grad(x, {}) drops a gradient\n",
               static_cast<long long>(stays_));
}

Optimizer::Counted::Counted(Optimizer& optimizer, double lr) : optimizer_(optimizer) {
  require_not_negative("lr", lr);
  ++*optimizer_.step_.mut().as<int64_t>();
  optimizer_.lr_ = lr;
}

Optimizer::Counted::~Counted() {
  if (!kept_) --*optimizer_.step_.mut().as<int64_t>();
}

void Optimizer::update_all() {
  // Everything that allocates memory comes before the first write.
  begin_update();
  std::vector<DeviceScalar<double>> scales;  // by clip group
  for (const double& scale : scales_) scales.push_back(live([&scale] { return scale; }));
  std::map<double, DeviceScalar<double>> rates;  // by lr_scale
  for (Slot& slot : slots_) {
    const Tensor g = grad(slot.parameter.tensor);
    if (!g) continue;
    if (!g.contiguous()) set_grad(slot.parameter.tensor, contiguous(g));
    auto known = rates.find(slot.lr_scale);
    if (known == rates.end()) {
      known = rates.emplace(slot.lr_scale, live([this, &slot] { return rate(slot); })).first;
    }
    slot.rate = known->second;
  }
  const std::vector<Workspace> workspaces = make_workspaces();
  num_threads();  // starts the threads, if they are not running yet

  const Workspace none;
  for (Slot& slot : slots_) {
    const Tensor& p = slot.parameter.tensor;
    const Tensor g = grad(p);
    if (!g) continue;
    const auto serves = [&](const Workspace& w) {
      return w.dtype == p.dtype() && w.device == p.device();
    };
    const auto at = std::find_if(workspaces.begin(), workspaces.end(), serves);
    update(slot, g, slot.rate, scales[slot.clip_group], at != workspaces.end() ? *at : none);
  }
}

/// Makes one workspace for each dtype and device whose updates need one.
std::vector<Optimizer::Workspace> Optimizer::make_workspaces() const {
  std::vector<std::pair<Workspace, WorkspaceSize>> all;
  for (const Slot& slot : slots_) {
    const Tensor& p = slot.parameter.tensor;
    const WorkspaceSize size = workspace_of(slot);
    if (size.like + size.numbers == 0 || !grad(p)) continue;
    auto at = std::find_if(all.begin(), all.end(), [&](const auto& w) {
      return w.first.dtype == p.dtype() && w.first.device == p.device();
    });
    if (at == all.end()) at = all.insert(at, {{p.dtype(), p.device(), {}, {}}, {}});
    WorkspaceSize& most = at->second;
    most = {std::max(most.like, size.like), std::max(most.numbers, size.numbers)};
  }
  std::vector<Workspace> made;
  for (auto& [w, size] : all) {
    if (size.like > 0) w.like = Tensor::empty({size.like}, w.dtype, w.device, Category::workspace);
    w.numbers = Tensor::empty({size.numbers}, DType::f64, w.device, Category::workspace);
    made.push_back(std::move(w));
  }
  return made;
}

void Optimizer::clear_gradients() {
  for (const Slot& slot : slots_) {
    if (requires_grad(slot.parameter.tensor)) set_grad(slot.parameter.tensor, {});
  }
  std::fill(scales_.begin(), scales_.end(), 1);
}

int64_t Optimizer::steps() const { return *step_.view().as<int64_t>(); }

std::vector<Tensor> Optimizer::gradients(std::optional<size_t> clip_group) const {
  return with_memory_for("optimizer", [&] {
    std::vector<Tensor> all;
    for (const Slot& slot : slots_) {
      if (clip_group && slot.clip_group != *clip_group) continue;
      if (Tensor g = grad(slot.parameter.tensor)) all.push_back(std::move(g));
    }
    return all;
  });
}

TensorList Optimizer::parameters() const try {
  TensorList all;
  for (const Slot& slot : slots_) all.push_back(slot.parameter);
  return all;
} catch (const std::bad_alloc&) {
  fail_for_memory("optimizer");
}

TensorList Optimizer::state() const try {
  TensorList all{{"step", step_}};
  for (const Slot& slot : slots_) {
    for (const NamedTensor& state : slot.states) {
      all.push_back({slot.parameter.name + "." + state.name, state.tensor});
    }
  }
  return all;
} catch (const std::bad_alloc&) {
  fail_for_memory("optimizer");
}

Sgd::Sgd(const std::vector<ParameterGroup>& groups, const SgdOptions& options)
    : Optimizer(groups), options_(options) {
  require_share("momentum", options.momentum);
  require_not_negative("weight_decay", options.weight_decay);
  require(!options.nesterov || options.momentum > 0, "optimizer",
          "nesterov needs momentum: expected momentum above 0");
  if (options.momentum == 0) return;
  for (Slot& slot : slots_) {
    slot.states = {{"momentum", zeros(slot, slot.parameter.tensor.shape())}};
  }
}

void Sgd::update(Slot& slot, const Tensor& g, DeviceScalar<double> lr, DeviceScalar<double> scale,
                 const Workspace&) {
  sgd_update(slot.parameter.tensor, g, slot.states.empty() ? Tensor() : slot.states[0].tensor,
             {.lr = lr,
              .momentum = options_.momentum,
              .weight_decay = slot.weight_decay ? options_.weight_decay : 0,
              .scale = scale,
              .nesterov = options_.nesterov});
}

Adagrad::Adagrad(const std::vector<ParameterGroup>& groups, const AdagradOptions& options)
    : Optimizer(groups), options_(options) {
  require_not_negative("eps", options.eps);
  require_not_negative("weight_decay", options.weight_decay);
  require_not_negative("initial_sum", options.initial_sum);
  require_not_negative("step_clip", options.step_clip);
  for (Slot& slot : slots_) {
    const Tensor& p = slot.parameter.tensor;
    slot.states = {{"sum", full(p.shape(), options.initial_sum, p.dtype(), p.device())}};
    slot.states[0].tensor.set_category(Category::optimizer);
  }
}

Optimizer::WorkspaceSize Adagrad::workspace_of(const Slot& slot) const {
  return {0, options_.step_clip > 0 ? clipped_rate_numbers(slot.parameter.tensor) : 0};
}

void Adagrad::update(Slot& slot, const Tensor& g, DeviceScalar<double> lr,
                     DeviceScalar<double> scale, const Workspace& workspace) {
  if (options_.step_clip > 0 && g.numel() > 0) {
    lr = live_number(clipped_rate(g, options_.step_clip, scale, lr, workspace.numbers));
  }
  adagrad_update(slot.parameter.tensor, g, slot.states[0].tensor,
                 {.lr = lr,
                  .eps = options_.eps,
                  .weight_decay = slot.weight_decay ? options_.weight_decay : 0,
                  .scale = scale});
}

Adam::Adam(const std::vector<ParameterGroup>& groups, const AdamOptions& options, bool decoupled)
    : Optimizer(groups), options_(options), decoupled_(decoupled) {
  begin_moments(options, slots_, zeros);
}

void Adam::begin_update() {
  correction1_ = bias_correction(*this, options_.beta1);
  correction2_ = bias_correction(*this, options_.beta2);
}

void Adam::update(Slot& slot, const Tensor& g, DeviceScalar<double> lr, DeviceScalar<double> scale,
                  const Workspace&) {
  adam_update(slot.parameter.tensor, g, slot.states[0].tensor, slot.states[1].tensor,
              {.lr = lr,
               .beta1 = options_.beta1,
               .beta2 = options_.beta2,
               .eps = options_.eps,
               .weight_decay = slot.weight_decay ? options_.weight_decay : 0,
               .correction1 = correction1_,
               .correction2 = correction2_,
               .scale = scale,
               .decoupled = decoupled_});
}

Lamb::Lamb(const std::vector<ParameterGroup>& groups, const LambOptions& options)
    : Optimizer(groups), options_(options) {
  begin_moments(options, slots_, zeros);
}

void Lamb::begin_update() {
  correction1_ = bias_correction(*this, options_.beta1);
  correction2_ = bias_correction(*this, options_.beta2);
}

Optimizer::WorkspaceSize Lamb::workspace_of(const Slot& slot) const {
  const Tensor& p = slot.parameter.tensor;
  return {p.numel(), lamb_rate_numbers(p)};
}

void Lamb::update(Slot& slot, const Tensor& g, DeviceScalar<double> lr, DeviceScalar<double> scale,
                  const Workspace& workspace) {
  const Tensor& p = slot.parameter.tensor;
  if (p.numel() == 0) return;
  // Adam and SGD steps from 0 give -u, so no separate kernel is needed.
  Tensor u = workspace.like.alias(p.shape(), contiguous_strides(p.shape()), 0);
  set_zero(p.device(), u.mut().data, u.nbytes());
  adam_update(u, g, slot.states[0].tensor, slot.states[1].tensor,
              {.lr = 1,
               .beta1 = options_.beta1,
               .beta2 = options_.beta2,
               .eps = options_.eps,
               .correction1 = correction1_,
               .correction2 = correction2_,
               .scale = scale});
  const double decay = slot.weight_decay ? options_.weight_decay : 0;
  if (decay > 0) sgd_update(u, p, {}, {.lr = 1, .scale = decay});
  const Tensor rate = lamb_rate(p, u, lr, workspace.numbers);
  sgd_update(p, u, {}, {.lr = live_number(rate), .scale = -1});
}

Adafactor::Adafactor(const std::vector<ParameterGroup>& groups, const AdafactorOptions& options)
    : Optimizer(groups), options_(options) {
  require_share("beta1", options.beta1);
  require_positive("eps", options.eps);
  require_not_negative("parameter_eps", options.parameter_eps);
  require_positive("clip", options.clip);
  require_positive("decay_exponent", options.decay_exponent);
  require_not_negative("weight_decay", options.weight_decay);
  require(!options.warmup_init || options.relative_step, "optimizer",
          "warmup_init has no effect without relative_step: expected both or neither");
  for (Slot& slot : slots_) {
    const Tensor& p = slot.parameter.tensor;
    if (p.rank() >= 2) {
      Shape rows = p.shape(), columns = p.shape();
      rows.erase(p.rank() - 1);
      columns.erase(p.rank() - 2);
      slot.states = {{"row", zeros(slot, rows)}, {"column", zeros(slot, columns)}};
    } else {
      slot.states = {{"v", zeros(slot, p.shape())}};
    }
    if (options.beta1 > 0) slot.states.push_back({"m", zeros(slot, p.shape())});
  }
}

// The sums from which the rate is computed are no longer needed when the update begins.
Optimizer::WorkspaceSize Adafactor::workspace_of(const Slot& slot) const {
  const Tensor& p = slot.parameter.tensor;
  const int64_t numbers = adafactor_numbers(p);
  if (!options_.scale_parameter) return {0, numbers};
  return {0, std::max(adafactor_rate_numbers(p), rate_numbers + numbers)};
}

void Adafactor::update(Slot& slot, const Tensor& g, DeviceScalar<double>,
                       DeviceScalar<double> scale, const Workspace& workspace) {
  const Tensor& p = slot.parameter.tensor;
  DeviceScalar<double> lr = live([this, &slot] {
    const auto t = static_cast<double>(steps());
    double share = 1;
    if (options_.relative_step) {
      share = std::min(options_.warmup_init ? 1e-6 * t : 1e-2, 1 / std::sqrt(t));
    }
    return rate(slot) * share;
  });
  if (p.numel() == 0) return;
  Tensor numbers = workspace.numbers;
  if (options_.scale_parameter) {
    lr = live_number(adafactor_rate(p, options_.parameter_eps, lr, numbers));
    numbers = numbers.alias({numbers.numel() - rate_numbers}, {1}, rate_numbers);
  }
  const DeviceScalar<double> beta2 =
      live([this] { return 1 - std::pow(static_cast<double>(steps()), -options_.decay_exponent); });
  const bool factored = p.rank() >= 2;
  adafactor_update(p, g, slot.states[0].tensor, factored ? slot.states[1].tensor : Tensor(),
                   options_.beta1 > 0 ? slot.states.back().tensor : Tensor(),
                   {.lr = lr,
                    .beta1 = options_.beta1,
                    .beta2 = beta2,
                    .eps = options_.eps,
                    .clip = options_.clip,
                    .weight_decay = slot.weight_decay ? options_.weight_decay : 0,
                    .scale = scale},
                   numbers);
}

std::vector<GroupNorm> clip_by_group(Optimizer& optimizer, double max_norm) {
  require_not_negative("clip", max_norm);
  std::vector<GroupNorm> norms;
  with_memory_for("optimizer", [&] {
    for (const std::string& group : optimizer.clip_groups()) {
      const size_t i = norms.size();
      norms.push_back({group, norm_of_gradients(optimizer, i) * optimizer.gradient_scale(i)});
      if (!std::isfinite(norms[i].norm)) fail_for_norm(optimizer, norms[i].norm);
    }
  });
  for (size_t i = 0; i < norms.size(); ++i) {
    const double norm = norms[i].norm;
    if (max_norm > 0 && norm > max_norm) optimizer.scale_gradients(max_norm / norm, i);
  }
  return norms;
}

double clip_gradients(Optimizer& optimizer, double max_norm) {
  return clip_by_group(optimizer, max_norm)[0].norm;
}

LossScale::LossScale(double value, int64_t interval) : value_(value), interval_(interval) {
  require_positive("the loss scale", value);
}

LossScale LossScale::fixed(double value) { return {value, 0}; }

LossScale LossScale::dynamic(double value, int64_t interval) {
  require(interval >= 1, "optimizer", "the interval is {}: expected 1 or more", interval);
  return {value, interval};
}

bool LossScale::accept(Optimizer& optimizer) {
  if (interval_ > 0 && !std::isfinite(norm_of_gradients(optimizer))) {
    optimizer.clear_gradients();
    ++skipped_;
    good_ = 0;
    value_ /= 2;
    require(value_ >= 0x1p-24, "optimizer",
            "the gradients are not finite at any loss scale: lower the learning rate, or look for "
            "the op with AnomalyMode");
    return false;
  }
  optimizer.scale_gradients(1 / value_);
  const int64_t steps = optimizer.steps();
  const bool again = std::exchange(accepted_, steps) == steps;
  if (interval_ > 0 && !again && ++good_ == interval_) {
    good_ = 0;
    value_ = std::min(value_ * 2, 0x1p24);
  }
  return true;
}

Members LossScale::values() const {
  return {{"loss_scale", interval_ > 0 ? Json(value_) : Json()},
          {"loss_scale_good_steps", good_},
          {"skipped_steps", skipped_}};
}

void LossScale::restore(const Json& values) {
  skipped_ = values["skipped_steps"].integer();
  accepted_ = -1;
  const Json& value = values["loss_scale"];
  if (interval_ == 0 || value.is_null()) return;
  require_positive("the loss scale", value.number());
  value_ = value.number();
  good_ = values["loss_scale_good_steps"].integer();
}

}  // namespace longspan
