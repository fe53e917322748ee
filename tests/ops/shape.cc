#include "ops/shape.h"

#include <gtest/gtest.h>

#include "ops/copy.h"
#include "tests/ops/picking.h"

namespace longspan::test {
namespace {

Array reshaped(const Array& x, const Shape& wanted) {
  Shape shape = wanted;
  int64_t known = 1;
  for (const int64_t n : shape) known *= n < 0 ? 1 : n;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] < 0) shape[i] = x.size() / known;
  }
  return {shape, x.values};
}

Shape swapped(Shape shape, int a, int b) {
  std::swap(shape[a], shape[b]);
  return shape;
}

const OpInfo reshape_info = {
    .name = "reshape",
    .run = [](Inputs in) { return reshape(in[0], shape_from(in)); },
    .reference = [](Arrays in) { return reshaped(in[0], shape_from(in)); },
    .samples = {{"merge", {randn({2, 3, 5})}, {6, 5}},
                {"cut", {randn({6, 5})}, {2, 3, 5}},
                {"inferred", {randn({6, 4})}, {3, -1}},
                {"across", {randn({6, 4})}, {8, 3}},
                {"rank 0", {randn({1, 1})}, {}},
                {"from rank 0", {randn({})}, {1, 1, 1}},
                {"empty", {randn({0, 3})}, {5, 0}},
                {"the same", {randn({3, 2})}, {3, 2}},
                {"flat", {randn({3, 5, 2})}, {-1}}},
    .large = {{"large", {randn({3, 64, 301})}, {-1, 43, 7}}},
    .rejects = {rejects<ShapeError>("too few", {randn({6})}, "6 elements do not fit [5]", {5}),
                rejects<ShapeError>("two unknown", {randn({6})}, "one may be -1", {-1, -1}),
                rejects<ShapeError>("does not divide", {randn({6})}, "cannot infer -1", {4, -1}),
                rejects<ShapeError>("infer from nothing", {randn({0})}, "cannot infer -1", {0, -1}),
                rejects<ShapeError>("negative", {randn({6})}, "sizes must be 0 or more", {-6})},
};
const Registered reshape_entry = reshape_info, reshape_integers = on_integers(reshape_info);

const Registered flatten_info = OpInfo{
    .name = "flatten",
    .run = [](Inputs in) { return flatten(in[0], in.integer(0), in.integer(1)); },
    .reference =
        [](Arrays in) {
          Shape shape;
          const int last = in.integer(1) < 0 ? in.integer(1) + in[0].shape.rank() : in.integer(1);
          for (int i = 0; i < in[0].shape.rank(); ++i) {
            if (i > in.integer(0) && i <= last) {
              shape[shape.rank() - 1] *= in[0].dim(i);
            } else {
              shape.push_back(in[0].dim(i));
            }
          }
          return Array(shape, in[0].values);
        },
    .samples = {{"middle", {randn({2, 3, 5, 2})}, {1, 2}},
                {"all", {randn({2, 3, 5})}, {0, -1}},
                {"one axis", {randn({2, 3})}, {1, 1}}},
    .large = {{"large", {randn({20, 30, 70})}, {0, 1}}},
    .rejects = {rejects<ShapeError>("backwards", {randn({2, 3})}, "axes 1 to 0", {1, 0}),
                rejects<ShapeError>("no such axis", {randn({2, 3})}, "axis 2", {0, 2})},
};

const Registered unflatten_info = OpInfo{
    .name = "unflatten",
    .run = [](Inputs in) { return unflatten(in[0], in.integer(0), in.integer(1), in.integer(2)); },
    .reference =
        [](Arrays in) {
          Shape shape = in[0].shape;
          const int a = in.integer(0) < 0 ? in.integer(0) + shape.rank() : in.integer(0);
          int64_t outer = in.integer(1), inner = in.integer(2);
          if (outer < 0) outer = shape[a] / inner;
          if (inner < 0) inner = shape[a] / outer;
          shape[a] = inner;
          shape.insert(a, outer);
          return Array(shape, in[0].values);
        },
    .samples = {{"heads", {randn({2, 3, 12})}, {-1, 4, -1}},
                {"front", {randn({6, 2})}, {0, -1, 3}}},
    .large = {{"large", {randn({300, 256})}, {-1, 4, 64}}},
    .rejects = {rejects<ShapeError>("does not divide", {randn({7})}, "is not 2 x 3", {0, 2, -1})},
};

const OpInfo transpose_info_ = {
    .name = "transpose",
    .run = [](Inputs in) { return transpose(in[0], in.integer(0), in.integer(1)); },
    .reference =
        [](Arrays in) {
          const int rank = in[0].shape.rank();
          const int a = (in.integer(0) + rank) % rank, b = (in.integer(1) + rank) % rank;
          return pick(in[0], swapped(in[0].shape, a, b), [a, b](Place p) {
            std::swap(p[static_cast<size_t>(a)], p[static_cast<size_t>(b)]);
            return p;
          });
        },
    .samples = {{"matrix", {randn({3, 5})}, {0, 1}},
                {"outer", {randn({2, 3, 5})}, {0, -1}},
                {"the same axis", {randn({2, 3})}, {1, -1}},
                {"empty", {randn({0, 3})}, {0, 1}},
                {"ones", {randn({1, 1, 4})}, {0, 2}}},
    .large = {{"large", {randn({211, 301})}, {0, 1}}},
    .rejects = {rejects<ShapeError>("no such axis", {randn({2, 3})}, "axis 2 of a tensor of rank 2",
                                    {0, 2}),
                rejects<ShapeError>("rank 0", {scalar(1)}, "axis 0 of a tensor of rank 0", {0, 0})},
};
const Registered transpose_entry = transpose_info_,
                 transpose_integers = on_integers(transpose_info_);

std::vector<int> axis_order(const Inputs& in) {
  std::vector<int> order;
  for (size_t i = 0; i < in.numbers(); ++i) order.push_back(in.integer(i));
  return order;
}

const Registered permute_info = OpInfo{
    .name = "permute",
    .run = [](Inputs in) { return permute(in[0], axis_order(in)); },
    .reference =
        [](Arrays in) {
          const int rank = in[0].shape.rank();
          std::vector<int> order;
          Shape shape;
          for (int i = 0; i < rank; ++i) {
            order.push_back((in.integer(static_cast<size_t>(i)) + rank) % rank);
            shape.push_back(in[0].dim(order.back()));
          }
          return pick(in[0], shape, [order](const Place& p) {
            Place from(p.size());
            for (size_t i = 0; i < p.size(); ++i) from[static_cast<size_t>(order[i])] = p[i];
            return from;
          });
        },
    .samples = {{"heads", {randn({2, 3, 4, 2})}, {0, 2, 1, 3}},
                {"cycle", {randn({2, 3, 4})}, {2, 0, 1}},
                {"negative", {randn({2, 3, 4})}, {-1, 0, -2}},
                {"rank 0", {randn({})}, {}},
                {"empty", {randn({2, 0, 3})}, {2, 1, 0}}},
    .large = {{"large", {randn({10, 100, 70})}, {2, 0, 1}}},
    .rejects = {rejects<ShapeError>("twice", {randn({2, 3})}, "axis 0 named twice", {0, 0}),
                rejects<ShapeError>("too few", {randn({2, 3})}, "1 axes named", {0})},
};

int64_t counted(double n, int64_t size) {
  return static_cast<int64_t>(n) < 0 ? static_cast<int64_t>(n) + size : static_cast<int64_t>(n);
}

const OpInfo slice_info_ = {
    .name = "slice",
    .run =
        [](Inputs in) {
          const int64_t end = in.numbers() > 2 ? in.integer(2) : to_end;
          return slice(in[0], in.integer(0), in.integer(1), end,
                       in.numbers() > 3 ? in.integer(3) : 1);
        },
    .reference =
        [](Arrays in) {
          const int rank = in[0].shape.rank();
          const auto a = static_cast<size_t>((in.integer(0) + rank) % rank);
          const int64_t n = in[0].dim(static_cast<int>(a));
          const int64_t begin = counted(in.number(1), n);
          const int64_t end = in.numbers() > 2 ? counted(in.number(2), n) : n;
          const int64_t step = in.numbers() > 3 ? in.integer(3) : 1;
          Shape shape = in[0].shape;
          shape[static_cast<int>(a)] = 0;
          for (int64_t i = begin; i < end; i += step) ++shape[static_cast<int>(a)];
          return pick(in[0], shape, [=](Place p) {
            p[a] = begin + p[a] * step;
            return p;
          });
        },
    .samples = {{"middle", {randn({5, 7})}, {1, 2, 5}},
                {"rows", {randn({5, 7})}, {0, 1, -1}},
                {"to the end", {randn({2, 9, 3})}, {1, 4}},
                {"every third", {randn({10, 2})}, {0, 1, 10, 3}},
                {"nothing", {randn({4, 2})}, {0, 4}},
                {"of nothing", {randn({0, 2})}, {0, 0}},
                {"everything", {randn({4, 2})}, {-1, 0}},
                {"step past the end", {randn({4})}, {0, 1, 3, 7}}},
    .large = {{"large", {randn({400, 301})}, {1, 3, 300, 2}}},
    .rejects = {rejects<ValueError>("past the end", {randn({4})}, "axis 0, which has 4", {0, 1, 5}),
                rejects<ValueError>("backwards", {randn({4})}, "0 <= begin <= end", {0, 3, 2}),
                rejects<ValueError>("before the start", {randn({4})}, "[-5, 4)", {0, -5}),
                rejects<ValueError>("step of 0", {randn({4})}, "step >= 1", {0, 0, 4, 0}),
                rejects<ShapeError>("no such axis", {randn({4})}, "axis 1", {1, 0})},
};
const Registered slice_entry = slice_info_, slice_integers = on_integers(slice_info_);

const Registered narrow_info = OpInfo{
    .name = "narrow",
    .run = [](Inputs in) { return narrow(in[0], in.integer(0), in.integer(1), in.integer(2)); },
    .reference =
        [](Arrays in) {
          const auto a = static_cast<size_t>(in.integer(0));
          const int64_t begin = in.integer(1);
          Shape shape = in[0].shape;
          shape[in.integer(0)] = in.integer(2);
          return pick(in[0], shape, [=](Place p) {
            p[a] += begin;
            return p;
          });
        },
    .samples = {{"columns", {randn({3, 8})}, {1, 2, 3}},
                {"none", {randn({3, 8})}, {0, 3, 0}},
                {"all", {randn({3, 8})}, {0, 0, 3}}},
    .large = {{"large", {randn({400, 301})}, {0, 17, 300}}},
    .rejects = {rejects<ValueError>("too long", {randn({3, 8})}, "7 elements from 2", {1, 2, 7}),
                rejects<ValueError>("negative", {randn({3, 8})}, "from -1", {1, -1, 1})},
};

const Registered select_info = OpInfo{
    .name = "select",
    .run = [](Inputs in) { return select(in[0], in.integer(0), in.integer(1)); },
    .reference =
        [](Arrays in) {
          const int axis = in.integer(0);
          const int64_t i = counted(in.number(1), in[0].dim(axis));
          Shape shape = in[0].shape;
          shape.erase(axis);
          return pick(in[0], shape, [=](Place p) {
            p.insert(p.begin() + axis, i);
            return p;
          });
        },
    .samples = {{"row", {randn({5, 3})}, {0, 2}},
                {"last column", {randn({5, 3})}, {1, -1}},
                {"to rank 0", {randn({4})}, {0, 3}},
                {"middle", {randn({2, 3, 4})}, {1, 0}}},
    .large = {{"large", {randn({3, 200, 301})}, {0, 1}}},
    .rejects = {rejects<ValueError>("past the end", {randn({4})}, "element 4 of axis 0", {0, 4}),
                rejects<ValueError>("of nothing", {randn({0, 2})}, "which has 0", {0, 0})},
};

// x[i], the operator.
const Registered element_info = OpInfo{
    .name = "element",
    .run = [](Inputs in) { return in[0][in.integer(0)]; },
    .reference =
        [](Arrays in) {
          const int64_t i = counted(in.number(0), in[0].dim(0));
          Shape shape = in[0].shape;
          shape.erase(0);
          return pick(in[0], shape, [=](Place p) {
            p.insert(p.begin(), i);
            return p;
          });
        },
    .samples = {{"first", {randn({5, 3})}, {0}},
                {"last", {randn({5, 3})}, {-1}},
                {"to rank 0", {randn({4})}, {3}},
                {"from the end", {randn({4, 2, 3})}, {-4}},
                {"of size 1", {randn({1, 3})}, {0}},
                {"empty", {randn({2, 0})}, {1}}},
    .large = {{"large", {randn({3, 200, 301})}, {1}}},
    .rejects = {rejects<ValueError>("past the end", {randn({4, 2})},
                                    "x[i]: element 4 of axis 0, which has 4\n  x  f32[4, 2]", {4}),
                rejects<ValueError>("before the start", {randn({4, 2})}, "element -5 of axis 0",
                                    {-5}),
                rejects<ValueError>("of nothing", {randn({0, 2})}, "which has 0", {0}),
                rejects<ShapeError>("rank 0", {randn({})},
                                    "x[i]: element 2 of a tensor that has no axes\n  x  f32[]",
                                    {2}),
                rejects<ShapeError>("nothing", {none()}, "x[i]: element 0", {0})},
};

TEST(Element, OfAnElementIsOneValue) {
  const Tensor x = longspan::iota(6);
  EXPECT_EQ(reshape(x, {2, 3})[1][-1].item(), 5);
  const size_t unsigned_index = 1;
  EXPECT_EQ(reshape(x, {2, 3})[unsigned_index][0].item(), 3);
  EXPECT_TRUE(x[0].shares_storage(x));
}

Results<Array> pieces_of(const Array& x, const std::vector<int64_t>& sizes, int axis) {
  std::vector<Array> pieces;
  int64_t begin = 0;
  for (const int64_t n : sizes) {
    Shape shape = x.shape;
    shape[axis] = n;
    pieces.push_back(pick(x, shape, [=](Place p) {
      p[static_cast<size_t>(axis)] += begin;
      return p;
    }));
    begin += n;
  }
  return pieces;
}

template <class T>
std::vector<int64_t> sizes_from(const Arguments<T>& in) {
  std::vector<int64_t> sizes;
  for (size_t i = 1; i < in.numbers(); ++i) sizes.push_back(in.integer(i));
  return sizes;
}

const Registered split_info = OpInfo{
    .name = "split",
    .run = [](Inputs in) { return split(in[0], sizes_from(in), in.integer(0)); },
    .reference = [](Arrays in) { return pieces_of(in[0], sizes_from(in), in.integer(0)); },
    .samples = {{"columns", {randn({3, 9})}, {1, 3, 3, 3}},
                {"uneven rows", {randn({6, 2})}, {0, 1, 0, 5}},
                {"one", {randn({2, 3})}, {0, 2}},
                {"middle", {randn({2, 5, 3})}, {1, 4, 1}}},
    .large = {{"large", {randn({300, 384})}, {1, 128, 128, 128}}},
    .rejects = {rejects<ShapeError>("too short", {randn({3, 9})}, "2 sizes add up to 8", {1, 4, 4}),
                rejects<ShapeError>("negative", {randn({3})}, "negative size -1", {0, 4, -1}),
                rejects<ShapeError>("none", {randn({0, 3})}, "0 sizes", {0})},
};

const Registered chunk_info = OpInfo{
    .name = "chunk",
    .run = [](Inputs in) { return chunk(in[0], in.integer(1), in.integer(0)); },
    .reference =
        [](Arrays in) {
          const int64_t size = in[0].dim(in.integer(0)), n = in.integer(1);
          const int64_t piece = std::max<int64_t>(1, (size + n - 1) / n);
          std::vector<int64_t> sizes;
          for (int64_t i = 0; i < size; i += piece) sizes.push_back(std::min(piece, size - i));
          if (sizes.empty()) sizes.push_back(0);
          return pieces_of(in[0], sizes, in.integer(0));
        },
    .samples = {{"even", {randn({2, 6})}, {1, 3}},
                {"shorter last", {randn({7, 2})}, {0, 3}},
                {"more than there are", {randn({2, 2})}, {0, 5}},
                {"empty", {randn({0, 2})}, {0, 2}}},
    .large = {{"large", {randn({301, 200})}, {0, 4}}},
    .rejects = {rejects<ValueError>("none", {randn({4})}, "0 pieces", {0, 0})},
};

Array repeated(const Array& x, Shape shape) {
  const int front = shape.rank() - x.shape.rank();
  for (int i = front; i < shape.rank(); ++i) {
    if (shape[i] < 0) shape[i] = x.dim(i - front);
  }
  return naive::expand(x, shape);
}

const OpInfo expand_info_ = {
    .name = "expand",
    .run = [](Inputs in) { return expand(in[0], shape_from(in)); },
    .reference = [](Arrays in) { return repeated(in[0], shape_from(in)); },
    .samples = {{"rows", {randn({1, 4})}, {3, 4}},
                {"columns", {randn({5, 1})}, {-1, 7}},
                {"middle", {randn({2, 1, 3})}, {2, 5, 3}},
                {"in front", {randn({3})}, {2, 4, 3}},
                {"rank 0", {randn({})}, {2, 3}},
                {"several", {randn({1, 3, 1, 2})}, {4, -1, 5, -1}},
                {"to nothing", {randn({1, 3})}, {0, 3}},
                {"of nothing", {randn({1, 0})}, {2, 0}},
                {"the same", {randn({2, 3})}, {2, 3}},
                {"long sums", {randn({1, 1, 5})}, {40, 30, 5}}},
    .large = {{"many rows", {randn({1, 131})}, {700, 131}},
              {"long rows", {randn({130, 1})}, {130, 601}},
              {"both", {randn({1, 50, 1})}, {30, 50, 60}}},
    .rejects = {rejects<ShapeError>("other size", {randn({3})}, "does not expand", {4}),
                rejects<ShapeError>("fewer axes", {randn({3, 2})}, "does not expand", {3}),
                rejects<ShapeError>("unknown new axis", {randn({3})}, "does not expand", {-1, 3})},
    .scale = 1,
    .gradient_tolerance = 4,
    .reason = "gradients are sums of up to 1,800 numbers",
};
const Registered expand_entry = expand_info_;

const Registered broadcast_to_info = OpInfo{
    .name = "broadcast_to",
    .run = [](Inputs in) { return broadcast_to(in[0], shape_from(in)); },
    .reference = [](Arrays in) { return repeated(in[0], shape_from(in)); },
    .samples = {{"bias", {randn({3})}, {2, 3}}},
    .large = {{"large", {randn({400})}, {100, 400}}},
};

const Registered squeeze_info = OpInfo{
    .name = "squeeze",
    .run =
        [](Inputs in) { return in.numbers() > 0 ? squeeze(in[0], in.integer(0)) : squeeze(in[0]); },
    .reference =
        [](Arrays in) {
          Shape shape;
          const int rank = in[0].shape.rank();
          for (int i = 0; i < rank; ++i) {
            const bool goes =
                in.numbers() > 0 ? i == (in.integer(0) + rank) % rank : in[0].dim(i) == 1;
            if (!goes) shape.push_back(in[0].dim(i));
          }
          return Array(shape, in[0].values);
        },
    .samples = {{"one", {randn({2, 1, 3})}, {1}},
                {"last", {randn({2, 1})}, {-1}},
                {"all", {randn({1, 2, 1, 3, 1})}},
                {"to rank 0", {randn({1, 1})}}},
    .large = {{"large", {randn({300, 1, 200})}, {1}}},
    .rejects = {rejects<ShapeError>("not 1", {randn({2, 3})}, "axis 1 has 3 elements", {1})},
};

const Registered unsqueeze_info = OpInfo{
    .name = "unsqueeze",
    .run = [](Inputs in) { return unsqueeze(in[0], in.integer(0)); },
    .reference =
        [](Arrays in) {
          Shape shape = in[0].shape;
          shape.insert(in.integer(0) < 0 ? in.integer(0) + shape.rank() + 1 : in.integer(0), 1);
          return Array(shape, in[0].values);
        },
    .samples = {{"front", {randn({2, 3})}, {0}},
                {"middle", {randn({2, 3})}, {1}},
                {"end", {randn({2, 3})}, {-1}},
                {"rank 0", {randn({})}, {0}}},
    .large = {{"large", {randn({300, 200})}, {1}}},
    .rejects = {rejects<ShapeError>("no such axis", {randn({2})}, "axis 2 for rank 1", {2}),
                rejects<ShapeError>("too many", {randn({1, 1, 1, 1, 1, 1, 1, 1})},
                                    "at most 8 are supported", {0})},
};

}  // namespace
}  // namespace longspan::test
