#include "ops/attention/entmax_attention.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <vector>

#include "autograd/mode.h"
#include "autograd/record.h"
#include "core/kernels/entmax_attention.h"
#include "core/kernels/gradient.h"
#include "core/kernels/matmul.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kEntmaxAttention = "entmax_attention";

/// Rows of a tile, and how many scores the tiles of all its heads may have together: what the
/// second-level cache holds, or on a device what occupies it.
constexpr int64_t tile_rows = 128, host_scores = 1 << 19, device_scores = 1 << 24;

/// The distances -right .. left of keys before a query, and the position of query 0.
struct Reach {
  int64_t left, right, q_start;

  /// The keys that rows first .. first + n see, of `keys`.
  kernels::KeyInterval of(int64_t first, int64_t n, int64_t keys) const {
    const int64_t at = first + q_start, last = at + n - 1;
    return {left < at ? at - left : 0, right < keys - last ? last + right + 1 : keys};
  }
};

/// Samples, heads, rows and keys of a tile of scores.
struct Tile {
  int64_t b, samples, h, heads, row, rows, key, keys;
  int64_t size() const { return samples * heads * rows * keys; }

  /// Its part of x [B, H, L, ..], and of y [B, H, T, ..].
  Tensor rows_of(const Tensor& x) const { return narrow(each(x), 2, row, rows); }
  Tensor keys_of(const Tensor& y) const { return narrow(each(y), 2, key, keys); }
  Tensor each(const Tensor& x) const { return narrow(narrow(x, 0, b, samples), 1, h, heads); }
  /// Its scores in a workspace.
  Tensor in(const Tensor& workspace) const {
    const Shape shape{samples, heads, rows, keys};
    return workspace.alias(shape, {heads * rows * keys, rows * keys, keys, 1}, 0);
  }
};

/// The lengths of a pattern; undefined ones drop their condition.
struct Lengths {
  Tensor k_valid, k_begin, q_valid;
};

/// Whether products may give a hidden pair the factor 0: with inf or NaN in one of these tensors it
/// would be NaN. Only the host looks, at sums.
bool may_hide_by_zeros(std::initializer_list<Tensor> factors) {
  const NoGrad off;
  return std::all_of(factors.begin(), factors.end(), [](const Tensor& x) {
    return x.device().kind != DeviceKind::cpu || std::isfinite(sum(x).item());
  });
}

/// Calls f(tile) for tiles of one row of one head and the keys that it sees.
template <class F>
void for_single_rows(const Tensor& q, int64_t keys, const Reach& reach, const Lengths& lengths,
                     F&& f) {
  const auto of = [&](const Tensor& length, int64_t all) {
    return length ? length.to_vector<int64_t>()
                  : std::vector<int64_t>(static_cast<size_t>(q.dim(0)), all);
  };
  const auto k_valid = of(lengths.k_valid, keys), k_begin = of(lengths.k_begin, 0),
             q_valid = of(lengths.q_valid, q.dim(2));
  for (int64_t b = 0; b < q.dim(0); ++b) {
    const auto at = static_cast<size_t>(b);
    for (int64_t row = 0; row < std::min(q.dim(2), q_valid[at]); ++row) {
      const kernels::KeyInterval seen = reach.of(row, 1, keys);
      const int64_t lo = std::max(seen.lo, k_begin[at]), hi = std::min(seen.hi, k_valid[at]);
      for (int64_t h = 0; lo < hi && h < q.dim(1); ++h) f(Tile{b, 1, h, 1, row, 1, lo, hi - lo});
    }
  }
}

/// Calls f(tile) for tiles that cover all rows of q which see a key.
template <class F>
void for_tiles(const Tensor& q, int64_t keys, const Reach& reach, F&& f) {
  const int64_t B = q.dim(0), H = q.dim(1), L = q.dim(2);
  const int64_t budget = q.device().kind == DeviceKind::cpu ? host_scores : device_scores;
  for (int64_t row = 0; row < L; row += tile_rows) {
    const int64_t rows = std::min(tile_rows, L - row);
    const kernels::KeyInterval seen = reach.of(row, rows, keys);
    const int64_t n = seen.hi - seen.lo;
    if (n <= 0) continue;
    const int64_t together = std::max<int64_t>(1, budget / (rows * n));
    const int64_t samples = std::clamp<int64_t>(together / std::max<int64_t>(H, 1), 1, B),
                  heads = samples > 1 ? H : std::min(together, H);
    for (int64_t b = 0; b < B; b += samples) {
      for (int64_t h = 0; h < H; h += heads) {
        f(Tile{b, std::min(samples, B - b), h, std::min(heads, H - h), row, rows, seen.lo, n});
      }
    }
  }
}

/// Returns a workspace for the largest tile.
Tensor workspace_for(const Tensor& q, int64_t keys, const Reach& reach) {
  int64_t most = 0;
  for_tiles(q, keys, reach, [&](const Tile& tile) { most = std::max(most, tile.size()); });
  return Tensor::empty({most}, q.dtype(), q.device(), Category::workspace);
}

Reach reach_of(const AttentionPattern& given, const Tensor& q, const Tensor& k) {
  using Kind = LayoutSpec::Kind;
  const Kind kind = given.layout_spec.kind;
  const Rule rule = given.rules.empty() ? Rule{} : given.rules.front();
  const bool plain = given.layout == nullptr && (kind == Kind::dense || kind == Kind::band) &&
                     given.rules.size() <= 1 && rule.window.dilation == 1 && rule.stride == 0;
  require<NotImplemented>(plain, kEntmaxAttention,
                          "the pattern is {}; expected dense, causal, local or local_bidirectional",
                          given.name);
  const PairMask& mask = given.mask;
  require<NotImplemented>(!mask.q_from && !mask.k_hidden && !mask.class_id, kEntmaxAttention,
                          "of the masks only lengths and k_begin are supported");
  Reach reach{rule.window.left, rule.window.right, rule.q_start};
  if (rule.causal) reach.right = std::min<int64_t>(reach.right, 0);
  if (reach.q_start == Rule::align_ends) reach.q_start = k.dim(2) - q.dim(2);
  return reach;
}

void require_operands(const Tensor& q, const Tensor& k, const Tensor& v) {
  for (const auto& [name, x] : {Named{"q", q}, Named{"k", k}, Named{"v", v}}) {
    require_rank_is(kEntmaxAttention, x, 4, name);
    require_floating(kEntmaxAttention, x, name);
  }
  const bool fits = q.dim(0) == k.dim(0) && q.dim(1) == k.dim(1) && q.dim(3) == k.dim(3) &&
                    v.dim(0) == k.dim(0) && v.dim(1) == k.dim(1) && v.dim(2) == k.dim(2);
  if (!fits) {
    fail_with<ShapeError>(kEntmaxAttention,
                          "expected q [B, H, L, d], k [B, H, T, d] and v [B, H, T, dv]",
                          {{"q", q}, {"k", k}, {"v", v}});
  }
  require_same_dtype(kEntmaxAttention, {"q", q}, {"k", k});
  require_same_dtype(kEntmaxAttention, {"q", q}, {"v", v});
  require_same_device(kEntmaxAttention, {"q", q}, {"k", k});
  require_same_device(kEntmaxAttention, {"q", q}, {"v", v});
}

/// Returns i64 [B] of the samples of q, contiguous; undefined if it is not given.
Tensor checked_length(std::string_view name, const Tensor& length, const Tensor& q) {
  if (!length) return {};
  if (length.shape() != Shape{q.dim(0)} || length.dtype() != DType::i64)
    fail_with<ShapeError>(kEntmaxAttention, "lengths must be i64 [B]", {{name, length}, {"q", q}});
  require_same_device(kEntmaxAttention, {"q", q}, {name, length});
  return contiguous(length);
}

Lengths lengths_of(const AttentionPattern& pattern, const Tensor& q) {
  return {checked_length("k_valid", pattern.mask.k_valid, q),
          checked_length("k_begin", pattern.mask.k_begin, q),
          checked_length("q_valid", pattern.q_valid, q)};
}

/// What a call tells its kernels about each tile.
struct Call {
  Reach reach;
  kernels::AttentionDropout dropout;
  double scale;
  int64_t keys, heads;
};

kernels::EntmaxTile described(const Tile& t, const Call& call, const Lengths& lengths) {
  const auto& [reach, dropout, scale, keys, heads] = call;
  kernels::EntmaxTile tile;
  tile.masks.k_valid = lengths.k_valid.view();
  tile.masks.k_begin = lengths.k_begin.view();
  tile.q_valid = lengths.q_valid.view();
  tile.first_sample = t.b;
  tile.first_query = t.row;
  tile.first_key = t.key;
  tile.keys = keys;
  tile.q_start = reach.q_start;
  tile.left = reach.left;
  tile.right = reach.right;
  tile.first_head = t.h;
  tile.heads = heads;
  tile.dropout = dropout;
  return tile;
}

void multiply(const Tensor& a, const Tensor& b, Tensor to, bool accumulate = false) {
  kernels::matmul(a.device(), a.view(), b.view(), to.mut(), {.accumulate = accumulate});
}

/// x in the dtype that scores are computed in.
Tensor wide(const Tensor& x) { return cast(x, accumulator_of(x.dtype())); }

/// Calls f(tile, its probabilities) for all tiles of scaled queries, and writes the thresholds.
template <class F>
void for_probabilities(const Tensor& q, const Tensor& k, const Tensor& alpha, const Call& call,
                       const Lengths& lengths, const Tensor& tau, bool by_zeros, F&& f) {
  const Tensor workspace = workspace_for(q, k.dim(2), call.reach);
  const auto each = [&](const Tile& t) {
    Tensor x = t.in(workspace);
    multiply(t.rows_of(q), transpose(t.keys_of(k), 2, 3), x);
    kernels::entmax_tile_forward(q.device(), described(t, call, lengths),
                                 narrow(alpha, 0, t.h, t.heads).view(), x.mut(),
                                 t.rows_of(tau).mut());
    f(t, x);
  };
  if (by_zeros) return for_tiles(q, k.dim(2), call.reach, each);
  for_single_rows(q, k.dim(2), call.reach, lengths, each);
}

/// The gradients of q, k, v and of alpha for each head.
Grads gradients_of(const Context& c, const Tensor& dy, const Call& call) {
  const auto [given, given_k, given_v, alpha, tau, k_valid, k_begin, q_valid] = c.saved<8>();
  const Lengths lengths{k_valid, k_begin, q_valid};
  const Tensor q = mul(wide(given), call.scale), k = wide(given_k), v = wide(given_v);
  const Tensor g = wide(dy.strides()[3] == 1 ? dy : contiguous(dy));
  const Reach& reach = call.reach;
  const int64_t keys = call.keys;
  const auto zeros_of = [](const Tensor& x) {
    return Tensor::zeros(x.shape(), x.dtype(), x.device());
  };
  Tensor dq = zeros_of(q), dk = zeros_of(k), dv = zeros_of(v);
  Tensor dalpha = c.wants(3) ? zeros_of(tau) : Tensor{};
  const Tensor scores = workspace_for(q, keys, reach), slopes = workspace_for(q, keys, reach);
  const auto each = [&](const Tile& t) {
    Tensor x = t.in(scores), dp = t.in(slopes);
    multiply(t.rows_of(q), transpose(t.keys_of(k), 2, 3), x);
    multiply(t.rows_of(g), transpose(t.keys_of(v), 2, 3), dp);
    kernels::entmax_tile_backward(q.device(), described(t, call, lengths),
                                  narrow(alpha, 0, t.h, t.heads).view(), t.rows_of(tau).view(),
                                  x.mut(), dp.mut(), dalpha ? t.rows_of(dalpha).mut() : View{});
    multiply(transpose(x, 2, 3), t.rows_of(g), t.keys_of(dv), true);
    multiply(dp, t.keys_of(k), t.rows_of(dq));
    multiply(transpose(dp, 2, 3), t.rows_of(q), t.keys_of(dk), true);
  };
  if (may_hide_by_zeros({q, k, g})) {
    for_tiles(q, keys, reach, each);
  } else {
    for_single_rows(q, keys, reach, lengths, each);
  }
  if (dalpha) dalpha = sum(dalpha, {0, 2});
  const DType dtype = given.dtype();
  return {cast(mul(dq, call.scale), dtype), cast(dk, dtype), cast(dv, dtype), dalpha};
}

int64_t visible_pairs(const Tensor& q, const Tensor& k, const Reach& reach) {
  int64_t pairs = 0;
  for (int64_t i = 0; i < q.dim(2); ++i) {
    const kernels::KeyInterval seen = reach.of(i, 1, k.dim(2));
    pairs += std::max<int64_t>(seen.hi - seen.lo, 0);
  }
  return q.dim(0) * q.dim(1) * pairs;
}

/// alpha for each head, in the dtype of scores.
Tensor of_heads(const Tensor& alpha, const Tensor& q) {
  require_floating(kEntmaxAttention, alpha, "alpha");
  require_same_device(kEntmaxAttention, {"q", q}, {"alpha", alpha});
  return contiguous(expand(cast(alpha, accumulator_of(q.dtype())), {q.dim(1)}));
}

Call call_of(const Tensor& q, const Tensor& k, const AttentionPattern& pattern, double scale) {
  return {reach_of(pattern, q, k),
          {},
          scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(q.dim(3))),
          k.dim(2),
          q.dim(1)};
}

void draw(Call& call, const Dropout& dropout) {
  require(dropout.p >= 0 && dropout.p < 1, kEntmaxAttention, "dropout is {}; expected 0 <= p < 1",
          dropout.p);
  if (!dropout.pass.training || dropout.p == 0) return;
  require<NotImplemented>(dropout.pass.row == 0, kEntmaxAttention,
                          "dropout.pass.row = {}: dropout of a part of the rows is not implemented",
                          dropout.pass.row);
  RngReuseCheck::note(kEntmaxAttention, dropout.pass.gen, 0, std::numeric_limits<int64_t>::max());
  call.dropout = {dropout.p, dropout.pass.gen.device_key(), dropout.pass.head};
}

}  // namespace

EntmaxResult entmax_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                              const AttentionPattern& pattern, const Tensor& alpha, double scale,
                              const Dropout& dropout) {
  require_operands(q, k, v);
  Call call = call_of(q, k, pattern, scale);
  draw(call, dropout);
  const Lengths lengths = lengths_of(pattern, q);
  const Tensor each = of_heads(alpha, q);
  const Tensor inputs[] = {q, k, v, each};
  auto [out, tau] =
      autograd::reuse_or_recompute<2>(kEntmaxAttention, inputs, {}, [&]() -> std::array<Tensor, 2> {
        const NoGrad off;
        MacCount::add_attention(
            MacCount::active() ? visible_pairs(q, k, call.reach) * (q.dim(3) + v.dim(3)) : 0);
        const Tensor x = mul(wide(q), call.scale), keys = wide(k), values = wide(v);
        const Tensor rows =
            Tensor::zeros({q.dim(0), q.dim(2), q.dim(1), v.dim(3)}, x.dtype(), q.device());
        const Tensor y = transpose(rows, 1, 2);
        const Tensor t = full({q.dim(0), q.dim(1), q.dim(2)},
                              std::numeric_limits<double>::infinity(), x.dtype(), q.device());
        for_probabilities(x, keys, each, call, lengths, t, may_hide_by_zeros({values}),
                          [&](const Tile& tile, const Tensor& p) {
                            multiply(p, tile.keys_of(values), tile.rows_of(y));
                          });
        return {transpose(cast(rows, q.dtype()), 1, 2), t};
      });
  out = record(kEntmaxAttention, {q, k, v, each}, out,
               save(q, k, v, each, tau, lengths.k_valid, lengths.k_begin, lengths.q_valid),
               [call](const Context& c, const Tensor& dy) { return gradients_of(c, dy, call); });
  return {out, tau};
}

Tensor entmax_density(const Tensor& given, const Tensor& given_k, const AttentionPattern& pattern,
                      const Tensor& alpha, double scale) {
  const NoGrad off;
  require_operands(given, given_k, given_k);
  const Call call = call_of(given, given_k, pattern, scale);
  const Lengths lengths = lengths_of(pattern, given);
  const Tensor q = mul(wide(given), call.scale), k = wide(given_k), each = of_heads(alpha, given);
  const auto counted = [&](const Tensor& queries) {
    Tensor n = Tensor::zeros({q.dim(0), q.dim(1), q.dim(2)}, q.dtype(), q.device());
    const Tensor tau = Tensor::like(n);
    for_probabilities(
        queries, k, each, call, lengths, tau, true, [&](const Tile& t, const Tensor& p) {
          const Tensor positive = sum(cast(greater(p, zeros_like(p)), q.dtype()), {3});
          kernels::accumulate(q.device(), positive.view(), t.rows_of(n).mut());
        });
    return n;
  };
  // Of equal scores no probability is 0.
  const Tensor some = counted(q), all = counted(zeros_like(q));
  return div(some, maximum(all, ones(all.shape(), all.dtype(), all.device())));
}

}  // namespace longspan
