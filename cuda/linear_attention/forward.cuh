#pragma once

#include "cuda/linear_attention/block.cuh"

/// The forward pass of linear attention: the sums of segments, and the results of queries.
namespace longspan::cuda {

template <class A>
class LinearForward : public LinearBlock<A> {
 public:
  using Base = LinearBlock<A>;
  using Base::b, Base::h, Base::shared, Base::work, Base::x;

  __device__ LinearForward(const LinearArguments<A>& arguments, A* memory)
      : Base(arguments, memory, false) {}

  /// Sums the keys of a segment into a state that is cleared first.
  __device__ void sum_keys(int64_t segment, LinearStates<A> state) {
    this->clear_state(state);
    const int64_t end = x.key_segments.end(segment);
    for (int64_t j = segment * x.key_segments.tokens; j < end; j += chunk_rows) {
      const int count = end - j < chunk_rows ? static_cast<int>(end - j) : chunk_rows;
      this->project_keys(j, count);
      this->raise_keys(count, state.top);
      this->weigh_keys(count, A(-1));
      this->find_features(work.k, count, A(-1), shared.keys, nullptr);
      this->add_keys(state, j, count);
    }
  }

  /// Attends from the queries of a segment. `state` holds all keys or, if causal, those before the
  /// segment; the segment's are then added to it.
  __device__ void attend(int64_t segment, LinearStates<A> state) {
    const int64_t begin = segment * x.query_segments.tokens, end = x.query_segments.end(segment);
    if (x.causal) {
      this->for_chunks(begin, end, false, [&](int64_t first, int count) {
        return attend_causally(state, first, count);
      });
      return;
    }
    this->for_all(x.features, [&](int r) {
      work.next[r] = state.top[r];
      work.factor[r] = 1;
    });
    for (int64_t i = begin; i < end; i += chunk_rows) {
      const int count = end - i < chunk_rows ? static_cast<int>(end - i) : chunk_rows;
      find_query_features(i, count);
      this->for_all(count, [&](int r) { shared.references[r] = state.top[0]; });
      find_denominators(state, count);
      finish(state, i, count);
    }
  }

 private:
  /// Returns false if some row sees terms that are too far below the chunk's largest exponents.
  __device__ bool attend_causally(LinearStates<A> state, int64_t first, int count) {
    if (count > 1 && !this->finite(count, x.value_width,
                                   [&](int j, int c) { return this->value(first + j, c); })) {
      return false;
    }
    bool known = false;
    this->for_all(x.features, [&](int r) { known = known || state.top[r] > Base::none; });
    known = any_thread(known);
    this->project_keys(first, count);
    find_references(state, count);
    const bool judged = this->shifts() && count > 1 && !this->poisoned;
    const bool seen = known || first_key(count) <= static_cast<int>(threadIdx.x);
    this->raise_keys(count, state.top);
    this->weigh_keys(count, A(-1));
    this->find_features(work.k, count, A(-1), shared.keys, nullptr);
    find_query_features(first, count);
    block_product<Along::depth, Along::depth>(
        shared.tiles, count, count, x.features,
        [&](int i, int r) { return work.q[i * x.features + r]; },
        [&](int r, int j) { return work.k[j * x.features + r]; },
        [&](int i, int j, A sum) { shared.scores[i * shared.stride + j] = j <= i ? sum : A(0); });
    find_denominators(state, count);
    if (judged) {
      bool far = false;
      this->for_all(count, [&](int i) {
        if (!seen) return;
        const bool near = x.exponential
                              ? shared.denominators[i] >= power_of_two(-linear_slack<A>)
                              : work.next[0] - shared.references[i] <= linear_slack<A> / 2;
        far = far || !near;
      });
      if (any_thread(far)) return false;
    }
    const A last = shared.denominators[count - 1];
    this->poisoned = this->poisoned || !(last == last);
    finish(state, first, count);
    this->add_keys(state, first, count);
    return true;
  }

  /// The first key of the chunk that exists.
  __device__ int first_key(int count) const {
    int j = 0;
    while (j < count && !(shared.keys[j] > Base::none)) ++j;
    return j;
  }

  /// Oscillating features: the largest exponent of the keys that each row sees.
  __device__ void find_references(LinearStates<A> state, int count) {
    if (!x.oscillating) return;
    this->for_all(count, [&](int i) {
      A high = state.top[0];
      for (int j = 0; j <= i; ++j) {
        if (shared.keys[j] > high) high = shared.keys[j];
      }
      shared.references[i] = high;
    });
    __syncthreads();
  }

  /// Features of queries relative to the largest exponent of each row.
  __device__ void find_query_features(int64_t first, int count) {
    this->project_queries(first, count);
    this->for_rows_of_warp(count, [&](int i) {
      const A high = x.exponential ? this->top_of_row(work.q, i, work.next) : A(-1);
      if (Base::warp().rank() == 0) shared.queries[i] = -high;
    });
    __syncthreads();
    this->find_features(work.q, count, A(1), shared.queries, nullptr);
  }

  /// Finds the denominators relative to `next`: from the state and, if causal, the scores of the
  /// chunk.
  __device__ void find_denominators(LinearStates<A> state, int count) {
    this->for_rows_of_warp(count, [&](int i) {
      A sum = 0;
      for_row<1>(Base::warp(), x.features, [&](int r) {
        sum += work.q[i * x.features + r] *
               (state.sums[this->at_state(r, x.value_width)] * work.factor[r]);
      });
      for_row<1>(Base::warp(), x.causal ? i + 1 : 0,
                 [&](int j) { sum += shared.scores[i * shared.stride + j]; });
      sum = Base::warp().sum(sum);
      if (Base::warp().rank() == 0) shared.denominators[i] = sum;
    });
    __syncthreads();
  }

  /// Writes the rows and normalizers of a chunk.
  __device__ void finish(LinearStates<A> state, int64_t first, int count) {
    this->for_all(count, [&](int i) {
      A r = shared.denominators[i], normalizer = r, factor = 1;
      if (x.exponential) {
        normalizer = binary_logarithm(r) - shared.queries[i];  // minus the largest exponent
      } else {
        if (x.oscillating) {
          const A reference = shared.references[i];
          factor = reference > Base::none ? power_of_two(work.next[0] - reference) : A(0);
          x.reference[this->row_of(first + i)] = reference;
          r *= factor;
        }
        if (r != A(0) && (r < 0 ? -r : r) < x.floor) r = r < 0 ? -x.floor : x.floor;
        normalizer = r;
      }
      x.normalizer[this->row_of(first + i)] = normalizer;
      shared.denominators[i] = r == A(0) ? A(0) : factor / r;
    });
    const int pairs = x.causal ? count : 0;
    block_product<Along::depth, Along::line>(
        shared.tiles, count, x.value_width, x.features + pairs,
        [&](int i, int r) {
          return r < x.features ? work.q[i * x.features + r]
                                : shared.scores[i * shared.stride + r - x.features];
        },
        [&](int r, int c) {
          return r < x.features ? state.sums[this->at_state(r, c)] * work.factor[r]
                                : this->value(first + r - x.features, c);
        },
        [&](int i, int c, A sum) {
          x.out.store(b, h, first + i, c, sum * shared.denominators[i]);
        });
  }
};

}  // namespace longspan::cuda
