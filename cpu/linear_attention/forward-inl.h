// Linear attention forward, for one SIMD target and one dtype of computation.

#if defined(LONGSPAN_CPU_LINEAR_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_LINEAR_FORWARD_INL_H_
#undef LONGSPAN_CPU_LINEAR_FORWARD_INL_H_
#else
#define LONGSPAN_CPU_LINEAR_FORWARD_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "cpu/attention/prefetch.h"
#include "cpu/linear_attention/features-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

using kernels::LinearAttentionResults;

/// Processes one head of one sample. The keys of a chunk are held as columns, so that their
/// features serve without a copy as the right factor of the scores and as the left one of the sums.
template <class T>
class LinearForward {
 public:
  LinearForward(const LinearAttentionInputs& in, const LinearAttentionResults& to, int64_t b,
                int64_t h, Slab<T>& slab)
      : in_(in),
        to_(to),
        head_(in, b, h, slab),
        value_panels_(ceil_div(head_.value_width, N)),
        weight_rows_(slab.take(in.projection ? round_up(head_.width, N) * head_.padded : 0)),
        x_(slab.take(round_up(head_.width, N) * kChunk)),
        q_features_(slab.take(head_.slots * kChunk)),
        columns_(slab.take(round_up(kChunk, N) * head_.width)),
        rows_(slab.take(N * head_.width)),
        k_features_(slab.take(head_.slots * round_up(kChunk, N))),
        values_(slab.take(value_panels_ * kChunk * N)),
        sums_(slab.take(value_panels_ * head_.slots * N)),
        numerators_(slab.take(value_panels_ * kChunk * N)),
        scores_(slab.take((kChunk + kRest) * kScoreStride)),
        totals_(slab.take(head_.slots)),
        next_totals_(slab.take(head_.slots)),
        chunk_totals_(slab.take(head_.slots)),
        top_(slab.take(head_.slots)),
        next_top_(slab.take(head_.slots)),
        factors_(slab.take(head_.slots)),
        exponents_(slab.take(round_up(kChunk, N))),
        row_(slab.take(kChunk)),
        denominators_(slab.take(kChunk)),
        references_(slab.take(kChunk)) {}

  void run() {
    prepare();
    if (in_.numbers.causal) {
      for (int64_t i = 0; i < head_.queries; i += kCausalChunk) {
        attend_causally(i, std::min(kCausalChunk, head_.queries - i));
      }
    } else {
      for (int64_t j = 0; j < head_.keys; j += kChunk) {
        const int64_t count = std::min(kChunk, head_.keys - j);
        prefetch(j + count, true, false);
        load_keys(j, count);
        find_key_features(count);
        accept();
        add_keys(count);
      }
      for (int64_t i = 0; i < head_.queries; i += kChunk) {
        const int64_t count = std::min(kChunk, head_.queries - i);
        prefetch(i + count, false, true);
        load_queries(i, count, top_, totals_);
        multiply_sums(count);
        std::fill_n(references_, count, top_[0]);
        finish(i, count);
      }
    }
    if (to_.sums) write_state();
    if (sink_.stream) hwy::FlushStream();
  }

 private:
  static constexpr int64_t N = kPanel<T>;
  static constexpr int64_t V = kLanes<T>;
  static constexpr T kNone = static_cast<T>(kernels::kNoKeys);

  void prepare() {
    head_.pack_projection();
    if (in_.projection) {
      pack_rows(head_.projection(), 0, head_.m, head_.padded, head_.unit, weight_rows_,
                head_.padded);
    }
    over_weights_ = over_panels<T>(head_.width, head_.padded * N);
    sink_ = head_sink<T>(to_.out, head_.b, head_.h, nullptr);
    std::fill_n(k_features_, head_.slots * round_up(kChunk, N), T{0});
    std::fill_n(sums_, value_panels_ * head_.slots * N, T{0});
    std::fill_n(totals_, head_.slots, T{0});
    std::fill_n(top_, head_.slots, head_.exponential || head_.oscillating ? kNone : T{0});
    if (in_.sums) read_state();
    head_.clear_pads(top_);
  }

  int64_t state_row(int64_t half, int64_t r) const {
    return ((head_.b * in_.q.dim(1) + head_.h) * head_.halves + half) * head_.m + r;
  }
  void read_state() {
    const int64_t width = head_.value_width;
    for (int64_t half = 0; half < head_.halves; ++half) {
      for (int64_t r = 0; r < head_.m; ++r) {
        const int64_t slot = half * head_.padded + r;
        const T* const from = in_.sums.as<T>() + state_row(half, r) * (width + 1);
        for (int64_t c = 0; c < width; c += N) {
          std::copy_n(from + c, std::min(N, width - c), sums_ + c * head_.slots + slot * N);
        }
        totals_[slot] = from[width];
        top_[slot] = in_.top.as<T>()[state_row(half, r)];
      }
    }
    has_keys_ = std::any_of(top_, top_ + head_.slots, [](T x) { return x > kNone; });
  }
  void write_state() const {
    const int64_t width = head_.value_width;
    for (int64_t half = 0; half < head_.halves; ++half) {
      for (int64_t r = 0; r < head_.m; ++r) {
        const int64_t slot = half * head_.padded + r;
        T* const to = to_.sums.as<T>() + state_row(half, r) * (width + 1);
        for (int64_t c = 0; c < width; c += N) {
          std::copy_n(sums_ + c * head_.slots + slot * N, std::min(N, width - c), to + c);
        }
        to[width] = totals_[slot];
        to_.top.as<T>()[state_row(half, r)] = top_[slot];
      }
    }
  }

  void attend_causally(int64_t first, int64_t count) {
    prefetch(first + count, true, true);
    load_keys(first, count);
    find_references(count);
    find_key_features(count);
    load_queries(first, count, next_top_, next_totals_);
    multiply_keys(count);
    if (count > 1 && !poisoned_ && !safe(count)) {
      const int64_t half = count / 2;
      attend_causally(first, half);
      attend_causally(first + half, count - half);
      return;
    }
    poisoned_ = poisoned_ || std::isnan(denominators_[count - 1]);
    accept();
    multiply_sums(count);
    multiply_values(count);
    if (head_.oscillating) rescale_rows(count);
    finish(first, count);
    add_keys(count);
  }

  // Queues the next chunk, whose rows arrive while this one is computed.
  void prefetch(int64_t first, bool keys, bool queries) {
    prefetcher_.clear();
    if (keys) prefetcher_.add(head_.k, first, std::min(first + kChunk, head_.keys));
    if (keys) prefetcher_.add(head_.v, first, std::min(first + kChunk, head_.keys));
    if (queries) prefetcher_.add(head_.q, first, std::min(first + kChunk, head_.queries));
    const int64_t rows = ceil_div(kChunk, kGroup);
    prefetcher_.spread(head_.m / 8 * (keys ? 1 : 0) + value_panels_ * (queries ? rows : 2));
  }

  // Whether no row sees terms that are too far below the chunk's largest exponents.
  bool safe(int64_t count) const {
    if (!head_.exponential && !head_.oscillating) return true;
    bool seen = has_keys_;
    for (int64_t i = 0; i < count; ++i) {
      seen = seen || exponents_[i] > kNone;
      if (!seen) continue;
      const bool near = head_.exponential ? denominators_[i] >= power<T>(-kSlack<T>)
                                          : next_top_[0] - references_[i] <= kSlack<T> / 2;
      if (!near) return false;
    }
    return true;
  }

  // ------------------------------------------------------------------------------------- keys

  void load_keys(int64_t first, int64_t count) {
    const Tag<T> d;
    const int64_t width = head_.width;
    head_.pack_existing(head_.v, first, count, values_, finite_);
    std::fill_n(exponents_, round_up(kChunk, N), static_cast<T>(kHiddenKey));
    for (int64_t j = 0; j < count; j += N) {
      T* const panel = columns_ + j * width;
      const int64_t keys = std::min(N, count - j);
      pack_columns(head_.k, first + j, keys, rows_, panel);
      for (int64_t n = 0; n < keys && head_.masked(); ++n) {
        if (head_.exists(first + j + n)) continue;
        for (int64_t c = 0; c < width; ++c) panel[c * N + n] = T{0};
      }
      for (int64_t v = 0; v < N; v += V) {
        Vec<T> sum = hn::Zero(d);
        for (int64_t c = 0; c < width; ++c) {
          const Vec<T> x = hn::Load(d, panel + c * N + v);
          sum = hn::MulAdd(x, x, sum);
        }
        alignas(64) T norms[V];
        hn::Store(hn::Mul(sum, hn::Set(d, head_.norm_factor)), d, norms);
        for (int64_t n = v; n < std::min(v + V, keys); ++n) {
          if (head_.exists(first + j + n)) exponents_[j + n] = norms[n - v];
        }
      }
      project_keys(panel, k_features_ + j / N * head_.slots * N);
    }
  }

  void project_keys(const T* x, T* u) const {
    const Tag<T> d;
    if (in_.projection) {
      product<2, N, T>(head_.m, weight_rows_, 1, x, over_weights_, u, N, false);
    } else {
      for (int64_t i = 0; i < head_.m * N; i += V) {
        hn::Store(hn::Mul(hn::Load(d, x + i), hn::Set(d, head_.unit)), d, u + i);
      }
    }
    const T* const phase = head_.phase();
    for (int64_t r = 0; phase != nullptr && r < head_.m; ++r) {
      for (int64_t v = 0; v < N; v += V) {
        hn::Store(hn::Add(hn::Load(d, u + r * N + v), hn::Set(d, phase[r])), d, u + r * N + v);
      }
    }
  }

  // Oscillating features: the largest exponent of the keys that each row sees.
  void find_references(int64_t count) {
    T reference = top_[0];
    for (int64_t i = 0; i < count; ++i) {
      references_[i] = reference = std::max(reference, exponents_[i]);
    }
  }

  // Computes the features of the chunk's keys relative to next_top_, the factors that bring the
  // state there, and the sums of the features.
  void find_key_features(int64_t count) {
    if (head_.exponential) {
      find_exponentials(ceil_div(count, N));
    } else {
      find_weighted(count);
    }
    for (int64_t r = 0; r < head_.slots; ++r) next_totals_[r] = totals_[r] * factors_[r];
  }

  void find_exponentials(int64_t panels) {
    std::copy_n(top_, head_.slots, next_top_);
    std::fill_n(factors_, head_.slots, T{1});
    std::fill_n(chunk_totals_, head_.slots, T{0});
    const int64_t apart = head_.slots * N;
    for (int64_t r = 0; r < head_.m; ++r) {
      if (r % 8 == 0) prefetcher_.step();
      T* const u = k_features_ + r * N;
      if (head_.halves == 2) raise<true>(u, u + head_.padded * N, panels, apart, head_.padded + r);
      raise<false>(u, u, panels, apart, r);
    }
  }

  // Turns one feature of all keys into an exponential: 2^(-u) if kOpposite, else 2^u.
  template <bool kOpposite>
  HWY_INLINE void raise(const T* u, T* y, int64_t panels, int64_t apart, int64_t slot) {
    const Tag<T> d;
    Vec<T> high = hn::Set(d, top_[slot]);
    for (int64_t p = 0; p < panels; ++p) {
      for (int64_t v = 0; v < N; v += V) {
        const Vec<T> x = hn::Load(d, u + p * apart + v), e = hn::Load(d, exponents_ + p * N + v);
        high = hn::Max(high, kOpposite ? hn::Sub(e, x) : hn::Add(e, x));
      }
    }
    const T before = top_[slot];
    // Most chunks of a long sequence do not exceed what earlier ones have reached.
    const bool same = hn::AllTrue(d, hn::Eq(high, hn::Set(d, before)));
    const T top = same ? before : simd::max_lanes(d, high);
    const Vec<T> base = hn::Set(d, top);
    Vec<T> sum = hn::Zero(d);
    for (int64_t p = 0; p < panels; ++p) {
      for (int64_t v = 0; v < N; v += V) {
        const Vec<T> x = hn::Load(d, u + p * apart + v);
        const Vec<T> e = hn::Sub(hn::Load(d, exponents_ + p * N + v), base);
        const Vec<T> f = exp2(d, kOpposite ? hn::Sub(e, x) : hn::Add(e, x));
        sum = hn::Add(sum, f);
        hn::Store(f, d, y + p * apart + v);
      }
    }
    next_top_[slot] = top;
    if (!same) factors_[slot] = power(before - top);
    chunk_totals_[slot] = simd::sum_lanes(d, sum);
  }

  void find_weighted(int64_t count) {
    T top = top_[0];
    if (head_.oscillating) top = std::max(top, *std::max_element(exponents_, exponents_ + count));
    const T factor = power(top_[0] - top);
    std::fill_n(next_top_, head_.slots, top);
    head_.clear_pads(next_top_);
    std::fill_n(factors_, head_.slots, factor);
    std::fill_n(chunk_totals_, head_.slots, T{0});
    alignas(64) T weights[kChunk + N] = {};
    for (int64_t j = 0; j < count; ++j) {
      if (exponents_[j] > kNone) weights[j] = head_.oscillating ? power(exponents_[j] - top) : T{1};
    }
    const int64_t panels = ceil_div(count, N);
    if (head_.map == FeatureMap::trigonometric) return find_waves(weights, panels);
    visit_map(head_.map, [&](auto kind) { find_mapped<decltype(kind)::value>(weights, panels); });
  }

  void find_waves(const T* weights, int64_t panels) {
    const Tag<T> d;
    const Vec<T> a = hn::Set(d, head_.amplitude);
    for (int64_t r = 0; r < head_.m; ++r) {
      Vec<T> cosines = hn::Zero(d), sines = hn::Zero(d);
      for (int64_t p = 0; p < panels; ++p) {
        T* const u = k_features_ + (p * head_.slots + r) * N;
        for (int64_t v = 0; v < N; v += V) {
          const Vec<T> x = hn::Load(d, u + v), w = hn::Mul(a, hn::Load(d, weights + p * N + v));
          const Vec<T> c = hn::Mul(w, simd::cos(d, x)), s = hn::Mul(w, simd::sin(d, x));
          cosines = hn::Add(cosines, c);
          sines = hn::Add(sines, s);
          hn::Store(c, d, u + v);
          hn::Store(s, d, u + head_.padded * N + v);
        }
      }
      chunk_totals_[r] = simd::sum_lanes(d, cosines);
      chunk_totals_[head_.padded + r] = simd::sum_lanes(d, sines);
    }
  }

  template <FeatureMap kMap>
  void find_mapped(const T* weights, int64_t panels) {
    const Tag<T> d;
    const Vec<T> a = hn::Set(d, head_.amplitude), more = hn::Set(d, head_.epsilon);
    for (int64_t r = 0; r < head_.m; ++r) {
      Vec<T> sum = hn::Zero(d);
      for (int64_t p = 0; p < panels; ++p) {
        T* const u = k_features_ + (p * head_.slots + r) * N;
        for (int64_t v = 0; v < N; v += V) {
          Vec<T> f, none = sum;
          map_feature<kMap, false>(d, hn::Load(d, u + v), f, none);
          f = hn::Mul(hn::MulAdd(f, a, more), hn::Load(d, weights + p * N + v));
          sum = hn::Add(sum, f);
          hn::Store(f, d, u + v);
        }
      }
      chunk_totals_[r] = simd::sum_lanes(d, sum);
    }
  }

  // Brings the state to the new references.
  void accept() {
    const Tag<T> d;
    for (int64_t r = 0; r < head_.slots; ++r) {
      if (factors_[r] == T{1}) continue;
      const Vec<T> factor = hn::Set(d, factors_[r]);
      for (int64_t p = 0; p < value_panels_; ++p) {
        T* const row = sums_ + (p * head_.slots + r) * N;
        for (int64_t v = 0; v < N; v += V) {
          hn::Store(hn::Mul(hn::Load(d, row + v), factor), d, row + v);
        }
      }
    }
    std::copy_n(next_top_, head_.slots, top_);
    std::copy_n(next_totals_, head_.slots, totals_);
  }

  // Adds the chunk's keys and values to the state.
  void add_keys(int64_t count) {
    over_keys_.clear();
    for (int64_t j = 0; j < count; j += N) {
      over_keys_.push_back({j * head_.slots, j * N, std::min(N, count - j)});
    }
    for (int64_t half = 0; half < head_.halves; ++half) {
      const int64_t at = half * head_.padded * N;
      for (int64_t p = 0; p < value_panels_; ++p) {
        T* const to = sums_ + p * head_.slots * N + at;
        const T* const from = values_ + p * kChunk * N;
        if (head_.value_width - p * N > V) {
          product<2, N, T>(head_.m, k_features_ + at, 1, from, over_keys_, to, N, true);
        } else {
          product<1, N, T>(head_.m, k_features_ + at, 1, from, over_keys_, to, N, true);
        }
      }
    }
    for (int64_t r = 0; r < head_.slots; ++r) totals_[r] += chunk_totals_[r];
    for (int64_t j = 0; j < count; ++j) has_keys_ = has_keys_ || exponents_[j] > kNone;
  }

  // ---------------------------------------------------------------------------------- queries

  // Computes the features of a chunk's queries relative to the largest exponent of each row, and
  // their products with the sums of the features of keys.
  void load_queries(int64_t first, int64_t count, const T* top, const T* totals) {
    const Tag<T> d;
    if (!pack_rows(head_.q, first, count, count, T{1}, x_, kChunk)) clear_blind(count);
    head_.project(x_, count, q_features_);
    for (int64_t i = 0; i < count; ++i) {
      row_[i] = head_.exponential ? -head_.top_of_row(q_features_, i, top) : T{1};
    }
    head_.features(q_features_, count, top, row_, q_features_, nullptr);
    for (int64_t i = 0; i < count; ++i) {
      Vec<T> even = hn::Zero(d), odd = even;
      for (int64_t r = 0; r < head_.slots; r += N) {
        const T* const f = q_features_ + r * kChunk + i * N;
        even = hn::MulAdd(hn::Load(d, f), hn::Load(d, totals + r), even);
        odd = hn::MulAdd(hn::Load(d, f + V), hn::Load(d, totals + r + V), odd);
      }
      denominators_[i] = simd::sum_lanes(d, hn::Add(even, odd));
    }
  }

  // Puts zeros into queries that see no key, whose result is 0 whatever they hold.
  void clear_blind(int64_t count) {
    bool seen = has_keys_;
    for (int64_t i = 0; i < count; ++i) {
      // The exponent of a key that is not a number is none either.
      seen = seen || (in_.numbers.causal && !(exponents_[i] <= kNone));
      for (int64_t c = 0; c < head_.width && !seen; ++c)
        x_[(c / N * kChunk + i) * N + c % N] = T{0};
    }
  }

  // numerators = features of queries times the state
  void multiply_sums(int64_t count) {
    for (int64_t p = 0; p < value_panels_; ++p) {
      prefetcher_.step();
      const T* const from = sums_ + p * head_.slots * N;
      T* const to = numerators_ + p * kChunk * N;
      if (head_.value_width - p * N > V) {
        product<2, N, T>(count, q_features_, 1, from, head_.over_features, to, N, false);
      } else {
        product<1, N, T>(count, q_features_, 1, from, head_.over_features, to, N, false);
      }
    }
  }

  // Scores of the chunk's queries and keys: pairs j <= i, and zeros up to the end of each group.
  void multiply_keys(int64_t count) {
    const Tag<T> d;
    const auto multiply = [&]<int kVectors>(int64_t from, int64_t end, int64_t j) {
      product<kVectors, N, T>(end - from, q_features_ + from * N, 1, k_features_ + j * head_.slots,
                              head_.over_features, scores_ + from * kScoreStride + j, kScoreStride,
                              false);
    };
    for (int64_t j = 0; j < count; j += N) {
      // The first rows that see a key of the panel, and one of its second vector.
      const int64_t first = j / kGroup * kGroup;
      const int64_t second = std::min((j + V) / kGroup * kGroup, count);
      multiply.template operator()<1>(first, second, j);
      multiply.template operator()<2>(second, count, j);
    }
    for (int64_t i = 0; i < count; ++i) {
      T* const row = scores_ + i * kScoreStride;
      std::fill(row + i + 1, row + std::max(round_up(i + 1, kGroup), round_up(i + 1, V)), T{0});
      Vec<T> sum = hn::Zero(d);
      for (int64_t j = 0; j <= i; j += V) sum = hn::Add(sum, hn::LoadU(d, row + j));
      denominators_[i] += simd::sum_lanes(d, sum);
    }
  }

  // numerators += scores times values
  void multiply_values(int64_t count) {
    for (int64_t p = 0; p < value_panels_; ++p) {
      const T* const from = values_ + p * kChunk * N;
      for (int64_t i = 0; i < count; i += kGroup) {
        const int64_t rows = std::min(kGroup, count - i);
        const T* const s = scores_ + i * kScoreStride;
        T* const to = numerators_ + (p * kChunk + i) * N;
        if (!finite_) {  // values of later keys must not contribute
          product_of_seen(rows, s, kScoreStride, 1, from, i + rows, to, N,
                          [i](int64_t r, int64_t j) { return j <= i + r; });
          continue;
        }
        prefetcher_.step();
        const InnerRange seen[] = {{0, 0, i + rows}};
        product<2, kScoreStride, T>(rows, s, 1, from, seen, to, N, true);
      }
    }
  }

  // Brings numerators and denominators from next_top_ to the reference of each row.
  void rescale_rows(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      row_[i] = references_[i] > kNone ? power(top_[0] - references_[i]) : T{0};
      denominators_[i] *= row_[i];
      if (row_[i] == T{1}) continue;
      for (int64_t c = 0; c < value_panels_ * N; ++c) {
        numerators_[(c / N * kChunk + i) * N + c % N] *= row_[i];
      }
    }
  }

  void finish(int64_t first, int64_t count) {
    const int64_t at = (head_.b * in_.q.dim(1) + head_.h) * head_.queries + first;
    const auto floor = static_cast<T>(in_.numbers.floor);
    for (int64_t i = 0; i < count; ++i) {
      T r = denominators_[i], normalizer = r;
      if (head_.exponential) {
        normalizer = std::log2(r) - row_[i];  // row_ holds minus the largest exponent
      } else if (std::abs(r) < floor && r != T{0}) {
        normalizer = r = std::copysign(floor, r);
      }
      to_.normalizer.as<T>()[at + i] = normalizer;
      if (to_.reference) to_.reference.as<T>()[at + i] = references_[i];
      write_row(numerators_, kChunk, i, r == T{0} ? T{0} : T{1} / r, sink_, first + i);
    }
  }

  const LinearAttentionInputs& in_;
  const LinearAttentionResults& to_;
  LinearHead<T> head_;
  const int64_t value_panels_;
  T* const weight_rows_;  // the projection times its unit: [panels][padded][N]
  T* const x_;            // rows of queries
  T* const q_features_;   // rows: u, then the features
  T* const columns_;      // columns of keys
  T* const rows_;         // keys on their way into columns_
  T* const k_features_;   // columns: u, then the features
  T* const values_;       // rows
  T* const sums_;         // the state: [value panels][slots][N]
  T* const numerators_;   // rows
  T* const scores_;       // [kChunk][kScoreStride]
  T* const totals_;       // the state's last column, relative to top_
  T* const next_totals_;  // relative to next_top_
  T* const chunk_totals_;
  T* const top_;
  T* const next_top_;
  T* const factors_;
  T* const exponents_;     // of the chunk's keys, from their norms
  T* const row_;           // for exponential features minus the largest exponent of each row
  T* const denominators_;  // of each row
  T* const references_;    // of each row
  RowSink<T> sink_;
  Prefetcher prefetcher_;
  std::vector<InnerRange> over_weights_, over_keys_;
  bool finite_ = true, has_keys_ = false, poisoned_ = false;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
