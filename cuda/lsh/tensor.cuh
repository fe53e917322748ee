#pragma once

#include "cuda/attention/fragments.cuh"
#include "cuda/lsh/tensor.h"

/// LSH attention on tensor cores: 16-bit queries, keys and values, f32 accumulators. Widths are
/// zero-padded to W = 32, 64 or 128 in shared memory.
///
/// A block has a tile of up to 64 tokens of a chunk, 16 to a warp, and iterates over the tokens
/// that share their windows, gathered through the sorted order of the round. Rows of q are copied
/// unscaled: the norm of a key divides a column of logits. Before its products, each warp builds a
/// mask of the existing pairs, one byte per pair, so that evaluating the rule occupies no registers
/// of the accumulators.
namespace longspan::cuda {

inline constexpr int lsh_tile = 64, lsh_warps = 4, lsh_threads = 32 * lsh_warps;

/// The byte of a pair: how many times the rounds show it (0 if this round does not), and two flags.
inline constexpr uint32_t lsh_count = 0x3f, lsh_itself = 0x40, lsh_dropped = 0x80;
static_assert(lsh_noted_rounds <= lsh_count);

/// What the backward pass also records of queries: lse in units of log 2 (base), delta, and the
/// probability of the token to itself.
template <int n, bool backward>
struct LshStatistics {
  float base[n], delta[n], self[n];
};
template <int n>
struct LshStatistics<n, false> {};

/// What is recorded of tokens. A query sees the keys whose `reach` does not exceed its own.
template <int n, bool backward>
struct LshNotes : LshStatistics<n, backward> {
  int32_t token[n];  // -1: none
  int32_t bucket[n], reach[n];
  float inverse[n];  // 1 / rho times the factor that turns products into logits in units of log 2
};

/// The values of a token in the backward pass, see LshTensorArguments::facts_of().
struct alignas(16) LshFour {
  float value[4];
};

/// Where a token was in another round: its chunk or, for a query, the first chunk of its window,
/// and its bucket.
struct LshMeeting {
  int32_t chunk, bucket;
};

/// Tokens with sorted indices first .. end of a round, at most as many as a step has, in one slot
/// of the window.
struct LshStep {
  int32_t round, first, end, slot;  // end is 0 after the last step
};

/// Iterates over the chunks that a chunk sees or, if transposed, that see it.
template <int n, bool transposed>
struct LshWalk {
  kernels::LshHead head;
  kernels::LshChunk own;
  int64_t slot = -1, at = 0, end = 0, round = 0;

  LONGSPAN_HD void next(LshStep& step) {
    at += n;
    while (at >= end) {
      if (++slot >= head.slots()) {
        step = {0, 0, 0, 0};
        return;
      }
      const kernels::LshChunk other =
          transposed ? head.queries_of(own, slot) : head.keys_of(own, slot);
      if (!other.exists()) continue;
      round = other.round;
      at = other.chunk * head.rule.chunk;
      end = head.chunk_end(other.chunk);
    }
    step = {static_cast<int32_t>(round), static_cast<int32_t>(at),
            static_cast<int32_t>(min(at + n, end)), static_cast<int32_t>(slot)};
  }
};

/// Pairs of a tile of one chunk with steps of n tokens: queries and the keys that they see or, if
/// transposed, keys and the queries that see them.
template <class T, int W, int n, bool transposed, bool backward>
class LshPairs {
 public:
  using Arguments = LshTensorArguments<T>;
  using Rows = SharedRows<W>;
  using Walk = LshWalk<n, transposed>;
  static constexpr int columns = n, pitch = n / 4 + 1;  // pitch: words in a row of pair bytes
  static constexpr bool keys_own = transposed;
  using Scores = Fragments<1, n / 8>;

  /// Besides its row of q, a key has a row of v and a query a row of dout (`more`).
  struct alignas(16) Shared {
    uint16_t q[lsh_tile * W], more[transposed || backward ? lsh_tile * W : 8];
    uint16_t step_q[2][n * W], step_more[2][n * W];
    uint32_t pairs[lsh_warps][16 * pitch];
    LshNotes<lsh_tile, backward> tile;
    LshNotes<n, backward> step[3];
    StepQueue<Walk, LshStep> ahead;
    float share[lsh_noted_rounds + 1];
  };
  static constexpr int64_t bytes_of(int64_t noted_rounds) {
    return static_cast<int64_t>(sizeof(Shared)) +
           static_cast<int64_t>(sizeof(LshMeeting)) * noted_rounds * (lsh_tile + 3 * n);
  }
  static int64_t bytes(const Arguments& x) {
    static_assert(bytes_of(lsh_noted_rounds) <= 99 * 1024, "what devices from sm_80 up have");
    return bytes_of(x.noted());
  }

  /// Number of chunks of a round, and of tiles of a chunk, in 32 bits because their division is
  /// faster.
  LONGSPAN_HD static uint32_t chunks(const Arguments& x) {
    const auto length = static_cast<uint32_t>(x.head.length),
               chunk = static_cast<uint32_t>(x.head.rule.chunk);
    return (length + chunk - 1) / chunk;
  }
  LONGSPAN_HD static uint32_t tiles(const Arguments& x) {
    return (static_cast<uint32_t>(min(x.head.rule.chunk, x.head.length)) + lsh_tile - 1) / lsh_tile;
  }
  LONGSPAN_HD static int64_t blocks(const Arguments& x) {
    return x.head_count * chunks(x) * tiles(x);
  }

  LONGSPAN_HD LshPairs(const Arguments& arguments, unsigned char* memory, int64_t index)
      : x(arguments),
        shared(*reinterpret_cast<Shared*>(memory)),
        chunk(static_cast<int32_t>(static_cast<uint32_t>(index) / tiles(arguments) %
                                   chunks(arguments))),
        bh(static_cast<int32_t>(static_cast<uint32_t>(index) / tiles(arguments) /
                                chunks(arguments))),
        first(static_cast<int32_t>(chunk * arguments.head.rule.chunk +
                                   static_cast<uint32_t>(index) % tiles(arguments) * lsh_tile)),
        end(static_cast<int32_t>(min<int64_t>(first + lsh_tile, arguments.head.chunk_end(chunk)))),
        own(thread_index() / 32 * 16) {}

  LONGSPAN_HD bool empty() const { return first >= end; }
  /// Whether this warp has tokens.
  LONGSPAN_HD bool active() const { return first + own < end; }

  /// Records the tokens of the tile and copies their rows.
  LONGSPAN_HD void begin() const {
    note(x.round, first, end, lsh_tile, transposed, shared.tile, met());
    for (int i = thread_index(); i <= lsh_noted_rounds; i += lsh_threads) {
      shared.share[i] = i == 0 ? 0.0f : 1 / static_cast<float>(i);
    }
    block_barrier();
    const auto token = [&](int r) { return shared.tile.token[r]; };
    copy<lsh_tile>(x.q, token, Rows{shared.q});
    if constexpr (transposed) copy<lsh_tile>(x.v, token, Rows{shared.more});
    if constexpr (backward && !transposed) copy<lsh_tile>(x.dout, token, Rows{shared.more});
  }

  /// Calls visit(side, step) for each step with pairs of this warp. The step's rows are in buffer
  /// `side`, its notes in `step`. A barrier must follow.
  template <class Visit>
  LONGSPAN_HD void steps(bool& accompanied, Visit visit) const {
    const kernels::LshHead head = head_of();
    shared.ahead.begin(Walk{head, {x.round, chunk}});
    block_barrier();
    shared.ahead.walk_on(0);
    note_step(0);
    block_barrier();
    copy_step(0);
    commit_copies();
    note_step(1);
    LONGSPAN_ROLLED for (int at = 0; shared.ahead.at(at).end != 0; ++at) {
      wait_for_copies<0>();
      block_barrier();  // these rows and the next notes have arrived; no warp reads the previous
                        // rows
      shared.ahead.walk_on(at + 1);
      copy_step(at + 1);
      commit_copies();
      note_step(at + 2);
      if (!active()) continue;
      const bool any = build_mask(shared.ahead.at(at), at % 3, accompanied);
      if (any_lane(any)) visit(at % 2, shared.step[at % 3]);
      warp_barrier();  // no lane reads these pairs
    }
    wait_for_copies<0>();
  }

  /// Row of the tile and column of the step of element e of fragment j, and the byte of their pair.
  LONGSPAN_HD int row_of(int e) const { return own + thread_index() % 32 / 4 + (e < 2 ? 0 : 8); }
  LONGSPAN_HD static int column_of(int j, int e) { return 8 * j + thread_index() % 4 * 2 + e % 2; }
  LONGSPAN_HD uint32_t pair_of(int j, int e) const {
    const int c = column_of(j, e), r = thread_index() % 32 / 4 + (e < 2 ? 0 : 8);
    return shared.pairs[thread_index() / 32][r * pitch + c / 4] >> (c % 4 * 8) & 0xffu;
  }
  LONGSPAN_HD bool shares() const {
    return x.head.rule.duplicates == kernels::LshDuplicates::log_count;
  }
  /// The row of a token in tensors over all heads.
  LONGSPAN_HD int64_t place_of(int32_t token) const { return int64_t{bh} * x.head.length + token; }
  LONGSPAN_HD int32_t token_of(int half) const { return shared.tile.token[row_of(2 * half)]; }
  template <class U>
  LONGSPAN_HD U* rows_of(const HeadRows<U>& from) const {
    return from.of(bh / x.heads, bh % x.heads);
  }

  /// sum += the rows of `from` [B H L, width] of the tile's tokens.
  LONGSPAN_HD void add_numbers(const float* from, int32_t width, Fragments<1, W / 8>& sum) const {
    const int t = thread_index() % 4 * 2;
    LONGSPAN_UNROLL for (int half = 0; half < 2; ++half) {
      const int32_t token = token_of(half);
      if (token < 0) continue;
      const float* const row = from + place_of(token) * width + t;
      LONGSPAN_UNROLL for (int k = 0; k < W / 8; ++k) {
        if (8 * k >= width) continue;
        sum[0][k][2 * half] += row[8 * k];
        sum[0][k][2 * half + 1] += row[8 * k + 1];
      }
    }
  }
  /// Writes the rows of the tile's tokens to [B H L, width] or to a tensor.
  LONGSPAN_HD void write_numbers(const Fragments<1, W / 8>& sum, int32_t width, float* to) const {
    write_rows<T, W, 1>(
        sum, width,
        [&](int, int half, float&) -> int64_t {
          const int32_t token = token_of(half);
          return token < 0 ? -1 : place_of(token) * width;
        },
        to);
  }
  LONGSPAN_HD void write_tensor(const Fragments<1, W / 8>& sum, const HeadRows<T>& to) const {
    write_rows<T, W, 1>(
        sum, to.width,
        [&](int, int half, float&) -> int64_t {
          const int32_t token = token_of(half);
          return token < 0 ? -1 : int64_t{token} * to.row;
        },
        rows_of(to));
  }

  const Arguments& x;
  Shared& shared;
  const int32_t chunk, bh;
  const int32_t first, end;  // sorted indices of the tile
  const int own;             // first row of this warp

 private:
  /// [noted rounds][tile], then [noted rounds][n] for each of three steps.
  LONGSPAN_HD LshMeeting* met() const { return reinterpret_cast<LshMeeting*>(&shared + 1); }
  LONGSPAN_HD kernels::LshHead head_of() const {
    kernels::LshHead head = x.head;
    const int64_t ids = bh * head.rounds * head.length;
    head.ids += ids;
    head.order += ids;
    head.place += ids;
    return head;
  }

  template <int rows, class Index>
  LONGSPAN_HD void copy(const HeadRows<const T>& from, Index token, Rows to) const {
    copy_rows<T, W, rows, lsh_threads>(rows_of(from), from.row, from.width, token, to);
  }

  /// Records the tokens with sorted indices from .. to of a round, as keys or as queries.
  template <int m>
  LONGSPAN_HD void note(int32_t round, int32_t from, int32_t to, int count, bool as_keys,
                        LshNotes<m, backward>& notes, LshMeeting* meetings) const {
    const kernels::LshHead head = head_of();
    const auto of_chunk = static_cast<int32_t>(head.rule.chunk);
    const auto factor = static_cast<float>(head.rule.scale * log2_e);
    LONGSPAN_ROLLED for (int r = thread_index(); r < count; r += lsh_threads) {
      const int32_t token = from + r < to ? static_cast<int32_t>(head.at(round, from + r)) : -1;
      const bool there = token >= 0, valid = there && head.valid(token);
      notes.token[r] = token;
      notes.bucket[r] = there && head.rule.same_bucket ? head.id(round, token) : 0;
      if (as_keys) {
        notes.reach[r] = valid ? token : INT32_MAX;
      } else {
        notes.reach[r] = valid ? (head.rule.causal ? token : INT32_MAX - 1) : -1;
      }
      const float* const facts = x.facts_of(place_of(there ? token : 0));
      if constexpr (backward) {
        const auto four = *reinterpret_cast<const LshFour*>(facts);
        notes.inverse[r] = four.value[0] * factor;
        notes.base[r] = four.value[1];
        notes.delta[r] = four.value[2];
        notes.self[r] = four.value[3];
      } else {
        notes.inverse[r] = facts[0] * factor;
      }
      LONGSPAN_ROLLED for (int s = 0; there && s < x.noted(); ++s) {
        auto in = static_cast<int32_t>(head.place_of(s, token)) / of_chunk;
        if (!as_keys) {
          in -= static_cast<int32_t>(head.rule.before);
          if (head.rule.wrap == kernels::LshWrap::round) {
            const auto around = static_cast<int32_t>(chunks(x));
            in = (in % around + around) % around;
          }
        }
        meetings[s * count + r] = {in, head.rule.same_bucket ? head.id(s, token) : 0};
      }
    }
  }

  LONGSPAN_HD LshMeeting* met_of(int step) const {
    return met() + x.noted() * (lsh_tile + step * n);
  }
  LONGSPAN_HD void note_step(int at) const {
    const LshStep& step = shared.ahead.at(at);
    if (step.end == 0) return;
    note(step.round, step.first, step.end, n, !transposed, shared.step[at % 3], met_of(at % 3));
  }
  /// Copies the rows of tokens with buckets from the tile's first to its last; buckets of a tile
  /// ascend.
  LONGSPAN_HD void copy_step(int at) const {
    if (shared.ahead.at(at).end == 0) return;
    const int32_t low = shared.tile.bucket[0], high = shared.tile.bucket[end - first - 1];
    const LshNotes<n, backward>& notes = shared.step[at % 3];
    const auto token = [&](int r) {
      return notes.bucket[r] < low || notes.bucket[r] > high ? -1 : notes.token[r];
    };
    copy<n>(x.q, token, Rows{shared.step_q[at % 2]});
    copy<n>(transposed ? x.dout : x.v, token, Rows{shared.step_more[at % 2]});
  }

  /// Whether a query and a key met in a recorded round.
  LONGSPAN_HD static bool meets(const LshMeeting& query, const LshMeeting& key, int32_t around,
                                int32_t slots) {
    int32_t apart = key.chunk - query.chunk;
    if (apart < 0) apart += around;
    return key.bucket == query.bucket && apart >= 0 && apart < slots;
  }

  /// Builds the pair mask of a step and returns whether this lane found a pair. Sets `accompanied`
  /// if a pair is of two different tokens. A lane handles one row of the tile and half of the
  /// columns.
  LONGSPAN_HD bool build_mask(const LshStep& step, int of, bool& accompanied) const {
    const kernels::LshHead head = head_of();
    const int lane = thread_index() % 32, r = own + lane % 16, from = lane / 16 * (n / 2);
    const LshNotes<n, backward>& notes = shared.step[of];
    const LshMeeting *const mine = met() + r, *const others = met_of(of);
    const int32_t token = shared.tile.token[r], bucket = shared.tile.bucket[r],
                  reach = shared.tile.reach[r];
    const int noted = x.noted();
    const bool first_counts = head.rule.duplicates == kernels::LshDuplicates::first;
    const auto around =
                   static_cast<int32_t>(head.rule.wrap == kernels::LshWrap::round ? chunks(x) : 0),
               slots = static_cast<int32_t>(head.slots());
    const auto of_chunk = static_cast<int32_t>(head.rule.chunk);
    kernels::LshKeep keep = x.keep;
    keep.head += static_cast<uint32_t>(bh);
    const uint32_t visit = keep.broadcast ? 0
                                          : kernels::LshKeep::number(
                                                head, transposed ? step.round : x.round, step.slot);
    uint32_t* const to = shared.pairs[thread_index() / 32] + lane % 16 * pitch;
    uint32_t all = 0;
    LONGSPAN_ROLLED for (int c0 = from; c0 < from + n / 2; c0 += 4) {
      uint32_t four = 0;
      LONGSPAN_ROLLED for (int u = 0; u < 4; ++u) {
        const int c = c0 + u;
        const int32_t other = notes.token[c];
        const bool itself = other == token;
        const bool sees = notes.bucket[c] == bucket &&
                          (transposed ? reach <= notes.reach[c] : notes.reach[c] <= reach);
        if (token < 0 || other < 0 || !(sees || itself)) continue;
        uint32_t times = 0;
        LONGSPAN_ROLLED for (int s = 0; s < noted; ++s) {
          const LshMeeting &a = mine[s * lsh_tile], &b = others[s * n + c];
          times += (transposed ? meets(b, a, around, slots) : meets(a, b, around, slots)) ? 1u : 0u;
          if (first_counts && times != 0) break;
        }
        if (first_counts && times != 0) continue;
        uint32_t pair = shares() ? times : 1;
        if (itself) {
          pair |= lsh_itself;
        } else {
          accompanied = true;
        }
        if (keep.active()) {
          const int32_t row = step.first % of_chunk + c, tile_row = first % of_chunk + r;
          int32_t query = transposed ? other : token, key = transposed ? token : other;
          if (keep.broadcast) {
            query = transposed ? row : tile_row;
            key = (transposed ? tile_row : row) + step.slot * of_chunk;
          }
          // Key-dependent values are recomputed instead of occupying registers.
          const uint64_t from_key = uint64_t{keep.key} + static_cast<uint64_t>(unknown_zero(query));
          if (!keep.keeps(from_key, static_cast<uint32_t>(query), static_cast<uint32_t>(key),
                          visit)) {
            pair |= lsh_dropped;
          }
        }
        four |= pair << (8 * u);
      }
      to[c0 / 4] = four;
      all |= four;
    }
    warp_barrier();
    return all != 0;
  }
};

// ------------------------------------------------------------------------------------------ facts

/// Computes the per-token values that other tokens read, with eight lanes per token.
template <class T>
struct LshFacts {
  static constexpr int tokens = 64, threads = lsh_threads, resident = 4, lanes = 8;
  using Arguments = LshTensorArguments<T>;
  static int64_t bytes(const Arguments&) { return 0; }
  static int64_t blocks(const Arguments& x) { return ceil_div(x.blocks(), int64_t{tokens}); }

  static LONGSPAN_HD void run(const Arguments& x, unsigned char*, int64_t index) {
    const bool backward = x.dout.data != nullptr;
    LONGSPAN_ROLLED for (int from = thread_index() / lanes; from < tokens;
                         from += threads / lanes) {
      const int64_t i = index * tokens + from;
      const int64_t at = min(i, x.blocks() - 1);  // all lanes take part in the shuffles
      const int64_t bh = at / x.head.length, token = at % x.head.length;
      const int64_t b = bh / x.heads, h = bh % x.heads;
      const T* const q = x.q.of(b, h) + token * x.q.row;
      const float squares = sum(q, q, x.q.width);
      float delta = 0;
      if (backward) {
        delta = sum(x.dout.of(b, h) + token * x.dout.row, x.out.of(b, h) + token * x.out.row,
                    x.dout.width);
      }
      if (i != at || thread_index() % lanes != 0) continue;
      const auto least = static_cast<float>(static_cast<double>(x.q.width) * x.head.rule.epsilon);
      float* const facts = x.facts_of(at);
      facts[0] = 1 / root(least + squares);
      if (!backward) continue;
      kernels::LshHead head = x.head;
      const int64_t ids = bh * head.rounds * head.length;
      head.ids += ids;
      head.order += ids;
      head.place += ids;
      const float lse = x.lse[at];
      facts[1] = lse * static_cast<float>(log2_e);
      facts[2] = x.dlse == nullptr ? delta : delta - x.dlse[at];
      facts[3] = head.alone(static_cast<double>(lse))
                     ? 1 / static_cast<float>(head.self_weight(token))
                     : natural_exp(static_cast<float>(head.rule.self) - lse);
    }
  }

 private:
  struct alignas(16) Eight {
    T value[8];
  };
  /// Returns a . b to all eight lanes.
  static LONGSPAN_HD float sum(const T* a, const T* b, int32_t width) {
    float total = 0;
    LONGSPAN_ROLLED for (int c = thread_index() % lanes * 8; c < width; c += lanes * 8) {
      const Eight x = *reinterpret_cast<const Eight*>(a + c),
                  y = *reinterpret_cast<const Eight*>(b + c);
      LONGSPAN_UNROLL for (int k = 0; k < 8; ++k) {
        total = fused(static_cast<float>(x.value[k]), static_cast<float>(y.value[k]), total);
      }
    }
    LONGSPAN_UNROLL for (int other = 1; other < lanes; other *= 2) {
      total += exchange(total, other);
    }
    return total;
  }
};

// ---------------------------------------------------------------------------------------- forward

/// A tile's queries with the keys of one round. Between rounds, each token keeps its sum of weights
/// times values, and a state: the reference of the weights in units of log 2, their sum, and 1 if
/// it has seen another token.
template <class T, int W>
struct LshTensorForward {
  static constexpr int n = 32, threads = lsh_threads;
  static constexpr int resident = W == 128 ? 3 : 4;  // blocks per multiprocessor, at least
  using Pairs = LshPairs<T, W, n, false, false>;
  using Arguments = LshTensorArguments<T>;
  using Scores = typename Pairs::Scores;
  static int64_t bytes(const Arguments& x) { return Pairs::bytes(x); }
  static int64_t blocks(const Arguments& x) { return Pairs::blocks(x); }

  static LONGSPAN_HD void run(const Arguments& x, unsigned char* memory, int64_t index) {
    const Pairs pairs(x, memory, index);
    if (pairs.empty()) return;
    pairs.begin();
    Fragments<1, W / 8> sum;
    float reference[1][2], total[1][2];
    bool accompanied = false;
    for (bool careful = false;; careful = true) {
      clear<1, W / 8>(sum);
      accompanied = recall(pairs, reference, total, sum);
      pairs.steps(accompanied, [&](int side, const auto& notes) {
        Scores s;
        score(pairs, side, notes, s);
        raise<W, 1, n / 8>(1.0f, s, reference, total, sum);
        weigh(pairs, reference, total, s);
        multiply_weights<T, W, n / 8>(s, SharedRows<W>{pairs.shared.step_more[side]}, careful, sum);
      });
      if (!any_thread(nonfinite(sum)) || careful) break;
    }
    if (pairs.active()) finish(pairs, accompanied, reference, total, sum);
  }

 private:
  static LONGSPAN_HD bool leads() { return thread_index() % 4 == 0; }

  /// Loads the state of the previous rounds. Returns whether the row whose mask this lane builds
  /// has seen another token.
  static LONGSPAN_HD bool recall(const Pairs& pairs, float (&reference)[1][2], float (&total)[1][2],
                                 Fragments<1, W / 8>& sum) {
    const auto& x = pairs.x;
    LONGSPAN_UNROLL for (int half = 0; half < 2; ++half) {
      reference[0][half] = -std::numeric_limits<float>::infinity();
      total[0][half] = 0;
      const int32_t token = pairs.token_of(half);
      if (x.first() || token < 0) continue;
      const float* const state = x.states + 3 * pairs.place_of(token);
      reference[0][half] = state[0];
      if (leads()) total[0][half] = state[1];
    }
    if (x.first()) return false;
    pairs.add_numbers(x.sums, x.v.width, sum);
    const int32_t token = pairs.shared.tile.token[pairs.own + thread_index() % 16];
    return token >= 0 && x.states[3 * pairs.place_of(token) + 2] != 0;
  }

  /// s = logits in units of log 2, -inf for pairs that do not exist.
  static LONGSPAN_HD void score(const Pairs& pairs, int side, const LshNotes<n, false>& notes,
                                Scores& s) {
    const auto self = static_cast<float>(pairs.x.head.rule.self * log2_e);
    clear<1, n / 8>(s);
    multiply_rows<T, W, 1, n / 8>(SharedRows<W>{pairs.shared.q}, pairs.own,
                                  SharedRows<W>{pairs.shared.step_q[side]}, 0, s);
    LONGSPAN_UNROLL for (int j = 0; j < n / 8; ++j) {
      LONGSPAN_UNROLL for (int e = 0; e < 4; ++e) {
        const uint32_t pair = pairs.pair_of(j, e);
        const float logit = s[0][j][e] * notes.inverse[pairs.column_of(j, e)];
        s[0][j][e] = (pair & lsh_itself) != 0 ? self : logit;
        if (pair == 0) s[0][j][e] = -std::numeric_limits<float>::infinity();
      }
    }
  }
  /// Replaces logits with weights. Dropped ones count in `total` only.
  static LONGSPAN_HD void weigh(const Pairs& pairs, const float (&reference)[1][2],
                                float (&total)[1][2], Scores& s) {
    const bool shares = pairs.shares();
    LONGSPAN_UNROLL for (int half = 0; half < 2; ++half) {
      const float hidden = -std::numeric_limits<float>::infinity();
      const float base = reference[0][half] == hidden ? 0.0f : reference[0][half];
      LONGSPAN_UNROLL for (int j = 0; j < n / 8; ++j) {
        LONGSPAN_UNROLL for (int e = 2 * half; e < 2 * half + 2; ++e) {
          const uint32_t pair = pairs.pair_of(j, e);
          float p = fast_exp2(s[0][j][e] - base);
          if (shares) p *= pairs.shared.share[pair & lsh_count];
          total[0][half] += p;
          s[0][j][e] = (pair & lsh_dropped) != 0 ? 0.0f : p;
        }
      }
    }
  }

  static LONGSPAN_HD void finish(const Pairs& pairs, bool accompanied,
                                 const float (&reference)[1][2], float (&total)[1][2],
                                 Fragments<1, W / 8>& sum) {
    const auto& x = pairs.x;
    // Lanes r and r + 16 built the mask of row r; lanes 4 g .. 4 g + 3 hold rows g and g + 8.
    uint32_t* const flags = pairs.shared.pairs[thread_index() / 32];
    flags[thread_index() % 32] = accompanied ? 1 : 0;
    warp_barrier();
    const auto with_others = [&](int half) {
      const int r = thread_index() % 32 / 4 + 8 * half;
      return (flags[r] | flags[r + 16]) != 0;
    };
    float scale[2];
    LONGSPAN_UNROLL for (int half = 0; half < 2; ++half) {
      const float all = over_row(total[0][half], [](float a, float b) { return a + b; });
      const int32_t token = pairs.token_of(half);
      const bool alone = !with_others(half);
      scale[half] = static_cast<float>(x.keep.kept) / all;
      if (token < 0 || !leads()) continue;
      const int64_t at = pairs.place_of(token);
      if (!x.last()) {
        float* const state = x.states + 3 * at;
        state[0] = reference[0][half];
        state[1] = all;
        state[2] = alone ? 0.0f : 1.0f;
      } else {
        // log2(e) times a very negative logit has lost some digits
        x.lse[at] = alone ? static_cast<float>(x.head.rule.self) + natural_log(all)
                          : lse_of(reference[0][half], all);
      }
    }
    if (!x.last()) return pairs.write_numbers(sum, x.v.width, x.sums);
    const bool drops = x.keep.active();
    T* const out = pairs.rows_of(x.out);
    write_rows<T, W, 1>(
        sum, x.v.width,
        [&](int, int half, float& factor) -> int64_t {
          const int32_t token = pairs.token_of(half);
          factor = scale[half];
          const bool own_value = !drops && !with_others(half);
          return token < 0 || own_value ? -1 : int64_t{token} * x.out.row;
        },
        out);
    if (drops) return;
    LONGSPAN_UNROLL for (int half = 0; half < 2; ++half) {
      const int32_t token = pairs.token_of(half);
      if (token < 0 || with_others(half)) continue;
      const T* const value = pairs.rows_of(x.v) + int64_t{token} * x.v.row;
      for (int c = thread_index() % 4; c < x.v.width; c += 4) {
        out[int64_t{token} * x.out.row + c] = value[c];  // unrounded
      }
    }
  }
};

// --------------------------------------------------------------------------------------- backward

/// Computes s = P, 0 where dropped, from products of queries and keys. Computes ds = dS without the
/// scale from products of gradients and values; if the tile holds queries, ds also includes the
/// factor that turns products with keys into logits. Both are 0 for pairs that do not exist,
/// whatever their tokens hold.
template <class Pairs, class Notes>
LONGSPAN_HD inline void lsh_differentiate(const Pairs& pairs, const Notes& step,
                                          typename Pairs::Scores& s, typename Pairs::Scores& ds) {
  const auto& tile = pairs.shared.tile;
  const auto kept = static_cast<float>(pairs.x.keep.kept);
  const bool shares = pairs.shares();
  LONGSPAN_UNROLL for (int j = 0; j < Pairs::columns / 8; ++j) {
    LONGSPAN_UNROLL for (int e = 0; e < 4; ++e) {
      const uint32_t pair = pairs.pair_of(j, e);
      const int r = pairs.row_of(e), c = pairs.column_of(j, e);
      float base, delta, self, inverse;
      if constexpr (Pairs::keys_own) {
        base = step.base[c], delta = step.delta[c], self = step.self[c], inverse = tile.inverse[r];
      } else {
        base = tile.base[r], delta = tile.delta[r], self = tile.self[r], inverse = step.inverse[c];
      }
      const bool itself = (pair & lsh_itself) != 0, dropped = (pair & lsh_dropped) != 0;
      float p = itself ? self : fast_exp2(fused(s[0][j][e], inverse, -base));
      if (shares) p *= pairs.shared.share[pair & lsh_count];
      float g = p * ((dropped ? 0.0f : ds[0][j][e] * kept) - delta);
      if constexpr (!Pairs::keys_own) g *= inverse * pairs.x.lift;
      s[0][j][e] = pair != 0 && !dropped ? p : 0.0f;
      ds[0][j][e] = pair != 0 && !itself ? g : 0.0f;
    }
  }
}

/// dq of a tile's queries from the keys of a round, accumulated over the rounds so far.
template <class T, int W>
struct LshTensorQueries {
  static constexpr int n = 32, threads = lsh_threads;
  static constexpr int resident = W == 128 ? 2 : 3;  // blocks per multiprocessor, at least
  using Pairs = LshPairs<T, W, n, false, true>;
  using Arguments = LshTensorArguments<T>;
  static int64_t bytes(const Arguments& x) { return Pairs::bytes(x); }
  static int64_t blocks(const Arguments& x) { return Pairs::blocks(x); }

  static LONGSPAN_HD void run(const Arguments& x, unsigned char* memory, int64_t index) {
    const Pairs pairs(x, memory, index);
    if (pairs.empty()) return;
    pairs.begin();
    Fragments<1, W / 8> sum;
    bool accompanied = false;
    for (bool careful = false;; careful = true) {
      clear<1, W / 8>(sum);
      pairs.steps(accompanied, [&](int side, const auto& notes) {
        auto& shared = pairs.shared;
        const SharedRows<W> keys{shared.step_q[side]};
        typename Pairs::Scores s, ds;
        clear<1, n / 8>(s);
        clear<1, n / 8>(ds);
        multiply_rows<T, W, 1, n / 8>(SharedRows<W>{shared.q}, pairs.own, keys, 0, s);
        multiply_rows<T, W, 1, n / 8>(SharedRows<W>{shared.more}, pairs.own,
                                      SharedRows<W>{shared.step_more[side]}, 0, ds);
        lsh_differentiate(pairs, notes, s, ds);
        multiply_weights<T, W, n / 8>(ds, keys, careful, sum);
      });
      if (!any_thread(nonfinite(sum)) || careful) break;
    }
    if (!pairs.active()) return;
    LONGSPAN_UNROLL for (int k = 0; k < W / 8; ++k) {
      // The factor of dS includes the scale in units of log 2, and the lift.
      LONGSPAN_UNROLL for (int e = 0; e < 4; ++e) sum[0][k][e] *= x.unlift;
    }
    if (!x.first()) pairs.add_numbers(x.sums, x.q.width, sum);
    pairs.write_numbers(sum, x.q.width, x.sums);
  }
};

/// dv and the contribution of a tile's keys to dq (through their norms), from the queries of a
/// round.
template <class T, int W>
struct LshTensorKeys {
  static constexpr int n = W == 128 ? 16 : 32, threads = lsh_threads;
  static constexpr int resident = W == 32 ? 3 : 2;  // blocks per multiprocessor, at least
  using Pairs = LshPairs<T, W, n, true, true>;
  using Arguments = LshTensorArguments<T>;
  static int64_t bytes(const Arguments& x) { return Pairs::bytes(x); }
  static int64_t blocks(const Arguments& x) { return Pairs::blocks(x); }

  static LONGSPAN_HD void run(const Arguments& x, unsigned char* memory, int64_t index) {
    const Pairs pairs(x, memory, index);
    if (pairs.empty()) return;
    pairs.begin();
    Fragments<1, W / 8> dk, dv;
    bool accompanied = false;
    for (bool careful = false;; careful = true) {
      clear<1, W / 8>(dk);
      clear<1, W / 8>(dv);
      pairs.steps(accompanied, [&](int side, const auto& notes) {
        auto& shared = pairs.shared;
        const SharedRows<W> queries{shared.step_q[side]}, dout{shared.step_more[side]};
        typename Pairs::Scores s, ds;
        clear<1, n / 8>(s);
        clear<1, n / 8>(ds);
        multiply_rows<T, W, 1, n / 8>(SharedRows<W>{shared.q}, pairs.own, queries, 0, s);
        multiply_rows<T, W, 1, n / 8>(SharedRows<W>{shared.more}, pairs.own, dout, 0, ds);
        lsh_differentiate(pairs, notes, s, ds);
        multiply_weights<T, W, n / 8>(s, dout, careful, dv);
        multiply_weights<T, W, n / 8>(ds, queries, careful, dk);
      });
      if (!any_thread(nonfinite(dk) || nonfinite(dv)) || careful) break;
    }
    if (!pairs.active()) return;
    through_norm(pairs, dk);
    LONGSPAN_UNROLL for (int k = 0; k < W / 8; ++k) {
      LONGSPAN_UNROLL for (int e = 0; e < 4; ++e) {
        dv[0][k][e] *= static_cast<float>(x.keep.kept);
      }
    }
    pairs.add_numbers(x.sums, x.q.width, dk);
    if (!x.first()) pairs.add_numbers(x.value_sums, x.v.width, dv);
    if (x.last()) {
      pairs.write_tensor(dk, x.dq);
      pairs.write_tensor(dv, x.dv);
    } else {
      pairs.write_numbers(dk, x.q.width, x.sums);
      pairs.write_numbers(dv, x.v.width, x.value_sums);
    }
  }

 private:
  /// Turns dk, the gradient of k = q / rho, into the gradient of q: (dk - k (k . dk)) / rho.
  static LONGSPAN_HD void through_norm(const Pairs& pairs, Fragments<1, W / 8>& dk) {
    const auto& x = pairs.x;
    const int t = thread_index() % 4 * 2;
    LONGSPAN_UNROLL for (int half = 0; half < 2; ++half) {
      const int r = pairs.row_of(2 * half);
      const int32_t token = pairs.token_of(half);
      const float inverse = token < 0 ? 0.0f : *x.facts_of(pairs.place_of(token));
      const auto key = [&](int k, int e) {
        T value;
        memcpy(&value, pairs.shared.q + SharedRows<W>::place(r, k) * 8 + t + e, sizeof(T));
        return static_cast<float>(value) * inverse;
      };
      float along = 0;
      LONGSPAN_UNROLL for (int k = 0; k < W / 8; ++k) {
        LONGSPAN_UNROLL for (int e = 0; e < 2; ++e) {
          along = fused(key(k, e), dk[0][k][2 * half + e], along);
        }
      }
      along = over_row(along, [](float a, float b) { return a + b; });
      const float scale = static_cast<float>(x.head.rule.scale) * inverse;
      LONGSPAN_UNROLL for (int k = 0; k < W / 8; ++k) {
        LONGSPAN_UNROLL for (int e = 0; e < 2; ++e) {
          float& d = dk[0][k][2 * half + e];
          d = scale * fused(key(k, e), -along, d);
        }
      }
    }
  }
};

}  // namespace longspan::cuda
