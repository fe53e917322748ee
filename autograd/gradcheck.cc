#include "autograd/gradcheck.h"

#include <algorithm>
#include <cmath>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/generator.h"

namespace longspan {
namespace {

using Function = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

/// sum over outputs of weight . output, in the order of the elements.
double weighted(const std::vector<Tensor>& outputs,
                const std::vector<std::vector<double>>& weights) {
  double sum = 0;
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (weights[o].empty()) continue;
    const std::vector<double> y = outputs[o].to_vector<double>();
    for (size_t i = 0; i < y.size(); ++i) sum += weights[o][i] * y[i];
  }
  return sum;
}

/// Position in memory, relative to the view, of element i in row-major order.
int64_t offset_of(const Tensor& x, int64_t i) {
  int64_t offset = 0;
  for (int axis = x.rank() - 1; axis >= 0; --axis) {
    offset += i % x.dim(axis) * x.strides()[axis];
    i /= x.dim(axis);
  }
  return offset;
}

/// A copy with the same strides, so that strided inputs are tested as such.
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

}  // namespace

GradcheckResult gradcheck(const Function& f, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options) {
  std::vector<Tensor> x;
  for (const Tensor& input : inputs) {
    if (!input || !is_floating(input.dtype())) {
      x.push_back(input);
      continue;
    }
    if (input.dtype() != DType::f64) {
      fail_with<DTypeError>("gradcheck", "floating inputs must be f64", {{"input", input}});
    }
    require<DeviceError>(input.device() == Device{}, "gradcheck", "inputs must be on the CPU");
    Tensor leaf = copy_of(input);
    set_requires_grad(leaf);
    x.push_back(leaf);
  }

  const std::vector<Tensor> y = f(x);
  std::vector<std::vector<double>> weights;
  std::vector<Tensor> outputs, dy;
  const Generator gen = Generator{options.seed}.fork("gradcheck");
  for (size_t o = 0; o < y.size(); ++o) {
    weights.emplace_back();
    if (!y[o] || !requires_grad(y[o])) continue;
    for (int64_t i = 0; i < y[o].numel(); ++i) {
      weights[o].push_back(2.0 * to_uniform(philox_word(gen.fork(o).key, i)) - 1.0);
    }
    outputs.push_back(y[o]);
    dy.push_back(Tensor::from(weights[o], y[o].shape(), y[o].device()));
  }
  if (!outputs.empty()) backward(outputs, dy);

  GradcheckResult result;
  const NoGrad off;
  for (size_t k = 0; k < x.size(); ++k) {
    if (!x[k] || !requires_grad(x[k])) continue;
    const int64_t n = x[k].numel();
    const Tensor g = grad(x[k]);
    const std::vector<double> analytic =
        g ? g.to_vector<double>() : std::vector<double>(static_cast<size_t>(n), 0.0);
    double largest = 0;
    for (const double a : analytic) largest = std::max(largest, std::abs(a));
    const int64_t every = std::max<int64_t>(1, n / std::max<int64_t>(1, options.max_elements));
    for (int64_t i = 0; i < n; i += every) {
      double& element = x[k].mut().as<double>()[offset_of(x[k], i)];
      const double value = element;
      const double h = options.step * std::max(1.0, std::abs(value));
      element = value + h;
      const double above = element, f_above = weighted(f(x), weights);
      element = value - h;
      const double below = element, f_below = weighted(f(x), weights);
      element = value;
      const double numeric = (f_above - f_below) / (above - below);
      const double tolerance =
          options.absolute + options.relative * std::max(largest, std::abs(numeric));
      const double error = std::abs(numeric - analytic[static_cast<size_t>(i)]) / tolerance;
      ++result.checked;
      if (error <= result.worst) continue;
      result.worst = error;
      if (error <= 1) continue;
      result.ok = false;
      result.message = fmt::format("input {} element {}: analytic {:.12g}, numeric {:.12g}", k, i,
                                   analytic[static_cast<size_t>(i)], numeric);
    }
    for (const double a : analytic) {
      if (std::isfinite(a)) continue;
      result.ok = false;
      result.message = fmt::format("input {}: gradient holds NaN or Inf", k);
    }
  }
  return result;
}

GradcheckResult gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& f,
                          const std::vector<Tensor>& inputs, const GradcheckOptions& options) {
  return gradcheck(
      Function([&f](const std::vector<Tensor>& x) { return std::vector<Tensor>{f(x)}; }), inputs,
      options);
}

}  // namespace longspan
