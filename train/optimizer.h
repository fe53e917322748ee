#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/device_scalar.h"
#include "core/named_tensor.h"
#include "data/io/json.h"

namespace longspan {

/// Parameters that are updated in one way.
struct ParameterGroup {
  TensorList parameters;
  double lr_scale = 1;       ///< the step's learning rate is multiplied by it
  bool weight_decay = true;  ///< whether the optimizer's weight decay applies
};

/// Two groups: parameters of rank 2 and more, which decay, and the others (biases, norms), which do
/// not.
std::vector<ParameterGroup> decay_matrices(const TensorList& parameters);

/// Updates parameters from their gradients. Its states live in Category::optimizer.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Updates every parameter that has a gradient, and drops the gradients. Throws ValueError where
  /// lr is negative or not finite, and OutOfMemory; then parameters and states are as they were,
  /// all of them, and the step is not counted.
  void step(double lr);
  /// Drops the gradients.
  void clear_gradients();
  /// Multiplies the gradients by a factor: at the next step, in the pass that reads them anyway.
  /// Factors multiply; step() and clear_gradients() forget them.
  void scale_gradients(double factor) { scale_ *= factor; }
  double gradient_scale() const { return scale_; }

  /// Steps taken so far.
  int64_t steps() const;
  /// In order of the groups.
  TensorList parameters() const;
  /// Handles on all that the next steps depend on: "step", and "NAME.m" and so on. What is read
  /// into them counts.
  TensorList state() const;

 protected:
  struct Slot {
    NamedTensor parameter;
    double lr_scale;
    bool weight_decay;
    TensorList states;               ///< named "m", "v", ...
    DeviceScalar<double> rate = {};  ///< of the update that is under way
  };

  /// Memory that the updates of a step use one after another, taken before the first.
  struct Workspace {
    DType dtype = DType::f32;  ///< of the parameters that it serves
    Device device = {};
    Tensor like = {};     ///< of their dtype
    Tensor numbers = {};  ///< f64
  };
  /// Elements of the two that update() of a parameter needs.
  struct WorkspaceSize {
    int64_t like = 0, numbers = 0;
  };

  /// Throws ValueError where names repeat, two parameters share storage, or one is undefined or not
  /// contiguous; DTypeError unless they are f32 or f64.
  explicit Optimizer(const std::vector<ParameterGroup>& groups);

  /// Once a step, before update(): steps() counts it already.
  virtual void begin_update() {}
  virtual WorkspaceSize workspace_of(const Slot& /*slot*/) const { return {}; }
  /// One update of the parameter; `scale` multiplies g, which is contiguous. Numbers that change
  /// from step to step are live(), so that a recording of it can be replayed. Those of other
  /// parameters have been written, so it asks for no memory.
  virtual void update(Slot& slot, const Tensor& g, DeviceScalar<double> lr,
                      DeviceScalar<double> scale, const Workspace& workspace) = 0;

  /// The learning rate of this step.
  double rate(const Slot& slot) const { return lr_ * slot.lr_scale; }

  /// Zeros of the parameter's dtype and device.
  static Tensor zeros(const Slot& slot, const Shape& shape);

  std::vector<Slot> slots_;

 private:
  friend class StepGraph;
  /// Counts a step, unless it is not kept.
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
  // The kernels of a step that is counted.
  void update_all();
  std::vector<Workspace> make_workspaces() const;

  Tensor step_;  // i64, rank 0, on the CPU
  double scale_ = 1, lr_ = 0;
};

/// One group of all of them.
inline std::vector<ParameterGroup> one_group(const TensorList& parameters) {
  return {{parameters}};
}

/// Options of Sgd.
struct SgdOptions {
  double momentum = 0, weight_decay = 0;
  bool nesterov = false;
};
/// Stochastic gradient descent: h = g + weight_decay p; b = momentum b + h; p -= lr b, or,
/// nesterov, p -= lr (h + momentum b). No b without momentum.
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
};
/// Adagrad: s += h^2, p -= lr h / (sqrt(s) + eps), h = g + weight_decay p. \cite duchi2011
class Adagrad final : public Optimizer {
 public:
  explicit Adagrad(const TensorList& parameters, const AdagradOptions& options = {})
      : Adagrad(one_group(parameters), options) {}
  explicit Adagrad(const std::vector<ParameterGroup>& groups, const AdagradOptions& options = {});

 private:
  void update(Slot& slot, const Tensor& g, DeviceScalar<double> lr, DeviceScalar<double> scale,
              const Workspace& workspace) override;
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
/// Adam's direction with the length of the parameter: with bias-corrected moments m and v,
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

/// The norm of all gradients together (times gradient_scale()). Where it exceeds max_norm, and
/// max_norm > 0, the gradients are scaled to it. Returns the norm before. The order of the sum
/// depends on the parameters' shapes alone. Throws ValueError, naming the first parameter whose
/// gradient is not finite, where the norm is not: the parameters are still as they were.
double clip_gradients(Optimizer& optimizer, double max_norm);

/// Multiplies the loss so that gradients of 16-bit floating types neither vanish nor overflow.
///   backward(scale(loss, loss_scale.value()));
///   if (loss_scale.accept(optimizer)) {
///     clip_gradients(optimizer, clip);
///     optimizer.step(lr);
///   }
class LossScale {
 public:
  /// A constant: 1 for f32, and mostly for bf16.
  static LossScale fixed(double value);
  /// Starts at `value`, halves when gradients overflow, doubles after `interval` steps without.
  static LossScale dynamic(double value = 65536, int64_t interval = 2000);

  double value() const { return value_; }
  /// Divides the gradients by value() (at the next step). If dynamic and some gradient is not
  /// finite: drops the gradients, halves the value and returns false; skip the step then. Throws
  /// ValueError where the value falls below 2^-24: the gradients are not finite at any scale. A
  /// step that failed after it had been accepted, so that the optimizer has not taken it, counts
  /// once.
  bool accept(Optimizer& optimizer);
  /// Steps skipped so far.
  int64_t skipped() const { return skipped_; }

  /// What a run continues from. Where one of the two is fixed, restoring leaves the value as it was
  /// made.
  Members values() const;
  void restore(const Json& values);

 private:
  LossScale(double value, int64_t interval);

  double value_;
  int64_t interval_;  // 0: fixed
  int64_t good_ = 0, skipped_ = 0;
  int64_t accepted_ = -1;  // steps() of the optimizer when one was accepted last
};

}  // namespace longspan
