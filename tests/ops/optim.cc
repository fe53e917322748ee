#include "ops/optim.h"

#include <cmath>

#include "ops/copy.h"
#include "tests/harness/op_info.h"

namespace longspan::test {
namespace {

// Each entry updates copies and returns the parameter and the states after one step.

InputSpec fixed(const Shape& shape) { return constant(randn(shape)); }
/// A second moment.
InputSpec positives(const Shape& shape) { return constant(uniform(shape, 0.1, 2.0)); }

/// Returns a copy to update. On an unavailable device it returns x itself, because nothing is
/// written there.
Tensor own(const Tensor& x) { return is_available(x.device()) ? clone(x) : x; }

/// Calls f(i) for every element of p.
template <class F>
void each(const Array& p, F&& f) {
  for (int64_t i = 0; i < p.size(); ++i) f(i);
}

/// Returns samples with p, g and `states` second moments (or means).
std::vector<Sample> step_samples(int states, std::vector<std::vector<double>> numbers) {
  std::vector<Sample> samples;
  for (size_t k = 0; k < numbers.size(); ++k) {
    for (const Shape& shape : {Shape{5, 7}, Shape{}, Shape{0, 3}, Shape{1}, Shape{2, 3, 17}}) {
      Sample sample{"step " + std::to_string(k) + " " + to_string(shape),
                    {fixed(shape), fixed(shape)},
                    numbers[k]};
      for (int i = 0; i < states; ++i) sample.inputs.push_back(positives(shape));
      samples.push_back(sample);
    }
  }
  return samples;
}

std::vector<Reject> rejects_of(int states) {
  const auto with = [&](InputSpec p, InputSpec g, InputSpec state) {
    std::vector<InputSpec> inputs{std::move(p), std::move(g)};
    for (int i = 0; i < states; ++i) inputs.push_back(state);
    return inputs;
  };
  const InputSpec x = fixed({3, 4});
  std::vector<Reject> all = {
      rejects<DTypeError>("half parameter",
                          with(as(DType::f16, x), as(DType::f16, x), as(DType::f16, x)),
                          "f32 or f64", {}),
      rejects<DTypeError>("integers", with(iota({3}), iota({3}), iota({3})), "f32 or f64"),
      rejects<DTypeError>("gradient of another dtype",
                          with(as(DType::f32, x), as(DType::f64, x), as(DType::f32, x)),
                          "dtypes differ"),
      rejects<ShapeError>("gradient of another shape", with(x, fixed({4, 3}), x),
                          "g must have shape [3, 4]"),
      rejects<ShapeError>("no gradient", with(x, none(), x), "g must have shape"),
      rejects<ShapeError>("state of another shape", with(x, x, fixed({12})),
                          "must have shape [3, 4]"),
  };
  return all;
}

const SgdStep sgd_step(double momentum, bool nesterov) {
  return {
      .lr = 0.1, .momentum = momentum, .weight_decay = 0.01, .scale = 0.5, .nesterov = nesterov};
}

/// Scalar arguments: momentum, nesterov.
const OpInfo sgd_info = {
    .name = "sgd_update",
    .run = [](Inputs in) -> Results<Tensor> {
      const Tensor p = own(in[0]), b = in[2] ? own(in[2]) : Tensor();
      if (in.numbers() == 0) {
        sgd_update(p, in[1], b, {});
        return p;
      }
      sgd_update(p, in[1], b, sgd_step(in.number(0), in.integer(1) != 0));
      return b ? Results<Tensor>{p, b} : Results<Tensor>(p);
    },
    .reference = [](Arrays in) -> Results<Array> {
      Array p = in[0], b = in[2];
      const bool nesterov = in.integer(1) != 0;
      const double momentum = in.number(0);
      each(p, [&](int64_t i) {
        double h = 0.5 * in[1][i] + 0.01 * p[i];
        if (b) {
          b[i] = momentum * b[i] + h;
          h = nesterov ? h + momentum * b[i] : b[i];
        }
        p[i] -= 0.1 * h;
      });
      return b ? Results<Array>{p, b} : Results<Array>(p);
    },
    .samples =
        [] {
          std::vector<Sample> all = step_samples(1, {{0.9, 0}, {0.9, 1}, {0, 0}});
          all.push_back({"plain", {fixed({3, 5}), fixed({3, 5}), none()}, {0, 0}});
          return all;
        }(),
    .large = {{"large", {fixed({401, 251}), fixed({401, 251}), fixed({401, 251})}, {0.9, 1}}},
    .rejects = rejects_of(1),
    .dtypes = {DType::f64, DType::f32},
    .differentiable = false,
    .expandable = false,
};
const Registered sgd_entry = sgd_info;

const OpInfo adagrad_info = {
    .name = "adagrad_update",
    .run = [](Inputs in) -> Results<Tensor> {
      const Tensor p = own(in[0]), s = own(in[2]);
      adagrad_update(p, in[1], s, {.lr = 0.1, .eps = 1e-6, .weight_decay = 0.01, .scale = 2});
      return {p, s};
    },
    .reference = [](Arrays in) -> Results<Array> {
      Array p = in[0], s = in[2];
      each(p, [&](int64_t i) {
        const double h = 2 * in[1][i] + 0.01 * p[i];
        s[i] += h * h;
        p[i] -= 0.1 * h / (std::sqrt(s[i]) + 1e-6);
      });
      return {p, s};
    },
    .samples = step_samples(1, {{}}),
    .large = {{"large", {fixed({401, 251}), fixed({401, 251}), positives({401, 251})}}},
    .rejects = rejects_of(1),
    .dtypes = {DType::f64, DType::f32},
    .differentiable = false,
    .expandable = false,
};
const Registered adagrad_entry = adagrad_info;

AdamStep adam_step(double decay, bool decoupled) {
  return {.lr = 0.05,
          .beta1 = 0.9,
          .beta2 = 0.98,
          .eps = 1e-6,
          .weight_decay = decay,
          .correction1 = 0.19,
          .correction2 = 0.0396,
          .scale = 0.25,
          .decoupled = decoupled};
}

/// Scalar arguments: weight decay, decoupled.
const OpInfo adam_info = {
    .name = "adam_update",
    .run = [](Inputs in) -> Results<Tensor> {
      const Tensor p = own(in[0]), m = own(in[2]), v = own(in[3]);
      const bool plain = in.numbers() == 0;
      adam_update(p, in[1], m, v, plain ? AdamStep{} : adam_step(in.number(0), in.integer(1) != 0));
      return {p, m, v};
    },
    .reference = [](Arrays in) -> Results<Array> {
      Array p = in[0], m = in[2], v = in[3];
      const bool decoupled = in.integer(1) != 0;
      each(p, [&](int64_t i) {
        double h = 0.25 * in[1][i];
        if (decoupled) {
          p[i] -= 0.05 * in.number(0) * p[i];
        } else {
          h += in.number(0) * p[i];
        }
        m[i] = 0.9 * m[i] + 0.1 * h;
        v[i] = 0.98 * v[i] + 0.02 * h * h;
        p[i] -= 0.05 * (m[i] / 0.19) / (std::sqrt(v[i] / 0.0396) + 1e-6);
      });
      return {p, m, v};
    },
    .samples = step_samples(2, {{0, 0}, {0.1, 0}, {0.1, 1}}),
    .large = {{"large",
               {fixed({401, 251}), fixed({401, 251}), fixed({401, 251}), positives({401, 251})},
               {0.1, 1}}},
    .rejects = rejects_of(2),
    .dtypes = {DType::f64, DType::f32},
    .differentiable = false,
    .expandable = false,
};
const Registered adam_entry = adam_info;

const AdafactorStep adafactor_step = {.lr = 0.05,
                                      .beta1 = 0.9,
                                      .beta2 = 0.8,
                                      .eps = 1e-4,
                                      .clip = 0.5,
                                      .weight_decay = 0.1,
                                      .scale = 2};

/// Applies an update u, not yet clipped, to p and m.
void finish_adafactor(Array& p, Array& m, Array u) {
  double sum = 0;
  for (const double x : u.values) sum += x * x;
  const double rms = std::sqrt(sum / static_cast<double>(std::max<int64_t>(u.size(), 1)));
  each(p, [&](int64_t i) {
    double change = 0.05 * u[i] / std::max(1.0, rms / 0.5);
    if (m) change = m[i] = 0.9 * m[i] + 0.1 * change;
    p[i] = p[i] - 0.05 * 0.1 * p[i] - change;
  });
}

/// Inputs: p, g, row, column, m.
const OpInfo adafactor_info = {
    .name = "adafactor_update",
    .run = [](Inputs in) -> Results<Tensor> {
      const Tensor p = own(in[0]), row = own(in[2]);
      const Tensor column = in[3] ? own(in[3]) : Tensor(), m = in[4] ? own(in[4]) : Tensor();
      adafactor_update(p, in[1], row, column, m, adafactor_step);
      std::vector<Tensor> all{p, row};
      if (column) all.push_back(column);
      if (m) all.push_back(m);
      return all;
    },
    .reference = [](Arrays in) -> Results<Array> {
      Array p = in[0], row = in[2], column = in[3], m = in[4], u = p;
      const auto h = [&](int64_t i) { return 2 * in[1][i]; };
      if (p.size() == 0) return {p, row, column};
      if (column) {
        const int64_t R = p.dim(-2), C = p.dim(-1), B = row.size() / R;
        for (int64_t b = 0; b < B; ++b) {
          const auto q = [&](int64_t r, int64_t c) {
            const double x = h((b * R + r) * C + c);
            return x * x + 1e-4;
          };
          double mean = 0;
          for (int64_t r = 0; r < R; ++r) {
            double sum = 0;
            for (int64_t c = 0; c < C; ++c) sum += q(r, c);
            row[b * R + r] = 0.8 * row[b * R + r] + 0.2 * sum / static_cast<double>(C);
            mean += row[b * R + r] / static_cast<double>(R);
          }
          for (int64_t c = 0; c < C; ++c) {
            double sum = 0;
            for (int64_t r = 0; r < R; ++r) sum += q(r, c);
            column[b * C + c] = 0.8 * column[b * C + c] + 0.2 * sum / static_cast<double>(R);
          }
          for (int64_t r = 0; r < R; ++r) {
            for (int64_t c = 0; c < C; ++c) {
              const int64_t i = (b * R + r) * C + c;
              u[i] = h(i) / std::sqrt(row[b * R + r] * column[b * C + c] / mean);
            }
          }
        }
      } else {
        each(p, [&](int64_t i) {
          row[i] = 0.8 * row[i] + 0.2 * (h(i) * h(i) + 1e-4);
          u[i] = h(i) / std::sqrt(row[i]);
        });
      }
      finish_adafactor(p, m, u);
      std::vector<Array> all{p, row};
      if (column) all.push_back(column);
      if (m) all.push_back(m);
      return all;
    },
    .samples =
        {
            {"matrix",
             {fixed({5, 7}), fixed({5, 7}), positives({5}), positives({7}), fixed({5, 7})}},
            {"no first moment",
             {fixed({5, 7}), fixed({5, 7}), positives({5}), positives({7}), none()}},
            {"batch",
             {fixed({2, 3, 65}), fixed({2, 3, 65}), positives({2, 3}), positives({2, 65}), none()}},
            {"one row", {fixed({1, 9}), fixed({1, 9}), positives({1}), positives({9}), none()}},
            {"one column", {fixed({9, 1}), fixed({9, 1}), positives({9}), positives({1}), none()}},
            {"vector", {fixed({9}), fixed({9}), positives({9}), none(), fixed({9})}},
            {"whole matrix", {fixed({3, 3}), fixed({3, 3}), positives({3, 3}), none(), none()}},
            {"empty", {fixed({0, 3}), fixed({0, 3}), positives({0}), positives({3}), none()}},
        },
    .large = {{"large",
               {fixed({401, 251}), fixed({401, 251}), positives({401}), positives({251}),
                fixed({401, 251})}},
              {"large vector",
               {fixed({100'003}), fixed({100'003}), positives({100'003}), none(), none()}},
              {"many matrices",
               {fixed({70'000, 2, 1}), fixed({70'000, 2, 1}), positives({70'000, 2}),
                positives({70'000, 1}), none()}}},
    .rejects =
        {
            rejects<ShapeError>(
                "row of another shape",
                {fixed({3, 4}), fixed({3, 4}), positives({4}), positives({4}), none()},
                "row must have shape [3]"),
            rejects<ShapeError>(
                "column of another shape",
                {fixed({3, 4}), fixed({3, 4}), positives({3}), positives({3}), none()},
                "column must have shape [4]"),
            rejects<ShapeError>("factors of a vector",
                                {fixed({3}), fixed({3}), positives({3}), positives({3}), none()},
                                "rank 2"),
            rejects<ShapeError>("moment of another shape",
                                {fixed({3}), fixed({3}), positives({3}), none(), fixed({4})},
                                "m must have shape [3]"),
            rejects<DTypeError>("half parameter",
                                {as(DType::f16, fixed({3})), as(DType::f16, fixed({3})),
                                 as(DType::f16, positives({3})), none(), none()},
                                "f32 or f64"),
        },
    .dtypes = {DType::f64, DType::f32},
    .differentiable = false,
    .optional = {3},  // without column, row is as large as p
    .expandable = false,
};
const Registered adafactor_entry = adafactor_info;

double norm_of(const Array& x) {
  double sum = 0;
  for (const double value : x.values) sum += value * value;
  return std::sqrt(sum);
}

const OpInfo lamb_rate_info = {
    .name = "lamb_rate",
    .run = [](Inputs in) -> Results<Tensor> {
      return cast(lamb_rate(in[0], in[1], 0.25), in[0].dtype());
    },
    .reference = [](Arrays in) -> Results<Array> {
      const double size = norm_of(in[0]), length = norm_of(in[1]);
      return Array({1}, 0.25 * (size > 0 && length > 0 ? size / length : 1));
    },
    .samples = {{"matrices", {fixed({5, 7}), 0.1 * fixed({5, 7})}},
                {"of a parameter of zeros", {0 * fixed({4}), fixed({4})}},
                {"of an update of zeros", {fixed({4}), 0 * fixed({4})}},
                {"empty", {fixed({0}), fixed({0})}}},
    .large = {{"large", {fixed({401, 251}), positives({401, 251})}}},
    .rejects = {rejects<DTypeError>("integers", {iota({3}), fixed({3})}, "f32 or f64"),
                rejects<DTypeError>("undefined", {fixed({3}), none()}, "f32 or f64")},
    .dtypes = {DType::f64, DType::f32},
    .differentiable = false,
    .expandable = false,
};
const Registered lamb_rate_entry = lamb_rate_info;

const OpInfo adafactor_rate_info = {
    .name = "adafactor_rate",
    .run = [](Inputs in) -> Results<Tensor> {
      return cast(adafactor_rate(in[0], 1e-3, 0.25), in[0].dtype());
    },
    .reference = [](Arrays in) -> Results<Array> {
      const double n = static_cast<double>(std::max<int64_t>(in[0].size(), 1));
      return Array({1}, 0.25 * std::max(1e-3, norm_of(in[0]) / std::sqrt(n)));
    },
    .samples = {{"matrix", {fixed({5, 7})}},
                {"small numbers", {1e-5 * fixed({5, 7})}},
                {"scalar", {fixed({})}},
                {"empty", {fixed({0, 2})}}},
    .large = {{"large", {fixed({401, 251})}}},
    .rejects = {rejects<DTypeError>("integers", {iota({3})}, "f32 or f64")},
    .dtypes = {DType::f64, DType::f32},
    .differentiable = false,
    .expandable = false,
};
const Registered adafactor_rate_entry = adafactor_rate_info;

const OpInfo clipped_rate_info = {
    .name = "clipped_rate",
    .run = [](Inputs in) -> Results<Tensor> {
      return cast(clipped_rate(in[0], 0.3, 2, 0.25), in[0].dtype());
    },
    .reference = [](Arrays in) -> Results<Array> {
      return Array({1}, 0.25 * std::min(1.0, 0.3 / std::max(2 * norm_of(in[0]), 1e-300)));
    },
    .samples = {{"matrix", {fixed({5, 7})}},
                {"small numbers", {1e-3 * fixed({5, 7})}},
                {"zeros", {0 * fixed({5})}},
                {"scalar", {fixed({})}},
                {"empty", {fixed({0, 2})}}},
    .large = {{"large", {fixed({401, 251})}}},
    .rejects = {rejects<DTypeError>("integers", {iota({3})}, "f32 or f64")},
    .dtypes = {DType::f64, DType::f32},
    .differentiable = false,
    .expandable = false,
};
const Registered clipped_rate_entry = clipped_rate_info;

const OpInfo norm_info = {
    .name = "global_norm",
    .run = [](Inputs in) -> Results<Tensor> { return Tensor::scalar(global_norm(in.all())); },
    .reference = [](Arrays in) -> Results<Array> {
      double sum = 0;
      for (const Array& x : in.all()) sum += norm_of(x) * norm_of(x);
      return Array({}, std::sqrt(sum));
    },
    .samples = {{"one", {fixed({5, 7})}},
                {"several", {fixed({5, 7}), fixed({}), fixed({0, 2}), fixed({33})}},
                {"huge", {1e30 * fixed({3, 3})}},
                {"none", {}}},
    .large = {{"large", {fixed({401, 251}), fixed({40'000})}}},
    .rejects = {rejects<DTypeError>("integers", {iota({3})}, "f32 or f64"),
                rejects<DTypeError>("half", {as(DType::f16, fixed({3}))}, "f32 or f64"),
                rejects<DTypeError>("undefined", {none()}, "f32 or f64")},
    .dtypes = {DType::f64, DType::f32},
    .differentiable = false,
    .unrecorded = true,
    .many_devices = true,
    .expandable = false,
};
const Registered norm_entry = norm_info;

}  // namespace
}  // namespace longspan::test
