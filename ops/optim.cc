#include "ops/optim.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/divide.h"
#include "core/error.h"
#include "core/kernels/copy.h"
#include "ops/copy.h"

namespace longspan {
namespace {

void require_f32_or_f64(std::string_view op, Named x) {
  if (x.tensor && (x.tensor.dtype() == DType::f32 || x.tensor.dtype() == DType::f64)) return;
  fail_with<DTypeError>(op, "parameters, gradients and states are f32 or f64", {x});
}

/// Checks a gradient or state against the parameter.
void require_like(std::string_view op, Named p, Named x, const Shape& shape) {
  if (!x.tensor || x.tensor.shape() != shape) {
    fail_with<ShapeError>(op, fmt::format("{} must have shape {}", x.name, to_string(shape)),
                          {p, x});
  }
  require_same_dtype(op, p, x);
  require_same_device(op, p, x);
}

void require_state(std::string_view op, Named p, Named x, const Shape& shape) {
  require_like(op, p, x, shape);
  if (!x.tensor.contiguous()) fail_with<ValueError>(op, "a state must be contiguous", {x});
}

void require_parameter(std::string_view op, const Tensor& p, const Tensor& g) {
  require_f32_or_f64(op, {"p", p});
  if (!p.contiguous()) fail_with<ValueError>(op, "the parameter must be contiguous", {{"p", p}});
  require_like(op, {"p", p}, {"g", g}, p.shape());
}

View writable(Tensor& x) { return x ? x.mut() : View{}; }

constexpr int64_t aligned = 8;  // alignment of tensors in a workspace, in elements

int64_t pieces_of(const Tensor& x) {
  return (x.numel() + kernels::squared_sum_piece - 1) / kernels::squared_sum_piece;
}

/// Allocates tensors one after another from a workspace, or separately if there is none.
class Numbers {
 public:
  Numbers(const Tensor& workspace, Device device) : workspace_(workspace), device_(device) {}
  Tensor take(int64_t count) {
    if (!workspace_) return Tensor::empty({count}, DType::f64, device_, Category::workspace);
    require(used_ + count <= workspace_.numel(), "workspace", "{} numbers, of which {} are taken",
            workspace_.numel(), used_);
    const int64_t at = std::exchange(used_, round_up(used_ + count, aligned));
    return workspace_.alias({count}, {1}, at);
  }

 private:
  const Tensor& workspace_;
  Device device_;
  int64_t used_ = 0;
};

/// Returns the sums of squares of pieces of x, f64.
Tensor squares(const Tensor& x, Tensor sums) {
  if (x.numel() > 0) {
    kernels::squared_sums(x.device(), contiguous(x.detach()).view(), sums.mut());
  }
  return sums;
}
Tensor squares(const Tensor& x) {
  return squares(x, Tensor::empty({pieces_of(x)}, DType::f64, x.device(), Category::workspace));
}

}  // namespace

void sgd_update(Tensor p, const Tensor& g, Tensor b, const SgdStep& step) {
  require_parameter("sgd_update", p, g);
  if (b) require_state("sgd_update", {"p", p}, {"b", b}, p.shape());
  if (p.numel() == 0) return;
  kernels::sgd_update(p.device(), p.mut(), contiguous(g.detach()).view(), writable(b), step);
}

void adagrad_update(Tensor p, const Tensor& g, Tensor s, const AdagradStep& step) {
  require_parameter("adagrad_update", p, g);
  require_state("adagrad_update", {"p", p}, {"s", s}, p.shape());
  if (p.numel() == 0) return;
  kernels::adagrad_update(p.device(), p.mut(), contiguous(g.detach()).view(), s.mut(), step);
}

void adam_update(Tensor p, const Tensor& g, Tensor m, Tensor v, const AdamStep& step) {
  require_parameter("adam_update", p, g);
  require_state("adam_update", {"p", p}, {"m", m}, p.shape());
  require_state("adam_update", {"p", p}, {"v", v}, p.shape());
  if (p.numel() == 0) return;
  kernels::adam_update(p.device(), p.mut(), contiguous(g.detach()).view(), m.mut(), v.mut(), step);
}

int64_t adafactor_numbers(const Tensor& p) {
  if (p.rank() < 2) return kernels::adafactor_workspace(p.numel(), 0, 0);
  const int64_t C = std::max<int64_t>(p.dim(-1), 1), R = std::max<int64_t>(p.dim(-2), 1);
  return kernels::adafactor_workspace(p.numel(), p.numel() / C, p.numel() / R);
}

void adafactor_update(Tensor p, const Tensor& g, Tensor row, Tensor column, Tensor m,
                      const AdafactorStep& step, Tensor workspace) {
  constexpr std::string_view op = "adafactor_update";
  require_parameter(op, p, g);
  if (column) {
    require_rank(op, p, 2, "p");
    Shape rows = p.shape(), columns = p.shape();
    rows.erase(p.rank() - 1);
    columns.erase(p.rank() - 2);
    require_state(op, {"p", p}, {"row", row}, rows);
    require_state(op, {"p", p}, {"column", column}, columns);
  } else {
    require_state(op, {"p", p}, {"row", row}, p.shape());
  }
  if (m) require_state(op, {"p", p}, {"m", m}, p.shape());
  if (p.numel() == 0) return;
  const int64_t numbers =
      kernels::adafactor_workspace(p.numel(), row.numel(), column ? column.numel() : 0);
  workspace = Numbers(workspace, p.device()).take(numbers);
  kernels::adafactor_update(p.device(), p.mut(), contiguous(g.detach()).view(), row.mut(),
                            writable(column), writable(m), workspace.mut(), step);
}

int64_t lamb_rate_numbers(const Tensor& p) { return aligned + 2 * round_up(pieces_of(p), aligned); }

Tensor lamb_rate(const Tensor& p, const Tensor& u, DeviceScalar<double> lr,
                 const Tensor& workspace) {
  require_f32_or_f64("lamb_rate", {"p", p});
  require_f32_or_f64("lamb_rate", {"u", u});
  require_same_device("lamb_rate", {"p", p}, {"u", u});
  Numbers numbers(workspace, p.device());
  Tensor rate = numbers.take(1);
  const Tensor p_sums = squares(p, numbers.take(pieces_of(p)));
  const Tensor u_sums = squares(u, numbers.take(pieces_of(u)));
  kernels::lamb_rate(p.device(), p_sums.view(), u_sums.view(), lr, rate.mut());
  return rate;
}

int64_t adafactor_rate_numbers(const Tensor& p) {
  return aligned + round_up(pieces_of(p), aligned);
}

Tensor adafactor_rate(const Tensor& p, double least, DeviceScalar<double> lr,
                      const Tensor& workspace) {
  require_f32_or_f64("adafactor_rate", {"p", p});
  Numbers numbers(workspace, p.device());
  Tensor rate = numbers.take(1);
  const Tensor sums = squares(p, numbers.take(pieces_of(p)));
  kernels::adafactor_rate(p.device(), sums.view(), p.numel(), least, lr, rate.mut());
  return rate;
}

int64_t clipped_rate_numbers(const Tensor& g) {
  return 6 * aligned + round_up(pieces_of(g), aligned);
}

Tensor clipped_rate(const Tensor& g, double most, DeviceScalar<double> scale,
                    DeviceScalar<double> lr, const Tensor& workspace) {
  require_f32_or_f64("clipped_rate", {"g", g});
  const Device device = g.device();
  Numbers numbers(workspace, device);
  Tensor rate = numbers.take(1), limit = numbers.take(1), size = numbers.take(1),
         larger = numbers.take(1);
  // min(1, most / |g|) = most / max(most, |g|), both divided by sqrt(n).
  const int64_t n = std::max<int64_t>(g.numel(), 1);
  const double least = most / std::sqrt(static_cast<double>(n));
  kernels::fill(device, limit.mut(), least);
  const Tensor sums = squares(g, numbers.take(pieces_of(g)));
  kernels::adafactor_rate(device, sums.view(), n, 0, scale, size.mut());
  const Tensor size_square = squares(size, numbers.take(1));
  kernels::adafactor_rate(device, size_square.view(), 1, least, 1, larger.mut());
  const Tensor limit_square = squares(limit, numbers.take(1));
  kernels::squared_sums(device, larger.view(), size.mut());
  kernels::lamb_rate(device, limit_square.view(), size.view(), lr, rate.mut());
  return rate;
}

DeviceScalar<double> live_number(const Tensor& x) {
  require(x.dtype() == DType::f64 && x.numel() == 1, "live_number", "expected one number, f64");
  return {0, x.view().as<double>()};
}

std::vector<double> squared_sums(const Tensor& x) {
  require_f32_or_f64("global_norm", {"x", x});
  return squares(x).to_vector<double>();
}

double global_norm(std::span<const Tensor> x) {
  double sum = 0;
  for (const Tensor& t : x) {
    for (const double part : squared_sums(t)) sum += part;
  }
  return std::sqrt(sum);
}

}  // namespace longspan
