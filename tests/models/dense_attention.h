#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "autograd/engine.h"
#include "autograd/node.h"
#include "ops/attention/block_attention.h"
#include "tests/harness/model_info.h"

namespace longspan::test {

/// Says whether row i of head h of sample b sees key j.
using Sees = std::function<bool(int64_t b, int64_t h, int64_t i, int64_t j)>;

/// Holds attention outputs and gradients, all [B, H, L, d].
struct AttentionValues {
  std::vector<double> out, dq, dk, dv;
};

/// Computes attention directly from the equations, in f64 with a dense mask.
inline AttentionValues dense_attention(const std::vector<double>& q, const std::vector<double>& k,
                                       const std::vector<double>& v,
                                       const std::vector<double>& dout, const Shape& shape,
                                       const Sees& sees) {
  const int64_t heads = shape[1], length = shape[2], width = shape[3];
  const double scale = 1 / std::sqrt(static_cast<double>(width));
  const std::vector<double> zero(q.size(), 0.0);
  AttentionValues y{zero, zero, zero, zero};
  const auto dot = [width](const double* a, const double* b) {
    double sum = 0;
    for (int64_t c = 0; c < width; ++c) sum += a[c] * b[c];
    return sum;
  };
  for (int64_t part = 0; part < shape[0] * heads; ++part) {
    const int64_t base = part * length * width;
    for (int64_t i = 0; i < length; ++i) {
      const int64_t row = base + i * width;
      std::vector<int64_t> keys;
      std::vector<double> p;
      double total = 0, largest = -1e300;
      for (int64_t j = 0; j < length; ++j) {
        if (!sees(part / heads, part % heads, i, j)) continue;
        keys.push_back(base + j * width);
        p.push_back(scale * dot(&q[row], &k[keys.back()]));
        largest = std::max(largest, p.back());
      }
      for (double& s : p) total += (s = std::exp(s - largest));
      double delta = 0;
      for (size_t n = 0; n < p.size(); ++n) {
        p[n] /= total;
        delta += p[n] * dot(&dout[row], &v[keys[n]]);
      }
      for (size_t n = 0; n < p.size(); ++n) {
        const int64_t key = keys[n];
        const double ds = scale * p[n] * (dot(&dout[row], &v[key]) - delta);
        for (int64_t c = 0; c < width; ++c) {
          y.out[row + c] += p[n] * v[key + c];
          y.dv[key + c] += p[n] * dout[row + c];
          y.dq[row + c] += ds * k[key + c];
          y.dk[key + c] += ds * q[row + c];
        }
      }
    }
  }
  return y;
}

inline std::vector<double> noise(const Shape& shape, uint64_t key) {
  std::vector<double> x(static_cast<size_t>(numel(shape)));
  for (size_t i = 0; i < x.size(); ++i) x[i] = philox_normal(key, static_cast<int64_t>(i));
  return x;
}

/// Compares attention by a pattern with attention under the dense mask, outputs and gradients.
inline void expect_dense(const AttentionPattern& pattern, const Sees& sees, int64_t batch,
                         int64_t heads, int64_t length, const std::string& what) {
  constexpr int64_t width = 5;
  const Shape shape{batch, heads, length, width};
  const std::vector<double> q = noise(shape, 1), k = noise(shape, 2), v = noise(shape, 3),
                            dout = noise(shape, 4);
  Tensor tensors[] = {Tensor::from(q, shape), Tensor::from(k, shape), Tensor::from(v, shape)};
  for (Tensor& x : tensors) set_requires_grad(x);
  const Tensor out = block_attention(tensors[0], tensors[1], tensors[2], pattern).out;
  backward(out, Tensor::from(dout, shape));
  const AttentionValues truth = dense_attention(q, k, v, dout, shape, sees);
  const auto near = [&](const Tensor& x, const std::vector<double>& expected, const char* name) {
    EXPECT_LE(distance(x, Tensor::from(expected, shape)), 1e-12) << what << ": " << name;
  };
  near(out.detach(), truth.out, "out");
  near(grad(tensors[0]), truth.dq, "dq");
  near(grad(tensors[1]), truth.dk, "dk");
  near(grad(tensors[2]), truth.dv, "dv");
}

}  // namespace longspan::test
