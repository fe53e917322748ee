// Linear attention backward, for one SIMD target and one dtype of computation.

#if defined(LONGSPAN_CPU_LINEAR_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_LINEAR_BACKWARD_INL_H_
#undef LONGSPAN_CPU_LINEAR_BACKWARD_INL_H_
#else
#define LONGSPAN_CPU_LINEAR_BACKWARD_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "cpu/attention/prefetch.h"
#include "cpu/linear_attention/features-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

/// The arguments of the backward pass.
struct LinearGradientCall {
  const LinearAttentionInputs& in;
  const kernels::LinearAttentionResultsOf<ConstView>& results;
  const kernels::LinearAttentionGradientsOut& given;
  const kernels::LinearAttentionGradients& to;
};

/// Processes one head of one sample, in two sweeps over its tokens. With features of queries
/// divided by their denominators r, [n, r] has the gradient g = [dO, -dO . out]. The first sweep
/// sums S = sum_j phi_k [v, 1] again and gives dphi_q = S g; the second one goes backward, sums
/// T = sum_i phi_q g, and gives dphi_k = T [v, 1] and dv = T^T phi_k. Both sums are stored with
/// features as columns, S times 2^shift and T times 2^-shift for a shift of each slot, which is
/// added to the exponents of keys and subtracted from those of queries.
template <class T>
class LinearBackward {
 public:
  LinearBackward(const LinearGradientCall& call, int64_t b, int64_t h, Slab<T>& slab)
      : call_(call),
        head_(call.in, b, h, slab),
        width_panels_(ceil_div(head_.width, N)),
        panels_(ceil_div(head_.value_width + 1, N)),
        weight_rows_(slab.take(call.in.projection ? width_panels_ * head_.padded * N : 0)),
        x_(slab.take(width_panels_ * kChunk * N)),
        q_features_(slab.take(head_.slots * kChunk)),
        k_features_(slab.take(head_.slots * kChunk)),
        slopes_(slab.take(head_.slots * kChunk)),
        gradients_(slab.take(head_.slots * kChunk)),
        values_(slab.take(panels_ * kChunk * N)),
        outputs_(slab.take(panels_ * kChunk * N)),
        columns_(slab.take(round_up(kChunk, N) * panels_ * N)),
        q_columns_(slab.take(round_up(kChunk, N) * head_.slots)),
        results_(slab.take(std::max(width_panels_, panels_) * kChunk * N)),
        scores_(slab.take((kChunk + kRest) * kScoreStride)),
        weights_(slab.take((kChunk + kRest) * kScoreStride)),
        sums_(slab.take(head_.slots * panels_ * N)),
        later_(slab.take(head_.slots * panels_ * N)),
        later_rows_(slab.take(head_.slots * panels_ * N)),
        shift_(slab.take(head_.slots)),
        next_shift_(slab.take(head_.slots)),
        opposite_(slab.take(head_.slots)),
        exponents_(slab.take(kChunk)),
        row_(slab.take(kChunk)) {}

  void run() {
    prepare();
    const int64_t queries = head_.queries, keys = head_.keys;
    if (call_.in.numbers.causal) {
      constexpr int64_t step = kCausalChunk;
      for (int64_t i = 0; i < queries; i += step) {
        prefetch(i + step, true, true);
        find_query_gradients(i, std::min(step, queries - i));
      }
      start_later();
      for (int64_t j = round_down(std::max<int64_t>(keys - 1, 0), step); j >= 0 && keys > 0;
           j -= step) {
        prefetch(j - step, true, true);
        find_key_gradients(j, std::min(step, keys - j));
      }
    } else {
      for (int64_t j = 0; j < keys; j += kChunk) {
        prefetch(j + kChunk, true, false);
        sum_keys(j, std::min(kChunk, keys - j));
      }
      start_later();
      for (int64_t i = 0; i < queries; i += kChunk) {
        prefetch(i + kChunk, false, true);
        find_whole_query_gradients(i, std::min(kChunk, queries - i));
      }
      transpose_later();
      for (int64_t j = 0; j < keys; j += kChunk) {
        prefetch(j + kChunk, true, false);
        find_whole_key_gradients(j, std::min(kChunk, keys - j));
      }
    }
    if (call_.to.sums) write_state_gradient();
    hwy::FlushStream();
  }

 private:
  static constexpr int64_t N = kPanel<T>;
  static constexpr int64_t V = kLanes<T>;
  static constexpr T kNone = static_cast<T>(kernels::kNoKeys);

  bool shifts() const { return head_.exponential || head_.oscillating; }
  int64_t value_rows() const { return panels_ * N; }
  int64_t state_row(int64_t half, int64_t r) const {
    return ((head_.b * call_.in.q.dim(1) + head_.h) * head_.halves + half) * head_.m + r;
  }

  void prepare() {
    head_.pack_projection();
    if (call_.in.projection) {
      pack_rows(head_.projection(), 0, head_.m, head_.padded, head_.scale, weight_rows_,
                head_.padded);
    }
    over_values_ = over_panels<T>(head_.value_width + 1, kChunk * N);
    over_outputs_ = over_panels<T>(head_.value_width, kChunk * N);
    for (int64_t r = 0; r < head_.m; r += N) {
      over_half_.push_back({r * kChunk, r * N, std::min(N, head_.m - r)});
    }
    over_slots_ = head_.over_features;
    for (T* const buffer : {sums_, later_}) {
      std::fill_n(buffer, head_.slots * value_rows(), T{0});
    }
    std::fill_n(values_, panels_ * kChunk * N, T{0});
    std::fill_n(outputs_, panels_ * kChunk * N, T{0});
    std::fill_n(shift_, head_.slots, shifts() ? -kNone : T{0});
    if (call_.in.sums) read_state();
    const int64_t head_at = head_.b * call_.in.q.dim(1) + head_.h;
    normalizer_ = call_.results.normalizer.as<T>() + head_at * head_.queries;
    means_ = call_.to.means.as<T>() + head_at * head_.queries;
    if (head_.oscillating) {
      reference_ = call_.results.reference.as<T>() + head_at * head_.queries;
    }
    dq_ = head_sink<T>(call_.to.q, head_.b, head_.h, nullptr);
    dk_ = head_sink<T>(call_.to.k, head_.b, head_.h, nullptr);
    dv_ = head_sink<T>(call_.to.v, head_.b, head_.h, nullptr);
  }

  T* at_state(T* state, int64_t slot, int64_t c) const {
    return state + (slot / N * value_rows() + c) * N + slot % N;
  }
  void read_state() {
    const int64_t width = head_.value_width + 1;
    for (int64_t half = 0; half < head_.halves; ++half) {
      for (int64_t r = 0; r < head_.m; ++r) {
        const int64_t slot = half * head_.padded + r;
        const T* const from = call_.in.sums.as<T>() + state_row(half, r) * width;
        for (int64_t c = 0; c < width; ++c) *at_state(sums_, slot, c) = from[c];
        shift_[slot] = -call_.in.top.as<T>()[state_row(half, r)];
      }
    }
  }
  // T of the tokens after the last one: the gradient of the state that they got. Without causality
  // the shift for all keys stays.
  void start_later() {
    if (call_.in.numbers.causal && shifts()) std::fill_n(shift_, head_.slots, kNone);
    if (call_.given.sums) read_later();
  }
  void read_later() {
    const int64_t width = head_.value_width + 1;
    for (int64_t half = 0; half < head_.halves; ++half) {
      for (int64_t r = 0; r < head_.m; ++r) {
        const int64_t slot = half * head_.padded + r;
        const T* const from = call_.given.sums.as<T>() + state_row(half, r) * width;
        for (int64_t c = 0; c < width; ++c) *at_state(later_, slot, c) = from[c];
        if (call_.in.numbers.causal) {
          shift_[slot] = -call_.results.top.as<T>()[state_row(half, r)];
        }
      }
    }
  }
  void write_state_gradient() {
    const int64_t width = head_.value_width + 1;
    for (int64_t half = 0; half < head_.halves; ++half) {
      for (int64_t r = 0; r < head_.m; ++r) {
        const int64_t slot = half * head_.padded + r;
        const T factor = power(call_.in.top.as<T>()[state_row(half, r)] + shift_[slot]);
        T* const to = call_.to.sums.as<T>() + state_row(half, r) * width;
        for (int64_t c = 0; c < width; ++c) to[c] = *at_state(later_, slot, c) * factor;
      }
    }
  }

  // Queues the rows from `first` on, which arrive while the present chunk is computed.
  void prefetch(int64_t first, bool keys, bool queries) {
    prefetcher_.clear();
    if (first < 0) return;
    const int64_t chunk = call_.in.numbers.causal ? kCausalChunk : kChunk;
    const int64_t key_end = std::min(first + chunk, head_.keys);
    const int64_t query_end = std::min(first + chunk, head_.queries);
    if (keys) prefetcher_.add(head_.k, first, key_end);
    if (keys) prefetcher_.add(head_.v, first, key_end);
    if (queries) prefetcher_.add(head_.q, first, query_end);
    if (queries && call_.given.out) {
      prefetcher_.add(head_rows<T>(call_.given.out, head_.b, head_.h, nullptr), first, query_end);
    }
    prefetcher_.spread(head_.slots / N * (keys && queries ? 8 : 2));
  }

  // ----------------------------------------------------------------------------- chunks, loaded

  // Loads keys, values with a column of ones, and u of the keys.
  void load_keys(int64_t first, int64_t count) {
    bool finite_values = true, finite_keys = true;
    head_.pack_existing(head_.v, first, count, values_, finite_values);
    const int64_t c = head_.value_width;
    for (int64_t j = 0; j < count; ++j) values_[(c / N * kChunk + j) * N + c % N] = T{1};
    head_.pack_existing(head_.k, first, count, x_, finite_keys);
    finite_of_keys_ = finite_values && finite_keys;
    head_.norms_of_keys(x_, first, count, exponents_);
    head_.project(x_, count, k_features_);
  }

  // Loads g and u of queries, and the exponents that divide by the denominator or, for features
  // that are not exponential, 1 / denominator. Rows without either are zeros, whatever they held.
  void load_queries(int64_t first, int64_t count) {
    finite_of_queries_ = load_output_gradients(first, count);
    if (!pack_rows(head_.q, first, count, count, T{1}, x_, kChunk)) finite_of_queries_ = false;
    for (int64_t i = 0; i < count && !finite_of_queries_; ++i) {
      const T none = head_.exponential ? -std::numeric_limits<T>::infinity() : T{0};
      if (normalizer_[first + i] != none) continue;
      clear_row(x_, head_.width, i);
      clear_row(outputs_, head_.value_width, i);
    }
    head_.project(x_, count, q_features_);
    for (int64_t i = 0; i < count; ++i) {
      const T r = normalizer_[first + i];
      if (head_.exponential) {
        row_[i] = r == -std::numeric_limits<T>::infinity() ? static_cast<T>(kHiddenKey) : -r;
      } else {
        row_[i] = r == T{0} ? T{0} : T{1} / r;
      }
    }
  }

  // Loads g but for its last column, which take_weighted_means() finds. Returns whether it is
  // finite.
  bool load_output_gradients(int64_t first, int64_t count) {
    if (!call_.given.out) return true;  // zeros
    const RowSource<T> dout = head_rows<T>(call_.given.out, head_.b, head_.h, nullptr);
    return pack_rows(dout, first, count, count, T{1}, outputs_, kChunk);
  }
  static void clear_row(T* rows, int64_t width, int64_t i) {
    for (int64_t c = 0; c < width; ++c) rows[(c / N * kChunk + i) * N + c % N] = T{0};
  }
  // Whether the factor 0 of a hidden pair gives 0. If not, rows are computed one by one.
  bool is_finite() const { return finite_of_keys_ && finite_of_queries_; }
  void set_last_column(int64_t first, int64_t count) {
    const int64_t c = head_.value_width;
    for (int64_t i = 0; i < count; ++i) {
      outputs_[(c / N * kChunk + i) * N + c % N] = -means_[first + i];
    }
  }

  // The shift that suits the keys of the chunk and all earlier ones.
  void lower_shift(int64_t count) {
    if (head_.exponential) {
      negate(shift_, opposite_);
      head_.raise_slots(k_features_, count, exponents_, opposite_, next_shift_);
      negate(next_shift_, next_shift_);
    } else if (head_.oscillating) {
      const T top = std::max(-shift_[0], *std::max_element(exponents_, exponents_ + count));
      std::fill_n(next_shift_, head_.slots, -top);
    } else {
      std::fill_n(next_shift_, head_.slots, T{0});
    }
  }
  // The shift that suits the queries of the chunk and all later ones.
  void raise_shift(int64_t first, int64_t count) {
    if (head_.exponential) {
      head_.raise_slots(q_features_, count, row_, shift_, next_shift_);
    } else if (head_.oscillating) {
      T high = shift_[0];
      for (int64_t i = 0; i < count; ++i) {
        if (row_[i] != T{0}) high = std::max(high, -reference_[first + i]);
      }
      std::fill_n(next_shift_, head_.slots, high);
    } else {
      std::fill_n(next_shift_, head_.slots, T{0});
    }
  }
  void negate(const T* from, T* to) const {
    for (int64_t r = 0; r < head_.slots; ++r) to[r] = -from[r];
  }

  // Whether no exponent of the chunk's queries exceeds the limit under next_shift_.
  bool queries_are_near(int64_t first, int64_t count) {
    if (head_.exponential) negate(next_shift_, opposite_);
    head_.clear_pads(opposite_);
    for (int64_t i = 0; i < count; ++i) {
      if (head_.exponential && head_.top_of_row(q_features_, i, opposite_) + row_[i] > kSlack<T>) {
        return false;
      }
      if (head_.oscillating && row_[i] != T{0} &&
          -next_shift_[0] - reference_[first + i] > kSlack<T> / 2) {
        return false;
      }
    }
    return true;
  }
  bool keys_are_near(int64_t count) const {
    for (int64_t j = 0; j < count; ++j) {
      if (head_.exponential &&
          head_.top_of_row(k_features_, j, next_shift_) + exponents_[j] > kSlack<T>) {
        return false;
      }
      if (head_.oscillating && exponents_[j] + next_shift_[0] > kSlack<T> / 2) return false;
    }
    return true;
  }

  // Moves a state to next_shift_: S by the difference, T by its opposite.
  void accept_shift(T* state, T sign) {
    const Tag<T> d;
    for (int64_t r = 0; r < head_.slots; ++r) {
      opposite_[r] = power(sign * (next_shift_[r] - shift_[r]));
    }
    std::copy_n(next_shift_, head_.slots, shift_);
    if (std::all_of(opposite_, opposite_ + head_.slots, [](T x) { return x == T{1}; })) return;
    for (int64_t r = 0; r < head_.slots; r += V) {
      const Vec<T> factor = hn::Load(d, opposite_ + r);
      T* const column = state + r / N * value_rows() * N + r % N;
      for (int64_t c = 0; c <= head_.value_width; ++c) {
        hn::Store(hn::Mul(hn::Load(d, column + c * N), factor), d, column + c * N);
      }
    }
  }

  // Features (and slopes) of queries, divided by the denominator, under shift_.
  void find_query_features(int64_t first, int64_t count, T* slopes) {
    negate(shift_, opposite_);
    head_.clear_pads(opposite_);
    if (head_.oscillating) {
      for (int64_t i = 0; i < count; ++i) {
        if (row_[i] != T{0}) row_[i] *= power(-reference_[first + i] - shift_[0]);
      }
    }
    head_.features(q_features_, count, opposite_, row_, q_features_, slopes);
  }
  void find_key_features(int64_t count, T* slopes) {
    std::copy_n(shift_, head_.slots, opposite_);
    head_.clear_pads(opposite_);
    if (!head_.exponential) {
      for (int64_t j = 0; j < count; ++j) {
        const bool exists = exponents_[j] > kNone;
        const T weight = head_.oscillating ? power(exponents_[j] + shift_[0]) : T{1};
        exponents_[j] = exists ? weight : T{0};
      }
    }
    head_.features(k_features_, count, opposite_, exponents_, k_features_, slopes);
  }

  // ------------------------------------------------------------------------------------- sweeps

  void find_query_gradients(int64_t first, int64_t count) {
    load_keys(first, count);
    lower_shift(count);
    load_queries(first, count);
    if (count > 1 && !(is_finite() && queries_are_near(first, count))) {
      find_query_gradients(first, count / 2);
      find_query_gradients(first + count / 2, count - count / 2);
      return;
    }
    accept_shift(sums_, T{1});
    find_key_features(count, nullptr);
    find_query_features(first, count, slopes_);
    transpose_rows(values_, panels_, count, columns_);
    multiply_pairs(outputs_, columns_, count, false, over_outputs_, value_rows(), weights_);
    multiply_state(outputs_, sums_, over_outputs_, count);
    add_weighted(weights_, k_features_, head_.slots / N, count, false, gradients_);
    take_weighted_means(first, count);
    finish_queries(first, count);
    add_outer(values_, k_features_, count, sums_);
  }

  void find_key_gradients(int64_t first, int64_t count) {
    load_queries(first, count);
    set_last_column(first, count);
    raise_shift(first, count);
    load_keys(first, count);
    if (count > 1 && !(is_finite() && keys_are_near(count))) {
      find_key_gradients(first + count / 2, count - count / 2);
      find_key_gradients(first, count / 2);
      return;
    }
    accept_shift(later_, T{-1});
    find_query_features(first, count, nullptr);
    find_key_features(count, slopes_);
    transpose_rows(q_features_, head_.slots / N, count, q_columns_);
    transpose_rows(outputs_, panels_, count, columns_);
    multiply_pairs(k_features_, q_columns_, count, true, over_slots_, head_.slots, scores_);
    multiply_pairs(values_, columns_, count, true, over_values_, value_rows(), weights_);
    transpose_later();
    find_value_gradients(count);
    add_weighted(scores_, outputs_, ceil_div(head_.value_width, N), count, true, results_);
    write_existing(first, count, head_.value_width, dv_);
    multiply_state(values_, later_, over_values_, count);
    add_weighted(weights_, q_features_, head_.slots / N, count, true, gradients_);
    finish_keys(first, count);
    add_outer(outputs_, q_features_, count, later_);
  }

  // Bidirectional: S of all keys, then queries, then keys.
  void sum_keys(int64_t first, int64_t count) {
    load_keys(first, count);
    lower_shift(count);
    accept_shift(sums_, T{1});
    find_key_features(count, nullptr);
    add_outer(values_, k_features_, count, sums_);
  }
  void find_whole_query_gradients(int64_t first, int64_t count) {
    load_queries(first, count);
    find_query_features(first, count, slopes_);
    multiply_state(outputs_, sums_, over_outputs_, count);
    take_weighted_means(first, count);
    finish_queries(first, count);
    set_last_column(first, count);
    add_outer(outputs_, q_features_, count, later_);
  }
  void find_whole_key_gradients(int64_t first, int64_t count) {
    load_keys(first, count);
    find_key_features(count, slopes_);
    find_value_gradients(count);
    write_existing(first, count, head_.value_width, dv_);
    multiply_state(values_, later_, over_values_, count);
    finish_keys(first, count);
  }

  // ----------------------------------------------------------------------------------- products

  // Transposes `panels` panels of rows into columns [token panels][panels * N][N].
  void transpose_rows(const T* rows, int64_t panels, int64_t count, T* to) const {
    for (int64_t i = 0; i < count; i += N) {
      for (int64_t p = 0; p < panels; ++p) {
        transpose_panel(rows + (p * kChunk + i) * N, to + (i * panels + p * N) * N);
      }
    }
  }
  static void transpose_panel(const T* from, T* to) {
    for (int64_t c = transpose_blocks(from, N, N, to); c < N; ++c) {
      for (int64_t i = 0; i < N; ++i) to[c * N + i] = from[i * N + c];
    }
  }
  // T with values as columns: [panels][slots][N].
  void transpose_later() {
    for (int64_t p = 0; p < panels_; ++p) {
      for (int64_t r = 0; r < head_.slots; r += N) {
        transpose_panel(later_ + (r / N * value_rows() + p * N) * N,
                        later_rows_ + (p * head_.slots + r) * N);
      }
    }
  }

  // Products of rows a with columns b, for pairs (i, j) with j <= i, or j >= i if `later`; zero for
  // other pairs within a group of rows.
  void multiply_pairs(const T* a, const T* b, int64_t count, bool later,
                      std::span<const InnerRange> over, int64_t column_rows, T* to) const {
    for (int64_t j = 0; j < count; j += N) {
      const int64_t from = later ? 0 : j / kGroup * kGroup;
      const int64_t end = later ? std::min(count, j + N) : count;
      product<2, N, T>(end - from, a + from * N, 1, b + j * column_rows, over,
                       to + from * kScoreStride + j, kScoreStride, false);
    }
    for (int64_t i = 0; i < count; ++i) {
      T* const row = to + i * kScoreStride;
      if (later) {
        std::fill(row + i / kGroup * kGroup, row + i, T{0});
      } else {
        std::fill(row + i + 1, row + round_up(i + 1, kGroup), T{0});
      }
    }
  }

  // to += weights times rows, for the pairs of multiply_pairs().
  void add_weighted(const T* weights, const T* rows, int64_t panels, int64_t count, bool later,
                    T* to) {
    for (int64_t p = 0; p < panels; ++p) {
      for (int64_t i = 0; i < count; i += kGroup) {
        prefetcher_.step();
        const int64_t tokens = std::min(kGroup, count - i);
        const InnerRange seen[] = {later ? InnerRange{i, i * N, count - i}
                                         : InnerRange{0, 0, i + tokens}};
        product<2, kScoreStride, T>(tokens, weights + i * kScoreStride, 1, rows + p * kChunk * N,
                                    seen, to + (p * kChunk + i) * N, N, true);
      }
    }
  }

  // gradients_ = rows (of values or of g) times some values of a state.
  void multiply_state(const T* rows, const T* state, std::span<const InnerRange> over,
                      int64_t count) {
    for (int64_t r = 0; r < head_.slots; r += N) {
      prefetcher_.step();
      product<2, N, T>(count, rows, 1, state + r * value_rows(), over, gradients_ + r * kChunk, N,
                       false);
    }
  }

  // results_ = features of keys times T.
  void find_value_gradients(int64_t count) const {
    for (int64_t p = 0; p * N < head_.value_width; ++p) {
      product<2, N, T>(count, k_features_, 1, later_rows_ + p * head_.slots * N, over_slots_,
                       results_ + p * kChunk * N, N, false);
    }
  }

  // state += sum over tokens of rows (of values or of g) times features.
  void add_outer(const T* rows, const T* features, int64_t count, T* state) {
    const InnerRange all[] = {{0, 0, count}};
    for (int64_t r = 0; r < head_.slots; r += N) {
      prefetcher_.step();
      for (int64_t c = 0; c <= head_.value_width; c += N) {
        product<2, 1, T>(std::min(N, head_.value_width + 1 - c), rows + c * kChunk, N,
                         features + r * kChunk, all, state + (r / N * value_rows() + c) * N, N,
                         true);
      }
    }
  }

  // Of row i the features, divided by the denominator, have the gradient gradients_ - mean_i z,
  // with the sum z of the features of the keys that it sees, and mean_i = dO . out: the sum of
  // gradients_ weighted by the row's features. Found so, it does not depend on how out was rounded.
  void take_weighted_means(int64_t first, int64_t count) {
    const Tag<T> d;
    for (int64_t r = 0; r < head_.slots; r += N) {
      std::copy_n(at_state(sums_, r, head_.value_width), N, opposite_ + r);
    }
    const auto floor = static_cast<T>(call_.in.numbers.floor);
    for (int64_t i = 0; i < count; ++i) {
      if (call_.in.numbers.causal) {
        for (int64_t r = 0; r < head_.slots; r += V) {
          const T* const f = k_features_ + (r / N * kChunk + i) * N + r % N;
          hn::Store(hn::Add(hn::Load(d, opposite_ + r), hn::Load(d, f)), d, opposite_ + r);
        }
      }
      const bool clamped = !head_.exponential && std::abs(normalizer_[first + i]) <= floor;
      const T mean = clamped ? T{0} : weighted_sum(gradients_, q_features_, i);
      means_[first + i] = mean;
      const Vec<T> factor = hn::Set(d, mean);
      for (int64_t r = 0; r < head_.slots; r += V) {
        T* const g = gradients_ + (r / N * kChunk + i) * N + r % N;
        hn::Store(hn::NegMulAdd(factor, hn::Load(d, opposite_ + r), hn::Load(d, g)), d, g);
      }
    }
  }

  // The sum of products of the features of row i.
  T weighted_sum(const T* a, const T* b, int64_t i) const {
    const Tag<T> d;
    Vec<T> sum = hn::Zero(d);
    for (const InnerRange& part : over_slots_) {
      const T *const x = a + part.a + i * N, *const y = b + part.a + i * N;
      simd::for_vectors(d, static_cast<size_t>(part.count), [&](size_t c, size_t left) {
        sum = hn::MulAdd(simd::load(d, x + c, left), simd::load(d, y + c, left), sum);
      });
    }
    return simd::sum_lanes(d, sum);
  }

  // -------------------------------------------------------------------------------------- results

  // Turns gradients of the features into gradients of u, in place.
  void find_u_gradients(int64_t count) {
    const Tag<T> d;
    const int64_t second = head_.padded * kChunk;
    for (int64_t r = 0; r < head_.padded; r += N) {
      for (int64_t i = r * kChunk; i < r * kChunk + count * N; i += V) {
        Vec<T> du = hn::Mul(hn::Load(d, gradients_ + i), hn::Load(d, slopes_ + i));
        if (head_.halves == 2) {
          du = hn::MulAdd(hn::Load(d, gradients_ + second + i), hn::Load(d, slopes_ + second + i),
                          du);
        }
        hn::Store(du, d, gradients_ + i);
      }
    }
  }

  // results_ = scale du W, or scale du without a projection.
  void project_back(int64_t count) {
    if (call_.in.projection) {
      for (int64_t p = 0; p < width_panels_; ++p) {
        product<2, N, T>(count, gradients_, 1, weight_rows_ + p * head_.padded * N, over_half_,
                         results_ + p * kChunk * N, N, false);
      }
      return;
    }
    for (int64_t i = 0; i < width_panels_ * kChunk * N; ++i) {
      results_[i] = head_.scale * gradients_[i];
    }
  }

  void write_rows(int64_t first, int64_t count, const RowSink<T>& to) const {
    for (int64_t i = 0; i < count; ++i) write_row(results_, kChunk, i, T{1}, to, first + i);
  }
  // The same with zeros for keys that do not exist, whatever queries hold.
  void write_existing(int64_t first, int64_t count, int64_t width, const RowSink<T>& to) const {
    for (int64_t j = 0; j < count && head_.masked(); ++j) {
      if (!head_.exists(first + j)) clear_row(results_, width, j);
    }
    write_rows(first, count, to);
  }

  // The factor e^(+-|x|^2 / 2) of a query cancels in the quotient, and so does its gradient.
  void finish_queries(int64_t first, int64_t count) {
    find_u_gradients(count);
    project_back(count);
    write_rows(first, count, dq_);
  }

  void finish_keys(int64_t first, int64_t count) {
    const Tag<T> d;
    const int norm = kernels::norm_sign(head_.map);
    if (norm != 0) {
      for (int64_t j = 0; j < count; ++j) row_[j] = weighted_sum(gradients_, k_features_, j);
    }
    find_u_gradients(count);
    project_back(count);
    const T factor = static_cast<T>(norm) * head_.scale * head_.scale;
    for (int64_t j = 0; j < count && norm != 0; ++j) {
      const Vec<T> more = hn::Set(d, factor * row_[j]);
      for (int64_t p = 0; p < width_panels_; ++p) {
        for (int64_t i = (p * kChunk + j) * N; i < (p * kChunk + j + 1) * N; i += V) {
          hn::Store(hn::MulAdd(more, hn::Load(d, x_ + i), hn::Load(d, results_ + i)), d,
                    results_ + i);
        }
      }
    }
    write_existing(first, count, head_.width, dk_);
  }

  const LinearGradientCall& call_;
  LinearHead<T> head_;
  const int64_t width_panels_, panels_;  // of x; of values and a column of ones
  T* const weight_rows_;                 // the projection times scale: [panels][padded][N]
  T* const x_;                           // rows of queries or keys
  T* const q_features_;                  // rows: u, then the features
  T* const k_features_;                  // rows: u, then the features
  T* const slopes_;                      // rows: derivatives of features by u
  T* const gradients_;                   // rows: of features, then of u
  T* const values_;                      // rows of [v, 1]
  T* const outputs_;                     // rows of g
  T* const columns_;                     // columns of [v, 1] or g
  T* const q_columns_;                   // columns of features
  T* const results_;                     // rows on their way out
  T* const scores_;                      // [kChunk][kScoreStride]
  T* const weights_;                     // [kChunk][kScoreStride]: products g . [v, 1]
  T* const sums_;                        // S: [slot panels][value rows][N]
  T* const later_;                       // T, stored as S
  T* const later_rows_;                  // T: [panels][slots][N]
  T* const shift_;
  T* const next_shift_;
  T* const opposite_;   // minus a shift, or factors
  T* const exponents_;  // of keys, from their norms; for other features weights
  T* const row_;        // of queries
  const T* normalizer_ = nullptr;
  T* means_ = nullptr;  // dO . out of each query
  const T* reference_ = nullptr;
  bool finite_of_keys_ = true, finite_of_queries_ = true;  // of the chunk
  RowSink<T> dq_, dk_, dv_;
  Prefetcher prefetcher_;
  std::vector<InnerRange> over_values_, over_outputs_, over_half_, over_slots_;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
