#pragma once

#include <limits>

#include "cuda/attention/fragments.cuh"
#include "cuda/attention/general.h"
#include "cuda/attention/schedule.h"

/// Attention on tensor cores: 16-bit queries, keys and values, f32 accumulators. Widths are
/// zero-padded to W = 32, 64 or 128 in shared memory.
///
/// A warp owns 32 rows of a query tile, three warps its 96. Each operand b that is read from shared
/// memory then feeds two matrix instructions; with 16 rows per warp it would feed one. In the pass
/// over keys a warp owns 16 of 64 keys, whose two gradients fill its registers.
namespace longspan::cuda {

/// Whether the kernels below support all terms and masks of a call. The kernels of terms.cuh
/// support the others.
inline bool plain_terms(const kernels::AttentionProblem& in) {
  const auto& t = in.inputs;
  const bool classes = in.masks[0].class_id || in.masks[1].class_id;
  const bool soft = t.span || t.query_span;
  return !classes && !t.relation_key && !t.relation_bias && !t.relation_value && !soft;
}

/// State and helpers that the three passes share. T is bf16 or f16.
template <class T, int W>
class TensorPass {
 public:
  using Rows = SharedRows<W>;
  using Arguments = AttentionArguments<T>;

  /// `of` must outlive this object: a kernel with few registers keeps it in shared memory.
  LONGSPAN_HD TensorPass(const Arguments& arguments, const AttentionHead& of)
      : x(arguments),
        head(of),
        number(static_cast<uint32_t>(of.b * arguments.sizes.heads + of.h)),
        factor(static_cast<float>(arguments.sizes.scale * log2_e)) {}

  /// Copies `rows` rows of a head: row index(r), or zeros if that is negative.
  template <int rows, int threads, class Index>
  LONGSPAN_HD void copy_rows(const HeadRows<const T>& from, Index index, Rows to,
                             int zero = 0) const {
    cuda::copy_rows<T, W, rows, threads>(from.of(head.b + zero, head.h), from.row, from.width,
                                         index, to);
  }
  /// The query in a slot; -1 from slot `end` on and beyond the length of the sample.
  LONGSPAN_HD int32_t valid_query(int32_t place, int32_t end) const {
    if (place >= end) return -1;
    const int32_t i = head.query(x.sizes, place);
    return i < head.queries_valid ? i : -1;
  }
  /// The key in slot k0 + j of a segment; -1 unless its bit is set and it is a valid, unmasked key
  /// of the sample.
  LONGSPAN_HD int32_t valid_key(int segment, int32_t k0, int j, uint64_t bits) const {
    if ((bits >> j & 1) == 0 || k0 + j >= x.sizes.segment[segment].keys) return -1;
    const int32_t k = head.key(x.sizes, segment, k0 + j);
    return head.shown(x.sizes, segment, k) ? k : -1;
  }
  /// Whether any of 32 rows may see any of `count` keys from k0 on. Every lane of the warp gets the
  /// result.
  LONGSPAN_HD bool any_sees(const KeyInterval* rows, int segment, int32_t k0, int count) const {
    if (head.ordered(segment)) return true;
    const KeyInterval s = rows[thread_index() % 32];
    return any_lane(s.lo < k0 + count && s.hi > k0);
  }
  /// Whether the key indices of a segment must be recorded because they differ from the slots or
  /// may be hidden.
  LONGSPAN_HD bool noted(int segment) const {
    return head.ordered(segment) || x.sizes.segment[segment].masks.hides_keys();
  }
  /// The score offset of a key with a multiplicity: its log2, divided by the factor.
  LONGSPAN_HD float weight(int64_t tile, int segment, int32_t place) const {
    return log2f(static_cast<float>(head.times(x.sizes, tile, segment, place))) / factor;
  }
  /// Records which keys of each segment query i, in row r of a tile, sees.
  template <int rows>
  LONGSPAN_HD void note_seen(int32_t i, int r,
                             KeyInterval (&seen)[kernels::kAttentionSegments][rows]) const {
    for (int s = 0; s < x.sizes.segments; ++s) {
      seen[s][r] = i >= 0 ? head.sees(x.sizes, s, i) : KeyInterval{0, 0};
    }
  }
  /// Records the keys of a step and their score offsets.
  template <int keys, int threads>
  LONGSPAN_HD void note_keys(int64_t tile, const KeyStep& s, int32_t* key, float* weights) const {
    const bool multiplied = x.sizes.layout.multiplied;
    if (!noted(s.segment) && !multiplied) return;
    for (int j = thread_index(); j < keys; j += threads) {
      key[j] = valid_key(s.segment, s.k0, j, s.mask);
      if (multiplied)
        weights[j] = (s.mask >> j & 1) != 0 ? weight(tile, s.segment, s.k0 + j) : 0.0f;
    }
  }
  /// Adds the score offsets of keys with a multiplicity, if the layout has any.
  template <int m, int n>
  LONGSPAN_HD void weigh(const float* weights, Fragments<m, n>& s) const {
    if (!x.sizes.layout.multiplied) return;
    const int t = thread_index() % 4 * 2;
    LONGSPAN_UNROLL for (int j = 0; j < n; ++j) {
      LONGSPAN_UNROLL for (int e = 0; e < 4; ++e) {
        const float w = weights[8 * j + t + e % 2];
        LONGSPAN_UNROLL for (int i = 0; i < m; ++i) s[i][j][e] += w;
      }
    }
  }

  /// Draws the dropout mask of 16 m x 8 n probabilities: bit 4 (i n + j) + e belongs to element e
  /// of fragment i, j. Row 16 i + r has query queries[16 i + r]. Column 8 j + c has key keys[8 j +
  /// c] or, if `keys` is null, k0 + 8 j + c; pairs of lanes then share their random words. It is a
  /// loop to use few registers.
  template <int m, int n>
  LONGSPAN_HD auto draw(const int32_t* queries, const int32_t* keys, int segment,
                        int32_t k0) const {
    static_assert(m * n <= 16);
    using Bits = std::conditional_t<(m * n > 8), uint64_t, uint32_t>;
    Draws d = x.sizes.draws;
    const int lane = thread_index() % 32, t = lane % 4 * 2;
    const bool odd = lane % 2 != 0;  // k0 + t is the first or third of four keys
    const auto part = static_cast<uint32_t>(segment);
    Bits bits = 0;
    LONGSPAN_ROLLED for (int at = 0; at < m * n; ++at) {
      const int32_t* const query = queries + at / n * 16 + lane / 4;
      const auto upper = static_cast<uint32_t>(query[0]), lower = static_cast<uint32_t>(query[8]);
      d.key = uint64_t{x.sizes.draws.key} + static_cast<uint64_t>(unknown_zero(query[0]));
      Bits four = 0;
      if (keys != nullptr) {
        LONGSPAN_ROLLED for (int e = 0; e < 4; ++e) {
          const auto key = static_cast<uint32_t>(keys[at % n * 8 + t + e % 2]);
          four |= static_cast<Bits>(d.keeps(number, e < 2 ? upper : lower, key, part)) << e;
        }
      } else {
        const auto key = static_cast<uint32_t>(k0 + at % n * 8 + t);
        const Philox4 w = philox(d.key, key / 4, odd ? lower : upper, d.first_head + number, part);
        const uint32_t first = exchange(odd ? w.word[0] : w.word[2], 1);
        const uint32_t second = exchange(odd ? w.word[1] : w.word[3], 1);
        four = static_cast<Bits>((odd ? first : w.word[0]) >= d.threshold) |
               static_cast<Bits>((odd ? second : w.word[1]) >= d.threshold) << 1 |
               static_cast<Bits>((odd ? w.word[2] : first) >= d.threshold) << 2 |
               static_cast<Bits>((odd ? w.word[3] : second) >= d.threshold) << 3;
      }
      bits |= four << (4 * at);
    }
    return bits;
  }

  /// The same for 16 keys by 8 n rows (transposed): bit 4 j + e belongs to element e of fragment j.
  template <int n>
  LONGSPAN_HD uint32_t draw_turned(const int32_t* queries, const int32_t* keys, int segment) const {
    static_assert(n <= 8);
    const int lane = thread_index() % 32, t = lane % 4 * 2;
    Draws d = x.sizes.draws;
    uint32_t kept = 0;
    LONGSPAN_ROLLED for (int at = 0; at < 4 * n; ++at) {
      const int r = at / 4 * 8 + t + at % 2, c = lane / 4 + (at % 4 < 2 ? 0 : 8);
      const auto query = static_cast<uint32_t>(queries[r]), key = static_cast<uint32_t>(keys[c]);
      d.key = uint64_t{x.sizes.draws.key} + static_cast<uint64_t>(unknown_zero(queries[r]));
      kept |= static_cast<uint32_t>(d.keeps(number, query, key, static_cast<uint32_t>(segment)))
              << at;
    }
    return kept;
  }

  /// Returns the offset of a query's row of out, or of its row in the split workspace, and sets its
  /// factor. For a split, the first lane of a row also records the reference and the sum of
  /// weights. `workspace`: the row in the split workspace, or negative.
  LONGSPAN_HD int64_t output_row(int64_t workspace, int32_t query, float base, float all,
                                 bool first, float& scale) const {
    const auto kept = static_cast<float>(x.sizes.draws.scale);
    if (workspace >= 0) {
      scale = all == 0 ? 0.0f : kept;
      if (first) {
        x.statistics[2 * workspace] = base;
        x.statistics[2 * workspace + 1] = all;
      }
      return workspace * x.sizes.value_width;
    }
    scale = all == 0 ? 0.0f : kept / all;
    if (first) x.lse[int64_t{number} * x.sizes.queries + query] = lse_of(base, all);
    return int64_t{query} * x.out.row;
  }

  /// Writes the gradients of a warp's 16 keys, which begin at `own` in the block, scaled by
  /// `times`. A split writes to the columns from `column` on of its workspace.
  LONGSPAN_HD void write_keys(const Fragments<1, W / 8>& sum, const HeadRows<T>& to, double times,
                              const int32_t* keys, int own, int64_t workspace,
                              int32_t column) const {
    if (to.data == nullptr) return;
    const auto row = [&](int, int half, float& scale) -> int64_t {
      const int at = own + 8 * half + thread_index() % 32 / 4;
      scale = static_cast<float>(times);
      if (keys[at] < 0) return -1;
      return workspace >= 0 ? (workspace + at) * x.key_columns() + column
                            : int64_t{keys[at]} * to.row;
    };
    if (workspace >= 0) {
      write<1>(sum, to.width, row, x.wide);
    } else {
      write<1>(sum, to.width, row, to.of(head.b, head.h));
    }
  }
  /// Calls write_rows().
  template <int m, class To, class Row>
  LONGSPAN_HD void write(const Fragments<m, W / 8>& sum, int32_t width, Row row, To* to) const {
    write_rows<T, W, m>(sum, width, row, to);
  }

  const Arguments& x;
  const AttentionHead& head;
  const uint32_t number;  // b H + h
  const float factor;     // scale log2(e)
};

/// Records whether a block has nonfinite accumulators. NaN or Inf of a key that no row sees may
/// cause them, so the block is then recomputed. Contains a barrier.
template <class T>
LONGSPAN_HD inline void note_nonfinite(const AttentionArguments<T>& x, int64_t block,
                                       bool nonfinite) {
  const bool any = any_thread(nonfinite);
  if (thread_index() == 0) x.nonfinite[block] = any ? 1 : 0;
}

// ---------------------------------------------------------------------------------------- forward

/// Forward pass of one query tile. K and V have one buffer each: the values of a step arrive while
/// its scores are computed, the keys of the next step while probabilities are multiplied with
/// values.
template <class T, int W>
struct TensorForward {
  static constexpr int rows = kernels::kAttentionTileRows,
                       keys = W == 32 ? 64 : (W == 64 ? 32 : 48), warps = 3, threads = 32 * warps,
                       m = 2, n = keys / 8;
  static constexpr int resident = W == 128 ? 2 : 4;  // blocks per multiprocessor, at least
  static_assert(rows == warps * 16 * m);
  struct alignas(16) Shared {
    uint16_t q[rows * W], k[keys * W], v[keys * W];
    AttentionHead head;
    int64_t workspace;
    StepQueue<KeySteps<keys>, KeyStep> ahead;
    int32_t query[rows];
    KeyInterval seen[kernels::kAttentionSegments][rows];
    int32_t key[2][keys];
    float weight[2][keys];
  };

  static LONGSPAN_HD int64_t blocks(const AttentionArguments<T>& x) {
    return units_of(x.sizes, x.sizes.layout.row_work);
  }

  static LONGSPAN_HD void run(const AttentionArguments<T>& x, unsigned char* memory,
                              int64_t index) {
    const AttentionWork work(x.sizes, x.sizes.layout.row_work, index, 1);
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    if (thread_index() == 0) {
      shared.head = AttentionHead(x.sizes, work.b, work.h);
      shared.workspace = work.workspace;
    }
    block_barrier();
    const AttentionHead& head = shared.head;
    const TensorPass<T, W> common(x, head);
    const SharedRows<W> q{shared.q}, k{shared.k}, v{shared.v};
    const int32_t first = head.tile_row(x.sizes, work.place),
                  count = head.tile_rows(x.sizes, work.place);
    const int lane = thread_index() % 32, own = thread_index() / 32 * 16 * m, t = lane % 4 * 2;
    const bool active = own < count;

    shared.ahead.begin(KeySteps<keys>(x.sizes, head, work.place, work.range));
    block_barrier();
    const auto copy_keys = [&](const HeadRows<const T>* from, const KeyStep& s,
                               const SharedRows<W>& to) {
      const int segment = s.segment;
      common.template copy_rows<keys, threads>(
          from[segment], [&](int j) { return common.valid_key(segment, s.k0, j, s.mask); }, to,
          unknown_zero(s.k0));
    };
    const auto note_keys = [&](const KeyStep& s, int to) {
      common.template note_keys<keys, threads>(work.place, s, shared.key[to], shared.weight[to]);
    };
    for (int r = thread_index(); r < rows; r += threads) {
      const int32_t i = r < count ? head.query(x.sizes, first + r) : -1;
      shared.query[r] = i;
      common.note_seen(i, r, shared.seen);
    }
    common.template copy_rows<rows, threads>(
        x.q, [&](int r) { return common.valid_query(first + r, first + count); }, q);
    if (shared.ahead.at(0).mask != 0) {
      copy_keys(x.k, shared.ahead.at(0), k);
      note_keys(shared.ahead.at(0), 0);
    }
    commit_copies();

    const float hidden = -std::numeric_limits<float>::infinity();
    Fragments<m, W / 8> sum;
    clear<m, W / 8>(sum);
    float reference[m][2], total[m][2];
    LONGSPAN_UNROLL for (int i = 0; i < m; ++i) {
      reference[i][0] = reference[i][1] = hidden;
      total[i][0] = total[i][1] = 0;
    }
    for (int at = 0; shared.ahead.at(at).mask != 0; ++at) {
      const KeyStep &step = shared.ahead.at(at), &next = shared.ahead.at(at + 1);
      const int side = at % 2, zero = unknown_zero(step.k0);
      wait_for_copies<0>();
      block_barrier();  // the keys have arrived, and no warp reads the old values
      shared.ahead.walk_on(at);
      copy_keys(x.v, step, v);
      commit_copies();
      if (next.mask != 0) note_keys(next, side ^ 1);  // here, before the scores occupy registers
      const bool busy =
          active && (step.full || common.any_sees(shared.seen[step.segment] + own + zero,
                                                  step.segment, step.k0, keys));
      Fragments<m, n> s;
      clear<m, n>(s);
      if (busy) multiply_rows<T, W, m, n>(q, own + zero, k, zero, s);
      block_barrier();  // no warp reads the keys
      if (next.mask != 0) copy_keys(x.k, next, k);
      commit_copies();
      if (busy) {
        common.template weigh<m, n>(shared.weight[side], s);
        if (!step.full) hide(common, shared, step, own + zero, side, s);
        raise<W, m, n>(common.factor, s, reference, total, sum);
        LONGSPAN_UNROLL for (int i = 0; i < m; ++i) {
          LONGSPAN_UNROLL for (int half = 0; half < 2; ++half) {
            const float base = reference[i][half] == hidden ? 0.0f : reference[i][half];
            LONGSPAN_UNROLL for (int j = 0; j < n; ++j) {
              LONGSPAN_UNROLL for (int e = 2 * half; e < 2 * half + 2; ++e) {
                s[i][j][e] = fast_exp2(fused(s[i][j][e], common.factor, -base));
                total[i][half] += s[i][j][e];
              }
            }
          }
        }
        if (x.sizes.draws.active) {
          const auto kept = common.template draw<m, n>(
              shared.query + own + zero, head.ordered(step.segment) ? shared.key[side] : nullptr,
              step.segment, step.k0);
          LONGSPAN_UNROLL for (int i = 0; i < m; ++i) {
            LONGSPAN_UNROLL for (int j = 0; j < n; ++j) {
              LONGSPAN_UNROLL for (int e = 0; e < 4; ++e) {
                if ((kept >> (4 * (i * n + j) + e) & 1) == 0) s[i][j][e] = 0;
              }
            }
          }
        }
      }
      wait_for_copies<1>();
      block_barrier();  // the values have arrived
      if (busy) multiply_values<T, W, m, n>(s, v, zero, sum);
    }
    wait_for_copies<0>();
    note_nonfinite(x, index, nonfinite(sum));
    if (!active) return;

    const auto row = [&](int i, int half, float& scale) -> int64_t {
      const int r = own + 16 * i + 8 * half + lane / 4;
      float all = over_row(total[i][half], [](float a, float b) { return a + b; });
      if (shared.query[r] < 0) return -1;
      if (!sees_any(shared, x.sizes.segments, r)) all = 0;
      const float base = reference[i][half] == hidden ? 0.0f : reference[i][half];
      const int64_t workspace = shared.workspace >= 0 ? shared.workspace + r : -1;
      return common.output_row(workspace, shared.query[r], base, all, t == 0, scale);
    };
    if (shared.workspace >= 0) {
      common.template write<m>(sum, x.sizes.value_width, row, x.wide);
    } else {
      common.template write<m>(sum, x.sizes.value_width, row, x.out.of(head.b, head.h));
    }
  }

 private:
  static LONGSPAN_HD bool sees_any(const Shared& shared, int segments, int r) {
    const KeyInterval &main = shared.seen[0][r], &side = shared.seen[segments - 1][r];
    return main.lo < main.hi || side.lo < side.hi;
  }
  /// Sets the scores of invisible pairs to -inf.
  static LONGSPAN_HD void hide(const TensorPass<T, W>& common, const Shared& shared,
                               const KeyStep& step, int own, int side, Fragments<m, n>& s) {
    const int lane = thread_index() % 32, t = lane % 4 * 2;
    const uint64_t mask = step.mask >> t;
    LONGSPAN_UNROLL for (int j = 0; j < n; ++j) {
      LONGSPAN_UNROLL for (int e = 0; e < 2; ++e) {
        const int c = 8 * j + t + e;
        int32_t key = common.noted(step.segment) ? shared.key[side][c] : step.k0 + c;
        if ((mask >> (8 * j + e) & 1) == 0) key = -1;
        LONGSPAN_UNROLL for (int i = 0; i < m; ++i) {
          LONGSPAN_UNROLL for (int half = 0; half < 2; ++half) {
            const KeyInterval seen = shared.seen[step.segment][own + 16 * i + 8 * half + lane / 4];
            if (key < seen.lo || key >= seen.hi) {
              s[i][j][2 * half + e] = -std::numeric_limits<float>::infinity();
            }
          }
        }
      }
    }
  }
};

// --------------------------------------------------------------------------------------- backward

/// Loads delta and lse in units of log 2 of a row. lse is +inf for a row without keys, so that its
/// probabilities are 0.
template <class T, int W>
LONGSPAN_HD inline void note_row(const TensorPass<T, W>& common, int32_t place, int32_t end,
                                 int32_t& query, float& base, float& delta) {
  const auto& x = common.x;
  const float none = std::numeric_limits<float>::infinity();
  const int32_t i = place < end ? common.head.query(x.sizes, place) : -1;
  query = i;
  base = none;
  delta = 0;
  if (i < 0 || i >= common.head.queries_valid) return;
  const int64_t at = int64_t{common.number} * x.sizes.queries + i;
  if (x.lse[at] == -none) return;
  base = x.lse[at] * static_cast<float>(log2_e);
  delta = x.delta[at];
}

/// dq of one query tile, with double-buffered keys and values.
template <class T, int W>
struct TensorRowGradients {
  static constexpr int rows = kernels::kAttentionTileRows, keys = W == 128 ? 32 : 64, warps = 3,
                       threads = 32 * warps, m = 2, span = 32, n = span / 8;
  static constexpr int resident = W == 128 ? 2 : 4;  // blocks per multiprocessor, at least
  static_assert(rows == warps * 16 * m);
  struct alignas(16) Shared {
    uint16_t q[rows * W], dout[rows * W], k[2][keys * W], v[2][keys * W];
    int64_t workspace;
    StepQueue<KeySteps<keys>, KeyStep> ahead;
    int32_t query[rows];
    KeyInterval seen[kernels::kAttentionSegments][rows];
    float base[rows], delta[rows];
    int32_t key[2][keys];
    float weight[2][keys];
  };

  static LONGSPAN_HD int64_t blocks(const AttentionArguments<T>& x) {
    return units_of(x.sizes, x.sizes.layout.row_work);
  }

  static LONGSPAN_HD void run(const AttentionArguments<T>& x, unsigned char* memory,
                              int64_t index) {
    const AttentionWork work(x.sizes, x.sizes.layout.row_work, index, 1);
    const AttentionHead head(x.sizes, work.b, work.h);
    const TensorPass<T, W> common(x, head);
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    if (thread_index() == 0) shared.workspace = work.workspace;
    const SharedRows<W> q{shared.q}, dout{shared.dout};
    const int32_t first = head.tile_row(x.sizes, work.place),
                  count = head.tile_rows(x.sizes, work.place);
    const int lane = thread_index() % 32, own = thread_index() / 32 * 16 * m;
    const bool active = own < count;

    shared.ahead.begin(KeySteps<keys>(x.sizes, head, work.place, work.range));
    block_barrier();
    const auto fetch = [&](const KeyStep& s, int to) {
      const int zero = unknown_zero(s.k0);
      const int segment = s.segment;
      const auto key = [&](int j) { return common.valid_key(segment, s.k0, j, s.mask); };
      common.template copy_rows<keys, threads>(x.k[segment], key, SharedRows<W>{shared.k[to]},
                                               zero);
      common.template copy_rows<keys, threads>(x.v[segment], key, SharedRows<W>{shared.v[to]},
                                               zero);
      common.template note_keys<keys, threads>(work.place, s, shared.key[to], shared.weight[to]);
    };
    for (int r = thread_index(); r < rows; r += threads) {
      note_row(common, first + r, first + count, shared.query[r], shared.base[r], shared.delta[r]);
      common.note_seen(shared.query[r], r, shared.seen);
    }
    const auto query = [&](int r) { return common.valid_query(first + r, first + count); };
    common.template copy_rows<rows, threads>(x.q, query, q);
    common.template copy_rows<rows, threads>(x.dout, query, dout);
    if (shared.ahead.at(0).mask != 0) fetch(shared.ahead.at(0), 0);
    commit_copies();

    Fragments<m, W / 8> sum;
    clear<m, W / 8>(sum);
    for (int at = 0; shared.ahead.at(at).mask != 0; ++at) {
      const KeyStep &step = shared.ahead.at(at), &next = shared.ahead.at(at + 1);
      const int side = at % 2, zero = unknown_zero(step.k0);
      if (next.mask != 0) fetch(next, side ^ 1);
      commit_copies();
      wait_for_copies<1>();
      block_barrier();  // the current step has arrived
      shared.ahead.walk_on(at);
      if (active) {
        const SharedRows<W> k{shared.k[side]}, v{shared.v[side]};
        for (int from = 0; from < keys; from += span) {
          if (!step.full && !common.any_sees(shared.seen[step.segment] + own, step.segment,
                                             step.k0 + from, span)) {
            continue;
          }
          // Drawn here, before the products occupy registers.
          const uint32_t kept =
              x.sizes.draws.active
                  ? common.template draw<m, n>(
                        shared.query + own,
                        head.ordered(step.segment) ? shared.key[side] + from : nullptr,
                        step.segment, step.k0 + from)
                  : ~0u;
          Fragments<m, n> s, ds;
          clear<m, n>(s);
          clear<m, n>(ds);
          multiply_rows<T, W, m, n>(q, own + zero, k, from + zero, s);
          multiply_rows<T, W, m, n>(dout, own + zero, v, from + zero, ds);
          common.template weigh<m, n>(shared.weight[side] + from, s);
          differentiate(common, shared, step, own + zero, from, side, kept, s, ds);
          multiply_values<T, W, m, n>(ds, k, from + zero, sum);
        }
      }
      block_barrier();  // no warp reads this step
    }
    wait_for_copies<0>();
    note_nonfinite(x, index, nonfinite(sum));
    if (!active) return;
    const auto row = [&](int i, int half, float& scale) -> int64_t {
      const int r = own + 16 * i + 8 * half + lane / 4;
      const int32_t of = shared.query[r];
      scale = static_cast<float>(x.sizes.scale);
      if (of < 0) return -1;
      return shared.workspace >= 0 ? (shared.workspace + r) * x.sizes.width
                                   : int64_t{of} * x.dq.row;
    };
    if (shared.workspace >= 0) {
      common.template write<m>(sum, x.sizes.width, row, x.wide);
    } else {
      common.template write<m>(sum, x.sizes.width, row, x.dq.of(head.b, head.h));
    }
  }

 private:
  /// ds = dS without the scale, computed from ds = dP.
  static LONGSPAN_HD void differentiate(const TensorPass<T, W>& common, const Shared& shared,
                                        const KeyStep& step, int own, int from, int side,
                                        uint32_t kept, const Fragments<m, n>& s,
                                        Fragments<m, n>& ds) {
    const auto& x = common.x;
    const int lane = thread_index() % 32, t = lane % 4 * 2;
    if (x.sizes.draws.active) {
      const auto scale = static_cast<float>(x.sizes.draws.scale);
      LONGSPAN_UNROLL for (int i = 0; i < m; ++i) {
        LONGSPAN_UNROLL for (int j = 0; j < n; ++j) {
          LONGSPAN_UNROLL for (int e = 0; e < 4; ++e) {
            ds[i][j][e] = (kept >> (4 * (i * n + j) + e) & 1) != 0 ? ds[i][j][e] * scale : 0.0f;
          }
        }
      }
    }
    LONGSPAN_UNROLL for (int i = 0; i < m; ++i) {
      const int r = own + 16 * i + lane / 4;
      LONGSPAN_UNROLL for (int half = 0; half < 2; ++half) {
        const float base = shared.base[r + 8 * half], delta = shared.delta[r + 8 * half];
        LONGSPAN_UNROLL for (int j = 0; j < n; ++j) {
          LONGSPAN_UNROLL for (int e = 2 * half; e < 2 * half + 2; ++e) {
            const float p = fast_exp2(fused(s[i][j][e], common.factor, -base));
            ds[i][j][e] = p * (ds[i][j][e] - delta);
          }
        }
      }
    }
    if (step.full) return;
    LONGSPAN_UNROLL for (int j = 0; j < n; ++j) {
      LONGSPAN_UNROLL for (int e = 0; e < 2; ++e) {
        const int c = from + 8 * j + t + e;
        int32_t key = common.noted(step.segment) ? shared.key[side][c] : step.k0 + c;
        if ((step.mask >> c & 1) == 0) key = -1;
        LONGSPAN_UNROLL for (int i = 0; i < m; ++i) {
          LONGSPAN_UNROLL for (int half = 0; half < 2; ++half) {
            const KeyInterval seen = shared.seen[step.segment][own + 16 * i + 8 * half + lane / 4];
            if (key < seen.lo || key >= seen.hi) ds[i][j][2 * half + e] = 0;
          }
        }
      }
    }
  }
};

/// dk and dv of 64 slots, over the query tiles that see them in pieces of 32 rows, double-buffered.
template <class T, int W>
struct TensorKeyGradients {
  static constexpr int keys = 64, rows = 32, warps = 4, threads = 32 * warps, n = rows / 8;
  static constexpr int resident = W == 128 ? 2 : 3;  // blocks per multiprocessor, at least
  static_assert(keys == 16 * warps && keys == kernels::kAttentionWorkKeys &&
                kernels::kAttentionTileRows % rows == 0);
  /// Rows first .. first + rows, but before end, all of one tile.
  struct Piece {
    int32_t first, end, tile;
    bool full;
    uint64_t mask;
  };
  /// Iterates over the pieces of the tiles that see some of the keys.
  struct Pieces {
    const int32_t* tiles;  // of the head's layout
    TileSteps<keys> steps;
    TileStep step;
    int32_t first, end;

    LONGSPAN_HD Pieces(const AttentionSizes& x, const AttentionHead& head, int segment, int32_t k0,
                       WorkRange range)
        : tiles(x.layout.tiles + 2 * head.first_tile),
          steps(x, head, segment, k0, range),
          step{0, false, 0},
          first(0),
          end(0) {}
    LONGSPAN_HD bool next(Piece& piece) {
      first += rows;
      if (first >= end) {
        if (!steps.next(step)) {
          piece.mask = 0;
          return false;
        }
        first = tiles[2 * step.tile];
        end = first + tiles[2 * step.tile + 1];
      }
      piece = {first, end, step.tile, step.full, step.mask};
      return true;
    }
  };
  struct alignas(16) Shared {
    uint16_t k[keys * W], v[keys * W], q[2][rows * W], dout[2][rows * W];
    int64_t workspace;
    StepQueue<Pieces, Piece> ahead;
    int32_t query[2][rows];
    KeyInterval seen[2][rows];
    float base[2][rows], delta[2][rows];
    int32_t key[keys], shown[keys];  // -1: none; shown is also -1 for a hidden key
    float weight[2][keys];
  };

  static LONGSPAN_HD int64_t blocks(const AttentionArguments<T>& x) {
    return units_of(x.sizes, x.sizes.layout.column_work);
  }

  static LONGSPAN_HD void run(const AttentionArguments<T>& x, unsigned char* memory,
                              int64_t index) {
    const AttentionWork work(x.sizes, x.sizes.layout.column_work, index, 1);
    const AttentionHead head(x.sizes, work.b, work.h);
    const TensorPass<T, W> common(x, head);
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const SharedRows<W> k{shared.k}, v{shared.v};
    const WorkPlace at_keys(x.sizes, work.place);
    const int segment = at_keys.segment;
    const int32_t k0 = at_keys.k0;
    const int own = thread_index() / 32 * 16;

    if (thread_index() == 0) shared.workspace = work.workspace;
    shared.ahead.begin(Pieces(x.sizes, head, segment, k0, work.range));
    block_barrier();
    const auto fetch = [&](const Piece& p, int to) {
      const auto query = [&](int r) { return common.valid_query(p.first + r, p.end); };
      const int zero = unknown_zero(p.first);
      common.template copy_rows<rows, threads>(x.q, query, SharedRows<W>{shared.q[to]}, zero);
      common.template copy_rows<rows, threads>(x.dout, query, SharedRows<W>{shared.dout[to]}, zero);
      for (int r = thread_index(); r < rows; r += threads) {
        note_row(common, p.first + r, p.end, shared.query[to][r], shared.base[to][r],
                 shared.delta[to][r]);
        const int32_t i = shared.query[to][r];
        shared.seen[to][r] = i >= 0 ? head.sees(x.sizes, segment, i) : KeyInterval{0, 0};
      }
      if (!x.sizes.layout.multiplied) return;
      for (int j = thread_index(); j < keys; j += threads) {
        shared.weight[to][j] =
            (p.mask >> j & 1) != 0 ? common.weight(p.tile, segment, k0 + j) : 0.0f;
      }
    };
    const auto key = [&](int j) { return common.valid_key(segment, k0, j, ~uint64_t{0}); };
    common.template copy_rows<keys, threads>(x.k[segment], key, k);
    common.template copy_rows<keys, threads>(x.v[segment], key, v);
    for (int j = thread_index(); j < keys; j += threads) {
      shared.shown[j] = key(j);
      shared.key[j] =
          k0 + j < x.sizes.segment[segment].keys ? head.key(x.sizes, segment, k0 + j) : -1;
    }
    if (shared.ahead.at(0).mask != 0) fetch(shared.ahead.at(0), 0);
    commit_copies();

    Fragments<1, W / 8> dk, dv;
    clear<1, W / 8>(dk);
    clear<1, W / 8>(dv);
    for (int at = 0; shared.ahead.at(at).mask != 0; ++at) {
      const Piece &piece = shared.ahead.at(at), &next = shared.ahead.at(at + 1);
      const int side = at % 2, zero = unknown_zero(piece.first);
      if (next.mask != 0) fetch(next, side ^ 1);
      commit_copies();
      wait_for_copies<1>();
      block_barrier();  // the current piece has arrived
      shared.ahead.walk_on(at);
      if (piece.full || common.any_sees(shared.seen[side], segment, k0 + own, 16)) {
        const SharedRows<W> q{shared.q[side]}, dout{shared.dout[side]};
        Fragments<1, n> s, ds;
        clear<1, n>(s);
        clear<1, n>(ds);
        multiply_rows<T, W, 1, n>(k, own + zero, q, zero, s);
        multiply_rows<T, W, 1, n>(v, own + zero, dout, zero, ds);
        differentiate(common, shared, piece, segment, own, side, s, ds);
        multiply_values<T, W, 1, n>(s, dout, zero, dv);
        multiply_values<T, W, 1, n>(ds, q, zero, dk);
      }
      block_barrier();  // no warp reads this piece
    }
    wait_for_copies<0>();
    note_nonfinite(x, index, nonfinite(dk) || nonfinite(dv));
    common.write_keys(dk, x.dk[segment], x.sizes.scale, shared.key, own, shared.workspace, 0);
    common.write_keys(dv, x.dv[segment], x.sizes.draws.scale, shared.key, own, shared.workspace,
                      x.sizes.width);
  }

 private:
  /// s = P^T, 0 where dropped; ds = dS^T without the scale.
  static LONGSPAN_HD void differentiate(const TensorPass<T, W>& common, const Shared& shared,
                                        const Piece& step, int segment, int own, int side,
                                        Fragments<1, n>& s, Fragments<1, n>& ds) {
    const auto& x = common.x;
    const int lane = thread_index() % 32, t = lane % 4 * 2;
    const uint32_t kept = x.sizes.draws.active ? common.template draw_turned<n>(
                                                     shared.query[side], shared.key + own, segment)
                                               : ~0u;
    if (x.sizes.layout.multiplied) {
      const float upper = shared.weight[side][own + lane / 4],
                  lower = shared.weight[side][own + lane / 4 + 8];
      LONGSPAN_UNROLL for (int j = 0; j < n; ++j) {
        LONGSPAN_UNROLL for (int e = 0; e < 4; ++e) s[0][j][e] += e < 2 ? upper : lower;
      }
    }
    const auto scale = static_cast<float>(x.sizes.draws.scale);
    LONGSPAN_UNROLL for (int j = 0; j < n; ++j) {
      LONGSPAN_UNROLL for (int e = 0; e < 4; ++e) {
        const int r = 8 * j + t + e % 2, c = own + lane / 4 + (e < 2 ? 0 : 8);
        const float p = fast_exp2(fused(s[0][j][e], common.factor, -shared.base[side][r]));
        const bool keep = (kept >> (4 * j + e) & 1) != 0;
        const float dp = keep ? ds[0][j][e] * scale : 0.0f;
        const int32_t key = shared.shown[c];
        const KeyInterval seen = shared.seen[side][r];
        const bool hidden =
            !step.full && ((step.mask >> c & 1) == 0 || key < seen.lo || key >= seen.hi);
        s[0][j][e] = hidden || !keep ? 0.0f : p;
        ds[0][j][e] = hidden ? 0.0f : p * (dp - shared.delta[side][r]);
      }
    }
  }
};

}  // namespace longspan::cuda
