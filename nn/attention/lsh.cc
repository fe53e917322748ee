#include "nn/attention/lsh.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "autograd/mode.h"
#include "core/divide.h"
#include "core/scope.h"
#include "nn/attention/decoding_memory.h"
#include "nn/attention/multi_head.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/reduce.h"
#include "ops/shape.h"
#include "ops/softmax.h"

namespace longspan {
namespace {

constexpr const char* kLshAttention = "lsh attention";

/// Finds the tokens that the last of `tokens` tokens sees, and how often: those that a pass over
/// all tokens would show it, or with `same_bucket` the last ones of its bucket, at most a window of
/// them.
class LastWindow {
 public:
  /// ids: [R, known], known >= tokens.
  LastWindow(std::span<const int32_t> ids, int64_t known, int64_t tokens, const LshOptions& options)
      : ids_(ids),
        known_(known),
        tokens_(tokens),
        rounds_(static_cast<int64_t>(ids.size()) / known),
        options_(options),
        times_(static_cast<size_t>(tokens), 0) {
    for (int64_t r = 0; r < rounds_; ++r) {
      if (options.same_bucket) {
        see_own_bucket(r);
      } else {
        see_chunks(r);
      }
    }
    if (options.duplicates != LshDuplicates::off) {
      for (int32_t& n : times_) n = std::min(n, 1);
    }
  }

  /// Returns how often each token is seen.
  const std::vector<int32_t>& times() const { return times_; }

 private:
  std::span<const int32_t> round(int64_t r) const {
    return ids_.subspan(static_cast<size_t>(r * known_), static_cast<size_t>(tokens_));
  }
  void see(int64_t token) { ++times_[static_cast<size_t>(token)]; }

  void see_own_bucket(int64_t r) {
    const std::span<const int32_t> ids = round(r);
    int64_t left = options_.chunk * (1 + options_.before + options_.after);
    for (int64_t j = tokens_ - 1; j >= 0 && left > 0; --j) {
      if (ids[static_cast<size_t>(j)] != ids.back()) continue;
      see(j);
      --left;
    }
  }

  /// Returns the tokens in the sorted order of round r.
  std::vector<int32_t> order(int64_t r) const {
    const std::span<const int32_t> ids = round(r);
    std::vector<int32_t> all(ids.size());
    std::iota(all.begin(), all.end(), 0);
    std::stable_sort(all.begin(), all.end(), [&](int32_t a, int32_t b) {
      return ids[static_cast<size_t>(a)] < ids[static_cast<size_t>(b)];
    });
    return all;
  }

  void see_chunks(int64_t r) {
    const int64_t m = options_.chunk, chunks = ceil_div(tokens_, m);
    const bool global = options_.wrap == LshWrap::global;
    const int64_t first = global ? 0 : r * chunks, circle = global ? rounds_ * chunks : chunks;
    const std::vector<int32_t> own = order(r);
    const int64_t c = (std::find(own.begin(), own.end(), tokens_ - 1) - own.begin()) / m;
    std::vector<int64_t> seen;  // chunk indices, counted through all rounds
    for (int64_t k = c - options_.before; k <= c + options_.after; ++k) {
      if ((k < 0 || k >= chunks) && options_.wrap == LshWrap::none) continue;
      const int64_t at = first + ((r * chunks - first + k) % circle + circle) % circle;
      if (!options_.repeat_chunks && std::find(seen.begin(), seen.end(), at) != seen.end()) {
        continue;
      }
      seen.push_back(at);
      const std::vector<int32_t> there = at / chunks == r ? own : order(at / chunks);
      const int64_t begin = at % chunks * m;
      for (int64_t i = begin; i < std::min(begin + m, tokens_); ++i) {
        see(there[static_cast<size_t>(i)]);
      }
    }
  }

  std::span<const int32_t> ids_;
  int64_t known_, tokens_, rounds_;
  const LshOptions& options_;
  std::vector<int32_t> times_;
};

}  // namespace

LshBuckets buckets_for(BucketRule rule, int64_t length, int64_t chunk, int64_t n_max) {
  switch (rule) {
    case BucketRule::hf:
      return lsh_auto_buckets_hf(length, chunk, n_max);
    case BucketRule::chunks:
      return {std::max<int64_t>(2, round_down(length / chunk, 2)), 1};
    case BucketRule::paper:
      break;
  }
  return lsh_auto_buckets(length, chunk);
}

LshAttention::LshAttention(const LshAttentionOptions& options, const Init& init)
    : options_(options) {
  LshAttentionOptions& o = options_;
  require(o.n_head >= 1 && o.rounds >= 1, kLshAttention,
          "got {} heads and {} rounds; expected 1 or more", o.n_head, o.rounds);
  if (o.d_head == 0) {
    require(o.d_model % o.n_head == 0, kLshAttention,
            "d_model {} is not a multiple of n_head {}; set d_head", o.d_model, o.n_head);
    o.d_head = o.d_model / o.n_head;
  }
  const int64_t width = o.n_head * o.d_head;
  q_ = Linear(o.d_model, width, false, init.at("q"), o.weights);
  v_ = Linear(o.d_model, width, false, init.at("v"), o.weights);
  out_ = Linear(width, o.d_model, false, init.at("out"), o.weights);
}

bool LshAttention::dense(int64_t length) const { return length <= options_.full_up_to; }

LshBuckets LshAttention::buckets_of(int64_t length) const {
  const LshAttentionOptions& o = options_;
  if (o.buckets.first > 0) return o.buckets;
  return buckets_for(o.rule, length, o.pairs.chunk, o.n_max);
}

Tensor LshAttention::split_heads(const Tensor& x) const {
  return transpose(unflatten(x, -1, options_.n_head, options_.d_head), 1, 2);
}

std::array<Tensor, 2> LshAttention::project(const Tensor& x) const {
  const auto [q, v] = forward_each(x, q_, v_);
  return {split_heads(q), split_heads(v)};
}

Tensor LshAttention::merge(const Tensor& heads) const {
  return out_.forward(flatten(transpose(heads, 1, 2), 2, 3));
}

Tensor LshAttention::hash(const Tensor& q, const LshBuckets& buckets, const Tensor& lengths,
                          Pass pass, const HeadShare& share) const {
  const NoGrad off;
  const DType dtype = accumulator_of(q.dtype());
  const Generator gen = pass.training ? pass.at("rotations").gen : options_.evaluation;
  const Tensor rotations = rotations_ ? cast(rotations_, dtype)
                                      : lsh_rotations(gen, options_.n_head, options_.rounds,
                                                      options_.d_head, buckets, dtype, q.device());
  return lsh_buckets(q.detach(), share.of(rotations, 1), buckets, lengths);
}

LshOptions LshAttention::pairs_of(const LshBuckets& buckets, int64_t length, Pass pass) const {
  LshOptions pairs = options_.pairs;
  pairs.buckets = buckets.count();
  pairs.pass = pass;
  if (dense(length)) {  // one chunk
    pairs.chunk = std::max(pairs.chunk, length);
    pairs.before = pairs.after = 0;
    pairs.same_bucket = false;
  }
  return pairs;
}

Output LshAttention::forward(const Tensor& x, const LayerContext& ctx, Pass pass) const {
  if (ctx.decoding) return decode(x, ctx);
  const HeadShare share(options_.n_head, pass);
  auto [q, v] = project(x);
  q = share.to_heads(q);
  v = share.to_heads(v);
  const int64_t length = q.dim(2);
  const LshBuckets buckets = buckets_of(length);
  Output result;
  if (!ctx.choices.empty()) {
    result.choices = {ctx.choices.front()};
  } else if (dense(length)) {
    const Shape places{q.dim(0), q.dim(1), 1, length};
    const Tensor real = zeros(places, DType::i32, q.device());
    const Tensor ids = full_like(real, static_cast<double>(buckets.count()));
    const Tensor at = iota(length, DType::i64, q.device());
    result.choices = {!ctx.lengths
                          ? real
                          : where(less(at, reshape(ctx.lengths, {q.dim(0), 1, 1, 1})), real, ids)};
  } else {
    result.choices = {hash(q, buckets, ctx.lengths, pass, share)};
  }
  const LshOptions pairs = pairs_of(buckets, length, share.site(pass.at("attn")));
  result.y = merge(share.to_rows(lsh_attention(q, v, result.choices.front(), pairs).out));
  result.memory = ctx.memory;
  return result;
}

Tensor LshAttention::probabilities(const Tensor& x, const LayerContext& ctx) const {
  const NoGrad off;
  const std::array<Tensor, 2> own = project(x);
  const Tensor ids = forward(x, ctx, Pass{}).choices.front();
  const LshOptions pairs = pairs_of(buckets_of(x.dim(1)), x.dim(1), Pass{});
  return attention_weights(
      own[1], [&](const Tensor& unit) { return lsh_attention(own[0], unit, ids, pairs).out; });
}

Output LshAttention::decode(const Tensor& x, const LayerContext& ctx) const {
  require<GradientError>(!autograd::recording(), "attention",
                         "decoding keeps keys and values without history; use NoGrad");
  const LshBuckets buckets = buckets_of(options_.n_max);
  Output result;
  result.memory = ctx.memory;
  const bool prompt = !ctx.memory.has<KeyValues>();
  require(prompt == ctx.choices.empty(), kLshAttention,
          "decoding takes the buckets of all tokens before, and only with their keys");
  const auto [q, v] = project(x);
  const Tensor ids = hash(q, buckets, {}, Pass{});
  if (prompt) {
    const LshOptions pairs = pairs_of(buckets, x.dim(1), Pass{});
    const Tensor seen =
        dense(x.dim(1)) ? zeros({q.dim(0), q.dim(1), 1, q.dim(2)}, DType::i32, q.device()) : ids;
    result.y = merge(lsh_attention(q, v, seen, pairs).out);
    result.memory.set(remember({}, q, v, ctx.position, 0));
    result.choices = {ids};
    return result;
  }
  result.choices = {concat({ctx.choices.front(), ids}, 3)};
  const std::vector<int32_t> all = result.choices.front().to_vector<int32_t>();  // [B H R tokens]
  std::vector<Tensor> rows;
  KeyValues now = ctx.memory.get<KeyValues>();
  for (int64_t i = 0; i < x.dim(1); ++i) {
    const auto row = [&](const Tensor& t, int axis) { return narrow(t, axis, i, 1); };
    now = remember(now, row(q, 2), row(v, 2), ctx.position + i, 0);
    rows.push_back(attend_last(now, all, result.choices.front().dim(3), buckets));
  }
  result.memory.set(now);
  result.y = merge(concat(rows, 2));
  return result;
}

Tensor LshAttention::attend_last(const KeyValues& memory, const std::vector<int32_t>& ids,
                                 int64_t known, const LshBuckets& buckets) const {
  const int64_t tokens = memory.count, batch = memory.keys.dim(0), heads = options_.n_head;
  const LshOptions pairs = pairs_of(buckets, tokens, Pass{});
  std::vector<std::vector<int32_t>> times;
  int64_t widest = 0;
  const size_t each =
      ids.size() / static_cast<size_t>(std::max<int64_t>(1, batch * heads));  // R known
  for (int64_t row = 0; row < batch * heads; ++row) {
    const std::span<const int32_t> own =
        std::span(ids).subspan(static_cast<size_t>(row) * each, each);
    times.push_back(dense(tokens) ? std::vector<int32_t>(static_cast<size_t>(tokens), 1)
                                  : LastWindow(own, known, tokens, pairs).times());
    const auto seen = tokens - std::count(times.back().begin(), times.back().end(), 0);
    widest = std::max(widest, seen);
  }
  // Pads all lists to equal length with entries of weight -inf.
  std::vector<int64_t> list(static_cast<size_t>(batch * heads * widest), -1);
  std::vector<double> weight(list.size(), -std::numeric_limits<double>::infinity());
  std::vector<double> self(list.size(), 0);
  for (size_t row = 0; row < times.size(); ++row) {
    size_t at = row * static_cast<size_t>(widest);
    for (int64_t j = 0; j < tokens; ++j) {
      const int32_t n = times[row][static_cast<size_t>(j)];
      if (n == 0) continue;
      list[at] = j;
      weight[at] = std::log(static_cast<double>(n)) + (j == tokens - 1 ? pairs.self : 0);
      self[at] = j == tokens - 1 ? 1 : 0;
      ++at;
    }
  }
  const DType dtype = accumulator_of(memory.keys.dtype());
  const Device device = memory.keys.device();
  const Tensor order = Tensor::from(list, {batch, heads, widest}, device);
  const auto gathered = [&](const Tensor& all) { return cast(permute_rows(all, order), dtype); };
  const Tensor q = cast(memory_slots(memory.keys, tokens - 1, 1), dtype);  // [B, H, 1, d]
  const Tensor near = gathered(memory.keys);                               // [B, H, n, d]
  const double width = static_cast<double>(options_.d_head);
  const double scale = pairs.scale == LshScale::rsqrt_d ? 1 / std::sqrt(width) : 1;
  const Tensor norm = add(sum(square(near), {3}, true), width * 1e-6);
  const Tensor keys = mul(mul(near, rsqrt(norm)), scale);
  const auto of_pairs = [&](const std::vector<double>& numbers) {
    return cast(Tensor::from(numbers, {batch, heads, 1, widest}, device), dtype);
  };
  const Tensor scores = matmul(q, transpose(keys));  // [B, H, 1, n]
  const Tensor others = mul(scores, sub(1.0, of_pairs(self)));
  const Tensor p = softmax(add(others, of_pairs(weight)));
  return cast(matmul(p, gathered(memory.values)), memory.keys.dtype());
}

}  // namespace longspan
