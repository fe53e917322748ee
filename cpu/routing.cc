#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/routing.cc"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/divide.h"
#include "core/kernels/routing.h"
#include "core/parallel.h"
#include "cpu/register.h"
#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Lanes = hn::ScalableTag<T>;
template <class T>
using Vector = hn::Vec<Lanes<T>>;

constexpr int64_t kRows = 6;  // tokens whose scores are computed together

/// The scores of one head: centroids are the lanes of vectors.
template <class T>
class Scores {
 public:
  Scores(const ConstView& x, const ConstView& centroids, int64_t b, int64_t h)
      : x_(x.as<T>() + b * x.stride(0) + h * x.stride(1)),
        row_stride_(x.stride(2)),
        width_(x.dim(3)),
        centroids_(centroids.as<T>() + h * width_ * centroids.dim(2)),
        count_(centroids.dim(2)) {}

  static int64_t lanes() { return static_cast<int64_t>(hn::Lanes(Lanes<T>())); }

  /// Calls use(row, centroid, scores) for R rows and each vector of centroids.
  template <int64_t R, class F>
  HWY_INLINE void rows(int64_t row, int64_t first, int64_t end, const F& use) const {
    const int64_t n = lanes();
    int64_t c = first;
    for (; c + 2 * n <= end; c += 2 * n) panel<R, 2>(row, c, use);
    for (; c < end; c += n) panel<R, 1>(row, c, use);
  }

 private:
  /// R rows and V vectors of centroids from `first` on, the last one perhaps a part.
  template <int64_t R, int64_t V, class F>
  HWY_INLINE void panel(int64_t row, int64_t first, const F& use) const {
    const Lanes<T> d;
    const T* const from = x_ + row * row_stride_;
    Vector<T> sums[R][V];
    for (int64_t r = 0; r < R; ++r) {
      for (int64_t v = 0; v < V; ++v) sums[r][v] = hn::Zero(d);
    }
    const bool whole = V > 1 || count_ - first >= lanes();
    const auto left = static_cast<size_t>(count_ - first);
    for (int64_t j = 0; j < width_; ++j) {
      const T* const at = centroids_ + j * count_ + first;
      Vector<T> c[V];
      for (int64_t v = 0; v < V; ++v) {
        c[v] = HWY_LIKELY(whole) ? hn::LoadU(d, at + v * lanes()) : simd::load_part(d, at, left);
      }
      for (int64_t r = 0; r < R; ++r) {
        const Vector<T> x = hn::Set(d, from[r * row_stride_ + j]);
        for (int64_t v = 0; v < V; ++v) sums[r][v] = hn::MulAdd(x, c[v], sums[r][v]);
      }
    }
    // Sums that `use` took from the array itself would be kept in memory by the loop above.
    constexpr size_t most = HWY_MAX_BYTES / sizeof(T);
    HWY_ALIGN T scores[R * V * most];
    const Vector<T> lowest = hn::Set(d, std::numeric_limits<T>::lowest());
    for (int64_t r = 0; r < R; ++r) {
      for (int64_t v = 0; v < V; ++v) {
        const Vector<T> score = sums[r][v];
        hn::Store(hn::IfThenElse(hn::Ge(score, lowest), score, lowest), d,
                  scores + static_cast<size_t>(r * V + v) * most);
      }
    }
    for (int64_t i = 0; i < R * V; ++i) {
      use(row + i / V, first + i % V * lanes(),
          hn::Load(d, scores + static_cast<size_t>(i) * most));
    }
  }

  const T* const x_;
  const int64_t row_stride_, width_;
  const T* const centroids_;
  const int64_t count_;
};

/// The best tokens of one centroid so far, among at most 2 w candidates in the order of tokens.
template <class T>
class Best {
 public:
  using Token = hwy::SignedFromSize<sizeof(T)>;  // a lane for each score

  Best() = default;
  /// `memory` has room for 2 w scores and as many tokens.
  Best(T* memory, int64_t window)
      : scores_(memory), tokens_(reinterpret_cast<Token*>(memory + 2 * window)), window_(window) {}

  /// A token is added only with a higher score than this.
  T threshold() const { return threshold_; }
  /// Tokens come in ascending order, so that one with the score of the last kept one is not better.
  void add(T score, int64_t token) {
    scores_[count_] = score;
    tokens_[count_++] = static_cast<Token>(token);
    if (count_ == 2 * window_) keep();
  }
  void write(int32_t* members) {
    if (count_ > window_) keep();
    for (int64_t i = 0; i < count_; ++i) members[i] = static_cast<int32_t>(tokens_[i]);
    std::fill(members + count_, members + window_, -1);
  }

 private:
  /// Keeps the w candidates with the largest scores, of equal ones the first.
  void keep() {
    threshold_ = last_kept();
    if (count_from(threshold_) == window_) {
      keep_from(threshold_);
      return;
    }
    int64_t equal = window_;  // to keep
    for (int64_t i = 0; i < count_; ++i) equal -= scores_[i] > threshold_ ? 1 : 0;
    int64_t kept = 0;
    for (int64_t i = 0; i < count_; ++i) {
      if (scores_[i] < threshold_ || (scores_[i] == threshold_ && equal-- <= 0)) continue;
      scores_[kept] = scores_[i];
      tokens_[kept++] = tokens_[i];
    }
    count_ = kept;
  }

  /// The largest score that w candidates reach, by bisection: integers in the order of numbers lie
  /// between the old threshold and the largest score. A sort would branch on each candidate.
  T last_kept() const {
    Token low = ordered(std::max(threshold_, std::numeric_limits<T>::lowest()));
    Token high = ordered(*std::max_element(scores_, scores_ + count_));
    while (low < high) {
      using Distance = std::make_unsigned_t<Token>;
      const Distance apart = static_cast<Distance>(high) - static_cast<Distance>(low);
      const auto middle =
          static_cast<Token>(static_cast<Distance>(low) + apart / 2 + apart % 2);  // above low
      if (count_from(number(middle)) >= window_) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return number(low);
  }

  /// The bits of a number as an integer, with the same order.
  static Token ordered(T x) { return flipped(std::bit_cast<Token>(x)); }
  static T number(Token x) { return std::bit_cast<T>(flipped(x)); }
  static Token flipped(Token bits) {
    return bits ^ ((bits >> (8 * sizeof(T) - 1)) & std::numeric_limits<Token>::max());
  }

  /// Calls f(place, scores, which of them reach `least`) for vectors of candidates.
  template <class F>
  HWY_INLINE void for_scores(T least, const F& f) const {
    const Lanes<T> d;
    const auto n = static_cast<int64_t>(hn::Lanes(d));
    const Vector<T> bound = hn::Set(d, least);
    int64_t i = 0;
    for (; i + n <= count_; i += n) {
      const Vector<T> x = hn::LoadU(d, scores_ + i);
      f(i, x, hn::Ge(x, bound));
    }
    if (i == count_) return;
    const auto left = static_cast<size_t>(count_ - i);
    const Vector<T> x = simd::load_part(d, scores_ + i, left);
    f(i, x, hn::And(hn::FirstN(d, left), hn::Ge(x, bound)));
  }
  int64_t count_from(T least) const {
    const Lanes<T> d;
    int64_t n = 0;
    for_scores(least, [&](int64_t, Vector<T>, auto mask)
                          HWY_ATTR { n += static_cast<int64_t>(hn::CountTrue(d, mask)); });
    return n;
  }
  /// What is written lies before what is still to be read.
  void keep_from(T least) {
    const Lanes<T> d;
    const hn::ScalableTag<Token> di;
    int64_t kept = 0;
    for_scores(least, [&](int64_t i, Vector<T> x, auto mask) HWY_ATTR {
      const auto tokens = count_ - i >= static_cast<int64_t>(hn::Lanes(di))
                              ? hn::LoadU(di, tokens_ + i)
                              : simd::load_part(di, tokens_ + i, static_cast<size_t>(count_ - i));
      hn::CompressBlendedStore(tokens, hn::RebindMask(di, mask), di, tokens_ + kept);
      kept += static_cast<int64_t>(hn::CompressBlendedStore(x, mask, d, scores_ + kept));
    });
    count_ = kept;
  }

  T* scores_ = nullptr;
  Token* tokens_ = nullptr;
  int64_t window_ = 0, count_ = 0;
  T threshold_ = -std::numeric_limits<T>::infinity();
};

/// Calls body(rows as a constant, first row) for blocks of kRows rows, then for single rows.
template <class F>
HWY_INLINE void for_rows(int64_t rows, const F& body) {
  int64_t i = 0;
  for (; i + kRows <= rows; i += kRows) body(std::integral_constant<int64_t, kRows>(), i);
  for (; i < rows; ++i) body(std::integral_constant<int64_t, 1>(), i);
}

int64_t existing(const ConstView& lengths, int64_t b, int64_t length) {
  return lengths ? std::clamp<int64_t>(lengths.as<int64_t>()[b], 0, length) : length;
}

template <class T>
void members(const ConstView& x, const ConstView& centroids, const ConstView& lengths, View work,
             View out) {
  constexpr int64_t most = 4;  // vectors of centroids of a task
  const int64_t heads = x.dim(1), clusters = centroids.dim(2), window = out.dim(3);
  const int64_t lanes = Scores<T>::lanes(), group = most * lanes;
  const int64_t groups = ceil_div(clusters, group);
  if (window == 0) return;
  parallel_for(x.dim(0) * heads * groups, [&](int64_t task) {
    const int64_t bh = task / groups, first = task % groups * group;
    const int64_t count = std::min(group, clusters - first);
    const Scores<T> scores(x, centroids, bh / heads, bh % heads);
    constexpr size_t slots = most * HWY_MAX_BYTES / sizeof(T);
    Best<T> best[slots];
    HWY_ALIGN T thresholds[slots];  // of best; infinite where there is no centroid
    const int64_t at = bh * clusters + first;
    T* const memory = reinterpret_cast<T*>(work.as<int64_t>());
    for (int64_t c = 0; c < count; ++c) best[c] = Best<T>(memory + (at + c) * 4 * window, window);
    constexpr T infinity = std::numeric_limits<T>::infinity();
    std::fill_n(thresholds, count, -infinity);
    std::fill(thresholds + count, std::end(thresholds), infinity);
    const Lanes<T> d;
    for_rows(existing(lengths, bh / heads, x.dim(2)), [&](auto rows, int64_t row) HWY_ATTR {
      scores.template rows<decltype(rows)::value>(
          row, first, first + count,
          [&](int64_t token, int64_t centroid, Vector<T> score) HWY_ATTR {
            const int64_t c = centroid - first;
            const auto better = hn::Gt(score, hn::Load(d, thresholds + c));
            if (HWY_LIKELY(hn::AllFalse(d, better))) return;
            HWY_ALIGN T each[HWY_MAX_BYTES / sizeof(T)];
            hn::Store(score, d, each);
            uint8_t bits[8] = {};  // at least; lanes are at most 64
            hn::StoreMaskBits(d, better, bits);
            uint64_t mask = 0;
            std::memcpy(&mask, bits, sizeof mask);
            for (; mask != 0; mask &= mask - 1) {
              const int n = std::countr_zero(mask);
              best[c + n].add(each[n], token);
              thresholds[c + n] = best[c + n].threshold();
            }
          });
    });
    for (int64_t c = 0; c < count; ++c) best[c].write(out.as<int32_t>() + (at + c) * window);
  });
}

template <class T>
void nearest(const ConstView& x, const ConstView& centroids, const ConstView& lengths, View out) {
  constexpr int64_t block = 256;  // tokens of a task
  const int64_t heads = x.dim(1), length = x.dim(2), clusters = centroids.dim(2);
  const int64_t blocks = ceil_div(length, block), lanes = Scores<T>::lanes();
  parallel_for(x.dim(0) * heads * blocks, [&](int64_t task) {
    const int64_t bh = task / blocks, begin = task % blocks * block;
    const int64_t end = std::min(length, begin + block);
    const int64_t there = std::clamp(existing(lengths, bh / heads, length), begin, end);
    const Scores<T> scores(x, centroids, bh / heads, bh % heads);
    int32_t* const ids = out.as<int32_t>() + bh * length;
    const Lanes<T> d;
    for_rows(there - begin, [&](auto rows, int64_t row) HWY_ATTR {
      constexpr int64_t R = decltype(rows)::value;
      T best[R];
      for (int64_t r = 0; r < R; ++r) best[r] = -std::numeric_limits<T>::infinity();
      scores.template rows<R>(begin + row, 0, clusters,
                              [&](int64_t token, int64_t c, Vector<T> score) HWY_ATTR {
                                const int64_t r = token - begin - row;
                                if (HWY_LIKELY(hn::AllFalse(d, hn::Gt(score, hn::Set(d, best[r])))))
                                  return;
                                HWY_ALIGN T each[HWY_MAX_BYTES / sizeof(T)];
                                hn::Store(score, d, each);
                                for (int64_t n = 0; n < std::min(lanes, clusters - c); ++n) {
                                  if (!(each[n] > best[r])) continue;
                                  best[r] = each[n];
                                  ids[token] = static_cast<int32_t>(c + n);
                                }
                              });
    });
    std::fill(ids + there, ids + end, -1);
  });
}

void members_f32(const ConstView& x, const ConstView& c, const ConstView& n, View w, View y) {
  members<float>(x, c, n, w, y);
}
void members_f64(const ConstView& x, const ConstView& c, const ConstView& n, View w, View y) {
  members<double>(x, c, n, w, y);
}
void nearest_f32(const ConstView& x, const ConstView& c, const ConstView& n, View y) {
  nearest<float>(x, c, n, y);
}
void nearest_f64(const ConstView& x, const ConstView& c, const ConstView& n, View y) {
  nearest<double>(x, c, n, y);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::cpu {

HWY_EXPORT(members_f32);
HWY_EXPORT(members_f64);
HWY_EXPORT(nearest_f32);
HWY_EXPORT(nearest_f64);

namespace {

void routing_members(ConstView x, ConstView centroids, ConstView lengths, View work, View members) {
  if (x.dtype == DType::f64) {
    HWY_DYNAMIC_DISPATCH(members_f64)(x, centroids, lengths, work, members);
  } else {
    HWY_DYNAMIC_DISPATCH(members_f32)(x, centroids, lengths, work, members);
  }
}

void nearest_centroid(ConstView x, ConstView centroids, ConstView lengths, View nearest) {
  if (x.dtype == DType::f64) {
    HWY_DYNAMIC_DISPATCH(nearest_f64)(x, centroids, lengths, nearest);
  } else {
    HWY_DYNAMIC_DISPATCH(nearest_f32)(x, centroids, lengths, nearest);
  }
}

void cluster_order(ConstView clusters, View starts, View order, View begin) {
  const int64_t length = clusters.dim(1), count = starts.dim(1) - 1;
  parallel_for(clusters.dim(0), [&](int64_t r) {
    const int32_t* const ids = clusters.as<int32_t>() + r * length;
    int32_t* const next = starts.as<int32_t>() + r * (count + 1);
    int32_t* const sorted = order.as<int32_t>() + r * length;
    int32_t* const first = begin.as<int32_t>() + r * length;
    std::fill(next, next + count + 1, 0);
    for (int64_t i = 0; i < length; ++i) ++next[ids[i] + 1];  // those without a cluster in 0
    next[0] = 0;
    for (int64_t c = 1; c <= count; ++c) next[c] += next[c - 1];
    const int32_t all = next[count];
    for (int64_t i = all; i < length; ++i) {
      sorted[i] = -1;
      first[i] = static_cast<int32_t>(i);
    }
    for (int64_t i = 0; i < length; ++i) {
      if (ids[i] >= 0) sorted[next[ids[i]]++] = static_cast<int32_t>(i);
    }
    for (int32_t i = 0; i < all; ++i) {
      first[i] = i > 0 && ids[sorted[i]] == ids[sorted[i - 1]] ? first[i - 1] : i;
    }
  });
}

void keys_not_after(ConstView queries, ConstView keys, View counts) {
  const int64_t w = queries.dim(1);
  parallel_for(queries.dim(0), [&](int64_t r) {
    const int32_t* const q = queries.as<int32_t>() + r * w;
    const int32_t* const k = keys.as<int32_t>() + r * w;
    int32_t* const n = counts.as<int32_t>() + r * w;
    int32_t seen = 0;
    for (int64_t i = 0; i < w; ++i) {
      while (seen < w && k[seen] >= 0 && k[seen] <= q[i]) ++seen;
      n[i] = q[i] < 0 ? 0 : seen;
    }
  });
}

}  // namespace

void register_routing() {
  kernels::routing_members.set(DeviceKind::cpu, routing_members);
  kernels::nearest_centroid.set(DeviceKind::cpu, nearest_centroid);
  kernels::cluster_order.set(DeviceKind::cpu, cluster_order);
  kernels::keys_not_after.set(DeviceKind::cpu, keys_not_after);
}

}  // namespace longspan::cpu
#endif
