// Decoding with routing heads: which groups the newest token joins, and attention to their members.

#include <algorithm>
#include <utility>
#include <vector>

#include "autograd/mode.h"
#include "core/scope.h"
#include "nn/attention/decoding_memory.h"
#include "nn/attention/routing.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/reduce.h"
#include "ops/shape.h"

namespace longspan {
namespace {

/// Returns what a layer of heads sees in decoding: [B, heads, tokens, d].
Tensor heads_of(const Tensor& cache, int64_t tokens, int64_t first, int64_t heads) {
  return narrow(memory_slots(cache, 0, tokens), 1, first, heads);
}

}  // namespace

Output RoutingAttention::decode(const Tensor& x, const LayerContext& ctx) const {
  require<GradientError>(!autograd::recording(), "attention",
                         "decoding keeps keys and values without history; use NoGrad");
  const RoutingOptions& o = options_;
  Heads h = project(x);
  const bool prompt = !ctx.memory.has<KeyValues>();
  std::vector<Tensor> keys, parts;
  if (o.local_heads > 0) keys.push_back(h.local_k);
  if (o.routing_heads > 0) keys.push_back(h.k);
  Output result;
  result.memory = ctx.memory;
  const KeyValues now =
      remember(ctx.memory.get<KeyValues>(), keys.size() == 1 ? keys[0] : concat(keys, 1), h.v,
               ctx.position, 0);
  result.memory.set(now);
  if (o.local_heads > 0) {
    ScoreTerms terms;
    if (local_tables_) local_tables_.fill(terms, x.dtype());
    const Tensor k = heads_of(now.keys, now.count, 0, o.local_heads);
    const Tensor v = heads_of(now.values, now.count, 0, o.local_heads);
    parts.push_back(block_attention(h.local_q, k, v, ctx.pattern, terms).out);
  }
  if (o.routing_heads > 0 && prompt) {
    const Selection s = select(h, {}, false);
    parts.push_back(routed(h, s, routing_terms(x.dtype()), Pass{}).out);
    result.memory.set(groups_of(h, s));
  } else if (o.routing_heads > 0) {
    std::vector<Tensor> rows;
    KeyValues past = now;
    RoutingGroups groups = ctx.memory.get<RoutingGroups>();
    for (int64_t i = 0; i < x.dim(1); ++i) {
      past.count = ctx.position + i + 1;
      const Tensor of_keys = o.share_qk ? Tensor{} : narrow(h.k, 2, i, 1);
      rows.push_back(
          attend_last(past, groups, narrow(h.q, 2, i, 1), narrow(h.x, 2, i, 1), of_keys));
    }
    result.memory.set(groups);
    parts.push_back(rows.size() == 1 ? rows[0] : concat(rows, 2));
  }
  result.y = merge(parts);
  return result;
}

RoutingGroups RoutingAttention::groups_of(const Heads& h, const Selection& s) const {
  const RoutingOptions& o = options_;
  const Tensor& mu = centroids_.means();
  const int64_t batch = h.q.dim(0), length = h.q.dim(2), w = o.window;
  const Shape shape{batch, o.routing_heads, o.clusters, w};
  if (!recent()) {
    std::vector<Tensor> groups, scores;
    const auto add_groups = [&](const Tensor& of_tokens, const Tensor& lists) {
      const Tensor x = permute_rows(cast(of_tokens, mu.dtype()), flatten(lists, 2, 3));
      const Tensor members =
          reshape(x, {batch, o.routing_heads, o.clusters, lists.dim(3), o.d_head});
      const int64_t free = w - lists.dim(3);
      groups.push_back(pad(lists, 3, 0, free, -1));
      scores.push_back(pad(sum(mul(members, unsqueeze(mu, 2)), {-1}), 3, 0, free));
    };
    add_groups(h.x, s.queries);
    if (!o.share_qk) add_groups(h.k, s.keys);
    return {groups.size() == 1 ? groups[0] : concat(groups, 2),
            scores.size() == 1 ? scores[0] : concat(scores, 2)};
  }
  const std::vector<int32_t> nearest = s.nearest.to_vector<int32_t>();
  std::vector<int32_t> groups(static_cast<size_t>(numel(shape)), -1);
  for (int64_t row = 0; row < batch * o.routing_heads; ++row) {
    std::vector<std::vector<int32_t>> members(static_cast<size_t>(o.clusters));
    for (int64_t i = 0; i < length; ++i) {
      const int32_t c = nearest[static_cast<size_t>(row * length + i)];
      members[static_cast<size_t>(c)].push_back(static_cast<int32_t>(i));
    }
    for (int64_t c = 0; c < o.clusters; ++c) {
      const std::vector<int32_t>& all = members[static_cast<size_t>(c)];
      const int64_t n = std::min<int64_t>(w, std::ssize(all));
      std::copy(all.end() - n, all.end(), groups.begin() + (row * o.clusters + c) * w);
    }
  }
  return {Tensor::from(groups, shape, h.q.device()), zeros({batch, 1}, mu.dtype(), h.q.device())};
}

namespace {

/// One group in decoding: positions in ascending order, then -1, and their scores.
struct Group {
  int32_t* tokens;
  double* scores;
  int64_t window;

  int64_t size() const { return std::find(tokens, tokens + window, -1) - tokens; }
  void append(int32_t token, double score, int64_t at) {
    tokens[at] = token;
    if (scores != nullptr) scores[at] = score;
  }
  /// Appends a token in place of the one at `at`, which leaves.
  void replace(int64_t at, int32_t token, double score) {
    std::copy(tokens + at + 1, tokens + window, tokens + at);
    if (scores != nullptr) std::copy(scores + at + 1, scores + window, scores + at);
    append(token, score, window - 1);
  }
  /// Adds the newest token if it is among the `window` best so far; returns whether it is.
  bool offer(int32_t token, double score) {
    const int64_t n = size();
    if (n < window) {
      append(token, score, n);
      return true;
    }
    int64_t worst = 0;  // the last token with the lowest score
    for (int64_t i = 1; i < window; ++i) {
      if (scores[i] <= scores[worst]) worst = i;
    }
    if (!(score > scores[worst])) return false;
    replace(worst, token, score);
    return true;
  }
};

/// Lists of the keys that a token sees in the groups that it has joined, i32 [rows, lists, w], the
/// last key at the end; `begin` says where each list begins, `count` how many there are in a row.
struct Lists {
  std::vector<int32_t> tokens;
  std::vector<int64_t> begin;
  std::vector<double> count;
  size_t each = 1;  ///< lists of a row
};

/// `joined` has the offsets in `groups` of each row's groups; a group's keys are `to_keys` further
/// on. A query is the last of its group, and the group of keys has as many tokens, so the query's
/// rank is the rank of the last key.
Lists lists_of(std::vector<int32_t>& groups, const std::vector<std::vector<int64_t>>& joined,
               int64_t to_keys, int64_t w) {
  Lists lists;
  for (const std::vector<int64_t>& own : joined) lists.each = std::max(lists.each, own.size());
  lists.tokens.assign(joined.size() * lists.each * static_cast<size_t>(w), -1);
  lists.begin.assign(joined.size() * lists.each, w);
  for (size_t row = 0; row < joined.size(); ++row) {
    for (size_t n = 0; n < joined[row].size(); ++n) {
      const Group seen{groups.data() + joined[row][n] + to_keys, nullptr, w};
      const int64_t size = seen.size();
      const size_t list = row * lists.each + n;
      lists.begin[list] = w - size;
      std::copy_n(seen.tokens, size,
                  lists.tokens.begin() + static_cast<int64_t>(list) * w + w - size);
    }
    lists.count.push_back(static_cast<double>(joined[row].size()));
  }
  return lists;
}

}  // namespace

Tensor RoutingAttention::attend_last(const KeyValues& memory, RoutingGroups& state, const Tensor& q,
                                     const Tensor& clustered, const Tensor& clustered_keys) const {
  const RoutingOptions& o = options_;
  const Tensor& mu = centroids_.means();
  const int64_t batch = q.dim(0), rows = batch * o.routing_heads, k = o.clusters, w = o.window;
  // Where keys have groups of their own, those of a row follow its groups of queries.
  const int64_t kinds = clustered_keys ? 2 : 1, to_keys = (kinds - 1) * k * w;
  const auto token = static_cast<int32_t>(memory.count - 1);
  const Tensor x = cast(clustered, mu.dtype());
  std::vector<int32_t> groups = state.groups.to_vector<int32_t>();
  std::vector<double> scores, scores_of_keys, known;
  std::vector<int32_t> nearest;
  const auto scores_of = [&](const Tensor& rows_of_tokens) {  // [B, Hr, k]
    return cast(sum(mul(rows_of_tokens, mu), {-1}), DType::f64).to_vector<double>();
  };
  if (recent()) {
    nearest = nearest_centroids(x, mu).to_vector<int32_t>();
  } else {
    known = cast(state.scores, DType::f64).to_vector<double>();
    scores = scores_of(x);
    if (clustered_keys) scores_of_keys = scores_of(cast(clustered_keys, mu.dtype()));
  }
  std::vector<std::vector<int64_t>> joined(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<int64_t>& own = joined[static_cast<size_t>(row)];
    for (int64_t c = 0; c < k; ++c) {
      const int64_t at = (row * kinds * k + c) * w;
      const auto score = static_cast<size_t>(row * k + c);
      Group group{groups.data() + at, recent() ? nullptr : known.data() + at, w};
      if (!recent()) {
        if (group.offer(token, scores[score])) own.push_back(at);
        if (!clustered_keys) continue;
        Group{groups.data() + at + to_keys, known.data() + at + to_keys, w}.offer(
            token, scores_of_keys[score]);
      } else if (nearest[static_cast<size_t>(row)] == c) {
        const int64_t n = group.size();
        if (n < w) group.append(token, 0, n);
        if (n == w) group.replace(0, token, 0);
        own.push_back(at);
      }
    }
  }
  const Lists lists = lists_of(groups, joined, to_keys, w);
  const Device device = q.device();
  const auto many = static_cast<int64_t>(lists.each);
  const Tensor order = Tensor::from(lists.tokens, {batch, o.routing_heads, many, w}, device);
  AttentionPattern pattern = patterns::causal();
  pattern.mask.k_begin = Tensor::from(lists.begin, {rows * many}, device);
  const auto members = [&](const Tensor& cache) {
    return detail::gathered(heads_of(cache, memory.count, o.local_heads, o.routing_heads), order);
  };
  const Tensor query =
      reshape(expand(q, {batch, o.routing_heads, many, o.d_head}), {rows * many, 1, 1, o.d_head});
  const ScoreTerms terms = routing_terms(q.dtype());
  const Tensor values = members(memory.values);
  if (o.mask_self) pattern.rules.front().window.right = -1;
  Tensor out = block_attention(query, members(memory.keys), values, pattern, terms).out;
  if (o.mask_self) {  // a list of one key has the token alone
    const Tensor last = full_like(pattern.mask.k_begin, static_cast<double>(w - 1));
    const Tensor alone = reshape(equal(pattern.mask.k_begin, last), {rows * many, 1, 1, 1});
    out = detail::with_alone(out, narrow(values, 2, w - 1, 1), alone, terms);
  }
  state.groups = Tensor::from(groups, state.groups.shape(), device);
  if (!recent()) {
    const Tensor all = Tensor::from(known, state.scores.shape());
    state.scores = to_device(cast(all, mu.dtype()), device);
  }
  const Tensor n = to_device(
      cast(Tensor::from(lists.count, {batch, o.routing_heads, 1, 1}), mu.dtype()), device);
  const Tensor of_groups = reshape(out, {batch, o.routing_heads, many, o.d_head});
  return detail::over_groups(sum(of_groups, {2}, true), n, o.scatter_eps);
}

}  // namespace longspan
