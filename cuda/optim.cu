#include "core/kernels/optim.h"

#include "core/memory.h"
#include "cuda/columns.cuh"
#include "cuda/register.h"
#include "cuda/rows.cuh"

namespace longspan::cuda {
namespace {

using kernels::AdafactorStep;

// Functors that update one element, with all factors in the parameter's type. The kernel receives
// the ...Update struct beside each and calls its ready() on the device: only then are the device
// scalars known.
template <class T>
struct Sgd {
  T *p, *b;
  const T* g;
  T scale, decay, lr, momentum;
  bool nesterov;
  __device__ void operator()(int64_t i) const {
    T h = decay * p[i] + scale * g[i];
    if (b != nullptr) {
      const T next = momentum * b[i] + h;
      b[i] = next;
      h = nesterov ? momentum * next + h : next;
    }
    p[i] -= lr * h;
  }
};
template <class T>
struct SgdUpdate {
  T *p, *b;
  const T* g;
  kernels::SgdStep s;
  __device__ Sgd<T> ready() const {
    return {p, b, g, T(s.scale), T(s.weight_decay), T(s.lr), T(s.momentum), s.nesterov};
  }
};

template <class T>
struct Adagrad {
  T *p, *sum;
  const T* g;
  T scale, decay, lr, eps;
  __device__ void operator()(int64_t i) const {
    const T h = decay * p[i] + scale * g[i], next = sum[i] + h * h;
    sum[i] = next;
    p[i] -= lr * h / (sqrt(next) + eps);
  }
};
template <class T>
struct AdagradUpdate {
  T *p, *sum;
  const T* g;
  kernels::AdagradStep s;
  __device__ Adagrad<T> ready() const {
    return {p, sum, g, T(s.scale), T(s.weight_decay), T(s.lr), T(s.eps)};
  }
};

template <class T>
struct Adam {
  T *p, *m, *v;
  const T* g;
  T scale, decay, keep, old1, new1, old2, new2, rate, root, eps;
  __device__ void operator()(int64_t i) const {
    const T x = p[i], h = decay * x + scale * g[i];
    const T mean = old1 * m[i] + new1 * h, square = old2 * v[i] + new2 * (h * h);
    m[i] = mean;
    v[i] = square;
    p[i] = keep * x - rate * mean / (sqrt(square) * root + eps);
  }
};
template <class T>
struct AdamUpdate {
  T *p, *m, *v;
  const T* g;
  kernels::AdamStep s;
  __device__ Adam<T> ready() const {
    const double lr = s.lr;
    return {p,
            m,
            v,
            g,
            T(s.scale),
            T(s.decoupled ? 0 : s.weight_decay),
            T(s.decoupled ? 1 - lr * s.weight_decay : 1),
            T(s.beta1),
            T(1 - s.beta1),
            T(s.beta2),
            T(1 - s.beta2),
            T(lr / s.correction1),
            T(1 / sqrt(double{s.correction2})),
            T(s.eps)};
  }
};

template <class U>
__global__ void __launch_bounds__(elementwise_threads) update_kernel(U u, int64_t n) {
  const auto f = u.ready();
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) f(i);
}

template <class U>
void update(const char* name, int64_t n, U u) {
  launch(name, update_kernel<U>, blocks_for(n, elementwise_threads), elementwise_threads, 0, u, n);
}

/// Calls f(TypeTag<T>{}) for a parameter's dtype.
template <class F>
void visit(DType t, F&& f) {
  if (t == DType::f64) {
    f(TypeTag<double>{});
  } else {
    f(TypeTag<float>{});
  }
}

void sgd_update(View p, ConstView g, View b, kernels::SgdStep s) {
  visit(p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    update("sgd_update", p.numel(), SgdUpdate<T>{p.as<T>(), b.as<T>(), g.as<T>(), s});
  });
}

void adagrad_update(View p, ConstView g, View sum, kernels::AdagradStep s) {
  visit(p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    update("adagrad_update", p.numel(), AdagradUpdate<T>{p.as<T>(), sum.as<T>(), g.as<T>(), s});
  });
}

void adam_update(View p, ConstView g, View m, View v, kernels::AdamStep s) {
  visit(p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    update("adam_update", p.numel(), AdamUpdate<T>{p.as<T>(), m.as<T>(), v.as<T>(), g.as<T>(), s});
  });
}

/// sums[piece] = the sum of f(i) over a piece of the n elements, with one block per piece.
template <class F>
__global__ void __launch_bounds__(row_threads)
    pieces_kernel(F f, int64_t n, int64_t length, double* sums) {
  __shared__ double shared[team_numbers];
  const Team<row_threads> team{shared};
  const int64_t first = blockIdx.x * length, end = first + length < n ? first + length : n;
  double sum = 0;
  for (int64_t i = first + team.rank(); i < end; i += row_threads) sum += f(i);
  sum = team.sum(sum);
  if (team.rank() == 0) sums[blockIdx.x] = sum;
}

template <class F>
void sum_pieces(const char* name, int64_t n, int64_t length, double* sums, F f) {
  launch(name, pieces_kernel<F>, dim3(static_cast<unsigned>((n + length - 1) / length)),
         row_threads, 0, f, n, length, sums);
}

template <class T>
struct Square {
  const T* x;
  __device__ double operator()(int64_t i) const {
    const auto v = static_cast<double>(x[i]);
    return v * v;
  }
};

void squared_sums(ConstView x, View sums) {
  visit(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    sum_pieces("squared_sums", x.numel(), kernels::squared_sum_piece, sums.as<double>(),
               Square<T>{x.as<T>()});
  });
}

/// Returns the sum of x to every thread of the block.
__device__ double sum_of(const Team<row_threads>& team, const double* x, int64_t count) {
  double sum = 0;
  for (int64_t i = team.rank(); i < count; i += row_threads) sum += x[i];
  return team.sum(sum);
}

__global__ void __launch_bounds__(row_threads)
    lamb_rate_kernel(const double* p, int64_t p_count, const double* u, int64_t u_count,
                     DeviceScalar<double> lr, double* rate) {
  __shared__ double shared[team_numbers];
  const Team<row_threads> team{shared};
  const double size = sqrt(sum_of(team, p, p_count)), length = sqrt(sum_of(team, u, u_count));
  if (team.rank() == 0) *rate = lr * (size > 0 && length > 0 ? size / length : 1.0);
}

void lamb_rate(ConstView p_sums, ConstView u_sums, DeviceScalar<double> lr, View rate) {
  launch("lamb_rate", lamb_rate_kernel, dim3(1), row_threads, 0, p_sums.as<double>(),
         p_sums.numel(), u_sums.as<double>(), u_sums.numel(), lr, rate.as<double>());
}

__global__ void __launch_bounds__(row_threads)
    adafactor_rate_kernel(const double* p, int64_t count, double n, double least,
                          DeviceScalar<double> lr, double* rate) {
  __shared__ double shared[team_numbers];
  const Team<row_threads> team{shared};
  const double size = sqrt(sum_of(team, p, count)) / sqrt(n);
  if (team.rank() == 0) *rate = lr * (least < size ? size : least);
}

void adafactor_rate(ConstView p_sums, int64_t n, double least, DeviceScalar<double> lr, View rate) {
  launch("adafactor_rate", adafactor_rate_kernel, dim3(1), row_threads, 0, p_sums.as<double>(),
         p_sums.numel(), static_cast<double>(n), least, lr, rate.as<double>());
}

/// *rate = lr, lowered if the root mean square of the update exceeds the limit.
__global__ void __launch_bounds__(row_threads)
    rate_kernel(const double* sums, int64_t count, double n, DeviceScalar<double> lr, double clip,
                double* rate) {
  __shared__ double shared[team_numbers];
  const Team<row_threads> team{shared};
  const double sum = sum_of(team, sums, count);
  if (team.rank() == 0) {
    const double excess = sqrt(sum / n) / clip;
    *rate = double{lr} / (excess > 1 ? excess : 1.0);
  }
}

/// Updates a second moment with one more square.
template <class T>
__device__ void advance(T& moment, double square, const AdafactorStep& s) {
  moment = static_cast<T>(s.beta2 * static_cast<double>(moment) + (1 - s.beta2) * (square + s.eps));
}

/// Updates p and m with the given change and weight decay.
template <class T>
__device__ void apply_update(T& p, T* m, double change, const AdafactorStep& s) {
  if (m != nullptr) {
    *m = static_cast<T>(s.beta1 * static_cast<double>(*m) + (1 - s.beta1) * change);
    change = static_cast<double>(*m);
  }
  const auto x = static_cast<double>(p);
  p = static_cast<T>(x - s.lr * s.weight_decay * x - change);
}

/// The update of a parameter with a full second moment.
template <class T>
struct Whole {
  T *p, *v, *m;
  const T* g;
  const double* rate;
  AdafactorStep s;
  __device__ const Whole& ready() const { return *this; }
  __device__ double change(int64_t i) const {
    return s.scale * static_cast<double>(g[i]) / sqrt(static_cast<double>(v[i]));
  }
  __device__ void operator()(int64_t i) const {
    apply_update(p[i], m != nullptr ? m + i : nullptr, *rate * change(i), s);
  }
};
template <class T>
struct WholeSquare {  // advances the second moment
  Whole<T> w;
  __device__ double operator()(int64_t i) const {
    const double h = w.s.scale * static_cast<double>(w.g[i]);
    advance(w.v[i], h * h, w.s);
    return w.change(i) * w.change(i);
  }
};

/// The update of a parameter [B, R, C] whose second moment is factored into rows and columns.
template <class T>
struct Factored {
  T *p, *row, *column, *m;
  const T* g;
  double *row_factor, *column_factor;
  const double* rate;
  int64_t R, C;
  AdafactorStep s;
  __device__ const Factored& ready() const { return *this; }
  __device__ double change(int64_t i) const {
    const int64_t r = i / C;
    return static_cast<double>(g[i]) * row_factor[r] * column_factor[r / R * C + i % C];
  }
  __device__ void operator()(int64_t i) const {
    apply_update(p[i], m != nullptr ? m + i : nullptr, *rate * change(i), s);
  }
};
template <class T>
struct FactoredSquare {
  Factored<T> f;
  __device__ double operator()(int64_t i) const { return f.change(i) * f.change(i); }
};

/// Updates the row moments.
template <class T>
struct Rows {
  Factored<T> f;
  template <int size>
  __device__ void operator()(int64_t r, const Team<size>& team) const {
    double sum = 0;
    for_row<1>(team, f.C, [&](int64_t j) {
      const auto h = static_cast<double>(f.g[r * f.C + j]);
      sum += h * h;
    });
    const double mean = f.s.scale * f.s.scale * team.sum(sum) / static_cast<double>(f.C);
    if (team.rank() == 0) advance(f.row[r], mean, f.s);
  }
};
/// Computes the row factors of each matrix.
template <class T>
struct RowFactors {
  Factored<T> f;
  template <int size>
  __device__ void operator()(int64_t b, const Team<size>& team) const {
    const T* row = f.row + b * f.R;
    double sum = 0;
    for_row<1>(team, f.R, [&](int64_t i) { sum += static_cast<double>(row[i]); });
    const double mean = team.sum(sum) / static_cast<double>(f.R);
    for_row<1>(team, f.R, [&](int64_t i) {
      f.row_factor[b * f.R + i] = f.s.scale / sqrt(static_cast<double>(row[i]) / mean);
    });
  }
};

/// Updates the moment and computes the factor of each column, with one block per strip of a matrix.
template <class T>
__global__ void __launch_bounds__(strip_threads) columns_kernel(Factored<T> f, unsigned strips) {
  const int64_t b = blockIdx.x / strips, j = strip_column(blockIdx.x % strips);
  const auto add = [&](int64_t i, double(&sum)[1]) {
    const auto h = static_cast<double>(f.g[(b * f.R + i) * f.C + j]);
    sum[0] += h * h;
  };
  sum_columns<double>(j < f.C, int64_t{0}, f.R, add, [&](int, double sum) {
    T& moment = f.column[b * f.C + j];
    advance(moment, f.s.scale * f.s.scale * sum / static_cast<double>(f.R), f.s);
    f.column_factor[b * f.C + j] = 1 / sqrt(static_cast<double>(moment));
  });
}

void adafactor_update(View p, ConstView g, View row, View column, View m, View workspace,
                      AdafactorStep s) {
  constexpr const char* name = "adafactor_update";
  const int64_t n = p.numel();
  if (n == 0) return;
  const Scratch rate(sizeof(double), p.device);
  auto* sums = workspace.as<double>();
  const auto clip = [&](const double* from, int64_t count) {
    launch(name, rate_kernel, dim3(1), row_threads, 0, from, count, static_cast<double>(n), s.lr,
           s.clip, rate.as<double>());
  };
  visit(p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (!column) {
      constexpr int64_t piece = 32768;
      const Whole<T> whole{p.as<T>(), row.as<T>(), m.as<T>(), g.as<T>(), rate.as<double>(), s};
      sum_pieces(name, n, piece, sums, WholeSquare<T>{whole});
      clip(sums, (n + piece - 1) / piece);
      update(name, n, whole);
      return;
    }
    const int64_t R = p.dim(-2), C = p.dim(-1), rows = row.numel();
    double *row_factor = sums, *row_sums = sums + rows, *column_factor = sums + 2 * rows;
    const Factored<T> f{p.as<T>(),  row.as<T>(),   column.as<T>(),    m.as<T>(), g.as<T>(),
                        row_factor, column_factor, rate.as<double>(), R,         C,
                        s};
    for_rows(name, rows, C, Rows<T>{f});
    const unsigned strips = strips_of(C);
    launch(name, columns_kernel<T>, dim3(strips * static_cast<unsigned>(rows / R)), strip_threads,
           0, f, strips);
    for_rows(name, rows / R, R, RowFactors<T>{f});
    sum_pieces(name, n, C, row_sums, FactoredSquare<T>{f});
    clip(row_sums, rows);
    update(name, n, f);
  });
}

}  // namespace

void register_optim() {
  kernels::sgd_update.set(DeviceKind::cuda, sgd_update);
  kernels::adagrad_update.set(DeviceKind::cuda, adagrad_update);
  kernels::adam_update.set(DeviceKind::cuda, adam_update);
  kernels::adafactor_update.set(DeviceKind::cuda, adafactor_update);
  kernels::squared_sums.set(DeviceKind::cuda, squared_sums);
  kernels::lamb_rate.set(DeviceKind::cuda, lamb_rate);
  kernels::adafactor_rate.set(DeviceKind::cuda, adafactor_rate);
}

}  // namespace longspan::cuda
