#include "ops/pool.h"

#include <cmath>

#include "tests/ops/picking.h"

namespace longspan::test {
namespace {

/// Scalar arguments of a sample: size, stride, dilation, before, after, and for conv1d groups.
template <class T>
PoolWindow window_of(const Arguments<T>& in) {
  return {in.integer(0), in.integer(1), in.integer(2), in.integer(3), in.integer(4)};
}

/// Returns the indices of the inputs of window t that are in [0, L).
std::vector<int64_t> inputs_of(const PoolWindow& w, int64_t t, int64_t L) {
  std::vector<int64_t> list;
  for (int64_t k = 0; k < w.size; ++k) {
    const int64_t l = t * w.stride + k * w.dilation - w.before;
    if (l >= 0 && l < L) list.push_back(l);
  }
  return list;
}

int64_t windows_of(const PoolWindow& w, int64_t L) {
  int64_t T = 0;
  while ((T * w.stride) + (w.size - 1) * w.dilation < L + w.before + w.after) ++T;
  return T;
}

Array pooled(const Arrays& in, double (*combine)(const std::vector<double>&)) {
  const PoolWindow w = window_of(in);
  const Array& x = in[0];
  const int rank = x.shape.rank();
  const auto axis = static_cast<size_t>(rank - 2);
  Shape shape = x.shape;
  shape[rank - 2] = windows_of(w, x.dim(-2));
  Array y(shape);
  for (int64_t i = 0; i < y.size(); ++i) {
    Place p = place_of(shape, i);
    std::vector<double> seen;
    for (const int64_t l : inputs_of(w, p[axis], x.dim(-2))) {
      Place from = p;
      from[axis] = l;
      seen.push_back(x[index_of(x.shape, from)]);
    }
    y[i] = combine(seen);
  }
  return y;
}

const std::vector<Sample> pool_windows = {
    {"compression", {randn({2, 12, 5})}, {3, 3, 1, 0, 0}},
    {"overlapping", {randn({2, 11, 3})}, {4, 2, 1, 0, 0}},
    {"dilated", {randn({1, 13, 2})}, {3, 1, 4, 0, 0}},
    {"beyond the ends", {randn({2, 5, 3})}, {3, 1, 1, 2, 1}},
    {"dilated beyond", {randn({5, 2})}, {3, 2, 2, 3, 3}},
    {"one each", {randn({4, 3})}, {1, 1, 1, 0, 0}},
    {"gaps", {randn({9, 3})}, {1, 4, 1, 0, 0}},
    {"all", {randn({2, 2, 7, 3})}, {7, 1, 1, 0, 0}},
    {"wide", {randn({6, 131})}, {2, 2, 1, 0, 0}},
    {"no samples", {randn({0, 6, 3})}, {2, 2, 1, 0, 0}},
};
const std::vector<Sample> large_pool = {{"large", {randn({3, 301, 130})}, {5, 2, 3, 4, 4}}};
const std::vector<Reject> pool_rejects = {
    rejects<ShapeError>("too short", {randn({2, 3})}, "no window fits: 2 inputs", {5, 1, 1, 1, 0}),
    rejects<ShapeError>("no window", {randn({0, 3})}, "no window fits", {1, 1, 1, 0, 0}),
    rejects<ShapeError>("outside", {randn({2, 3})}, "window 0 lies wholly outside the 2 inputs",
                        {2, 1, 1, 3, 0}),
    rejects<ShapeError>("between taps", {randn({2, 3})}, "lies wholly outside", {2, 1, 4, 2, 3}),
    rejects<ValueError>("stride of 0", {randn({5, 3})}, "stride 0", {2, 0, 1, 0, 0}),
    rejects<ValueError>("negative reach", {randn({5, 3})}, "reaching -1 before", {2, 1, 1, -1, 0}),
    rejects<ShapeError>("rank 1", {randn({5})}, "rank 2 or more", {2, 1, 1, 0, 0}),
    rejects<DTypeError>("integers", {iota({5, 3})}, "floating", {2, 1, 1, 0, 0}),
};

const Registered mean_pool_info = OpInfo{
    .name = "mean_pool",
    .run = [](Inputs in) { return mean_pool(in[0], window_of(in)); },
    .reference =
        [](Arrays in) {
          return pooled(in, [](const std::vector<double>& v) {
            double sum = 0;
            for (const double x : v) sum += x;
            return sum / static_cast<double>(v.size());
          });
        },
    .samples = pool_windows,
    .large = large_pool,
    .rejects = pool_rejects,
    .row_inputs = {0},
};

OpInfo max_pool_entry() {
  OpInfo op = {
      .name = "max_pool",
      .run = [](Inputs in) { return max_pool(in[0], window_of(in)); },
      .reference =
          [](Arrays in) {
            return pooled(in, [](const std::vector<double>& v) {
              double best = v[0];
              for (const double x : v) best = std::isnan(best) || x <= best ? best : x;
              return best;
            });
          },
      .samples = pool_windows,
      .large = large_pool,
      .rejects = pool_rejects,
      .saved_bytes =
          [](Inputs in) {
            const int64_t L = in[0].dim(-2), T = window_of(in).outputs(L);
            return std::vector<int64_t>{in[0].numel() / L * T * (in.integer(0) > 256 ? 4 : 1)};
          },
      .row_inputs = {0},
  };
  op.samples.push_back(
      {"not numbers", {constant(values({4, 1}, {1, NAN, 3, -INFINITY}))}, {2, 1, 1, 1, 1}});
  op.samples.push_back({"many taps", {randn({300, 2})}, {280, 3, 1, 0, 0}});
  return op;
}
const Registered max_pool_info = max_pool_entry();

OpInfo conv_entry() {
  OpInfo op = {
      .name = "conv1d",
      .run = [](Inputs in) { return conv1d(in[0], in[1], in[2], window_of(in), in.integer(5)); },
      .reference =
          [](Arrays in) {
            PoolWindow w = window_of(in);
            const Array &x = in[0], &weight = in[1], &bias = in[2];
            w.size = weight.dim(1);
            const int rank = x.shape.rank();
            const int64_t L = x.dim(-2), D = x.dim(-1), O = weight.dim(0), C = weight.dim(2);
            Shape shape = x.shape;
            shape[rank - 2] = windows_of(w, L);
            shape[rank - 1] = O;
            Array y(shape);
            for (int64_t i = 0; i < y.size(); ++i) {
              const int64_t o = i % O, t = i / O % shape[rank - 2], b = i / O / shape[rank - 2];
              y[i] = bias ? bias[o] : 0;
              const int64_t group = o / (O / in.integer(5));
              for (int64_t k = 0; k < w.size; ++k) {
                const int64_t l = t * w.stride + k * w.dilation - w.before;
                if (l < 0 || l >= L) continue;
                for (int64_t c = 0; c < C; ++c) {
                  y[i] += x[(b * L + l) * D + group * C + c] * weight[(o * w.size + k) * C + c];
                }
              }
            }
            return y;
          },
      .samples =
          {{"plain", {randn({2, 7, 3}), randn({4, 3, 3}), randn({4})}, {0, 1, 1, 0, 0, 1}},
           {"causal", {randn({2, 6, 3}), randn({5, 3, 3}), none()}, {0, 1, 1, 2, 0, 1}},
           {"compression", {randn({2, 9, 4}), randn({4, 3, 4}), randn({4})}, {0, 3, 1, 0, 0, 1}},
           {"dilated", {randn({1, 11, 2}), randn({3, 3, 2}), randn({3})}, {0, 2, 3, 3, 4, 1}},
           {"groups", {randn({2, 6, 6}), randn({4, 2, 3}), randn({4})}, {0, 1, 1, 1, 0, 2}},
           {"depthwise", {randn({2, 7, 5}), randn({5, 3, 1}), randn({5})}, {0, 1, 1, 1, 1, 5}},
           {"depthwise strided", {randn({9, 70}), randn({70, 3, 1}), none()}, {0, 2, 2, 3, 0, 70}},
           {"multiplied", {randn({5, 3}), randn({6, 2, 1}), none()}, {0, 1, 1, 0, 0, 3}},
           {"one tap", {randn({2, 2, 3, 4}), randn({2, 1, 4}), randn({2})}, {0, 1, 1, 0, 0, 1}},
           {"only bias reaches", {randn({1, 2}), randn({3, 2, 2}), randn({3})}, {0, 1, 3, 5, 5, 1}},
           {"no samples", {randn({0, 5, 3}), randn({4, 3, 3}), randn({4})}, {0, 1, 1, 0, 0, 1}},
           {"no channels", {randn({5, 0}), randn({4, 3, 0}), randn({4})}, {0, 1, 1, 0, 0, 1}}},
      .large = {{"large",
                 {randn({3, 150, 33}), randn({40, 3, 33}), randn({40})},
                 {0, 1, 2, 4, 0, 1}},
                {"large depthwise",
                 {randn({3, 301, 70}), randn({70, 4, 1}), randn({70})},
                 {0, 1, 1, 3, 0, 70}}},
      .rejects = {rejects<ShapeError>("channels", {randn({5, 3}), randn({4, 2, 2}), none()},
                                      "need a weight [4, size, 3]", {0, 1, 1, 0, 0, 1}),
                  rejects<ShapeError>("groups", {randn({5, 3}), randn({4, 2, 3}), none()},
                                      "2 groups of 3 channels", {0, 1, 1, 0, 0, 2}),
                  rejects<ShapeError>("bias", {randn({5, 3}), randn({4, 2, 3}), randn({3})},
                                      "bias must have shape [4]", {0, 1, 1, 0, 0, 1}),
                  rejects<ShapeError>("too short", {randn({2, 3}), randn({4, 3, 3}), none()},
                                      "no window fits", {0, 1, 1, 0, 0, 1}),
                  rejects<ShapeError>("rank of the weight", {randn({2, 3}), randn({4, 3}), none()},
                                      "weight must have rank 3", {0, 1, 1, 0, 0, 1}),
                  rejects<DTypeError>("dtypes",
                                      {randn({5, 3}), as(DType::f64, randn({4, 2, 3})), none()},
                                      "dtypes differ: f32 and f64", {0, 1, 1, 0, 0, 1})},
      .saved_bytes =
          [](Inputs in) {
            return std::vector<int64_t>{in[0].nbytes(), in[1].nbytes()};
          },
      .row_inputs = {0},
      .tolerance = 2,
      .gradient_tolerance = 4,
      .reason = "sums of up to 900 products",
      .expandable = false,
  };
  return op;
}
const Registered conv_info = conv_entry();

}  // namespace
}  // namespace longspan::test
