#include "tests/harness/naive.h"

#include <algorithm>

namespace longspan::test::naive {

Array map(const Array& x, const std::function<double(double)>& f) {
  Array y = x;
  for (double& v : y.values) v = f(v);
  return y;
}

Shape broadcast(const Shape& a, const Shape& b) {
  Shape shape = Shape::filled(std::max(a.rank(), b.rank()), 1);
  for (int i = 1; i <= shape.rank(); ++i) {
    const int64_t da = i <= a.rank() ? a[a.rank() - i] : 1,
                  db = i <= b.rank() ? b[b.rank() - i] : 1;
    shape[shape.rank() - i] = da == 1 ? db : da;
  }
  return shape;
}

Array expand(const Array& x, const Shape& shape) {
  Array y(shape);
  for (int64_t i = 0; i < y.size(); ++i) {
    int64_t rest = i, from = 0, step = 1;
    for (int k = 1; k <= shape.rank(); ++k) {
      const int64_t index = rest % shape[shape.rank() - k];
      rest /= shape[shape.rank() - k];
      if (k > x.shape.rank()) continue;
      const int64_t d = x.shape[x.shape.rank() - k];
      if (d != 1) from += index * step;
      step *= d;
    }
    y[i] = x[from];
  }
  return y;
}

Array zip(const Array& a, const Array& b, const std::function<double(double, double)>& f) {
  const Shape shape = broadcast(a.shape, b.shape);
  Array y = expand(a, shape);
  const Array c = expand(b, shape);
  for (int64_t i = 0; i < y.size(); ++i) y[i] = f(y[i], c[i]);
  return y;
}

Array reduce(const Array& x, const std::vector<bool>& keep, bool keepdim,
             const std::function<double(const std::vector<double>&)>& f) {
  Shape kept, full = x.shape;
  for (int i = 0; i < x.shape.rank(); ++i) {
    const bool k = keep[static_cast<size_t>(i)];
    if (!k) full[i] = 1;
    if (k || keepdim) kept.push_back(k ? x.shape[i] : 1);
  }
  std::vector<std::vector<double>> groups(static_cast<size_t>(numel(kept)));
  for (int64_t i = 0; i < x.size(); ++i) {
    int64_t rest = i, to = 0, step = 1;
    for (int k = x.shape.rank() - 1; k >= 0; --k) {
      if (keep[static_cast<size_t>(k)]) {
        to += rest % x.shape[k] * step;
        step *= x.shape[k];
      }
      rest /= x.shape[k];
    }
    groups[static_cast<size_t>(to)].push_back(x[i]);
  }
  Array y(kept);
  for (int64_t i = 0; i < y.size(); ++i) y[i] = f(groups[static_cast<size_t>(i)]);
  return y;
}

Array rows(Array x, const std::function<void(std::vector<double>&)>& f) {
  const int64_t n = x.dim(-1);
  for (int64_t r = 0; n > 0 && r < x.size() / n; ++r) {
    std::vector<double> row(x.values.begin() + r * n, x.values.begin() + (r + 1) * n);
    f(row);
    std::copy(row.begin(), row.end(), x.values.begin() + r * n);
  }
  return x;
}

Array matmul(const Array& a, const Array& b) {
  const int64_t m = a.dim(-2), k = a.dim(-1), n = b.dim(-1);
  Shape shape = a.shape;
  shape[shape.rank() - 1] = n;
  Array y(shape);
  const int64_t batch = m * n > 0 ? y.size() / (m * n) : 0;
  for (int64_t t = 0; t < batch; ++t) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t l = 0; l < k; ++l) sum += a[(t * m + i) * k + l] * b[(t * k + l) * n + j];
        y[(t * m + i) * n + j] = sum;
      }
    }
  }
  return y;
}

Array transpose(const Array& x) {
  const int64_t m = x.dim(-2), n = x.dim(-1);
  Shape shape = x.shape;
  std::swap(shape[shape.rank() - 2], shape[shape.rank() - 1]);
  Array y(shape);
  for (int64_t i = 0; i < x.size(); ++i) {
    const int64_t t = i / (m * n), r = i / n % m, c = i % n;
    y[t * m * n + c * m + r] = x[i];
  }
  return y;
}

}  // namespace longspan::test::naive
