#include <cmath>
#include <limits>
#include <vector>

#include "core/parallel.h"
#include "cpu/attention_plan.h"
#include "cpu/register.h"
#include "ops/kernels/lsh_maths.h"

namespace longspan::cpu {
namespace {

using kernels::LshChunk;
using kernels::LshHead;
using kernels::LshInputs;
using kernels::LshKeep;

/// One head, row by row.
template <class T>
struct Rows {
  Rows(const LshInputs& inputs, int64_t b, int64_t h)
      : in(inputs),
        head(kernels::lsh_head(in, b, h)),
        keep(kernels::lsh_keep(in, b * in.q.dim(1) + h)),
        width(in.q.dim(3)),
        value_width(in.v.dim(3)),
        q(static_cast<size_t>(head.length * width)),
        v(static_cast<size_t>(head.length * value_width)),
        inverse(static_cast<size_t>(head.length)) {
    read(head_rows<T>(in.q, b, h, nullptr), q);
    read(head_rows<T>(in.v, b, h, nullptr), v);
    for (int64_t i = 0; i < head.length; ++i) {
      T sum = 0;
      for (int64_t c = 0; c < width; ++c) sum += row(q, width, i)[c] * row(q, width, i)[c];
      inverse[static_cast<size_t>(i)] =
          1 / std::sqrt(sum + static_cast<T>(static_cast<double>(width) * in.rule.epsilon));
    }
  }

  static const T* row(const std::vector<T>& x, int64_t n, int64_t i) { return x.data() + i * n; }
  static void read(const RowSource<T>& from, std::vector<T>& to) {
    std::vector<T> temporary(static_cast<size_t>(from.width));
    for (int64_t i = 0; i * from.width < static_cast<int64_t>(to.size()); ++i) {
      std::copy_n(from.row(i, temporary.data()), from.width, to.data() + i * from.width);
    }
  }
  static T dot(const T* a, const T* b, int64_t n) {
    T sum = 0;
    for (int64_t c = 0; c < n; ++c) sum += a[c] * b[c];
    return sum;
  }

  T score(int64_t i, int64_t j) const {
    if (i == j) return static_cast<T>(in.rule.self);
    return static_cast<T>(in.rule.scale) * dot(row(q, width, i), row(q, width, j), width) *
           inverse[static_cast<size_t>(j)];
  }

  /// f(j, weight, factor) for every meeting of query i with a key that it sees.
  template <class F>
  void keys(int64_t i, F f) const {
    LshChunk c;
    for (int64_t r = 0; r < head.rounds; ++r) {
      for (int64_t slot = 0; slot < head.slots(); ++slot) {
        if (!head.keys_of({r, head.chunk_of(r, i)}, slot, c)) continue;
        for (int64_t p = c.chunk * in.rule.chunk; p < head.chunk_end(c.chunk); ++p) {
          const int64_t j = head.at(c.round, p);
          const double w = head.weight(r, i, c.round, j);
          if (w > 0)
            f(j, static_cast<T>(w), static_cast<T>(keep.factor(head, r, i, c.round, j, slot)));
        }
      }
    }
  }

  const LshInputs& in;
  const LshHead head;
  const LshKeep keep;
  const int64_t width, value_width;
  std::vector<T> q, v, inverse;
};

template <class T>
void forward_head(const LshInputs& in, const View& out, const View& lse, int64_t b, int64_t h) {
  const Rows<T> x(in, b, h);
  const RowSink<T> sink = head_sink<T>(out, b, h, nullptr);
  T* const row_lse = lse.as<T>() + (b * in.q.dim(1) + h) * x.head.length;
  std::vector<T> acc(static_cast<size_t>(x.value_width));
  for (int64_t i = 0; i < x.head.length; ++i) {
    T top = -std::numeric_limits<T>::infinity(), total = 0, kept = 0;
    bool alone = true;
    x.keys(i, [&](int64_t j, T, T) { top = std::max(top, x.score(i, j)); });
    std::fill(acc.begin(), acc.end(), T{0});
    x.keys(i, [&](int64_t j, T weight, T factor) {
      const T p = weight * std::exp(x.score(i, j) - top);
      total += p;
      kept += p * factor;
      alone = alone && i == j;
      for (int64_t c = 0; c < x.value_width; ++c) {
        acc[static_cast<size_t>(c)] += p * factor * x.row(x.v, x.value_width, j)[c];
      }
    });
    for (int64_t c = 0; c < x.value_width; ++c) {
      // A token that sees itself only gets its own value, without a rounding.
      T& sum = acc[static_cast<size_t>(c)];
      sum = alone ? x.row(x.v, x.value_width, i)[c] * (kept / total) : sum / total;
    }
    sink.write(i, acc.data());
    row_lse[i] = top + std::log(total);
  }
}

template <class T>
void backward_head(const LshInputs& in, const ConstView& out, const ConstView& lse,
                   const ConstView& dout, const ConstView& dlse, const View& dq, const View& dv,
                   int64_t b, int64_t h) {
  const Rows<T> x(in, b, h);
  const int64_t n = x.head.length, d = x.width, e = x.value_width;
  std::vector<T> y(static_cast<size_t>(n * e)), dy(y.size()), sums(y.size()), query(x.q.size()),
      key(x.q.size());
  x.read(head_rows<T>(out, b, h, nullptr), y);
  x.read(head_rows<T>(dout, b, h, nullptr), dy);
  const int64_t first = (b * in.q.dim(1) + h) * n;
  for (int64_t i = 0; i < n; ++i) {
    const T* g = x.row(dy, e, i);
    T delta = x.dot(g, x.row(y, e, i), e);
    const T log_sum = lse.as<T>()[first + i];
    const bool alone = x.head.alone(log_sum);
    if (dlse) delta -= dlse.as<T>()[first + i];
    x.keys(i, [&](int64_t j, T weight, T factor) {
      const T p = weight * (i == j && alone ? 1 / static_cast<T>(x.head.self_weight(i))
                                            : std::exp(x.score(i, j) - log_sum));
      for (int64_t c = 0; c < e; ++c) sums[static_cast<size_t>(j * e + c)] += p * factor * g[c];
      if (i == j) return;
      const T ds =
          static_cast<T>(in.rule.scale) * p * (factor * x.dot(g, x.row(x.v, e, j), e) - delta);
      for (int64_t c = 0; c < d; ++c) {
        query[static_cast<size_t>(i * d + c)] +=
            ds * x.row(x.q, d, j)[c] * x.inverse[static_cast<size_t>(j)];
        key[static_cast<size_t>(j * d + c)] += ds * x.row(x.q, d, i)[c];
      }
    });
  }
  const RowSink<T> to_q = head_sink<T>(dq, b, h, nullptr), to_v = head_sink<T>(dv, b, h, nullptr);
  for (int64_t j = 0; j < n; ++j) {
    const T s = x.inverse[static_cast<size_t>(j)];
    const T along = x.dot(x.row(x.q, d, j), x.row(key, d, j), d) * s * s * s;
    T* const to = query.data() + j * d;
    for (int64_t c = 0; c < d; ++c) to[c] += x.row(key, d, j)[c] * s - x.row(x.q, d, j)[c] * along;
    to_q.write(j, to);
    to_v.write(j, x.row(sums, e, j));
  }
}

template <class F>
void for_heads(const LshInputs& in, F f) {
  parallel_for(in.q.dim(0) * in.q.dim(1),
               [&](int64_t bh) { f(bh / in.q.dim(1), bh % in.q.dim(1)); });
}

void forward(const LshInputs& in, View out, View lse) {
  for_heads(in, [&](int64_t b, int64_t h) {
    if (in.q.dtype == DType::f64) {
      forward_head<double>(in, out, lse, b, h);
    } else {
      forward_head<float>(in, out, lse, b, h);
    }
  });
}

void backward(const LshInputs& in, ConstView out, ConstView lse, ConstView dout, ConstView dlse,
              View dq, View dv) {
  for_heads(in, [&](int64_t b, int64_t h) {
    if (in.q.dtype == DType::f64) {
      backward_head<double>(in, out, lse, dout, dlse, dq, dv, b, h);
    } else {
      backward_head<float>(in, out, lse, dout, dlse, dq, dv, b, h);
    }
  });
}

}  // namespace

void register_lsh_attention() {
  kernels::lsh_attention_forward.set(DeviceKind::cpu, forward);
  kernels::lsh_attention_backward.set(DeviceKind::cpu, backward);
}

}  // namespace longspan::cpu
