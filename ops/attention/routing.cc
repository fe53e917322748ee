#include "ops/attention/routing.h"

#include <algorithm>
#include <limits>

#include "autograd/mode.h"
#include "core/error.h"
#include "core/kernels/routing.h"
#include "ops/attention/heads.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/random.h"
#include "ops/shape.h"

namespace longspan {
namespace {

/// The inputs of a kernel: x with last stride 1, centroids [H, d, k].
struct ScoreInputs {
  Tensor x, centroids, lengths;
};

/// Throws NotImplemented before any work if the device of x has no such kernel.
void require_kernel(const char* op, const KernelBase& kernel, const Tensor& x) {
  const DeviceKind kind = x.device().kind;
  require<NotImplemented>(kind == DeviceKind::meta || kernel.has(kind), op,
                          "has no kernel for {} yet; move the tensors to the CPU",
                          name_of(x.device()));
}

ScoreInputs checked(const char* op, const KernelBase& kernel, const Tensor& x,
                    const Tensor& centroids, const Tensor& lengths) {
  for (const Named& t : {Named{"x", x}, Named{"centroids", centroids}}) {
    require<ValueError>(static_cast<bool>(t.tensor), op, "{} is not given", t.name);
    require<DTypeError>(t.tensor.dtype() == DType::f32 || t.tensor.dtype() == DType::f64, op,
                        "{} is {}; expected f32 or f64", t.name, name_of(t.tensor.dtype()));
  }
  require_rank_is(op, x, 4, "x");
  require_rank_is(op, centroids, 3, "centroids");
  require_same_dtype(op, {"x", x}, {"centroids", centroids});
  require_same_device(op, {"x", x}, {"centroids", centroids});
  if (centroids.dim(0) != x.dim(1) || centroids.dim(2) != x.dim(3) || centroids.dim(1) < 1) {
    fail_with<ShapeError>(op,
                          fmt::format("centroids must be [{}, k, {}], k >= 1", x.dim(1), x.dim(3)),
                          {{"x", x}, {"centroids", centroids}});
  }
  require<NotImplemented>(x.dim(2) < std::numeric_limits<int32_t>::max(), op,
                          "{} tokens; at most 2^31 - 2 are supported", x.dim(2));
  if (lengths) {
    require<DTypeError>(lengths.dtype() == DType::i64, op, "lengths is {}; expected i64",
                        name_of(lengths.dtype()));
    require<ShapeError>(lengths.shape() == Shape{x.dim(0)}, op,
                        "lengths has shape {}; expected [{}]", to_string(lengths.shape()),
                        x.dim(0));
    require_same_device(op, {"x", x}, {"lengths", lengths});
  }
  require_kernel(op, kernel, x);
  if (MacCount::active()) MacCount::add_products(x.numel() * centroids.dim(1));
  return {detail::last_dim_contiguous(x), contiguous(transpose(centroids.detach())),
          lengths ? contiguous(lengths) : Tensor{}};
}

/// x [..., n] as [rows, n].
Tensor in_rows(const Tensor& x) {
  const int64_t n = x.dim(-1);
  return x.alias({n > 0 ? x.numel() / n : 0, n}, {n, 1}, 0);
}

void require_lists(const char* op, const Tensor& x, const char* name) {
  require<ValueError>(static_cast<bool>(x), op, "{} is not given", name);
  require_rank(op, x, 1);
  require<DTypeError>(x.dtype() == DType::i32, op, "{} is {}; expected i32", name,
                      name_of(x.dtype()));
}

}  // namespace

Tensor routing_members(const Tensor& x, const Tensor& centroids, int64_t window,
                       const Tensor& lengths) {
  constexpr const char* op = "routing_members";
  require(window >= 1, op, "window is {}; expected 1 or more", window);
  const ScoreInputs in = checked(op, kernels::routing_members, x, centroids, lengths);
  const int64_t k = centroids.dim(1), w = std::min(window, x.dim(2));
  Tensor members = Tensor::empty({x.dim(0), x.dim(1), k, w}, DType::i32, x.device());
  if (members.numel() == 0) return members;
  const int64_t each = x.dtype() == DType::f64 ? 4 : 2;
  Tensor work =
      Tensor::empty({x.dim(0), x.dim(1), k, each * w}, DType::i64, x.device(), Category::workspace);
  kernels::routing_members(x.device(), in.x.view(), in.centroids.view(), in.lengths.view(),
                           work.mut(), members.mut());
  return members;
}

Tensor nearest_centroids(const Tensor& x, const Tensor& centroids, const Tensor& lengths) {
  const ScoreInputs in =
      checked("nearest_centroids", kernels::nearest_centroid, x, centroids, lengths);
  Tensor nearest = Tensor::empty({x.dim(0), x.dim(1), x.dim(2)}, DType::i32, x.device());
  if (nearest.numel() == 0) return nearest;
  kernels::nearest_centroid(x.device(), in.x.view(), in.centroids.view(), in.lengths.view(),
                            nearest.mut());
  return nearest;
}

TokensByCluster cluster_order(const Tensor& clusters, int64_t count) {
  constexpr const char* op = "cluster_order";
  require_lists(op, clusters, "clusters");
  require(count >= 0 && count < std::numeric_limits<int32_t>::max(), op,
          "{} clusters; expected 0 to 2^31 - 2", count);
  require_kernel(op, kernels::cluster_order, clusters);
  const Tensor ids = detail::checked_ids(op, contiguous(clusters), -1, count, "clusters");
  TokensByCluster result{Tensor::empty(ids.shape(), DType::i32, ids.device()),
                         Tensor::empty(ids.shape(), DType::i32, ids.device())};
  if (ids.numel() == 0) return result;
  const Tensor rows = in_rows(ids);
  Tensor starts =
      Tensor::empty({rows.dim(0), count + 1}, DType::i32, ids.device(), Category::workspace);
  Tensor order = in_rows(result.order), begin = in_rows(result.begin);
  kernels::cluster_order(ids.device(), rows.view(), starts.mut(), order.mut(), begin.mut());
  return result;
}

Tensor keys_not_after(const Tensor& queries, const Tensor& keys) {
  constexpr const char* op = "keys_not_after";
  require_lists(op, queries, "queries");
  require_lists(op, keys, "keys");
  require_same_shape(op, {"queries", queries}, {"keys", keys});
  require_same_device(op, {"queries", queries}, {"keys", keys});
  require_kernel(op, kernels::keys_not_after, queries);
  const Tensor q = contiguous(queries), k = contiguous(keys);
  Tensor counts = Tensor::empty(q.shape(), DType::i32, q.device());
  if (counts.numel() == 0) return counts;
  Tensor to = in_rows(counts);
  kernels::keys_not_after(q.device(), in_rows(q).view(), in_rows(k).view(), to.mut());
  return counts;
}

namespace detail {

Tensor over_groups(const Tensor& sum, const Tensor& n, double epsilon) {
  const Tensor one = ones_like(n);
  const Tensor weight = div(minimum(n, one), add(maximum(n, one), epsilon));
  return mul(sum, cast(weight, sum.dtype()));
}

Tensor with_alone(const Tensor& others, const Tensor& v, const Tensor& alone,
                  const ScoreTerms& terms, const Dropout& dropout) {
  Tensor own = v;
  if (terms.relation_value) own = add(own, narrow(terms.relation_value, -2, terms.id.left, 1));
  if (dropout.p > 0 && dropout.pass.training) {
    Shape rows = others.shape();
    rows[3] = 1;
    const Tensor one = ones(rows, others.dtype(), others.device());
    Pass site = dropout.pass.at("alone");
    site.row = site.head * rows[2];  // the rows of the groups before
    own = mul(own, longspan::dropout(one, dropout.p, site));
  }
  return where(alone, own, others);
}

Tensor gathered(const Tensor& x, const Tensor& lists) {
  const Tensor rows = permute_rows(x, lists.rank() > 3 ? flatten(lists, 2, -1) : lists);
  int64_t groups = 1;
  for (int axis = 0; axis + 1 < lists.rank(); ++axis) groups *= lists.dim(axis);
  return reshape(rows, {groups, 1, lists.dim(-1), x.dim(3)});
}

}  // namespace detail

namespace {

/// Checks q, k, v, and lists of positions [B, H, ..] of this rank.
void check_heads(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                 const Tensor& lists, const char* name, int rank) {
  for (const Named& t : {Named{"q", q}, Named{"k", k}, Named{"v", v}}) {
    require<ValueError>(static_cast<bool>(t.tensor), op, "{} is not given", t.name);
    require_rank_is(op, t.tensor, 4, t.name);
  }
  require_lists(op, lists, name);
  require_rank_is(op, lists, rank, name);
  bool fits = rank == 4 || lists.dim(2) == q.dim(2);
  for (int axis = 0; axis < 3; ++axis) {
    fits = fits && k.dim(axis) == q.dim(axis) && v.dim(axis) == q.dim(axis) &&
           (axis == 2 || lists.dim(axis) == q.dim(axis));
  }
  if (fits) return;
  fail_with<ShapeError>(op, "batch, heads and length must be those of q",
                        {{"q", q}, {"k", k}, {"v", v}, {name, lists}});
}

/// Checks that the positions of each list ascend up to its free places: a position that is there
/// twice would count twice, and causal attention goes by their order. Lists on a device are not
/// read, because the host would have to wait for them.
void require_ascending(const char* op, const Tensor& lists, const char* name) {
  if (lists.device() != Device{}) return;
  const Tensor own = contiguous(lists);
  const auto* const at = own.view().as<int32_t>();
  const int64_t width = own.dim(-1);
  for (int64_t i = 1; i < own.numel(); ++i) {
    const bool fits = i % width == 0 || at[i] == -1 || (at[i - 1] >= 0 && at[i - 1] < at[i]);
    require(fits, op, "{} has position {} after {} in list {}; expected them ascending, then -1",
            name, at[i], at[i - 1], i / width);
  }
}

/// The dropout of groups, of which each head has so many: they take the place of heads.
Dropout of_groups(Dropout dropout, int64_t groups) {
  dropout.pass.head *= groups;
  return dropout;
}

/// The rows of groups [G, 1, w, d] added up at their positions, [B, H, L, d].
Tensor scattered(const Tensor& rows, const Tensor& lists, const Tensor& like) {
  const int64_t n = lists.dim(2), width = rows.dim(3);
  return scatter_rows(reshape(rows, {like.dim(0), like.dim(1), n, width}), lists, like.dim(2));
}

}  // namespace

GroupAttention attend_in_groups(const Tensor& q, const Tensor& k, const Tensor& v,
                                const Tensor& queries, const Tensor& keys, double epsilon,
                                const ScoreTerms& terms, const Dropout& dropout, OwnKey own) {
  constexpr const char* op = "attend_in_groups";
  require(
      own == OwnKey::seen || !keys, op,
      "own = alone needs keys that are those of queries: only then is the place of a key known");
  check_heads(op, q, k ? k : q, v, queries, "queries", 4);
  const Tensor& lists_of_keys = keys ? keys : queries;
  require_same_shape(op, {"queries", queries}, {"keys", lists_of_keys});
  require_ascending(op, queries, "queries");
  if (keys) require_ascending(op, keys, "keys");
  const Tensor rows = detail::gathered(q, queries);
  AttentionPattern pattern = patterns::causal();
  if (keys) {  // a key's place in its group says nothing about its position
    pattern = patterns::dense();
    pattern.mask.q_to = reshape(keys_not_after(queries, keys), {rows.dim(0), queries.dim(3)});
    pattern.mask.q_from = zeros_like(pattern.mask.q_to);
  }
  const Tensor others = k || keys ? detail::gathered(k ? k : q, lists_of_keys) : rows;
  const Tensor values = detail::gathered(v, lists_of_keys);
  if (own == OwnKey::alone) pattern.rules.front().window.right = -1;
  const Dropout drawn = of_groups(dropout, queries.dim(2));
  Tensor o = block_attention(rows, others, values, pattern, terms, drawn).out;
  if (own == OwnKey::alone) {  // the first of a group sees no other
    const Tensor place = reshape(iota(rows.dim(2), DType::i64, q.device()), {1, 1, rows.dim(2), 1});
    o = detail::with_alone(o, values, equal(place, zeros_like(place)), terms, drawn);
  }
  const Tensor lists = flatten(queries, 2, 3);  // [B, H, c w]
  GroupAttention result;
  {
    const NoGrad off;
    const Shape places{q.dim(0), q.dim(1), lists.dim(2), 1};
    result.groups = scattered(ones(places, accumulator_of(q.dtype()), q.device()), lists, q);
  }
  result.out = detail::over_groups(scattered(o, lists, q), result.groups, epsilon);
  return result;
}

GroupAttention attend_to_recent(const Tensor& q, const Tensor& k, const Tensor& v,
                                const Tensor& clusters, int64_t count, int64_t window,
                                double epsilon, const ScoreTerms& terms, const Dropout& dropout,
                                OwnKey own) {
  constexpr const char* op = "attend_to_recent";
  check_heads(op, q, k ? k : q, v, clusters, "clusters", 3);
  require(window >= 1, op, "window is {}; expected 1 or more", window);
  const int64_t length = q.dim(2);
  const TokensByCluster sorted = cluster_order(clusters, count);
  AttentionPattern pattern = patterns::local(window);
  pattern.mask.q_from = reshape(sorted.begin, {q.dim(0) * q.dim(1), length});
  pattern.mask.q_to = full_like(pattern.mask.q_from, static_cast<double>(length));
  const Tensor rows = detail::gathered(q, sorted.order);
  const Tensor values = detail::gathered(v, sorted.order);
  Tensor o = values, alone;
  if (own == OwnKey::alone) {  // the first token of a cluster sees no other token
    pattern.rules.front().window.right = -1;
    const Tensor place = iota(length, DType::i32, q.device());
    alone = unsqueeze(unsqueeze(equal(pattern.mask.q_from, place), 1), 3);
    if (window == 1) alone = ones_like(alone);
  }
  if (!alone || window > 1) {
    o = block_attention(rows, k ? detail::gathered(k, sorted.order) : rows, values, pattern, terms,
                        dropout)
            .out;
  }
  if (alone) o = detail::with_alone(o, values, alone, terms, dropout);
  GroupAttention result;
  {
    const NoGrad off;
    result.groups = ones({q.dim(0), q.dim(1), length, 1}, accumulator_of(q.dtype()), q.device());
  }
  result.out = detail::over_groups(scattered(o, sorted.order, q), result.groups, epsilon);
  return result;
}

}  // namespace longspan
