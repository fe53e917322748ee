#pragma once

#include "cuda/linear_attention/block.cuh"

/// Linear attention backward. With features of queries divided by their denominators r, [n, r] has
/// the gradient g = [dO, -dO . out]. Sums S of phi_k [v, 1] over the keys that a query sees give
/// dphi_q = S g; sums T of phi_q g over the queries that see a key give dphi_k = T [v, 1] and dv =
/// T^T phi_k. S and T are summed anew, each relative to its own largest exponents.
namespace longspan::cuda {

template <class A>
class LinearBackward : public LinearBlock<A> {
 public:
  using Base = LinearBlock<A>;
  using Base::b, Base::h, Base::shared, Base::work, Base::x;

  __device__ LinearBackward(const LinearArguments<A>& arguments, A* memory)
      : Base(arguments, memory, true) {}

  /// Sums the queries of a segment into a state that is cleared first.
  __device__ void sum_queries(int64_t segment, LinearStates<A> state) {
    this->clear_state(state);
    const int64_t end = x.query_segments.end(segment);
    for (int64_t i = segment * x.query_segments.tokens; i < end; i += chunk_rows) {
      const int count = end - i < chunk_rows ? static_cast<int>(end - i) : chunk_rows;
      this->project_queries(i, count);
      this->load_normalizers(i, count);
      this->raise_queries(i, count, state.top);
      this->weigh_queries(i, count, A(-1));
      this->find_features(work.q, count, A(-1), shared.queries, nullptr);
      this->add_queries(state, i, count);
    }
  }

  /// dq and means of a segment. `state` is S of all keys or, if causal, of those before the
  /// segment, whose keys are then added to it.
  __device__ void find_query_gradients(int64_t segment, LinearStates<A> state) {
    const int64_t begin = segment * x.query_segments.tokens, end = x.query_segments.end(segment);
    if (!x.causal) keep(state);
    this->for_chunks(begin, end, false, [&](int64_t first, int count) {
      return x.causal ? causal_query_gradients(state, first, count)
                      : whole_query_gradients(state, first, count);
    });
  }
  /// dk and dv of a segment. `state` is T of all queries or, if causal, of those after the segment,
  /// whose queries are then added to it.
  __device__ void find_key_gradients(int64_t segment, LinearStates<A> state) {
    const int64_t begin = segment * x.key_segments.tokens, end = x.key_segments.end(segment);
    if (!x.causal) keep(state);
    this->for_chunks(begin, end, true, [&](int64_t first, int count) {
      return x.causal ? causal_key_gradients(state, first, count)
                      : whole_key_gradients(state, first, count);
    });
  }

 private:
  __device__ void keep(LinearStates<A> state) {
    this->for_all(x.features, [&](int r) {
      work.next[r] = state.top[r];
      work.factor[r] = 1;
    });
    __syncthreads();
  }
  __device__ bool all_finite(int64_t first, int count) const {
    const auto value = [&](int j, int c) { return this->value(first + j, c); };
    const auto key = [&](int j, int c) { return this->key(first + j, c); };
    const auto query = [&](int i, int c) { return this->query(first + i, c); };
    const auto dout = [&](int i, int c) { return this->output_gradient(first + i, c); };
    return this->finite(count, x.value_width, value) && this->finite(count, x.width, key) &&
           this->finite(count, x.width, query) && this->finite(count, x.value_width, dout);
  }

  __device__ bool causal_query_gradients(LinearStates<A> state, int64_t first, int count) {
    if (count > 1 && !all_finite(first, count)) return false;
    this->project_keys(first, count);
    this->raise_keys(count, state.top);
    this->project_queries(first, count);
    this->load_normalizers(first, count);
    if (count > 1 && any_thread(queries_are_far(first, count))) return false;
    this->weigh_keys(count, A(-1));
    this->find_features(work.k, count, A(-1), shared.keys, nullptr);
    this->weigh_queries(first, count, A(1));
    this->find_features(work.q, count, A(1), shared.queries, work.slopes);
    block_product<Along::depth, Along::depth>(
        shared.tiles, count, count, x.value_width,
        [&](int i, int c) { return this->output_gradient(first + i, c); },
        [&](int c, int j) { return this->value(first + j, c); },
        [&](int i, int j, A sum) { shared.weights[i * shared.stride + j] = j <= i ? sum : A(0); });
    finish_queries(state, first, count);
    this->add_keys(state, first, count);
    return true;
  }
  __device__ bool whole_query_gradients(LinearStates<A> state, int64_t first, int count) {
    this->project_queries(first, count);
    this->load_normalizers(first, count);
    this->weigh_queries(first, count, A(1));
    this->find_features(work.q, count, A(1), shared.queries, work.slopes);
    finish_queries(state, first, count);
    return true;
  }

  __device__ bool causal_key_gradients(LinearStates<A> state, int64_t first, int count) {
    if (count > 1 && !all_finite(first, count)) return false;
    this->project_queries(first, count);
    this->load_normalizers(first, count);
    this->raise_queries(first, count, state.top);
    this->project_keys(first, count);
    if (count > 1 && any_thread(keys_are_far(count))) return false;
    this->weigh_queries(first, count, A(-1));
    this->find_features(work.q, count, A(-1), shared.queries, nullptr);
    this->weigh_keys(count, A(1));
    this->find_features(work.k, count, A(1), shared.keys, work.slopes);
    // Rows are keys, columns the queries that see them.
    block_product<Along::depth, Along::depth>(
        shared.tiles, count, count, x.features,
        [&](int j, int r) { return work.k[j * x.features + r]; },
        [&](int r, int i) { return work.q[i * x.features + r]; },
        [&](int j, int i, A sum) { shared.scores[j * shared.stride + i] = i >= j ? sum : A(0); });
    block_product<Along::depth, Along::depth>(
        shared.tiles, count, count, x.value_width,
        [&](int j, int c) { return this->value(first + j, c); },
        [&](int c, int i) { return this->output_gradient(first + i, c); },
        [&](int j, int i, A sum) {
          shared.weights[j * shared.stride + i] =
              i >= j ? sum - x.means[this->row_of(first + i)] : A(0);
        });
    finish_keys(state, first, count);
    this->add_queries(state, first, count);
    return true;
  }
  __device__ bool whole_key_gradients(LinearStates<A> state, int64_t first, int count) {
    this->project_keys(first, count);
    this->weigh_keys(count, A(1));
    this->find_features(work.k, count, A(1), shared.keys, work.slopes);
    finish_keys(state, first, count);
    return true;
  }

  /// Whether an exponent of the thread's rows exceeds the limit under next.
  __device__ bool queries_are_far(int64_t first, int count) const {
    bool far = false;
    if (x.exponential) {
      this->for_rows_of_warp(count, [&](int i) {
        const A top = this->top_of_row(work.q, i, work.next);
        far = far || top + shared.queries[i] > linear_slack<A>;
      });
    } else if (x.oscillating) {
      this->for_all(count, [&](int i) {
        if (shared.queries[i] == A(0)) return;
        far = far || work.next[0] - x.reference[this->row_of(first + i)] > linear_slack<A> / 2;
      });
    }
    return far;
  }
  __device__ bool keys_are_far(int count) const {
    bool far = false;
    if (x.exponential) {
      this->for_rows_of_warp(count, [&](int j) {
        const A top = this->top_of_row(work.k, j, work.next);
        far = far || top + shared.keys[j] > linear_slack<A>;
      });
    } else if (x.oscillating) {
      this->for_all(
          count, [&](int j) { far = far || shared.keys[j] + work.next[0] > linear_slack<A> / 2; });
    }
    return far;
  }

  /// From features of queries, their slopes and, if causal, the products dO . v of the chunk's
  /// pairs in shared.weights.
  __device__ void finish_queries(LinearStates<A> state, int64_t first, int count) {
    const int pairs = x.causal ? count : 0, width = x.value_width;
    block_product<Along::depth, Along::depth>(
        shared.tiles, count, x.features, width + pairs,
        [&](int i, int c) {
          return c < width ? this->output_gradient(first + i, c)
                           : shared.weights[i * shared.stride + c - width];
        },
        [&](int c, int r) {
          return c < width ? state.sums[this->at_state(r, c)] * work.factor[r]
                           : work.k[(c - width) * x.features + r];
        },
        [&](int i, int r, A sum) { work.gradients[i * x.features + r] = sum; });
    // Of row i the features have the gradient gradients - mean_i z, with the sum z of the features
    // of the keys that it sees, and mean_i = dO . out: the sum of the gradients weighted by the
    // row's features. Found so, it does not depend on how out was rounded.
    this->for_rows_of_warp(count, [&](int i) {
      const A sum = weighted_sum(work.q, i);
      if (Base::warp().rank() != 0) return;
      const A r = x.normalizer[this->row_of(first + i)];
      const bool clamped = !x.exponential && (r < 0 ? -r : r) <= x.floor;
      x.means[this->row_of(first + i)] = clamped ? A(0) : sum;
    });
    __syncthreads();
    this->for_all(x.features, [&](int r) {
      A z = state.sums[this->at_state(r, width)] * work.factor[r];
      for (int i = 0; i < count; ++i) {
        if (x.causal) z += work.k[i * x.features + r];
        work.gradients[i * x.features + r] -= x.means[this->row_of(first + i)] * z;
      }
    });
    __syncthreads();
    find_u_gradients(count);
    project_back(count, [&](int i, int c, A sum) { x.dq.store(b, h, first + i, c, sum); });
  }

  /// From features of keys, their slopes and, if causal, the products of the chunk's pairs. Keys
  /// that do not exist get zeros, whatever queries hold.
  __device__ void finish_keys(LinearStates<A> state, int64_t first, int count) {
    const int pairs = x.causal ? count : 0, width = x.value_width;
    block_product<Along::depth, Along::line>(
        shared.tiles, count, width, x.features + pairs,
        [&](int j, int r) {
          return r < x.features ? work.k[j * x.features + r]
                                : shared.scores[j * shared.stride + r - x.features];
        },
        [&](int r, int c) {
          return r < x.features ? state.sums[this->at_state(r, c)] * work.factor[r]
                                : this->output_gradient(first + r - x.features, c);
        },
        [&](int j, int c, A sum) {
          x.dv.store(b, h, first + j, c, this->exists(first + j) ? sum : A(0));
        });
    block_product<Along::depth, Along::depth>(
        shared.tiles, count, x.features, width + 1 + pairs,
        [&](int j, int c) {
          if (c > width) return shared.weights[j * shared.stride + c - width - 1];
          return c < width ? this->value(first + j, c) : A(1);
        },
        [&](int c, int r) {
          return c <= width ? state.sums[this->at_state(r, c)] * work.factor[r]
                            : work.q[(c - width - 1) * x.features + r];
        },
        [&](int j, int r, A sum) { work.gradients[j * x.features + r] = sum; });
    // The gradient of the norm in the exponent.
    this->for_rows_of_warp(count, [&](int j) {
      const A sum = x.norm_sign == 0 ? A(0) : weighted_sum(work.k, j);
      if (Base::warp().rank() == 0) shared.denominators[j] = sum;
    });
    __syncthreads();
    find_u_gradients(count);
    const A norm = static_cast<A>(x.norm_sign) * x.scale * x.scale;
    project_back(count, [&](int j, int c, A sum) {
      if (x.norm_sign != 0) sum += norm * shared.denominators[j] * this->key(first + j, c);
      x.dk.store(b, h, first + j, c, this->exists(first + j) ? sum : A(0));
    });
  }

  /// The sum of gradients times features of row i; every lane of the warp gets it.
  __device__ A weighted_sum(const A* features, int i) const {
    A sum = 0;
    for_row<1>(Base::warp(), x.features, [&](int r) {
      sum += work.gradients[i * x.features + r] * features[i * x.features + r];
    });
    return Base::warp().sum(sum);
  }

  /// Turns gradients of the features into gradients of u, in place.
  __device__ void find_u_gradients(int count) {
    this->for_all(count * x.m, [&](int e) {
      const int at = e / x.m * x.features + e % x.m;
      A sum = work.gradients[at] * work.slopes[at];
      if (x.halves == 2) sum += work.gradients[at + x.m] * work.slopes[at + x.m];
      work.gradients[at] = sum;
    });
    __syncthreads();
  }

  /// Calls store(i, c, scale du W), or scale du without a projection.
  template <class Store>
  __device__ void project_back(int count, Store store) {
    if (x.projection == nullptr) {
      this->for_all(count * x.m, [&](int e) {
        const int i = e / x.m, c = e % x.m;
        store(i, c, x.scale * work.gradients[i * x.features + c]);
      });
      __syncthreads();
      return;
    }
    const A* const w = this->projection();
    block_product<Along::depth, Along::line>(
        shared.tiles, count, x.width, x.m,
        [&](int i, int r) { return work.gradients[i * x.features + r]; },
        [&](int r, int c) { return w[r * x.width + c]; },
        [&](int i, int c, A sum) { store(i, c, x.scale * sum); });
  }
};

}  // namespace longspan::cuda
