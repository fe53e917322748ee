#include "autograd/gradcheck.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/generator.h"

namespace longspan {
namespace {

constexpr const char* kOp = "gradcheck";

using Function = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;
using Values = std::vector<std::vector<double>>;  // one list for each tensor

bool differentiable(const Tensor& x) { return x && is_floating(x.dtype()); }

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

/// Returns the first element whose bits differ between two lists of equal length.
int64_t first_difference(const std::vector<double>& a, const std::vector<double>& b) {
  size_t i = 0;
  while (i + 1 < a.size() && std::memcmp(&a[i], &b[i], sizeof(double)) == 0) ++i;
  return static_cast<int64_t>(i);
}

/// Formats a value for a message; NaN is shown without a sign.
std::string shown(double x) { return std::isnan(x) ? "nan" : fmt::format("{:.12g}", x); }

/// Returns the values of floating tensors, and empty lists for the others.
Values values_of(const std::vector<Tensor>& tensors) {
  Values all;
  for (const Tensor& t : tensors) {
    all.push_back(differentiable(t) ? t.to_vector<double>() : std::vector<double>{});
  }
  return all;
}

/// "element 17, at [2, 3]".
std::string element_name(const Tensor& x, int64_t i) {
  std::string name = fmt::format("element {}", i);
  if (x.rank() < 2) return name;
  std::string place;
  for (int axis = x.rank() - 1; axis >= 0; --axis) {
    place = fmt::format("{}{}{}", i % x.dim(axis), place.empty() ? "" : ", ", place);
    i /= x.dim(axis);
  }
  return fmt::format("{}, at [{}]", name, place);
}

/// Returns the memory offset, relative to the view, of element i in row-major order.
int64_t offset_of(const Tensor& x, int64_t i) {
  int64_t offset = 0;
  for (int axis = x.rank() - 1; axis >= 0; --axis) {
    offset += i % x.dim(axis) * x.strides()[axis];
    i /= x.dim(axis);
  }
  return offset;
}

/// Returns a copy with the strides of x, so that f is tested on strided inputs.
Tensor copy_of(const Tensor& x) {
  int64_t span = x.numel() > 0 ? 1 : 0;
  for (int i = 0; i < x.rank(); ++i) span += x.numel() > 0 ? (x.dim(i) - 1) * x.strides()[i] : 0;
  Tensor buffer = Tensor::zeros({span}, x.dtype(), x.device());
  Tensor y = buffer.alias(x.shape(), x.strides(), 0);
  const std::vector<double> values = x.to_vector<double>();
  auto* data = y.mut().as<double>();
  for (int64_t i = 0; i < x.numel(); ++i) data[offset_of(x, i)] = values[static_cast<size_t>(i)];
  return y;
}

/// Detects writes to tensors that should only be read.
class Untouched {
 public:
  explicit Untouched(const std::vector<Tensor>& tensors) : tensors_(tensors) {
    for (const Tensor& t : tensors_) versions_.push_back(t ? t.storage().version() : 0);
    values_ = values_of(tensors_);
  }
  /// Returns an error, or "" if no tensor was written; `what` names the tensors, e.g. "input".
  std::string broken_by(std::string_view who, std::string_view what) const {
    for (size_t k = 0; k < tensors_.size(); ++k) {
      const Tensor& t = tensors_[k];
      if (!t ||
          (t.storage().version() == versions_[k] && same_bits(values_of({t})[0], values_[k]))) {
        continue;
      }
      const std::string head =
          fmt::format("{} wrote to {} {}, which it may only read", who, what, k);
      if (!is_floating(t.dtype()) || t.numel() == 0) return head;
      const std::vector<double> now = t.to_vector<double>();
      if (same_bits(values_[k], now)) return head + ", though only what was there";
      const auto i = static_cast<size_t>(first_difference(values_[k], now));
      return fmt::format("{}: {} was {} and is {}", head, element_name(t, static_cast<int64_t>(i)),
                         shown(values_[k][i]), shown(now[i]));
    }
    return {};
  }

 private:
  std::vector<Tensor> tensors_;
  std::vector<uint64_t> versions_;
  Values values_;
};

/// A slope according to backward(), and according to differences.
struct Slope {
  double analytic = 0, numeric = 0, scale = 1;
  double error(double tolerance) const {
    const double e = std::abs(numeric - analytic) / (tolerance * scale);
    return std::isfinite(analytic) && std::isfinite(e) ? e : INFINITY;
  }
};

class Check {
 public:
  Check(const Function& f, const std::vector<Tensor>& inputs, const GradcheckOptions& options)
      : f_(f), options_(options) {
    for (const Tensor& input : inputs) x_.push_back(leaf_of(input));
  }

  GradcheckResult run() {
    std::string fault = no_inputs();
    if (fault.empty()) fault = evaluate();
    if (fault.empty()) fault = go_back();
    if (!fault.empty()) return refuse(std::move(fault));
    for (size_t k = 0; k < x_.size(); ++k) {
      if (differentiable(x_[k])) compare(k);
    }
    if (result_.ok && !has_history_) refuse("no output of f has history" + forgotten());
    return result_;
  }

 private:
  static Tensor leaf_of(const Tensor& input) {
    if (!differentiable(input)) return input;
    if (input.dtype() != DType::f64) {
      fail_with<DTypeError>(kOp, "floating inputs must be f64", {{"input", input}});
    }
    require<DeviceError>(input.device() == Device{}, kOp, "inputs must be on the CPU");
    Tensor leaf = copy_of(input);
    set_requires_grad(leaf);
    return leaf;
  }

  GradcheckResult refuse(std::string message) {
    result_.ok = false;
    result_.message = std::move(message);
    return result_;
  }

  static std::string forgotten() {
    return "; is there an op that does not call record(), or a detach()?";
  }

  std::string no_inputs() const {
    if (std::any_of(x_.begin(), x_.end(), differentiable)) return {};
    return fmt::format("none of {} inputs is floating, so nothing can be checked", x_.size());
  }

  /// Runs f twice, and returns an error in its outputs.
  std::string evaluate() {
    const Untouched inputs(x_);
    for (std::vector<Tensor>* y : {&y_, &again_}) {
      *y = f_(x_);
      if (std::string fault = inputs.broken_by("f", "input"); !fault.empty()) return fault;
    }
    if (std::none_of(y_.begin(), y_.end(), differentiable)) {
      return fmt::format("none of {} outputs is floating, so nothing can be checked", y_.size());
    }
    for (size_t o = 0; o < y_.size(); ++o) {
      const Tensor& y = y_[o];
      if (!differentiable(y)) continue;
      if (y.dtype() != DType::f64) {
        return fmt::format("output {} is {}: differences need f64 throughout", o,
                           name_of(y.dtype()));
      }
      has_history_ = has_history_ || requires_grad(y);
      note_infinite(o);
    }
    return other_outputs();
  }

  /// Notes the first output that is not finite: differences are meaningless there.
  void note_infinite(size_t o) {
    const std::vector<double> values = y_[o].to_vector<double>();
    for (size_t i = 0; infinite_.empty() && i < values.size(); ++i) {
      if (std::isfinite(values[i])) continue;
      infinite_ = fmt::format("; output {} {} is {}: clamp it or leave it out", o,
                              element_name(y_[o], static_cast<int64_t>(i)), shown(values[i]));
    }
  }

  /// Describes the first difference between the two runs of f.
  std::string other_outputs() const {
    constexpr const char* kAgain = "f is not deterministic";
    if (again_.size() != y_.size()) {
      return fmt::format("{}: it gave {} outputs, then {}", kAgain, y_.size(), again_.size());
    }
    for (size_t o = 0; o < y_.size(); ++o) {
      if (differentiable(y_[o]) != differentiable(again_[o])) {
        return fmt::format("{}: output {} is floating only once", kAgain, o);
      }
      if (!differentiable(y_[o])) continue;
      if (y_[o].shape() != again_[o].shape()) {
        return fmt::format("{}: output {} is {}, then {}", kAgain, o, to_string(y_[o].shape()),
                           to_string(again_[o].shape()));
      }
      const auto first = y_[o].to_vector<double>(), second = again_[o].to_vector<double>();
      if (same_bits(first, second)) continue;
      const auto i = static_cast<size_t>(first_difference(first, second));
      return fmt::format("{}: output {} {} is {:.17g}, then {:.17g}", kAgain, o,
                         element_name(y_[o], static_cast<int64_t>(i)), first[i], second[i]);
    }
    return {};
  }

  /// Draws the weights and computes the gradients, twice as well.
  std::string go_back() {
    const Generator gen = Generator{options_.seed}.fork(kOp);
    for (size_t o = 0; o < y_.size(); ++o) {
      std::vector<double> w;
      for (int64_t i = 0; differentiable(y_[o]) && i < y_[o].numel(); ++i) {
        w.push_back(2.0 * to_uniform(philox_word(gen.fork(o).key, i)) - 1.0);
      }
      weights_.push_back(std::move(w));
    }
    std::vector<Tensor> second;
    if (std::string fault = gradients_of(y_, gradients_); !fault.empty()) return fault;
    if (std::string fault = gradients_of(again_, second); !fault.empty()) return fault;
    y_.clear();
    again_.clear();
    for (size_t k = 0; k < x_.size(); ++k) {
      if (!gradients_[k] || !second[k]) continue;
      const auto a = gradients_[k].to_vector<double>(), b = second[k].to_vector<double>();
      if (same_bits(a, b)) continue;
      const auto i = static_cast<size_t>(first_difference(a, b));
      return fmt::format(
          "backward is not deterministic: input {} {}: analytic {:.17g}, then {:.17g}", k,
          element_name(x_[k], static_cast<int64_t>(i)), a[i], b[i]);
    }
    return {};
  }

  std::string gradients_of(const std::vector<Tensor>& y, std::vector<Tensor>& gradients) {
    std::vector<Tensor> outputs, dy;
    for (size_t o = 0; o < y.size(); ++o) {
      if (!differentiable(y[o]) || !requires_grad(y[o])) continue;
      outputs.push_back(y[o]);
      dy.push_back(Tensor::from(weights_[o], y[o].shape(), y[o].device()));
    }
    const Untouched inputs(x_), given(dy);
    try {
      if (!outputs.empty()) backward(outputs, dy);
    } catch (const OutOfMemory&) {
      throw;
    } catch (const Error& error) {
      return fmt::format("backward failed: {}", error.what());
    }
    std::string fault = inputs.broken_by("backward", "input");
    if (fault.empty()) fault = given.broken_by("backward", "the gradient of output");
    if (!fault.empty()) return fault;
    for (const Tensor& x : x_) {
      gradients.push_back(differentiable(x) ? grad(x) : Tensor{});
      if (differentiable(x)) set_grad(x, {});
    }
    return {};
  }

  /// Computes the sum over outputs of weight . output, in the order of the elements.
  double weighted() const {
    const NoGrad off;
    const std::vector<Tensor> y = f_(x_);
    double sum = 0;
    for (size_t o = 0; o < y.size() && o < weights_.size(); ++o) {
      if (weights_[o].empty()) continue;
      const std::vector<double> values = y[o].to_vector<double>();
      for (size_t i = 0; i < values.size(); ++i) sum += weights_[o][i] * values[i];
    }
    return sum;
  }

  double& element(size_t k, int64_t i) { return x_[k].mut().as<double>()[offset_of(x_[k], i)]; }
  double width(double value) const { return options_.step * std::max(1.0, std::abs(value)); }

  /// Returns the weighted sum with one element moved by `by`, and the element's moved value.
  std::pair<double, double> moved(size_t k, int64_t i, double by) {
    double& at = element(k, i);
    const double value = at;
    at = value + by;
    const double there = at, sum = weighted();
    at = value;
    return {sum, there};
  }

  Slope slope(size_t k, int64_t i) {
    const double h = width(element(k, i));
    const auto [f_above, above] = moved(k, i, h);
    const auto [f_below, below] = moved(k, i, -h);
    return {analytic_[static_cast<size_t>(i)], (f_above - f_below) / (above - below)};
  }

  /// Computes the slope along a direction of random signs in the elements from `begin` to `end`.
  Slope slope_along(size_t k, int64_t begin, int64_t end) {
    const uint64_t signs = Generator{options_.seed}.fork("direction").fork(k).key;
    double sums[2], squares = 0;
    Slope s;
    for (const int side : {0, 1}) {
      std::vector<double> before;
      for (int64_t i = begin; i < end; ++i) {
        double& at = element(k, i);
        const double value = at, h = width(value) / options_.step;
        const bool up = (philox_word(signs, i) & 1) == static_cast<uint32_t>(side);
        before.push_back(value);
        at = value + (up ? options_.step : -options_.step) * h;
        const double share = analytic_[static_cast<size_t>(i)] * (at - value) / 2;
        s.analytic += (side == 0 ? share : -share) / options_.step;
        squares += h * h / 2;
      }
      sums[side] = weighted();
      for (int64_t i = begin; i < end; ++i) element(k, i) = before[static_cast<size_t>(i - begin)];
    }
    s.numeric = (sums[0] - sums[1]) / (2 * options_.step);
    s.scale = std::sqrt(squares);
    return s;
  }

  /// Compares the gradient of input k: element by element, or a sample of elements and the whole
  /// along a direction, which is bisected until it leads to an element that is wrong.
  void compare(size_t k) {
    const int64_t n = x_[k].numel();
    const Tensor& g = gradients_[k];
    analytic_ = g ? g.to_vector<double>() : std::vector<double>(static_cast<size_t>(n), 0.0);
    largest_ = 0;
    for (const double a : analytic_) {
      if (std::isfinite(a)) largest_ = std::max(largest_, std::abs(a));
    }
    const int64_t every = std::max<int64_t>(1, n / std::max<int64_t>(1, options_.max_elements));
    for (int64_t i = 0; i < n; i += every) {
      take(k, i, slope(k, i));
      ++result_.checked;
    }
    for (int64_t i = 0; i < n; ++i) {
      if (!std::isfinite(analytic_[static_cast<size_t>(i)])) return take(k, i, slope(k, i));
    }
    if (every == 1) return;
    int64_t begin = 0, end = n;
    Slope all = slope_along(k, begin, end);
    if (error_of(all) <= 1) return;
    while (end - begin > 1) {
      const int64_t middle = begin + (end - begin) / 2;
      const bool left = error_of(slope_along(k, begin, middle)) * std::sqrt(middle - begin) >=
                        error_of(slope_along(k, middle, end)) * std::sqrt(end - middle);
      (left ? end : begin) = middle;
    }
    const Slope one = slope(k, begin);
    if (error_of(one) > 1) return take(k, begin, one);
    result_.worst = std::max(result_.worst, error_of(all));
    refuse(fmt::format("input {} along a random direction: analytic {}, numeric {}", k,
                       shown(all.analytic), shown(all.numeric)));
  }

  double error_of(const Slope& s) const {
    const double numeric = std::isfinite(s.numeric) ? std::abs(s.numeric) / s.scale : 0;
    return s.error(options_.absolute + options_.relative * std::max(largest_, numeric));
  }

  /// Records the error if it is the worst so far.
  void take(size_t k, int64_t i, const Slope& s) {
    const double error = error_of(s);
    if (error <= result_.worst) return;
    result_.worst = error;
    if (error <= 1) return;
    refuse(fmt::format("input {} {}: analytic {}, numeric {}{}", k, element_name(x_[k], i),
                       shown(s.analytic), shown(s.numeric), diagnosis(k, i, s)));
  }

  /// Returns a likely cause, if the values suggest one.
  std::string diagnosis(size_t k, int64_t i, const Slope& s) {
    if (!has_history_) return "; no output has history" + forgotten();
    if (!gradients_[k]) return "; no gradient arrived at this input";
    if (!std::isfinite(s.numeric)) return infinite_;
    if (!std::isfinite(s.analytic)) return {};
    const double f_here = weighted(), value = element(k, i), h = width(value);
    struct Sides {
      double below, above;
    };
    const auto sides = [&](double step) -> Sides {
      const auto [f_above, above] = moved(k, i, step);
      const auto [f_below, below] = moved(k, i, -step);
      return {(f_here - f_below) / (value - below), (f_above - f_here) / (above - value)};
    };
    const Sides near = sides(h), far = sides(1e3 * h);
    const double most = std::max(std::abs(near.below), std::abs(near.above));
    const auto alike = [&](double a, double b) { return std::abs(a - b) <= 0.02 * most; };
    if (!alike(near.below, near.above) && alike(near.below, far.below) &&
        alike(near.above, far.above)) {
      return fmt::format(
          "; f has a kink there, with slopes {:.6g} below and {:.6g} above: move "
          "the input away from it",
          near.below, near.above);
    }
    const double coarse = (far.below + far.above) / 2;
    const double off = std::abs(s.numeric - s.analytic);
    if (std::abs(coarse - s.analytic) < 0.1 * off) {
      return fmt::format(
          "; with steps {} times as long it is {:.6g}: f computes in fewer digits "
          "than f64",
          1000, coarse);
    }
    return {};
  }

  const Function& f_;
  GradcheckOptions options_;
  GradcheckResult result_;
  std::vector<Tensor> x_, y_, again_, gradients_;
  Values weights_;                // one list for each output
  std::vector<double> analytic_;  // gradient of the input being checked
  double largest_ = 0;            // largest finite magnitude in analytic_
  std::string infinite_;          // the first output that is not finite, as text for a message
  bool has_history_ = false;
};

}  // namespace

GradcheckResult gradcheck(const Function& f, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options) {
  const EnableGrad on;
  return Check(f, inputs, options).run();
}

GradcheckResult gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& f,
                          const std::vector<Tensor>& inputs, const GradcheckOptions& options) {
  return gradcheck(
      Function([&f](const std::vector<Tensor>& x) { return std::vector<Tensor>{f(x)}; }), inputs,
      options);
}

}  // namespace longspan
