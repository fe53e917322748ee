#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/device_scalar.h"
#include "core/named_tensor.h"
#include "data/io/json.h"

namespace longspan {

/// Parameters that share update options.
struct ParameterGroup {
  TensorList parameters;
  double lr_scale = 1;       ///< factor on the step's learning rate
  bool weight_decay = true;  ///< whether the optimizer's weight decay applies
};

/// Returns two groups: parameters of rank 2 and more, with weight decay, and the others (biases,
/// norms), without.
std::vector<ParameterGroup> decay_matrices(const TensorList& parameters);

/// Updates parameters from their gradients. Its states are in Category::optimizer.
class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Updates every parameter that has a gradient, and drops the gradients. One that has been frozen
  /// since (set_requires_grad) has none and stays as it is. Throws ValueError if lr
  /// is negative or not finite, and OutOfMemory; in both cases all parameters and states are
  /// unchanged, and the step is not counted. If gradients stay that this optimizer does not have,
  /// and there is no other, says so once on standard error: backward() adds to them for ever.
  void step(double lr);
  /// Drops the gradients.
  void clear_gradients();
  /// Multiplies the gradients by a factor; the next step applies it in the pass that reads them
  /// anyway. Factors accumulate until step() or clear_gradients().
  void scale_gradients(double factor);
  /// Multiplies the gradients of one clip group, by its index in clip_groups().
  void scale_gradients(double factor, size_t group) { scales_.at(group) *= factor; }
  double gradient_scale(size_t group = 0) const { return scales_.at(group); }

  /// What several processes know together of gradients, of which each has a part.
  class Shared {
   public:
    virtual ~Shared() = default;
    /// Returns the norm of all gradients, or of one clip group by its index.
    virtual double norm(std::optional<size_t> clip_group) = 0;
    /// Returns the name of the first parameter whose gradient is not finite, or "none".
    virtual std::string first_nonfinite() = 0;
  };
  /// Has clipping and loss scales go by what `shared` says; it must outlive the optimizer.
  void share(Shared* shared) { shared_ = shared; }
  Shared* shared() const { return shared_; }

  /// Steps taken so far.
  int64_t steps() const;
  /// The parameters in order of the groups.
  TensorList parameters() const;
  /// Returns the gradients that parameters have, of one clip group (its index) or of all.
  std::vector<Tensor> gradients(std::optional<size_t> clip_group = {}) const;
  /// The names of the clip groups (NamedTensor::clip_group): first "", the default, then the others
  /// in order of the parameters.
  const std::vector<std::string>& clip_groups() const { return clip_groups_; }
  /// Returns all tensors that later steps depend on: "step", "NAME.m" and so on. They share storage
  /// with the optimizer, so loading into them restores it.
  TensorList state() const;

 protected:
  struct Slot {
    NamedTensor parameter;
    size_t clip_group;  ///< index
    double lr_scale;
    bool weight_decay;
    TensorList states;               ///< named "m", "v", ...
    DeviceScalar<double> rate = {};  ///< learning rate of the update in progress
  };

  /// Scratch memory that the updates of a step share, allocated before the first update.
  struct Workspace {
    DType dtype = DType::f32;  ///< of the parameters that use it
    Device device = {};
    Tensor like = {};     ///< elements of that dtype
    Tensor numbers = {};  ///< f64
  };
  /// Number of elements of the two tensors that update() of a parameter needs.
  struct WorkspaceSize {
    int64_t like = 0, numbers = 0;
  };

  /// Throws ValueError if names repeat, two parameters share storage, or one is undefined or not
  /// contiguous; DTypeError unless they are f32 or f64; GradientError if one requires no gradient
  /// or is no leaf.
  explicit Optimizer(const std::vector<ParameterGroup>& groups);

  /// Called once per step, before update(): steps() already includes this step.
  virtual void begin_update() {}
  virtual WorkspaceSize workspace_of(const Slot& /*slot*/) const { return {}; }
  /// Updates one parameter; `scale` multiplies g, which is contiguous. Values that change from step
  /// to step are device scalars made by live(), so that a recording can be replayed. Other
  /// parameters have already been written, so it must not allocate memory.
  virtual void update(Slot& slot, const Tensor& g, DeviceScalar<double> lr,
                      DeviceScalar<double> scale, const Workspace& workspace) = 0;

  /// The learning rate of this step for the slot.
  double rate(const Slot& slot) const { return lr_ * slot.lr_scale; }

  /// Allocates zeros with the parameter's dtype and device.
  static Tensor zeros(const Slot& slot, const Shape& shape);

  std::vector<Slot> slots_;

 private:
  friend class StepGraph;
  /// Counts a step; undoes that unless keep() is called.
  class Counted {
   public:
    Counted(Optimizer& optimizer, double lr);
    ~Counted();
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;
    void keep() { kept_ = true; }

   private:
    Optimizer& optimizer_;
    bool kept_ = false;
  };
  // Runs the kernels of a step that has been counted.
  void update_all();
  std::vector<Workspace> make_workspaces() const;
  void say_what_stays();

  size_t clip_group_of(const NamedTensor& parameter);

  Tensor step_;  // i64, rank 0, on the CPU
  double lr_ = 0;
  Shared* shared_ = nullptr;
  std::vector<std::string> clip_groups_{""};
  std::vector<double> scales_{1};  // of the gradients of each clip group
  int64_t stays_ = 0;              // bytes of gradients after the last step
  bool stays_said_ = false;
};

/// Returns a single group with all parameters.
inline std::vector<ParameterGroup> one_group(const TensorList& parameters) {
  return {{parameters}};
}

/// Options of Sgd.
struct SgdOptions {
  double momentum = 0, weight_decay = 0;
  bool nesterov = false;
};
/// Stochastic gradient descent: h = g + weight_decay p; b = momentum b + h; p -= lr b, or, with
/// nesterov, p -= lr (h + momentum b). Without momentum there is no b.
class Sgd final : public Optimizer {
 public:
  explicit Sgd(const TensorList& parameters, const SgdOptions& options = {})
      : Sgd(one_group(parameters), options) {}
  explicit Sgd(const std::vector<ParameterGroup>& groups, const SgdOptions& options = {});

 private:
  void update(Slot& slot, const Tensor& g, DeviceScalar<double> lr, DeviceScalar<double> scale,
              const Workspace& workspace) override;
  SgdOptions options_;
};

/// Options of Adagrad.
struct AdagradOptions {
  double eps = 1e-10, weight_decay = 0, initial_sum = 0;
  double step_clip = 0;  ///< c; 0: steps are not clipped
};
/// Adagrad: s += h^2, p -= lr h / (sqrt(s) + eps), h = g + weight_decay p. \cite duchi2011 With a
/// step_clip c, lr is multiplied by min(1, c / |g|) for each parameter, |g| the Euclidean norm of
/// its gradient; s adds the whole gradient, so that steps are clipped and not gradients, which
/// would change little: without clipping Adagrad's steps do not depend on the size of gradients.
/// This is how the models of \cite sukhbaatar2019 were trained.
class Adagrad final : public Optimizer {
 public:
  explicit Adagrad(const TensorList& parameters, const AdagradOptions& options = {})
      : Adagrad(one_group(parameters), options) {}
  explicit Adagrad(const std::vector<ParameterGroup>& groups, const AdagradOptions& options = {});

 private:
  void update(Slot& slot, const Tensor& g, DeviceScalar<double> lr, DeviceScalar<double> scale,
              const Workspace& workspace) override;
  WorkspaceSize workspace_of(const Slot& slot) const override;
  AdagradOptions options_;
};

/// Options of Adam and AdamW.
struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
};
/// Adam with bias correction; weight decay is added to the gradient. \cite kingma2015
class Adam : public Optimizer {
 public:
  explicit Adam(const TensorList& parameters, const AdamOptions& options = {})
      : Adam(one_group(parameters), options) {}
  explicit Adam(const std::vector<ParameterGroup>& groups, const AdamOptions& options = {})
      : Adam(groups, options, false) {}

 protected:
  Adam(const std::vector<ParameterGroup>& groups, const AdamOptions& options, bool decoupled);

 private:
  void update(Slot& slot, const Tensor& g, DeviceScalar<double> lr, DeviceScalar<double> scale,
              const Workspace& workspace) override;
  void begin_update() override;
  AdamOptions options_;
  bool decoupled_;
  DeviceScalar<double> correction1_ = 1, correction2_ = 1;  // of this step
};
/// Adam with decoupled weight decay: p -= lr weight_decay p. \cite loshchilov2019
class AdamW final : public Adam {
 public:
  explicit AdamW(const TensorList& parameters, const AdamOptions& options = {.weight_decay = 0.01})
      : AdamW(one_group(parameters), options) {}
  explicit AdamW(const std::vector<ParameterGroup>& groups,
                 const AdamOptions& options = {.weight_decay = 0.01})
      : Adam(groups, options, true) {}
};

/// Options of Lamb.
struct LambOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-6, weight_decay = 0.01;
};
/// Adam's direction, scaled to the norm of the parameter: with bias-corrected moments m and v,
///   u = m / (sqrt(v) + eps) + weight_decay p,   p -= lr |p| / |u| u
/// where |.| is the Euclidean norm of a whole tensor; the ratio is 1 where either norm is 0.
/// \cite you2020 (algorithm 2, with phi the identity)
class Lamb final : public Optimizer {
 public:
  explicit Lamb(const TensorList& parameters, const LambOptions& options = {})
      : Lamb(one_group(parameters), options) {}
  explicit Lamb(const std::vector<ParameterGroup>& groups, const LambOptions& options = {});

 private:
  void update(Slot& slot, const Tensor& g, DeviceScalar<double> lr, DeviceScalar<double> scale,
              const Workspace& workspace) override;
  void begin_update() override;
  WorkspaceSize workspace_of(const Slot& slot) const override;
  LambOptions options_;
  DeviceScalar<double> correction1_ = 1, correction2_ = 1;  // of this step
};

/// Options of Adafactor.
struct AdafactorOptions {
  double beta1 = 0;  ///< 0: no first moment
  double eps = 1e-30, parameter_eps = 1e-3, clip = 1, decay_exponent = 0.8, weight_decay = 0;
  bool scale_parameter = true;  ///< multiply the rate by max(parameter_eps, rms(p))
  bool relative_step = false;   ///< multiply the rate by min(1e-2, 1 / sqrt(t))
  bool warmup_init = false;     ///< with relative_step: by min(1e-6 t, 1 / sqrt(t))
};
/// Adafactor: beta2 = 1 - t^-decay_exponent, second moments of matrices factored over the last two
/// axes, updates clipped to a root mean square of `clip`. \cite shazeer2018
class Adafactor final : public Optimizer {
 public:
  explicit Adafactor(const TensorList& parameters, const AdafactorOptions& options = {})
      : Adafactor(one_group(parameters), options) {}
  explicit Adafactor(const std::vector<ParameterGroup>& groups,
                     const AdafactorOptions& options = {});

 private:
  void update(Slot& slot, const Tensor& g, DeviceScalar<double> lr, DeviceScalar<double> scale,
              const Workspace& workspace) override;
  WorkspaceSize workspace_of(const Slot& slot) const override;
  AdafactorOptions options_;
};

/// Returns the name of the first parameter whose gradient is not finite, or "none".
std::string first_nonfinite_gradient(const TensorList& parameters);

/// The norm of the gradients of one clip group.
struct GroupNorm {
  std::string group;
  double norm = 0;
};

/// Clips each clip group separately (Visitor::clipped_apart): if max_norm > 0 and the norm of a
/// group's gradients (times gradient_scale()) exceeds it, they are scaled down to that norm.
/// Returns the norms before clipping, in order of Optimizer::clip_groups(). The summation order
/// depends only on the parameters' shapes. Throws ValueError if a norm is not finite, naming the
/// first parameter with a nonfinite gradient: the parameters are unchanged.
std::vector<GroupNorm> clip_by_group(Optimizer& optimizer, double max_norm);
/// As clip_by_group(), but returns the norm of the default group, which has all parameters of most
/// models.
double clip_gradients(Optimizer& optimizer, double max_norm);

/// Multiplies the loss so that gradients of 16-bit floating types neither vanish nor overflow.
///   backward(scale(loss, loss_scale.value()));
///   if (loss_scale.accept(optimizer)) {
///     clip_gradients(optimizer, clip);
///     optimizer.step(lr);
///   }
class LossScale {
 public:
  /// A constant scale: 1 for f32, and usually for bf16.
  static LossScale fixed(double value);
  /// Starts at `value`, halves when gradients overflow, doubles after `interval` steps without
  /// overflow.
  static LossScale dynamic(double value = 65536, int64_t interval = 2000);

  double value() const { return value_; }
  /// Whether the scale is dynamic, so that gradients that are not finite cost a step and not the
  /// run.
  bool adapts() const { return interval_ > 0; }
  /// Divides the gradients by value() (at the next step). If dynamic and a gradient is not finite:
  /// drops the gradients, halves the value and returns false; skip the step then. Throws ValueError
  /// if the value falls below 2^-24: the gradients are not finite at any scale. If a step fails
  /// after it was accepted, so that the optimizer has not taken it, accepting it again does not
  /// count twice.
  bool accept(Optimizer& optimizer);
  /// Steps skipped so far.
  int64_t skipped() const { return skipped_; }

  /// State to resume from. If either the saved or the current scale is fixed, restore() leaves the
  /// value unchanged.
  Members values() const;
  void restore(const Json& values);

 private:
  LossScale(double value, int64_t interval);

  double value_;
  int64_t interval_;  // 0: fixed
  int64_t good_ = 0, skipped_ = 0;
  int64_t accepted_ = -1;  // steps() of the optimizer at the last accept
};

}  // namespace longspan
