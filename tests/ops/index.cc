#include "ops/index.h"

#include "tests/ops/picking.h"

namespace longspan::test {
namespace {

int64_t at(const Array& ids, int64_t i) { return static_cast<int64_t>(ids[i]); }

const auto saves_ids = [](Inputs in) { return std::vector<int64_t>{in[1].nbytes()}; };

const OpInfo embedding_info_ = {
    .name = "embedding",
    .run = [](Inputs in) { return embedding(in[0], in[1]); },
    .reference =
        [](Arrays in) {
          Shape shape = in[1].shape;
          const int lead = shape.rank();
          for (int i = 1; i < in[0].shape.rank(); ++i) shape.push_back(in[0].dim(i));
          return pick(in[0], shape, [&](const Place& p) {
            Place from = {at(in[1], index_of(in[1].shape, Place(p.begin(), p.begin() + lead)))};
            from.insert(from.end(), p.begin() + lead, p.end());
            return from;
          });
        },
    .samples = {{"tokens", {randn({7, 5}), ids({2, 6}, 7)}},
                {"i32", {randn({7, 5}), as(DType::i32, ids({9}, 7))}},
                {"bytes", {randn({256, 3}), as(DType::u8, ids({2, 4}, 256))}},
                {"one id", {randn({7, 5}), ids({}, 7)}},
                {"no ids", {randn({7, 5}), ids({0, 4}, 7)}},
                {"one row", {randn({1, 5}), ids({6}, 1)}},
                {"numbers", {randn({9}), ids({2, 3}, 9)}},
                {"tables", {randn({4, 2, 3}), ids({5}, 4)}},
                {"no width", {randn({4, 0}), ids({5}, 4)}},
                {"often the same", {randn({3, 70}), ids({300}, 3)}}},
    .large = {{"large", {randn({50, 131}), ids({9, 100}, 50)}}},
    .rejects = {rejects<ValueError>("past the end", {randn({7, 5}), values({2, 2}, {0, 1, 7, 9})},
                                    "ids must be integer", {}, {}),
                rejects<ValueError>("past the end",
                                    {randn({7, 5}), as(DType::i64, values({2, 2}, {0, 1, 7, 9}))},
                                    "ids holds 7 at [1, 0]; it must be at least 0 and less than 7"),
                rejects<ValueError>("negative",
                                    {randn({7, 5}), as(DType::i64, values({2}, {0, -1}))},
                                    "ids holds -1 at [1]"),
                rejects<ValueError>("empty table", {randn({0, 5}), ids({1}, 1)}, "less than 0"),
                rejects<ShapeError>("rank 0", {scalar(1), ids({1}, 1)}, "rank 1 or more")},
    .saved_bytes = saves_ids,
    .gradient_tolerance = 4,
    .reason = "gradients are sums of up to 100 numbers",
};
OpInfo embedding_checked() {
  OpInfo op = embedding_info_;
  op.rejects[0].is = [](const Error& e) { return dynamic_cast<const DTypeError*>(&e) != nullptr; };
  op.rejects[0].name = "floating ids";
  return op;
}
const Registered embedding_entry = embedding_checked(),
                 embedding_integers = on_integers(embedding_info_);

const OpInfo take_info_ = {
    .name = "take",
    .run = [](Inputs in) { return take(in[0], in[1], in.integer(0)); },
    .reference =
        [](Arrays in) {
          const int rank = in[0].shape.rank(), axis = (in.integer(0) + rank) % rank;
          Shape shape = in[0].shape;
          shape[axis] = in[1].size();
          return pick(in[0], shape, [&](Place p) {
            p[static_cast<size_t>(axis)] = at(in[1], p[static_cast<size_t>(axis)]);
            return p;
          });
        },
    .samples = {{"rows", {randn({5, 3}), ids({8}, 5)}, {0}},
                {"columns", {randn({3, 5}), ids({4}, 5)}, {-1}},
                {"middle", {randn({2, 5, 3}), as(DType::i32, ids({6}, 5))}, {1}},
                {"nothing", {randn({5, 3}), ids({0}, 5)}, {0}},
                {"all", {randn({6, 2}), permutation(6)}, {0}}},
    .large = {{"large", {randn({3, 200, 70}), ids({170}, 200)}, {1}}},
    .rejects = {rejects<ValueError>("past the end",
                                    {randn({2, 3}), as(DType::i64, values({1}, {3}))},
                                    "ids holds 3 at [0]", {1}),
                rejects<ShapeError>("ids of rank 2", {randn({4}), ids({2, 2}, 4)},
                                    "ids must have rank 1", {0})},
    .saved_bytes = saves_ids,
    .gradient_tolerance = 2,
    .reason = "gradients are sums of several numbers",
};
const Registered take_entry = take_info_, take_integers = on_integers(take_info_);

const OpInfo take_along_axis_info_ = {
    .name = "take_along_axis",
    .run = [](Inputs in) { return take_along_axis(in[0], in[1], in.integer(0)); },
    .reference =
        [](Arrays in) {
          const int rank = in[0].shape.rank(), axis = (in.integer(0) + rank) % rank;
          return pick(in[0], in[1].shape, [&](Place p) {
            p[static_cast<size_t>(axis)] = at(in[1], index_of(in[1].shape, p));
            return p;
          });
        },
    .samples = {{"last", {randn({3, 5}), ids({3, 7}, 5)}, {-1}},
                {"rank 1", {randn({5}), ids({3}, 5)}, {0}},
                {"bytes", {randn({2, 3, 5}), as(DType::u8, ids({2, 3, 2}, 5))}, {2}},
                {"nothing", {randn({3, 5}), ids({3, 0}, 5)}, {1}},
                {"no rows", {randn({0, 5}), ids({0, 2}, 5)}, {1}}},
    .large = {{"large", {randn({300, 70}), ids({300, 120}, 70)}, {1}}},
    .rejects = {rejects<ShapeError>("other rows", {randn({3, 5}), ids({2, 4}, 5)},
                                    "ids must have shape [3, 4]", {1}),
                rejects<ShapeError>("other rank", {randn({3, 5}), ids({3}, 5)},
                                    "ids must have shape [3, 5]", {1}),
                rejects<ValueError>("past the end",
                                    {randn({2, 3}), as(DType::i64, values({2, 1}, {0, 3}))},
                                    "ids holds 3 at [1, 0]", {1})},
    .saved_bytes = saves_ids,
    .row_inputs = {0, 1},
    .gradient_tolerance = 2,
    .reason = "gradients are sums of several numbers",
};
const Registered take_along_axis_entry = take_along_axis_info_,
                 take_along_axis_integers = on_integers(take_along_axis_info_);

// Along another axis ids are rearranged into the order of the gather, so a copy is saved.
const Registered take_along_other_axis_info = OpInfo{
    .name = "take_along_axis 0",
    .run = [](Inputs in) { return take_along_axis(in[0], in[1], 0); },
    .reference =
        [](Arrays in) {
          return pick(in[0], in[1].shape, [&](Place p) {
            p[0] = at(in[1], index_of(in[1].shape, p));
            return p;
          });
        },
    .samples = {{"rows", {randn({5, 3}), ids({2, 3}, 5)}},
                {"deep", {randn({4, 2, 3}), ids({6, 2, 3}, 4)}}},
    .large = {{"large", {randn({70, 300}), ids({120, 300}, 70)}}},
    .saved_bytes = saves_ids,
    .gradient_tolerance = 2,
    .reason = "gradients are sums of several numbers",
};

/// Returns entry i of the list for a row's leading axes, which are aligned from the right.
int64_t listed(const Array& order, const Place& lead, int64_t i) {
  Place p(static_cast<size_t>(order.shape.rank()));
  const size_t mine = p.size() - 1;
  for (size_t k = 0; k < mine; ++k) {
    p[k] = order.dim(static_cast<int>(k)) == 1 ? 0 : lead[lead.size() - mine + k];
  }
  p[mine] = i;
  return at(order, index_of(order.shape, p));
}

const std::vector<Sample> index_samples = {
    {"one list", {randn({2, 3, 6, 4}), integers({9}, -1, 5)}},
    {"a list each", {randn({2, 3, 6, 4}), integers({2, 3, 6}, -1, 5)}},
    {"by head", {randn({2, 3, 6, 4}), ids({1, 3, 5}, 6)}},
    {"by sample", {randn({2, 3, 6, 4}), as(DType::i32, ids({2, 1, 5}, 6))}},
    {"plain rows", {randn({6, 4}), permutation(6)}},
    {"no ids", {randn({2, 6, 4}), ids({2, 0}, 6)}},
    {"all dropped", {randn({2, 3, 2}), as(DType::i64, full({2, 3}, -1))}},
};

/// Returns the bytes saved for `order`: a list that all rows share is saved as it is, others are
/// expanded to the leading axes.
std::vector<int64_t> saves_order(Inputs in) {
  const Tensor &x = in[0], &order = in[1];
  bool common = true;
  for (int i = 0; i + 1 < order.rank(); ++i) common = common && order.dim(i) == 1;
  int64_t n = order.dim(-1);
  if (!common) {
    for (int i = 0; i + 2 < x.rank(); ++i) n *= x.dim(i);
  }
  return {n * size_of(order.dtype())};
}

const OpInfo permute_rows_info_ = {
    .name = "permute_rows",
    .run = [](Inputs in) { return permute_rows(in[0], in[1]); },
    .reference =
        [](Arrays in) {
          Shape shape = in[0].shape;
          const int rank = shape.rank();
          shape[rank - 2] = in[1].dim(-1);
          return pick(in[0], shape, [&](Place p) {
            const auto row = static_cast<size_t>(rank - 2);
            const Place lead(p.begin(), p.begin() + rank - 2);
            p[row] = listed(in[1], lead, p[row]);
            return p[row] >= 0 ? p : Place(p.size() + 1);
          });
        },
    .samples = index_samples,
    .large = {{"large", {randn({3, 2, 100, 64}), ids({3, 2, 130}, 100)}}},
    .rejects = {rejects<ValueError>("past the end",
                                    {randn({3, 2}), as(DType::i64, values({2}, {0, 3}))},
                                    "order holds 3 at [1]; it must be at least -1"),
                rejects<ShapeError>("other heads", {randn({2, 3, 4, 2}), ids({2, 2, 4}, 4)},
                                    "axes of order before its last"),
                rejects<ShapeError>("too many axes", {randn({4, 2}), ids({1, 4}, 4)},
                                    "axes of order before its last"),
                rejects<DTypeError>("floating order", {randn({4, 2}), randn({4})},
                                    "order must be integer")},
    .saved_bytes = saves_order,
    .gradient_tolerance = 2,
    .reason = "gradients are sums of several numbers",
};
const Registered permute_rows_entry = permute_rows_info_,
                 permute_rows_integers = on_integers(permute_rows_info_);

const Registered scatter_rows_info = OpInfo{
    .name = "scatter_rows",
    .run = [](Inputs in) { return scatter_rows(in[0], in[1], in.integer(0)); },
    .reference =
        [](Arrays in) {
          Shape shape = in[0].shape;
          const int rank = shape.rank();
          shape[rank - 2] = in.integer(0);
          Array y(shape);
          for (int64_t i = 0; i < in[0].size(); ++i) {
            Place p = place_of(in[0].shape, i);
            const auto row = static_cast<size_t>(rank - 2);
            p[row] = listed(in[1], Place(p.begin(), p.begin() + rank - 2), p[row]);
            if (p[row] >= 0) y[index_of(shape, p)] += in[0][i];
          }
          return y;
        },
    .samples = {{"one list", {randn({2, 3, 6, 4}), integers({6}, -1, 4)}, {5}},
                {"a list each", {randn({2, 3, 6, 4}), ids({2, 3, 6}, 9)}, {9}},
                {"by head", {randn({2, 3, 6, 4}), ids({1, 3, 6}, 6)}, {6}},
                {"all to one", {randn({300, 5}), as(DType::i64, full({300}, 0))}, {1}},
                {"nothing", {randn({0, 4}), ids({0}, 3)}, {3}},
                {"to nothing", {randn({2, 4}), as(DType::i64, full({2}, -1))}, {0}}},
    .large = {{"large", {randn({3, 2, 130, 64}), ids({3, 2, 130}, 100)}, {100}}},
    .rejects = {rejects<ValueError>("past the end",
                                    {randn({2, 2}), as(DType::i64, values({2}, {0, 3}))},
                                    "order holds 3 at [1]", {3}),
                rejects<ShapeError>("too few ids", {randn({3, 2}), ids({2}, 3)}, "2 ids for 3 rows",
                                    {3}),
                rejects<DTypeError>("integers", {iota({3, 2}), ids({3}, 3)}, "floating", {3})},
    .saved_bytes = saves_order,
    .tolerance = 4,
    .gradient_tolerance = 1,
    .reason = "results are sums of up to 300 numbers",
};

const Registered scatter_add_info = OpInfo{
    .name = "scatter_add",
    .run = [](Inputs in) { return scatter_add(in[0], in[1], in[2], in.integer(0)); },
    .reference =
        [](Arrays in) {
          Array y = in[0];
          const auto a = static_cast<size_t>(in.integer(0));
          for (int64_t i = 0; i < in[2].size(); ++i) {
            Place p = place_of(in[2].shape, i);
            p[a] = at(in[1], p[a]);
            y[index_of(y.shape, p)] += in[2][i];
          }
          return y;
        },
    .samples = {{"rows", {randn({5, 3}), ids({8}, 5), randn({8, 3})}, {0}},
                {"columns", {randn({3, 5}), ids({4}, 5), randn({3, 4})}, {1}},
                {"nothing", {randn({5, 3}), ids({0}, 5), randn({0, 3})}, {0}}},
    .large = {{"large", {randn({200, 70}), ids({300}, 200), randn({300, 70})}, {0}}},
    .rejects = {rejects<ShapeError>("other updates", {randn({5, 3}), ids({8}, 5), randn({7, 3})},
                                    "updates must have shape [8, 3]", {0}),
                rejects<ValueError>(
                    "past the end",
                    {randn({5, 3}), as(DType::i64, values({1}, {5})), randn({1, 3})},
                    "ids holds 5 at [0]", {0})},
    .saved_bytes = saves_ids,
    .tolerance = 2,
    .reason = "results are sums of several numbers",
};

const Registered bincount_info = OpInfo{
    .name = "bincount",
    .run = [](Inputs in) { return bincount(in[0], in.integer(0)); },
    .reference =
        [](Arrays in) {
          Shape shape = in[0].shape;
          const int64_t n = shape.back();
          shape[shape.rank() - 1] = in.integer(0);
          Array y(shape);
          for (int64_t i = 0; i < in[0].size(); ++i) ++y[i / n * in.integer(0) + at(in[0], i)];
          return y;
        },
    .samples = {{"one list", {ids({20}, 5)}, {5}},
                {"lists", {ids({3, 9}, 4)}, {6}},
                {"bytes", {as(DType::u8, ids({50}, 256))}, {256}},
                {"nothing", {ids({2, 0}, 4)}, {3}}},
    .large = {{"large", {ids({300, 200}, 32)}, {32}}},
    .rejects = {rejects<ValueError>("past the end", {as(DType::i64, values({1}, {5}))},
                                    "ids holds 5 at [0]", {5}),
                rejects<DTypeError>("floating", {randn({3})}, "ids must be integer", {5})},
    .dtypes = {DType::f32},
    .differentiable = false,
};

}  // namespace
}  // namespace longspan::test
