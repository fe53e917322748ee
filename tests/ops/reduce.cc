#include "ops/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/copy.h"
#include "tests/harness/op_info.h"

namespace longspan::test {
namespace {

/// Scalar arguments of a sample: keepdim, then the axes.
std::vector<int> axes_of(Inputs in) {
  std::vector<int> axes;
  for (size_t i = 1; i < in.numbers(); ++i) axes.push_back(in.integer(i));
  return axes;
}
bool keeps(Inputs in) { return in.integer(0) != 0; }

std::vector<bool> kept_axes(const Arrays& in) {
  const int rank = in[0].shape.rank();
  std::vector<bool> keep(static_cast<size_t>(rank), true);
  for (size_t i = 1; i < in.numbers(); ++i) {
    const int axis = in.integer(i);
    keep[static_cast<size_t>(axis < 0 ? axis + rank : axis)] = false;
  }
  return keep;
}

using Fold = double (*)(const std::vector<double>&);

Array reduce_reference(const Arrays& in, Fold f) {
  return naive::reduce(in[0], kept_axes(in), in.integer(0) != 0, f);
}

double total(const std::vector<double>& v) {
  double s = 0;
  for (const double x : v) s += x;
  return s;
}

const std::vector<Sample> any_axes = {
    {"last", {randn({5, 7})}, {0, 1}},
    {"first", {randn({5, 7})}, {0, 0}},
    {"first, kept", {randn({5, 7})}, {1, 0}},
    {"middle", {randn({3, 4, 5})}, {0, 1}},
    {"outer two", {randn({3, 4, 5})}, {0, 0, 2}},
    {"inner two, kept", {randn({3, 4, 5})}, {1, -1, -2}},
    {"all", {randn({2, 3, 4})}, {0, 0, 1, 2}},
    {"none", {randn({2, 3})}, {0}},
    {"rank 0", {randn({})}, {0}},
    {"one element", {randn({1, 1})}, {0, 0}},
    {"long", {randn({3, 67})}, {0, 1}},
    {"tall", {randn({67, 3})}, {0, 0}},
    {"alternate", {randn({2, 3, 2, 3})}, {0, 1, 3}},
};

const std::vector<Sample> large_axes = {
    {"rows", {randn({300, 257})}, {0, 1}},
    {"columns", {randn({300, 257})}, {0, 0}},
    {"all", {uniform({3, 40000}, 0, 1)}, {0, 0, 1}},
    {"one long row", {uniform({2, 70001}, 0, 1)}, {0, 1}},
};

std::vector<Sample> with_more(std::vector<Sample> list, const std::vector<Sample>& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

const std::vector<Reject> bad_axes = {
    rejects<ShapeError>("no such axis", {randn({2, 3})}, "axis", {0, 2}),
    rejects<ShapeError>("twice", {randn({2, 3})}, "axis 1 is given twice", {0, 1, -1}),
    rejects<DTypeError>("integers", {iota({3})}, "must be floating", {0, 0}),
};

const Registered sum_info = OpInfo{
    .name = "sum",
    .run = [](Inputs in) { return sum(in[0], axes_of(in), keeps(in)); },
    .reference = [](Arrays in) { return reduce_reference(in, total); },
    .samples = with_more(any_axes, {{"empty", {randn({0, 3})}, {0, 0}},
                                    {"empty rows", {randn({0, 3})}, {0, 1}},
                                    {"ones", {full({3, 300}, 1)}, {0, 1}}}),
    .large = large_axes,
    .rejects = bad_axes,
};

const Registered mean_info = OpInfo{
    .name = "mean",
    .run = [](Inputs in) { return mean(in[0], axes_of(in), keeps(in)); },
    .reference =
        [](Arrays in) {
          return reduce_reference(in, [](const std::vector<double>& v) {
            return total(v) / static_cast<double>(v.size());
          });
        },
    .samples = with_more(any_axes, {{"empty", {constant(randn({0, 3}))}, {0, 0}}}),
    // A sum beyond the range of f16.
    .large = with_more(large_axes, {{"sum beyond f16", {full({2, 70001}, 2)}, {0, 1}}}),
    .rejects = bad_axes,
};

const Registered variance_info = OpInfo{
    .name = "variance",
    .run =
        [](Inputs in) {
          if (in.numbers() == 3) {
            return variance(in[0], {in.integer(2)}, keeps(in), in.integer(1));
          }
          return variance(in[0], {in.integer(2), in.integer(3)}, keeps(in), in.integer(1));
        },
    .reference =
        [](Arrays in) {
          const int rank = in[0].shape.rank();
          std::vector<bool> keep(static_cast<size_t>(rank), true);
          for (size_t i = 2; i < in.numbers(); ++i)
            keep[static_cast<size_t>(in.integer(i))] = false;
          return naive::reduce(in[0], keep, in.integer(0) != 0, [&](const std::vector<double>& v) {
            const double m = total(v) / static_cast<double>(v.size());
            double s = 0;
            for (const double x : v) s += (x - m) * (x - m);
            return s / (static_cast<double>(v.size()) - in.number(1));
          });
        },
    .samples = {{"rows", {randn({5, 7})}, {0, 0, 1}},
                {"columns", {randn({5, 7})}, {0, 0, 0}},
                {"corrected", {randn({5, 7})}, {0, 1, 1}},
                {"two axes", {randn({3, 4, 5})}, {0, 0, 0, 2}},
                {"kept", {randn({4, 3})}, {1, 1, 1}},
                {"one", {randn({4, 1})}, {0, 0, 1}},
                {"offset", {randn({4, 9}) + 100.0}, {0, 0, 1}}},
    .large = {{"large", {randn({300, 257})}, {0, 0, 1}}},
    .rejects = {rejects<ValueError>("too few", {randn({3, 1})}, "correction 1 for 1 elements",
                                    {0, 1, 1}),
                rejects<DTypeError>("integers", {iota({3})}, "must be floating", {0, 0, 0})},
    .saved_bytes = [](Inputs in) { return std::vector<int64_t>{in[0].nbytes()}; },
    .tolerance = 4,
    .gradient_tolerance = 8,
    .reason = "f16 and bf16 round the mean and the differences between the steps",
    .expandable = false,  // equal rows have no variance, only rounding errors
};

/// Scalar arguments of a sample: keepdim, axis.
std::vector<Sample> one_axis() {
  return {{"last", {randn({5, 7})}, {0, 1}},         {"first", {randn({5, 7})}, {0, 0}},
          {"kept", {randn({5, 7})}, {1, 1}},         {"middle", {randn({3, 4, 5})}, {0, 1}},
          {"negative", {randn({3, 4, 5})}, {1, -3}}, {"one", {randn({1})}, {0, 0}},
          {"column", {randn({6, 1})}, {0, 1}},       {"long", {randn({2, 67})}, {0, 1}},
          {"deep", {randn({2, 3, 2, 3})}, {0, 2}},   {"no rows", {randn({0, 3})}, {0, 1}}};
}

struct ExtremumCase {
  std::string name;
  bool largest;
  bool values;
  Results<Tensor> (*run)(Inputs);
};

OpInfo extremum(const ExtremumCase& c) {
  const auto place = [largest = c.largest](const std::vector<double>& v) {
    size_t best = 0;
    for (size_t i = 1; i < v.size(); ++i) {
      if (std::isnan(v[best])) break;
      if (std::isnan(v[i]) || (largest ? v[i] > v[best] : v[i] < v[best])) best = i;
    }
    return best;
  };
  OpInfo op{
      .name = c.name,
      .run = c.run,
      .reference =
          [place, values = c.values](Arrays in) {
            const bool keepdim = in.integer(0) != 0;
            const Array index = naive::reduce(
                in[0], kept_axes(in), keepdim,
                [&](const std::vector<double>& v) { return static_cast<double>(place(v)); });
            if (!values) return Results<Array>{index};
            return Results<Array>{
                naive::reduce(in[0], kept_axes(in), keepdim,
                              [&](const std::vector<double>& v) { return v[place(v)]; }),
                index};
          },
      .samples = with_more(one_axis(),
                           {{"ties", {constant(values({2, 4}, {1, 3, 3, 1, 2, 2, 2, 2}))}, {0, 1}},
                            {"NaN", {constant(values({2, 3}, {1, NAN, 5, inf, 2, NAN}))}, {0, 1}},
                            {"integers", {integers({4, 5}, -9, 9)}, {0, 1}}}),
      .large = {{"large", {randn({300, 257})}, {0, 1}}, {"columns", {randn({257, 300})}, {0, 0}}},
      .rejects = {rejects<ShapeError>("empty axis", {randn({3, 0})}, "axis 1 is empty", {0, 1}),
                  rejects<ShapeError>("no such axis", {randn({3})}, "axis", {0, 1})},
      .differentiable = c.values,
  };
  if (c.values) {
    op.saved_bytes = [](Inputs in) {
      const int64_t n = in[0].dim(in.integer(1));
      return std::vector<int64_t>{in[0].numel() / n * 8};
    };
  }
  return op;
}

const Registered extremum_infos[] = {
    extremum({"max", true, true,
              [](Inputs in) {
                const Extremum e = max(in[0], in.integer(1), keeps(in));
                return Results<Tensor>{e.values, e.indices};
              }}),
    extremum({"min", false, true,
              [](Inputs in) {
                const Extremum e = min(in[0], in.integer(1), keeps(in));
                return Results<Tensor>{e.values, e.indices};
              }}),
    extremum({"argmax", true, false,
              [](Inputs in) { return Results<Tensor>(argmax(in[0], in.integer(1), keeps(in))); }}),
    extremum({"argmin", false, false,
              [](Inputs in) { return Results<Tensor>(argmin(in[0], in.integer(1), keeps(in))); }}),
};

const Registered logsumexp_info = OpInfo{
    .name = "logsumexp",
    .run = [](Inputs in) { return logsumexp(in[0], in.integer(1), keeps(in)); },
    .reference =
        [](Arrays in) {
          return reduce_reference(in, [](const std::vector<double>& v) {
            double m = -inf, s = 0;
            for (const double x : v) m = std::max(m, x);
            if (m == -inf) m = 0;
            for (const double x : v) s += x == m ? 1 : std::exp(x - m);
            return m + std::log(s);
          });
        },
    .samples =
        with_more(one_axis(), {{"huge", {1e3 * randn({4, 9})}, {0, 1}},
                               {"empty axis", {constant(randn({3, 0}))}, {0, 1}},
                               {"-inf", {constant(values({2, 2}, {-inf, 1, -inf, -inf}))}, {0, 1}},
                               {"inf", {constant(values({2, 2}, {inf, 0, -inf, inf}))}, {0, 1}},
                               {"two inf", {constant(values({1, 3}, {inf, 1, inf}))}, {0, 1}}}),
    .large = {{"large", {randn({300, 257})}, {0, 1}}},
    .rejects = {rejects<DTypeError>("integers", {iota({3})}, "must be floating", {0, 0})},
    .saved_bytes = [](Inputs in) { return std::vector<int64_t>{in[0].nbytes()}; },
    .offset = {.inputs = {0},
               .moved = {0},
               .samples = {{"rows", {2 * randn({5, 7})}, {0, 1}},
                           {"two equal", {full({1, 2}, 0)}, {0, 1}},
                           {"long", {2 * randn({2, 130})}, {0, 1}}}},
    .nan = {.inputs = {0},
            .axis = [](std::span<const double> numbers) { return static_cast<int>(numbers[1]); }},
};

/// Scalar arguments: the axis.
const Registered cumsum_info = OpInfo{
    .name = "cumsum",
    .run = [](Inputs in) { return cumsum(in[0], in.integer(0)); },
    .reference =
        [](Arrays in) {
          const Array& x = in[0];
          const int rank = x.shape.rank(),
                    axis = in.integer(0) < 0 ? in.integer(0) + rank : in.integer(0);
          int64_t step = 1;
          for (int i = axis + 1; i < rank; ++i) step *= x.shape[i];
          Array y = x;
          for (int64_t i = 0; i < y.size(); ++i) {
            if (i / step % x.shape[axis] != 0) y[i] += y[i - step];
          }
          return y;
        },
    .samples = {{"last", {randn({5, 7})}, {1}},
                {"first", {randn({5, 7})}, {0}},
                {"middle", {randn({3, 4, 5})}, {-2}},
                {"vector", {randn({9})}, {0}},
                {"one", {randn({3, 1})}, {1}},
                {"long", {randn({2, 67})}, {1}},
                {"empty axis", {randn({3, 0})}, {1}},
                {"no rows", {randn({0, 3})}, {1}},
                {"bytes beyond a byte", {as(DType::u8, full({2, 300}, 3))}, {1}},
                {"integers", {integers({4, 5}, -9, 9)}, {0}},
                {"integers beyond 32 bits", {as(DType::i32, full({2, 3}, 2e9))}, {1}}},
    .large = {{"rows", {randn({300, 257})}, {1}}, {"columns", {randn({257, 300})}, {0}}},
    .rejects = {rejects<ShapeError>("no such axis", {randn({3})}, "axis", {1}),
                rejects<ShapeError>("rank 0", {scalar(1)}, "axis", {0}),
                rejects<ValueError>("undefined", {none()}, "undefined", {0})},
};

// Parts of 128 terms are summed: 1,024 additions to the total, each of which rounds by 2^-25 of it
// at most. One running sum would round 128 times as often.
TEST(Reduce, LongColumnsAreSummedInParts) {
  for (const int64_t width : {1, 3, 40}) {
    const int64_t rows = 1 << 17;
    const Tensor x = longspan::full({rows, width}, 0.1);
    const double exact = static_cast<double>(0.1f) * static_cast<double>(rows);
    const std::vector<float> sums = longspan::sum(x, {0}).to_vector<float>();
    for (const float y : sums) EXPECT_NEAR(y, exact, 0x1p-15 * exact) << width;
  }
}

}  // namespace
}  // namespace longspan::test
