#include "ops/attention/lsh.h"

#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "autograd/record.h"
#include "core/kernels/lsh_maths.h"
#include "core/kernels/random.h"
#include "ops/attention/heads.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/index.h"
#include "ops/random.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kLshAttention = "lsh_attention";

void check(const char* op, const LshBuckets& b) {
  require(
      b.first >= 2 && b.first % 2 == 0 && (b.second == 1 || (b.second >= 2 && b.second % 2 == 0)),
      op, "{} x {} buckets; each factor must be even and at least 2, the second may be 1", b.first,
      b.second);
  require(b.count() < std::numeric_limits<int32_t>::max(), op, "{} x {} buckets are too many",
          b.first, b.second);
}

void check_padding(const char* op, const Tensor& q, const Tensor& lengths, const Tensor& hidden) {
  const int64_t batch = q.dim(0), length = q.dim(2);
  if (lengths) {
    require<DTypeError>(lengths.dtype() == DType::i64, op, "lengths is {}; expected i64",
                        name_of(lengths.dtype()));
    require<ShapeError>(lengths.shape() == Shape{batch} && lengths.contiguous(), op,
                        "lengths has shape {}; expected [{}], row-major",
                        to_string(lengths.shape()), batch);
    require_same_device(op, {"q", q}, {"lengths", lengths});
  }
  if (!hidden) return;
  require<DTypeError>(hidden.dtype() == DType::u8, op, "hidden is {}; expected u8",
                      name_of(hidden.dtype()));
  require<ShapeError>(hidden.rank() == 2 && hidden.contiguous() && hidden.dim(1) == length &&
                          (hidden.dim(0) == 1 || hidden.dim(0) == batch),
                      op, "hidden has shape {}; expected [1 or {}, {}], row-major",
                      to_string(hidden.shape()), batch, length);
  require_same_device(op, {"q", q}, {"hidden", hidden});
}

void check_rotations(const char* op, const Tensor& q, const Tensor& rotations,
                     const LshBuckets& buckets) {
  require<ValueError>(static_cast<bool>(rotations), op, "rotations are not given");
  require<DTypeError>(rotations.dtype() == accumulator_of(q.dtype()), op,
                      "rotations are {}; expected {} for q of {}", name_of(rotations.dtype()),
                      name_of(accumulator_of(q.dtype())), name_of(q.dtype()));
  require_same_device(op, {"q", q}, {"rotations", rotations});
  const auto one_or = [&](int axis) {
    return rotations.dim(axis) == 1 || rotations.dim(axis) == q.dim(axis);
  };
  if (rotations.rank() != 5 || !one_or(0) || !one_or(1) || rotations.dim(2) < 1 ||
      rotations.dim(3) != q.dim(3) || rotations.dim(4) != buckets.projections()) {
    fail_with<ShapeError>(op,
                          fmt::format("rotations must be [1 or {}, 1 or {}, R, {}, {}] for {} x {} "
                                      "buckets",
                                      q.dim(0), q.dim(1), q.dim(3), buckets.projections(),
                                      buckets.first, buckets.second),
                          {{"q", q}, {"rotations", rotations}});
  }
}

void check_options(const LshOptions& o) {
  require(o.buckets >= 1 && o.buckets < std::numeric_limits<int32_t>::max(), kLshAttention,
          "{} buckets; expected 1 or more", o.buckets);
  require(o.chunk >= 1, kLshAttention, "chunk is {}; expected 1 or more", o.chunk);
  require(o.before >= 0 && o.after >= 0, kLshAttention,
          "a query sees {} chunks before and {} after its own; expected 0 or more", o.before,
          o.after);
  constexpr int64_t most = 1 << 30;  // indices in a window fit an i32
  require(o.before < most && o.after < most && o.chunk <= most / (1 + o.before + o.after),
          kLshAttention, "a window of {} + 1 + {} chunks of {}; expected 2^30 keys or fewer",
          o.before, o.after, o.chunk);
  require(!o.repeat_chunks || o.duplicates == LshDuplicates::off, kLshAttention,
          "repeat_chunks counts a chunk twice, which needs duplicates = off");
  require(std::isfinite(o.self), kLshAttention, "self is {}; expected a finite number", o.self);
  require(o.dropout >= 0 && o.dropout < 1, kLshAttention, "dropout is {}; expected 0 <= p < 1",
          o.dropout);
  require<NotImplemented>(o.dropout == 0 || !o.pass.training || o.pass.row == 0, kLshAttention,
                          "pass.row = {}: dropout of a part of the rows is not implemented",
                          o.pass.row);
}

void check_inputs(const Tensor& q, const Tensor& v, const Tensor& ids) {
  for (const Named& x : {Named{"q", q}, Named{"v", v}}) {
    require<ValueError>(static_cast<bool>(x.tensor), kLshAttention, "{} is not given", x.name);
    require_rank_is(kLshAttention, x.tensor, 4, x.name);
    require_floating(kLshAttention, x.tensor, x.name);
  }
  require_same_dtype(kLshAttention, {"q", q}, {"v", v});
  require_same_device(kLshAttention, {"q", q}, {"v", v});
  for (int axis = 0; axis < 3; ++axis) {
    if (q.dim(axis) != v.dim(axis)) {
      fail_with<ShapeError>(kLshAttention, "v must have the batch, heads and length of q",
                            {{"q", q}, {"v", v}});
    }
  }
  if (std::min(q.dim(3), v.dim(3)) < 1 ||
      std::max(q.dim(3), v.dim(3)) > kernels::kAttentionMaxWidth) {
    fail_with<ShapeError>(kLshAttention,
                          fmt::format("widths must be 1 to {}", kernels::kAttentionMaxWidth),
                          {{"q", q}, {"v", v}});
  }
  require<ValueError>(static_cast<bool>(ids), kLshAttention, "ids are not given");
  require<DTypeError>(ids.dtype() == DType::i32, kLshAttention, "ids are {}; expected i32",
                      name_of(ids.dtype()));
  require_same_device(kLshAttention, {"q", q}, {"ids", ids});
  if (ids.rank() != 4 || ids.dim(0) != q.dim(0) || ids.dim(1) != q.dim(1) || ids.dim(2) < 1 ||
      ids.dim(3) != q.dim(2)) {
    fail_with<ShapeError>(
        kLshAttention,
        fmt::format("ids must be [{}, {}, R, {}], R rounds", q.dim(0), q.dim(1), q.dim(2)),
        {{"q", q}, {"ids", ids}});
  }
}

kernels::LshRule rule_of(const LshOptions& o, int64_t width) {
  kernels::LshRule rule;
  rule.buckets = o.buckets;
  rule.chunk = o.chunk;
  rule.before = o.before;
  rule.after = o.after;
  // Rounds have different bucket ids, so no key in a chunk of another round can match.
  rule.wrap = o.wrap == LshWrap::global && o.same_bucket ? LshWrap::none : o.wrap;
  rule.duplicates = o.duplicates;
  rule.same_bucket = o.same_bucket;
  rule.causal = o.causal;
  rule.repeat_chunks = o.repeat_chunks;
  rule.scale = o.scale == LshScale::official ? 1 : 1 / std::sqrt(static_cast<double>(width));
  rule.self = o.self;
  return rule;
}

/// The scalars of a call; the tensors are saved separately.
struct LshCall {
  kernels::LshRule rule;
  kernels::AttentionDropout dropout;
  bool dropout_broadcast = false;
};

kernels::LshInputs inputs_of(const LshCall& call, const Tensor& q, const Tensor& v,
                             const Tensor& ids, const LshOrder& sorted) {
  return {q.view(),
          v.view(),
          ids.view(),
          sorted.order.view(),
          sorted.place.view(),
          call.rule,
          call.dropout,
          call.dropout_broadcast};
}

struct LshNode final : autograd::Node {
  explicit LshNode(const LshCall& c) : Node(kLshAttention), call(c) {}

  Grads backward(std::span<const Tensor> dy) override {
    const Tensor &q = saved(0), &v = saved(1), &ids = saved(2), &out = saved(3), &lse = saved(4);
    const Tensor dout = dy[0] ? detail::last_dim_contiguous(dy[0])
                              : Tensor::zeros(out.shape(), out.dtype(), out.device());
    const Tensor dlse = dy[1] ? contiguous(dy[1]) : Tensor{};
    const LshOrder sorted = lsh_sort(ids, call.rule.buckets + 1);
    Tensor dq = detail::empty_gradient(q);
    Tensor dv = detail::empty_gradient(v);
    kernels::lsh_attention_backward(q.device(), inputs_of(call, q, v, ids, sorted), out.view(),
                                    lse.view(), dout.view(), dlse.view(), dq.mut(), dv.mut());
    return {wants(0) ? dq : Tensor{}, wants(1) ? dv : Tensor{}};
  }

  LshCall call;
};

}  // namespace

LshBuckets lsh_auto_buckets(int64_t length, int64_t chunk) {
  require(length >= 0 && chunk >= 1, "lsh_auto_buckets", "length {} and chunk {}", length, chunk);
  const int64_t all = 2 * std::max<int64_t>(1, length / chunk);
  if (all <= 128) return {all, 1};
  int64_t first = 2;
  while (first * first < all) first *= 2;
  return {first, 2 * (all / (2 * first))};
}

LshBuckets lsh_auto_buckets_hf(int64_t length, int64_t chunk, int64_t max_length) {
  require(length >= 0 && chunk >= 1 && max_length >= 0, "lsh_auto_buckets_hf",
          "length {}, chunk {} and longest length {}", length, chunk, max_length);
  const auto all = static_cast<uint64_t>(2 * std::max<int64_t>(1, length / chunk));
  const int power = std::bit_width(all) - 1;
  const auto root = static_cast<int64_t>(std::sqrt(static_cast<double>(max_length / chunk)));
  if (int64_t{1} << power <= 2 * std::max(root, chunk)) return {int64_t{1} << power, 1};
  return {int64_t{1} << power / 2, int64_t{1} << (power - power / 2)};
}

Tensor lsh_rotations(Generator gen, int64_t heads, int64_t rounds, int64_t width,
                     const LshBuckets& buckets, DType dtype, Device device, int64_t batch) {
  constexpr const char* op = "lsh_rotations";
  check(op, buckets);
  require(batch >= 0 && heads >= 0 && rounds >= 1 && width >= 1, op,
          "batch {}, {} heads, {} rounds, width {}; expected at least one round and width 1", batch,
          heads, rounds, width);
  std::vector<Tensor> each;
  for (int64_t r = 0; r < rounds; ++r) {
    each.push_back(normal({batch, heads, 1, width, buckets.projections()},
                          gen.fork(static_cast<uint64_t>(r)), 0, 1, dtype, device));
  }
  return rounds == 1 ? each[0] : concat(each, 2);
}

Tensor lsh_buckets(const Tensor& q, const Tensor& rotations, const LshBuckets& buckets,
                   const Tensor& lengths, const Tensor& hidden) {
  constexpr const char* op = "lsh_buckets";
  require<ValueError>(static_cast<bool>(q), op, "q is not given");
  require_rank_is(op, q, 4, "q");
  require_floating(op, q, "q");
  check(op, buckets);
  check_rotations(op, q, rotations, buckets);
  check_padding(op, q, lengths, hidden);
  Tensor ids =
      Tensor::empty({q.dim(0), q.dim(1), rotations.dim(2), q.dim(2)}, DType::i32, q.device());
  if (ids.numel() == 0) return ids;
  MacCount::add_products(ids.numel() * q.dim(3) * buckets.projections());
  const Tensor x = detail::last_dim_contiguous(q), rotation = contiguous(rotations.detach());
  kernels::lsh_hash(q.device(), x.view(), rotation.view(), buckets.first, buckets.second,
                    lengths.view(), hidden.view(), ids.mut());
  return ids;
}

LshOrder lsh_sort(const Tensor& ids, int64_t values) {
  constexpr const char* op = "lsh_sort";
  require<ValueError>(static_cast<bool>(ids), op, "ids are not given");
  require_rank(op, ids, 1, "ids");
  require<DTypeError>(ids.dtype() == DType::i32, op, "ids are {}; expected i32",
                      name_of(ids.dtype()));
  require(values >= 1, op, "{} values; expected 1 or more", values);
  const int64_t n = ids.dim(-1);
  require<NotImplemented>(n < std::numeric_limits<int32_t>::max(), op,
                          "{} tokens; at most 2^31 - 2 are supported", n);
  const Tensor from = detail::checked_ids(op, contiguous(ids.detach()), 0, values);
  LshOrder result;
  result.order = Tensor::empty(ids.shape(), DType::i32, ids.device());
  result.place = Tensor::empty(ids.shape(), DType::i32, ids.device());
  if (ids.numel() == 0) return result;
  const int64_t rows = from.numel() / n;
  Tensor work = Tensor::empty({rows, values + 1}, DType::i32, ids.device(), Category::workspace);
  const auto as_rows = [&](const Tensor& x) { return x.alias({rows, n}, {n, 1}, 0); };
  Tensor order = as_rows(result.order), place = as_rows(result.place);
  kernels::lsh_sort(ids.device(), as_rows(from).view(), values, work.mut(), order.mut(),
                    place.mut());
  return result;
}

AttentionResult lsh_attention(const Tensor& q, const Tensor& v, const Tensor& ids,
                              const LshOptions& options) {
  check_options(options);
  check_inputs(q, v, ids);
  LshCall call{rule_of(options, q.dim(3)), {}, options.dropout_broadcast};
  if (options.pass.training && options.dropout > 0) {
    RngReuseCheck::note(kLshAttention, options.pass.gen, 0, std::numeric_limits<int64_t>::max());
    call.dropout = {options.dropout, options.pass.gen.device_key(), options.pass.head};
  }
  const Tensor x = detail::last_dim_contiguous(q), y = detail::last_dim_contiguous(v);
  const Tensor buckets =
      detail::checked_ids(kLshAttention, contiguous(ids.detach()), 0, options.buckets + 1);
  const Tensor inputs[] = {q, v};
  auto [out, lse] =
      autograd::reuse_or_recompute<2>(kLshAttention, inputs, {}, [&]() -> std::array<Tensor, 2> {
        const int64_t window = options.chunk * (1 + options.before + options.after);
        MacCount::add_attention(ids.numel() * std::min(q.dim(2), window) * (q.dim(3) + v.dim(3)));
        Tensor z = detail::empty_blhd(q, q.dim(2), v.dim(3));
        Tensor sums =
            Tensor::empty({q.dim(0), q.dim(1), q.dim(2)}, accumulator_of(q.dtype()), q.device());
        if (sums.numel() > 0) {
          const LshOrder sorted = lsh_sort(buckets, options.buckets + 1);
          kernels::lsh_attention_forward(q.device(), inputs_of(call, x, y, buckets, sorted),
                                         z.mut(), sums.mut());
        }
        return {z, sums};
      });
  record_node(kLshAttention, {q, v}, {&out, &lse}, [&] {
    auto node = std::make_shared<LshNode>(call);
    node->save({x, y, buckets, out, lse});
    return node;
  });
  return {out, lse};
}

namespace {

/// Calls visit(head, i, j), heads counted over the batch, for each round that shows key j to query
/// i.
template <class Visit>
void each_visible(const char* op, const Tensor& ids, const LshOptions& options,
                  const Visit& visit) {
  check_options(options);
  require<ValueError>(static_cast<bool>(ids), op, "ids are not given");
  require_rank_is(op, ids, 4, "ids");
  const Tensor from = Tensor::from(ids.to_vector<int32_t>(), ids.shape());  // on the host
  const LshOrder sorted = lsh_sort(from, options.buckets + 1);
  const kernels::LshInputs in = inputs_of({rule_of(options, 1), {}, false}, {}, {}, from, sorted);
  for (int64_t bh = 0; bh < ids.dim(0) * ids.dim(1); ++bh) {
    const kernels::LshHead head = kernels::lsh_head(in, bh / ids.dim(1), bh % ids.dim(1));
    for (int64_t i = 0; i < head.length; ++i) {
      for (int64_t r = 0; r < head.rounds; ++r) {
        for (int64_t slot = 0; slot < head.slots(); ++slot) {
          const kernels::LshChunk keys = head.keys_of({r, head.chunk_of(r, i)}, slot);
          if (!keys.exists()) continue;
          const int64_t end = head.chunk_end(keys.chunk);
          for (int64_t p = keys.chunk * options.chunk; p < end; ++p) {
            const int64_t j = head.at(keys.round, p);
            if (head.allows(r, i, keys.round, j)) visit(bh, i, j);
          }
        }
      }
    }
  }
}

}  // namespace

LshPairs count_lsh_pairs(const Tensor& ids, const LshOptions& options) {
  LshPairs pairs;
  std::set<int64_t> seen;
  int64_t query = -1;
  each_visible("count_lsh_pairs", ids, options, [&](int64_t bh, int64_t i, int64_t j) {
    const int64_t now = bh * ids.dim(3) + i;
    if (now != query) pairs.distinct += std::ssize(std::exchange(seen, {}));
    query = now;
    ++pairs.visits;
    seen.insert(j);
  });
  pairs.distinct += std::ssize(seen);
  return pairs;
}

Tensor lsh_visible(const Tensor& ids, const LshOptions& options) {
  constexpr const char* op = "lsh_visible";
  require<ValueError>(static_cast<bool>(ids), op, "ids are not given");
  require_rank_is(op, ids, 4, "ids");
  const int64_t length = ids.dim(3);
  std::vector<uint8_t> seen(static_cast<size_t>(ids.dim(0) * ids.dim(1) * length * length));
  each_visible(op, ids, options, [&](int64_t bh, int64_t i, int64_t j) {
    seen[static_cast<size_t>((bh * length + i) * length + j)] = 1;
  });
  return Tensor::from(seen, {ids.dim(0), ids.dim(1), length, length});
}

}  // namespace longspan
