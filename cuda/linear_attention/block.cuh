#pragma once

#include <limits>

#include "cuda/linear_attention/arguments.cuh"
#include "cuda/rows.cuh"

/// A block of threads that processes the tokens of one head, chunk by chunk.
namespace longspan::cuda {

/// Shared memory of a block; the last matrix is for gradients alone.
template <class A>
struct LinearShared {
  static constexpr int stride = chunk_rows + 1;
  ProductTiles<A> tiles;
  A keys[chunk_rows];     // exponents of keys; for features that are not exponential weights
  A queries[chunk_rows];  // the same of queries
  A denominators[chunk_rows], references[chunk_rows];
  A scores[chunk_rows * stride], weights[chunk_rows * stride];

  static constexpr int64_t bytes(bool gradients) {
    return static_cast<int64_t>(sizeof(LinearShared)) -
           (gradients ? 0 : chunk_rows * stride * static_cast<int64_t>(sizeof(A)));
  }
};

/// Memory of a block for one chunk: features of queries and keys, their derivatives and gradients
/// (for the backward pass alone), the largest exponents and the factors of the state.
template <class A>
struct LinearWorkspace {
  A *q = nullptr, *k = nullptr, *slopes = nullptr, *gradients = nullptr;
  A *next = nullptr, *factor = nullptr;

  static int64_t elements(int64_t features, bool gradients) {
    return features * ((gradients ? 4 : 2) * chunk_rows + 2);
  }
  __device__ LinearWorkspace(A* memory, int64_t features, bool of_gradients) {
    const int64_t rows = features * chunk_rows;
    memory += blockIdx.x * (features * ((of_gradients ? 4 : 2) * chunk_rows + 2));
    next = memory;
    factor = next + features;
    q = factor + features;
    k = q + rows;
    if (of_gradients) {
      slopes = k + rows;
      gradients = slopes + rows;
    }
  }
};

/// What all passes share. Functions are called by all threads of the block; what they write may be
/// read after the next barrier, with which every product begins. Exponents are to base 2.
template <class A>
class LinearBlock {
 public:
  __device__ LinearBlock(const LinearArguments<A>& arguments, A* memory, bool gradients)
      : x(arguments),
        shared(*reinterpret_cast<LinearShared<A>*>(block_memory())),
        work(memory, arguments.features, gradients) {}

  __device__ void start(int64_t head) {
    b = head / x.heads;
    h = head % x.heads;
    poisoned = false;
    first_seeing = find_first_seeing(head);
  }

 protected:
  static constexpr A none = static_cast<A>(kernels::kNoKeys);
  __device__ static Team<32> warp() { return {nullptr}; }

  __device__ int64_t row_of(int64_t i) const { return (b * x.heads + h) * x.queries + i; }
  __device__ bool exists(int64_t j) const { return x.exists(b, j); }
  __device__ bool shifts() const { return x.exponential || x.oscillating; }
  /// The index of element (r, c) of a state.
  __device__ int64_t at_state(int r, int c) const { return int64_t{r} * x.columns() + c; }

  /// Calls f(i) for the indices of [0, n) that belong to this thread.
  template <class F>
  __device__ void for_all(int n, F f) const {
    for (int i = threadIdx.x; i < n; i += linear_threads) f(i);
  }
  /// Calls f(i) for the rows of [0, n) that belong to this warp.
  template <class F>
  __device__ void for_rows_of_warp(int n, F f) const {
    for (int i = threadIdx.x / 32; i < n; i += linear_threads / 32) f(i);
  }

  // ------------------------------------------------------------------------------------- inputs

  __device__ A value(int64_t j, int c) const { return exists(j) ? x.v.load(b, h, j, c) : A(0); }
  __device__ A key(int64_t j, int c) const { return exists(j) ? x.k.load(b, h, j, c) : A(0); }
  /// Zero in queries that see no key: their results are zeros, whatever they hold.
  __device__ A query(int64_t i, int c) const {
    return i < first_seeing ? A(0) : x.q.load(b, h, i, c);
  }
  /// An element of dO; zero if it is not given or if the query sees no key.
  __device__ A output_gradient(int64_t i, int c) const {
    return x.dout.data == nullptr || i < first_seeing ? A(0) : x.dout.load(b, h, i, c);
  }
  /// Returns to all threads the first query that sees a key; the number of queries if none does.
  __device__ int64_t find_first_seeing(int64_t head) const {
    if (x.has_start) {
      bool known = !shifts();
      for_all(x.features,
              [&](int r) { known = known || x.start_top[head * x.features + r] > none; });
      if (any_thread(known)) return 0;
    }
    int64_t keys = x.keys, j = 0;
    if (x.k_valid != nullptr && x.k_valid[b] < keys) keys = x.k_valid[b];
    while (j < keys && !exists(j)) ++j;
    if (j >= keys) return x.queries;
    return x.causal ? j : 0;
  }
  __device__ const A* projection() const { return x.projection + h * x.projection_head; }

  /// Returns to all threads whether these rows are finite. Hidden elements are multiplied by 0,
  /// which makes NaN of nonfinite ones.
  template <class Load>
  __device__ bool finite(int count, int width, Load load) const {
    bool wrong = false;
    for_all(count * width, [&](int e) {
      const A value = load(e / width, e % width);
      wrong = wrong || !(value - value == A(0));
    });
    return !any_thread(wrong);
  }

  /// u [count, m], rows `features` apart: unit x W^T + phase.
  template <class Load>
  __device__ void project(int count, Load load, A* u) {
    if (x.projection == nullptr) {
      for_all(count * x.m,
              [&](int e) { u[e / x.m * x.features + e % x.m] = x.unit * load(e / x.m, e % x.m); });
      return;
    }
    const A* const w = projection();
    const A* const phase = x.phase == nullptr ? nullptr : x.phase + h * x.phase_head;
    block_product<Along::depth, Along::depth>(
        shared.tiles, count, x.m, x.width, load, [&](int c, int r) { return w[r * x.width + c]; },
        [&](int i, int r, A sum) {
          u[i * x.features + r] = x.unit * sum + (phase == nullptr ? A(0) : phase[r]);
        });
  }
  __device__ void project_keys(int64_t first, int count) {
    project(
        count, [&](int j, int c) { return key(first + j, c); }, work.k);
    for_rows_of_warp(count, [&](int j) {
      A sum = 0;
      for_row<1>(warp(), x.norm_sign == 0 ? 0 : x.width, [&](int c) {
        const A value = key(first + j, c);
        sum += value * value;
      });
      sum = warp().sum(sum);
      if (warp().rank() == 0) {
        shared.keys[j] = exists(first + j) ? x.norm_factor * sum : static_cast<A>(hidden_exponent);
      }
    });
    __syncthreads();
  }
  __device__ void project_queries(int64_t first, int count) {
    project(
        count, [&](int i, int c) { return query(first + i, c); }, work.q);
    __syncthreads();
  }
  /// The exponents that divide queries by their denominators or, for features that are not
  /// exponential, 1 / denominator.
  __device__ void load_normalizers(int64_t first, int count) {
    for_all(count, [&](int i) {
      const A r = x.normalizer[row_of(first + i)];
      if (x.exponential) {
        shared.queries[i] =
            r == -std::numeric_limits<A>::infinity() ? static_cast<A>(hidden_exponent) : -r;
      } else {
        shared.queries[i] = r == A(0) ? A(0) : A(1) / r;
      }
    });
    __syncthreads();
  }

  // ----------------------------------------------------------------------------------- exponents

  /// next = the largest exponents of the chunk's rows and of `top`; factor brings the state there.
  /// u are features' arguments, row the exponents of rows.
  __device__ void raise(const A* u, int count, const A* row, const A* top) {
    for_all(x.features, [&](int r) {
      const bool second = r >= x.m;
      const A* const at = u + (second ? r - x.m : r);
      A high = top[r];
      for (int i = 0; i < count; ++i) {
        const A shift = row[i], value = at[i * x.features];
        const A e = second ? shift - value : shift + value;
        if (e > high) high = e;
      }
      set_next(r, top[r], high);
    });
    __syncthreads();
  }
  /// The same with one exponent for all features.
  __device__ void raise_all(A high, const A* top) {
    for_all(x.features, [&](int r) { set_next(r, top[r], high); });
    __syncthreads();
  }
  __device__ void set_next(int r, A top, A high) {
    work.next[r] = high;
    work.factor[r] = top == high ? A(1) : power_of_two(top - high);
  }
  /// The same for keys, whose exponents are in shared.keys.
  __device__ void raise_keys(int count, const A* top) {
    if (x.exponential) return raise(work.k, count, shared.keys, top);
    A high = top[0];
    for (int j = 0; x.oscillating && j < count; ++j) {
      if (shared.keys[j] > high) high = shared.keys[j];
    }
    raise_all(high, top);
  }
  /// The same for queries, for their sums; shared.queries holds load_normalizers().
  __device__ void raise_queries(int64_t first, int count, const A* top) {
    if (x.exponential) return raise(work.q, count, shared.queries, top);
    A high = top[0];
    for (int i = 0; x.oscillating && i < count; ++i) {
      const A e = -x.reference[row_of(first + i)];
      if (shared.queries[i] != A(0) && e > high) high = e;
    }
    raise_all(high, top);
  }

  /// The largest exponent of row i over all features: u + slot. Every lane of the warp gets it.
  __device__ A top_of_row(const A* u, int i, const A* slot) const {
    A high = static_cast<A>(hidden_exponent);
    for_row<1>(warp(), x.m, [&](int r) {
      const A value = u[i * x.features + r], up = slot[r] + value;
      if (up > high) high = up;
      if (x.halves == 1) return;
      const A down = slot[x.m + r] - value;
      if (down > high) high = down;
    });
    return warp().max(high);
  }

  /// Replaces the exponents of keys by weights unless features are exponential; `sign` times next
  /// is the exponent of the state.
  __device__ void weigh_keys(int count, A sign) {
    if (x.exponential) return;
    const A shift = sign * work.next[0];
    for_all(count, [&](int j) {
      const A e = shared.keys[j];
      const A weight = x.oscillating ? power_of_two(e + shift) : A(1);
      shared.keys[j] = e > none ? weight : A(0);
    });
    __syncthreads();
  }
  __device__ void weigh_queries(int64_t first, int count, A sign) {
    if (!x.oscillating) return;
    const A shift = sign * work.next[0];
    for_all(count, [&](int i) {
      if (shared.queries[i] == A(0)) return;
      shared.queries[i] *= power_of_two(shift - x.reference[row_of(first + i)]);
    });
    __syncthreads();
  }

  /// Replaces u by the features of `count` rows: exponential ones are 2^(+-u + sign next + row),
  /// others are multiplied by row. `slopes` are their derivatives by u, or nullptr.
  __device__ void find_features(A* u, int count, A sign, const A* row, A* slopes) {
    for_all(count * x.m, [&](int e) {
      const int i = e / x.m, r = e % x.m, at = i * x.features + r;
      const A value = u[at], w = row[i];
      A y, slope, second = 0, second_slope = 0;
      if (x.exponential) {
        y = slope = power_of_two(sign * work.next[r] + value + w);
        if (x.halves == 2) {
          second = power_of_two(sign * work.next[x.m + r] - value + w);
          second_slope = -second;
        }
      } else {
        const auto [f, df] = map_feature(x.map, value);
        const A weight = x.amplitude * w;
        y = f * weight;
        slope = df * weight;
        if (x.halves == 2) {  // the sine
          second = -slope;
          second_slope = y;
        } else {
          y += x.epsilon * w;
        }
      }
      u[at] = y;
      if (slopes != nullptr) slopes[at] = slope;
      if (x.halves == 1) return;
      u[at + x.m] = second;
      if (slopes != nullptr) slopes[at + x.m] = second_slope;
    });
    __syncthreads();
  }

  // --------------------------------------------------------------------------------------- state

  /// sums = sums factor + features^T [right, last], top = next.
  template <class Right, class Last>
  __device__ void add_to_state(LinearStates<A> state, const A* features, int count, Right right,
                               Last last) {
    block_product<Along::line, Along::line>(
        shared.tiles, x.features, x.columns(), count,
        [&](int r, int j) { return features[j * x.features + r]; },
        [&](int j, int c) { return c < x.value_width ? right(j, c) : last(j); },
        [&](int r, int c, A sum) {
          A& to = state.sums[at_state(r, c)];
          to = to * work.factor[r] + sum;
        });
    for_all(x.features, [&](int r) { state.top[r] = work.next[r]; });
    __syncthreads();
  }
  __device__ void add_keys(LinearStates<A> state, int64_t first, int count) {
    add_to_state(
        state, work.k, count, [&](int j, int c) { return value(first + j, c); },
        [](int) { return A(1); });
  }
  /// The gradients [dO, -mean] of numerators and denominators, for features that are divided by the
  /// denominator.
  __device__ void add_queries(LinearStates<A> state, int64_t first, int count) {
    add_to_state(
        state, work.q, count, [&](int i, int c) { return output_gradient(first + i, c); },
        [&](int i) { return -x.means[row_of(first + i)]; });
  }
  __device__ void clear_state(LinearStates<A> state) {
    const int64_t elements = at_state(x.features, 0);
    for (int64_t e = threadIdx.x; e < elements; e += linear_threads) state.sums[e] = 0;
    for_all(x.features, [&](int r) { state.top[r] = shifts() ? none : A(0); });
    __syncthreads();
  }

  /// Calls attempt(first, count) for chunks of [begin, end), the last one first if `backward`. An
  /// attempt that returns false is repeated with half of the rows; the next chunk may be longer
  /// again.
  template <class Attempt>
  __device__ void for_chunks(int64_t begin, int64_t end, bool backward, Attempt attempt) {
    int limit = chunk_rows;
    while (begin < end) {
      int count = end - begin < limit ? end - begin : limit;
      // Chunks begin at multiples of their length, unless an attempt has cut one.
      if (backward && (end - begin) % limit != 0) count = static_cast<int>((end - begin) % limit);
      while (!attempt(backward ? end - count : begin, count)) count = limit = count / 2;
      if (backward) {
        end -= count;
      } else {
        begin += count;
      }
      if (limit < chunk_rows) limit = limit * 2 < chunk_rows ? limit * 2 : chunk_rows;
    }
  }

  const LinearArguments<A>& x;
  LinearShared<A>& shared;
  LinearWorkspace<A> work;
  int64_t b = 0, h = 0, first_seeing = 0;
  bool poisoned = false;  // whether a sum is NaN, which no cut mends
};

}  // namespace longspan::cuda
