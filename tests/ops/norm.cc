#include "ops/norm.h"

#include <cmath>

#include "tests/harness/op_info.h"

namespace longspan::test {
namespace {

Array normalized(const Arrays& in, bool center) {
  Array y = naive::rows(in[0], [&](std::vector<double>& row) {
    const auto n = static_cast<double>(row.size());
    double mean = 0, squares = 0;
    for (const double x : row) mean += center ? x / n : 0;
    for (const double x : row) squares += (x - mean) * (x - mean) / n;
    for (double& x : row) x = (x - mean) / std::sqrt(squares + in.number(0));
  });
  const int64_t n = y.dim(-1);
  for (int64_t i = 0; i < y.size(); ++i) {
    if (in[1]) y[i] *= in[1][i % n];
    if (center && in[2]) y[i] += in[2][i % n];
  }
  return y;
}

int64_t statistics(Inputs in) {
  const int64_t n = in[0].dim(-1);
  return n > 0 ? in[0].numel() / n * (in[0].dtype() == DType::f64 ? 8 : 4) : 0;
}

std::vector<Sample> norm_samples(bool bias) {
  std::vector<Sample> list;
  const auto add = [&](const std::string& name, const InputSpec& x, double eps = 1e-5) {
    const int64_t n = x.shape.back();
    std::vector<InputSpec> affine = {x, randn({n}) + 1.0}, plain = {x, none()},
                           fixed = {x, constant(randn({n}))};
    if (bias) {
      affine.push_back(randn({n}));
      plain.push_back(none());
      fixed.push_back(randn({n}));
    }
    list.push_back({name, affine, {eps}});
    list.push_back({name + ", plain", plain, {eps}});
    list.push_back({name + ", fixed weight", fixed, {eps}});
  };
  add("rows", randn({5, 7}));
  add("vector", randn({9}));
  add("deep", randn({2, 3, 2, 5}));
  add("vector and a bit", randn({3, 17}));
  add("two vectors and a bit", randn({2, 37}), 1e-12);
  add("offset", randn({4, 16}) + 3.0);
  add("large eps", randn({4, 6}), 0.5);
  add("empty", randn({0, 3}));
  return list;
}

std::vector<Sample> large_norm_samples(bool bias) {
  std::vector<Sample> list = {{"large", {randn({300, 257}), randn({257})}, {1e-5}},
                              {"long rows", {randn({11, 5000}), randn({5000})}, {1e-5}},
                              {"many rows", {randn({5000, 9}), randn({9})}, {1e-5}}};
  if (bias) {
    for (Sample& s : list) s.inputs.push_back(randn(s.inputs[1].shape));
  }
  return list;
}

OpInfo norm(const std::string& name, bool center) {
  OpInfo op{
      .name = name,
      .run =
          [center](Inputs in) {
            if (center) return layer_norm(in[0], in[1], in[2], in.number(0));
            return rms_norm(in[0], in[1], in.number(0));
          },
      .reference = [center](Arrays in) { return normalized(in, center); },
      .samples = norm_samples(center),
      .large = large_norm_samples(center),
      .saved_bytes =
          [center](Inputs in) {
            std::vector<int64_t> bytes = {in[0].nbytes(), statistics(in)};
            if (in[1]) bytes.push_back(in[1].nbytes());
            if (center) bytes.push_back(statistics(in));
            return bytes;
          },
      .row_inputs = {0},
      .nan = {.inputs = {0}},
  };
  const auto reject = [&](auto error, const std::string& what, const InputSpec& x,
                          const InputSpec& w, const std::string& message, double eps = 1e-5) {
    std::vector<InputSpec> inputs = {x, w};
    if (center) inputs.push_back(none());
    op.rejects.push_back(rejects<typename decltype(error)::type>(what, inputs, message, {eps}));
  };
  reject(TypeTag<ShapeError>{}, "rank 0", scalar(1), none(), "rank 1");
  reject(TypeTag<DTypeError>{}, "integers", iota({3}), none(), "must be floating");
  reject(TypeTag<ShapeError>{}, "weight", randn({2, 3}), randn({2}), "weight must have shape [3]");
  reject(TypeTag<DTypeError>{}, "weight's dtype", randn({2, 3}), as(DType::f64, randn({3})),
         "dtypes differ");
  reject(TypeTag<ValueError>{}, "eps", randn({2, 3}), none(), "eps is -1", -1);
  return op;
}

const Registered infos[] = {norm("layer_norm", true), norm("rms_norm", false)};

}  // namespace
}  // namespace longspan::test
