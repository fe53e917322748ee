#include "ops/copy.h"

#include <cmath>

#include "tests/ops/picking.h"

namespace longspan::test {
namespace {

const std::vector<Sample> copy_samples = {
    {"rows", {randn({5, 7})}}, {"rank 0", {randn({})}},         {"empty", {randn({0, 3})}},
    {"one", {randn({1, 1})}},  {"deep", {randn({2, 3, 2, 5})}}, {"long", {randn({130})}},
};
const std::vector<Sample> big = {{"large", {randn({400, 301})}}};

const auto first_input = [](Arrays in) { return in[0]; };

const OpInfo clone_info_ = {
    .name = "clone",
    .run = [](Inputs in) { return clone(in[0]); },
    .reference = first_input,
    .samples = copy_samples,
    .large = big,
    .row_inputs = {0},
};
const Registered clone_entry = clone_info_, clone_integers = on_integers(clone_info_);

const Registered contiguous_info = OpInfo{
    .name = "contiguous",
    .run = [](Inputs in) { return contiguous(in[0]); },
    .reference = first_input,
    .samples = copy_samples,
    .large = big,
};

/// Casts to a floating type; the result is cast to f64, so that it can be compared exactly.
OpInfo cast_to(DType to) {
  return {
      .name = "cast to " + std::string(name_of(to)),
      .run = [to](Inputs in) { return cast(cast(in[0], to), DType::f64); },
      .reference =
          [to](Arrays in) { return naive::map(in[0], [to](double x) { return rounded(x, to); }); },
      .samples = {{"rows", {randn({5, 7})}},
                  {"rank 0", {randn({})}},
                  {"empty", {randn({0, 3})}},
                  {"wide", {1000.0 * randn({3, 33})}},
                  {"tiny", {1e-7 * randn({3, 33})}},
                  {"special",
                   {constant(values({6}, {INFINITY, -INFINITY, NAN, 0.0, -0.0, 65520.0}))}}},
      .large = big,
      .row_inputs = {0},
      // Long steps average over the rounding of the cast; the tolerance covers what remains of it.
      .gradcheck = {.step = 0.5,
                    .relative = to == DType::bf16  ? 0.02
                                : to == DType::f16 ? 0.003
                                                   : 1e-6},
  };
}
const Registered cast_f64 = cast_to(DType::f64), cast_f32 = cast_to(DType::f32),
                 cast_f16 = cast_to(DType::f16), cast_bf16 = cast_to(DType::bf16);

OpInfo cast_integers_to(DType to) {
  OpInfo op = {
      .name = "integers to " + std::string(name_of(to)),
      .run = [to](Inputs in) { return cast(cast(in[0], to), DType::f64); },
      .reference =
          [to](Arrays in) {
            return naive::map(
                in[0], [to](double x) { return is_floating(to) ? rounded(x, to) : std::trunc(x); });
          },
      .samples = {{"small", {ids({5, 7}, 120)}},
                  {"empty", {as(DType::i32, ids({0}, 5))}},
                  {"bytes", {as(DType::u8, ids({3, 50}, 256))}},
                  {"truncated", {constant(as(DType::f32, uniform({3, 20}, 0.0, 90.0)))}}},
      .large = {{"large", {ids({300, 301}, 250)}}},
      .dtypes = {DType::f32},
      .differentiable = false,
  };
  return op;
}
const Registered to_i64 = cast_integers_to(DType::i64), to_i32 = cast_integers_to(DType::i32),
                 to_u8 = cast_integers_to(DType::u8), to_f32 = cast_integers_to(DType::f32),
                 to_bf16 = cast_integers_to(DType::bf16);

const Registered to_device_info = OpInfo{
    .name = "to_device",
    .run = [](Inputs in) { return to_device(to_device(in[0], best_device()), Device{}); },
    .reference = first_input,
    .samples = copy_samples,
    .large = big,
    .rejects = {rejects<DeviceError>("no such device", {randn({2})}, "is not available", {},
                                     [](Inputs in) {
                                       to_device(in[0], {DeviceKind::cpu, 1});
                                     })},
    .unrecorded = true,
};

Array concatenated(const Arrays& in, int axis) {
  Shape shape = in[0].shape;
  axis = axis < 0 ? axis + shape.rank() : axis;
  shape[axis] = 0;
  for (size_t i = 0; i < in.size(); ++i) shape[axis] += in[i].dim(axis);
  Array y(shape);
  for (int64_t i = 0; i < y.size(); ++i) {
    Place p = place_of(shape, i);
    int64_t& at = p[static_cast<size_t>(axis)];
    size_t which = 0;
    while (at >= in[which].dim(axis)) at -= in[which++].dim(axis);
    y[i] = in[which][index_of(in[which].shape, p)];
  }
  return y;
}

const OpInfo concat_info_ = {
    .name = "concat",
    .run = [](Inputs in) { return concat(in.all(), in.integer(0)); },
    .reference = [](Arrays in) { return concatenated(in, in.integer(0)); },
    .samples = {{"rows", {randn({2, 3}), randn({4, 3})}, {0}},
                {"columns", {randn({3, 2}), randn({3, 1}), randn({3, 5})}, {-1}},
                {"middle", {randn({2, 1, 3}), randn({2, 4, 3})}, {1}},
                {"with an empty one", {randn({2, 3}), randn({0, 3}), randn({1, 3})}, {0}},
                {"one", {randn({2, 3})}, {0}},
                {"of nothing", {randn({0, 3}), randn({0, 3})}, {0}}},
    .large = {{"large", {randn({300, 100}), randn({300, 201})}, {1}}},
    .rejects = {rejects<ShapeError>("other sizes", {randn({2, 3}), randn({2, 4})},
                                    "shapes must agree except in axis 0", {0}),
                rejects<ShapeError>("other rank", {randn({2, 3}), randn({2})}, "shapes must agree",
                                    {0}),
                rejects<DTypeError>("other dtype", {randn({2, 3}), iota({2, 3})}, "dtypes differ",
                                    {0}),
                rejects<ValueError>("nothing", {}, "no tensors", {0}),
                rejects<ValueError>("undefined", {randn({2}), none()}, "undefined", {0})},
    .row_inputs = {},
};
const Registered concat_entry = concat_info_, concat_integers = on_integers(concat_info_);

const Registered stack_info = OpInfo{
    .name = "stack",
    .run = [](Inputs in) { return stack(in.all(), in.integer(0)); },
    .reference =
        [](Arrays in) {
          const int rank = in[0].shape.rank() + 1;
          const int axis = (in.integer(0) + rank) % rank;
          Shape shape = in[0].shape;
          shape.insert(axis, static_cast<int64_t>(in.size()));
          Array y(shape);
          for (int64_t i = 0; i < y.size(); ++i) {
            Place p = place_of(shape, i);
            const auto which = static_cast<size_t>(p[static_cast<size_t>(axis)]);
            p.erase(p.begin() + axis);
            y[i] = in[which][index_of(in[which].shape, p)];
          }
          return y;
        },
    .samples = {{"front", {randn({2, 3}), randn({2, 3})}, {0}},
                {"end", {randn({2, 3}), randn({2, 3}), randn({2, 3})}, {-1}},
                {"rank 0", {randn({}), randn({})}, {0}},
                {"empty", {randn({0, 3}), randn({0, 3})}, {1}}},
    .large = {{"large", {randn({200, 301}), randn({200, 301})}, {1}}},
    .rejects = {rejects<ShapeError>("other shape", {randn({2, 3}), randn({3, 2})}, "shapes differ",
                                    {0}),
                rejects<ValueError>("nothing", {}, "no tensors", {0})},
};

const OpInfo pad_info_ = {
    .name = "pad",
    .run =
        [](Inputs in) {
          return pad(in[0], in.integer(0), in.integer(1), in.integer(2), in.number(3));
        },
    .reference =
        [](Arrays in) {
          const int rank = in[0].shape.rank();
          const int axis = (in.integer(0) + rank) % rank;
          const int64_t before = in.integer(1), n = in[0].dim(axis);
          Shape shape = in[0].shape;
          shape[axis] += before + in.integer(2);
          return pick(
              in[0], shape,
              [=](Place p) {
                int64_t& at = p[static_cast<size_t>(axis)];
                at -= before;
                return at >= 0 && at < n ? p : Place(p.size() + 1);
              },
              in.number(3));
        },
    .samples = {{"both ends", {randn({2, 5})}, {1, 2, 3, 0}},
                {"front rows", {randn({3, 2})}, {0, 1, 0, 2}},
                {"nothing", {randn({3, 2})}, {0, 0, 0, 1}},
                {"around nothing", {randn({0, 2})}, {0, 1, 1, 7}},
                {"middle", {randn({2, 3, 2})}, {-2, 0, 2, 0}}},
    .large = {{"large", {randn({200, 301})}, {0, 5, 7, 0}}},
    .rejects = {rejects<ValueError>("negative", {randn({3})}, "use narrow", {0, -1, 0, 0})},
};
const Registered pad_entry = pad_info_, pad_integers = on_integers(pad_info_);

const OpInfo flip_info_ = {
    .name = "flip",
    .run = [](Inputs in) { return flip(in[0], in.integer(0)); },
    .reference =
        [](Arrays in) {
          const auto a = static_cast<size_t>(in.integer(0));
          const int64_t n = in[0].dim(in.integer(0));
          return pick(in[0], in[0].shape, [=](Place p) {
            p[a] = n - 1 - p[a];
            return p;
          });
        },
    .samples = {{"rows", {randn({4, 3})}, {0}},
                {"columns", {randn({4, 3})}, {1}},
                {"one", {randn({1, 3})}, {0}},
                {"empty", {randn({0, 3})}, {0}}},
    .large = {{"large", {randn({200, 301})}, {1}}},
    .rejects = {rejects<ShapeError>("no such axis", {randn({3})}, "axis 1", {1})},
};
const Registered flip_entry = flip_info_, flip_integers = on_integers(flip_info_);

const Registered repeat_info = OpInfo{
    .name = "repeat",
    .run = [](Inputs in) { return repeat(in[0], in.integer(0), in.integer(1)); },
    .reference =
        [](Arrays in) {
          const auto a = static_cast<size_t>(in.integer(0));
          const int64_t n = in[0].dim(in.integer(0));
          Shape shape = in[0].shape;
          shape[in.integer(0)] *= in.integer(1);
          return pick(in[0], shape, [=](Place p) {
            p[a] %= n;
            return p;
          });
        },
    .samples = {{"rows", {randn({2, 3})}, {0, 3}},
                {"columns", {randn({2, 3})}, {1, 2}},
                {"never", {randn({2, 3})}, {0, 0}},
                {"once", {randn({2, 3})}, {0, 1}}},
    .large = {{"large", {randn({200, 151})}, {1, 2}}},
    .rejects = {rejects<ValueError>("negative", {randn({3})}, "-1 times", {0, -1})},
};

// Constants take their dtype and shape from the sample's input.
const Registered full_info = OpInfo{
    .name = "full",
    .run =
        [](Inputs in) {
          const Tensor& x = in[0];
          return Results<Tensor>{full(x.shape(), 2.5, x.dtype()),
                                 zeros(x.shape(), x.dtype()),
                                 ones(x.shape(), x.dtype()),
                                 full_like(x, -1.0),
                                 zeros_like(x),
                                 ones_like(x)};
        },
    .reference =
        [](Arrays in) {
          const Shape& s = in[0].shape;
          return Results<Array>{Array(s, 2.5),  Array(s, 0.0), Array(s, 1.0),
                                Array(s, -1.0), Array(s, 0.0), Array(s, 1.0)};
        },
    .samples = copy_samples,
    .large = big,
    .rejects = {rejects<ShapeError>("negative size", {}, "negative size", {},
                                    [](Inputs) {
                                      longspan::full({2, -1}, 0.0);
                                    })},
    .differentiable = false,
};

const Registered arange_info = OpInfo{
    .name = "arange",
    .run =
        [](Inputs in) {
          return Results<Tensor>{arange(in.number(0), in.number(1), in.number(2), in[0].dtype()),
                                 arange(in.number(0), in.number(1), in.number(2))};
        },
    .reference =
        [](Arrays in) {
          std::vector<double> y, whole;
          for (int i = 0;; ++i) {
            const double v = in.number(0) + i * in.number(2);
            if (in.number(2) > 0 ? v >= in.number(1) : v <= in.number(1)) break;
            y.push_back(v);
            whole.push_back(std::trunc(v));
          }
          const Shape shape = {static_cast<int64_t>(y.size())};
          return Results<Array>{Array(shape, y), Array(shape, whole)};
        },
    .samples = {{"up", {scalar(0)}, {0, 5, 1}},
                {"by halves", {scalar(0)}, {-1, 2.25, 0.5}},
                {"down", {scalar(0)}, {3, -2, -2}},
                {"nothing", {scalar(0)}, {3, 3, 1}}},
    .large = {{"large", {scalar(0)}, {0, 40000, 1}}},
    .rejects = {rejects<ValueError>("step of 0", {scalar(0)}, "from 0 to 5 by 0", {0, 5, 0}),
                rejects<ValueError>("away", {scalar(0)}, "from 0 to 5 by -1", {0, 5, -1}),
                rejects<ValueError>("endless", {scalar(0)}, "from 0 to inf", {0, INFINITY, 1})},
    .dtypes = {DType::f64, DType::f32},
    .differentiable = false,
};

}  // namespace
}  // namespace longspan::test
