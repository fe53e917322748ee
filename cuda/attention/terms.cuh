#pragma once

#include "cuda/attention/tensor.cuh"

/// Attention on tensor cores with all terms and masks: classes, relation terms, soft masks. A warp
/// owns 16 rows, which leaves registers for them.
///
/// Relation terms are products too: 16 rows are multiplied with the table rows that the pairs of
/// the step use, 48 ids at a time in the order of ids, and each pair looks up its result. In the
/// other direction, weights are summed by id before they are multiplied with the table. A key that
/// a row does not see may hold NaN or Inf: if accumulators come out nonfinite, the block processes
/// its keys once more with `careful` products.
namespace longspan::cuda {

/// Number of ids that the pairs of a warp are looked up among at a time, the row pitch of their
/// values, and the number of table rows staged for a product.
inline constexpr int term_panel = 48, term_pitch = 50, term_stage = 16;

/// Metadata of the current rows and keys of a block.
template <int rows, int keys>
struct TermNotes {
  int32_t query[rows];  // -1: none
  KeyInterval seen[rows];
  int32_t row_class[rows];  // times the number of key classes
  float base[rows], delta[rows];
  int32_t key[keys], shown[keys];  // -1: none; shown is also -1 for a hidden key
  int32_t key_class[keys];
  float weight[keys];
  float row_span[rows], key_span[keys];  // what each adds to a soft mask; unset without one
};

// --------------------------------------------------------------------------------- pairs and ids

/// State and helpers that the passes share. A warp has 16 rows by all keys of a step or, if
/// transposed, 16 keys by all rows of a piece; `own` is the first of the 16. Element e of fragment
/// j is the pair of row_of() and key_of().
template <class T, int W, int rows, int keys, bool transposed>
class TermsPass : public TensorPass<T, W> {
 public:
  using Base = TensorPass<T, W>;
  using Notes = TermNotes<rows, keys>;
  using Rows = SharedRows<W>;
  static constexpr int n = (transposed ? rows : keys) / 8,
                       m = transposed ? rows / 16 : 1;  // row tiles of products with a table
  using Scores = Fragments<1, n>;
  using Ids = int32_t[n][4];  // negative: the pair does not exist
  /// Workspace of each warp.
  struct Workspace {
    Rows stage;
    float* numbers;  // [16 m, term_pitch]
  };

  LONGSPAN_HD TermsPass(const AttentionArguments<T>& arguments, const AttentionHead& of,
                        Notes& notes_of, Workspace workspace_of, int first)
      : Base(arguments, of), notes(notes_of), workspace(workspace_of), own(first) {}

  LONGSPAN_HD static int row_of(int own, int j, int e) {
    const int lane = thread_index() % 32;
    return transposed ? 8 * j + lane % 4 * 2 + e % 2 : own + lane / 4 + (e < 2 ? 0 : 8);
  }
  LONGSPAN_HD static int key_of(int own, int j, int e) {
    const int lane = thread_index() % 32;
    return transposed ? own + lane / 4 + (e < 2 ? 0 : 8) : 8 * j + lane % 4 * 2 + e % 2;
  }

  // ------------------------------------------------------------------------------- notes

  /// Records the queries in slots first .. end.
  template <int threads>
  LONGSPAN_HD void note_queries(int32_t first, int32_t end, bool statistics) const {
    for (int r = thread_index(); r < rows; r += threads) {
      if (statistics) {
        note_row(*this, first + r, end, notes.query[r], notes.base[r], notes.delta[r]);
      } else {
        notes.query[r] = first + r < end ? head.query(x.sizes, first + r) : -1;
      }
    }
  }
  /// Records which keys of a segment these queries see. The threads that recorded a query must call
  /// this.
  template <int threads>
  LONGSPAN_HD void turn_to(int segment) const {
    const bool labelled = x.sizes.segment[segment].masks.has_classes();
    const kernels::SampleMasks masks = head.masks(x.sizes, segment);
    for (int r = thread_index(); r < rows; r += threads) {
      const int32_t i = notes.query[r];
      const bool there = i >= 0 && i < head.queries_valid;
      notes.seen[r] = there ? head.sees(x.sizes, segment, i) : KeyInterval{0, 0};
      if (labelled) notes.row_class[r] = there ? masks.class_of_query(i) : 0;
      if (soft(segment)) notes.row_span[r] = there ? x.span.of_row(head.b, head.h, i) : 0;
    }
  }
  /// Records the keys in slots k0 .. k0 + keys of a segment. Only the keys set in `bits` are used.
  template <int threads>
  LONGSPAN_HD void note_places(int segment, int32_t k0, uint64_t bits) const {
    const SegmentTables& s = x.sizes.segment[segment];
    const kernels::SampleMasks masks = head.masks(x.sizes, segment);
    for (int j = thread_index(); j < keys; j += threads) {
      const bool there = (bits >> j & 1) != 0 && k0 + j < s.keys;
      const int32_t index = there ? head.key(x.sizes, segment, k0 + j) : -1;
      const bool shown = index >= 0 && head.shown(x.sizes, segment, index);
      notes.key[j] = index;
      notes.shown[j] = shown ? index : -1;
      if (s.masks.has_classes()) notes.key_class[j] = shown ? masks.class_of_key(index) : 0;
      if (soft(segment)) notes.key_span[j] = shown ? x.span.of_column(head.b, head.h, index) : 0;
    }
  }
  template <int threads>
  LONGSPAN_HD void note_weights(int64_t tile, int segment, int32_t k0, uint64_t bits) const {
    if (!x.sizes.layout.multiplied) return;
    for (int j = thread_index(); j < keys; j += threads) {
      notes.weight[j] = (bits >> j & 1) != 0 ? this->weight(tile, segment, k0 + j) : 0.0f;
    }
  }

  // ------------------------------------------------------------------------------- pairs

  LONGSPAN_HD int64_t distance(int segment, int r, int c) const {
    return int64_t{notes.shown[c]} - (notes.query[r] + x.sizes.segment[segment].q_start);
  }
  /// Computes the ids of all pairs. Every lane of the warp gets whether any pair exists.
  LONGSPAN_HD bool find(int segment, uint64_t bits, Ids& id) const {
    const bool labelled = x.sizes.segment[segment].masks.has_classes();
    const kernels::SampleMasks masks = head.masks(x.sizes, segment);
    bool any = false;
    LONGSPAN_UNROLL for (int j = 0; j < n; ++j) {
      LONGSPAN_UNROLL for (int e = 0; e < 4; ++e) {
        const int r = row_of(own, j, e), c = key_of(own, j, e);
        const int32_t key = (bits >> c & 1) != 0 ? notes.shown[c] : -1;
        const KeyInterval seen = notes.seen[r];
        int32_t at = -1;
        if (key >= seen.lo && key < seen.hi) {
          at = labelled ? masks.label_of_classes(notes.row_class[r], notes.key_class[c])
                        : static_cast<int32_t>(clamped(distance(segment, r, c), -x.left, x.right) +
                                               x.left);
        }
        id[j][e] = at;
        any = any || at >= 0;
      }
    }
    return any_lane(any);
  }
  LONGSPAN_HD bool soft(int segment) const { return x.span.given() && segment == 0; }
  /// mu before clamping.
  LONGSPAN_HD float ramp(int segment, int j, int e) const {
    const int r = row_of(own, j, e), c = key_of(own, j, e);
    return x.span.at(notes.row_span[r], notes.key_span[c], -distance(segment, r, c));
  }
  LONGSPAN_HD static float unit(float y) { return y < 0 ? 0.0f : (y > 1 ? 1.0f : y); }

  // --------------------------------------------------------------------------- relations

  /// The smallest and the largest id of a warp; none exist if last < first.
  LONGSPAN_HD static void reach(const Ids& id, int32_t& first, int32_t& last) {
    uint32_t least = INT32_MAX;
    int32_t most = -1;
    LONGSPAN_UNROLL for (int j = 0; j < n; ++j) {
      LONGSPAN_UNROLL for (int e = 0; e < 4; ++e) {
        least = min(least, static_cast<uint32_t>(id[j][e]));  // negative ids become large
        most = max(most, id[j][e]);
      }
    }
    LONGSPAN_UNROLL for (int lanes = 1; lanes < 32; lanes *= 2) {
      least = min(least, exchange(least, lanes));
      most = max(most, static_cast<int32_t>(exchange(static_cast<uint32_t>(most), lanes)));
    }
    first = static_cast<int32_t>(least);
    last = most;
  }
  /// Stages rows id .. of a table of `width` columns for the warp, with zeros beyond the table.
  LONGSPAN_HD void put_on_stage(const Table<T>& table, int32_t width, int32_t id) const {
    const T* const from = table.of(head.h);
    warp_barrier();  // no lane reads the stage
    LONGSPAN_ROLLED for (int i = thread_index() % 32; i < term_stage * Rows::chunks; i += 32) {
      const int r = i / Rows::chunks, c = i % Rows::chunks;
      const bool take = id + r < x.ids && c * 8 < width;
      copy16(workspace.stage.at(r, c), take ? from + int64_t{id + r} * width + c * 8 : from, take);
    }
    commit_copies();
    wait_for_copies<0>();
    warp_barrier();
  }
  /// value += a row . table[id] + shift[id], where rows a_row .. of a are the rows of the warp's
  /// pairs.
  LONGSPAN_HD void add_relation(const Rows& a, int a_row, const Table<T>& table,
                                const Table<T>& shift, int32_t width, const Ids& id,
                                Scores& value) const {
    const T* const bias = shift.of(head.h);
    if (bias != nullptr) {
      LONGSPAN_UNROLL for (int j = 0; j < n; ++j) {
        LONGSPAN_UNROLL for (int e = 0; e < 4; ++e) {
          if (id[j][e] >= 0) value[0][j][e] += static_cast<float>(bias[id[j][e]]);
        }
      }
    }
    if (table.data == nullptr) return;
    const int lane = thread_index() % 32, g = lane / 4, t = lane % 4 * 2;
    int32_t first, last;
    reach(id, first, last);
    LONGSPAN_ROLLED for (int32_t id0 = first; id0 <= last; id0 += term_panel) {
      LONGSPAN_ROLLED for (int at = 0; at < term_panel && id0 + at <= last; at += term_stage) {
        put_on_stage(table, width, id0 + at);
        Fragments<m, 2> c;
        clear<m, 2>(c);
        multiply_rows<T, W, m, 2>(a, a_row, workspace.stage, 0, c);
        LONGSPAN_UNROLL for (int i = 0; i < m; ++i) {
          LONGSPAN_UNROLL for (int j = 0; j < 2; ++j) {
            LONGSPAN_UNROLL for (int e = 0; e < 4; ++e) {
              workspace.numbers[(16 * i + g + e / 2 * 8) * term_pitch + at + 8 * j + t + e % 2] =
                  c[i][j][e];
            }
          }
        }
      }
      warp_barrier();
      LONGSPAN_UNROLL for (int j = 0; j < n; ++j) {
        LONGSPAN_UNROLL for (int e = 0; e < 4; ++e) {
          const int32_t at = id[j][e] - id0;
          if (id[j][e] < 0 || at < 0 || at >= term_panel) continue;
          value[0][j][e] += workspace.numbers[row_of(0, j, e) * term_pitch + at];
        }
      }
      warp_barrier();
    }
  }

  /// numbers[r][i] = the sum of p over the keys of row r with id id0 + i.
  LONGSPAN_HD void gather(const Scores& p, const Ids& id, int segment, int32_t id0) const {
    static_assert(!transposed);
    const int lane = thread_index() % 32;
    warp_barrier();  // no lane reads them
    for (int i = lane; i < 16 * term_pitch; i += 32) workspace.numbers[i] = 0;
    warp_barrier();
    const auto add_up = [&](int32_t of) {
      LONGSPAN_UNROLL for (int half = 0; half < 2; ++half) {
        float total = 0;
        LONGSPAN_UNROLL for (int j = 0; j < n; ++j) {
          LONGSPAN_UNROLL for (int e = 2 * half; e < 2 * half + 2; ++e) {
            if (id[j][e] == of) total += p[0][j][e];
          }
        }
        total = over_row(total, [](float a, float b) { return a + b; });
        if (lane % 4 == 0) workspace.numbers[(lane / 4 + 8 * half) * term_pitch + of - id0] = total;
      }
    };
    // The keys of a row have distinct distances, except for the clipped ones.
    const bool labelled = x.sizes.segment[segment].masks.has_classes();
    const auto ends = static_cast<int32_t>(x.left + x.right);
    int32_t first, last;
    reach(id, first, last);
    if (!labelled) {
      LONGSPAN_UNROLL for (int j = 0; j < n; ++j) {
        LONGSPAN_UNROLL for (int e = 0; e < 4; ++e) {
          const int32_t at = id[j][e] - id0;
          if (id[j][e] <= 0 || id[j][e] >= ends || at < 0 || at >= term_panel) continue;
          workspace.numbers[row_of(0, j, e) * term_pitch + at] = p[0][j][e];
        }
      }
    }
    const int32_t step = labelled || ends == 0 ? 1 : ends;  // the ids that several keys share
    first = labelled ? max(first, id0) : (id0 == 0 ? 0 : ends);
    last = min(last, id0 + term_panel - 1);
    LONGSPAN_ROLLED for (int32_t of = first; of <= last; of += step) {
      if (of >= id0) add_up(of);
    }
    warp_barrier();
  }
  /// sum += p table[id].
  LONGSPAN_HD void add_ids(const Scores& p, const Ids& id, int segment, const Table<T>& table,
                           int32_t width, bool careful, Fragments<1, W / 8>& sum) const {
    const int lane = thread_index() % 32, g = lane / 4, t = lane % 4 * 2;
    int32_t first, last;
    reach(id, first, last);
    LONGSPAN_ROLLED for (int32_t id0 = first; id0 <= last; id0 += term_panel) {
      gather(p, id, segment, id0);
      LONGSPAN_ROLLED for (int at = 0; at < term_panel && id0 + at <= last; at += term_stage) {
        put_on_stage(table, width, id0 + at);
        const auto two = [&](int row, int column) {
          const float* const from = workspace.numbers + (g + row) * term_pitch + at + t + column;
          return pack<T>(from[0], from[1]);
        };
        const uint32_t a[4] = {two(0, 0), two(8, 0), two(0, 8), two(8, 8)};
        multiply_operand<T, W>(a, workspace.stage, 0, careful, sum);
      }
    }
  }

  // ------------------------------------------------------------------------------ scores

  /// Adds the score offsets of keys with a multiplicity.
  LONGSPAN_HD void weigh_pairs(Scores& s) const {
    if (!x.sizes.layout.multiplied) return;
    LONGSPAN_UNROLL for (int j = 0; j < n; ++j) {
      LONGSPAN_UNROLL for (int e = 0; e < 4; ++e) s[0][j][e] += notes.weight[key_of(own, j, e)];
    }
  }
  /// s = P, 0 where dropped; ds = dS without the scale. Both are 0 for pairs that do not exist.
  /// Calls dmu(e, value) with the gradients of mu times its ramp.
  template <class F>
  LONGSPAN_HD void differentiate(int segment, uint32_t kept, const Ids& id, Scores& s, Scores& ds,
                                 F dmu) const {
    const auto scale = static_cast<float>(x.sizes.draws.scale);
    LONGSPAN_UNROLL for (int j = 0; j < n; ++j) {
      LONGSPAN_UNROLL for (int e = 0; e < 4; ++e) {
        const int r = row_of(own, j, e);
        const bool keep = (kept >> (4 * j + e) & 1) != 0;
        const float above = fused(s[0][j][e], factor, -notes.base[r]);
        // Where mu is 0, lse does not bound the score.
        float p = fast_exp2(soft(segment) && above > 64 ? 64.0f : above);
        float g = p * ((keep ? ds[0][j][e] * scale : 0.0f) - notes.delta[r]);
        bool there = id[j][e] >= 0;
        if (there && soft(segment)) {
          const float mu = ramp(segment, j, e);
          if (mu > 0 ? mu <= 1 : mu == 0 && g - g == 0) dmu(e, g);
          there = mu > 0;
          g *= unit(mu);
          p *= unit(mu);
        }
        s[0][j][e] = there && keep ? p : 0.0f;
        ds[0][j][e] = there ? g : 0.0f;
      }
    }
  }

  Notes& notes;
  const Workspace workspace;
  const int own;
  using Base::factor;
  using Base::head;
  using Base::x;
};

/// Half a tile of queries: the shared memory of the passes over rows.
template <class T, int W>
struct TermRows {
  static constexpr int rows = kernels::kAttentionTileRows / 2, keys = 32, warps = 3,
                       threads = 32 * warps, pieces = 2;
  static constexpr int resident = W == 128 ? 2 : 4;  // blocks per multiprocessor, at least
  // Buffers of keys. With two, the keys of the next step arrive while this one is computed.
  static constexpr int sides = W == 128 ? 1 : 2;
  static_assert(rows == warps * 16);
  using Pass = TermsPass<T, W, rows, keys, false>;
  struct alignas(16) Shared {
    uint16_t q[rows * W], relation[rows * W], dout[rows * W], k[sides][keys * W],
        v[sides][keys * W];
    uint16_t stage[warps][term_stage * W];
    float numbers[rows * term_pitch];
    AttentionHead head;
    StepQueue<KeySteps<keys>, KeyStep> ahead;
    TermNotes<rows, keys> notes;
  };

  /// Computes the head of a work unit for all threads. Contains barriers.
  static LONGSPAN_HD const AttentionHead& head_of(const AttentionArguments<T>& x, Shared& shared,
                                                  const AttentionWork& work) {
    if (thread_index() == 0) shared.head = AttentionHead(x.sizes, work.b, work.h);
    block_barrier();
    return shared.head;
  }
  /// The workspace of this thread's warp.
  static LONGSPAN_HD typename Pass::Workspace workspace_of(Shared& shared) {
    const int warp = thread_index() / 32;
    return {SharedRows<W>{shared.stage[warp]}, shared.numbers + 16 * warp * term_pitch};
  }
  /// Loads rows first .. end and, for the backward pass, their statistics.
  static LONGSPAN_HD void load_rows(const Pass& pass, Shared& shared, int32_t first, int32_t end,
                                    bool backward) {
    const auto& x = pass.x;
    const auto query = [&](int r) { return pass.valid_query(first + r, end); };
    pass.template note_queries<threads>(first, end, backward);
    pass.template copy_rows<rows, threads>(x.q, query, SharedRows<W>{shared.q});
    if (x.own_relation_query) {
      pass.template copy_rows<rows, threads>(x.relation_query, query,
                                             SharedRows<W>{shared.relation});
    }
    if (backward) {
      pass.template copy_rows<rows, threads>(x.dout, query, SharedRows<W>{shared.dout});
    }
    commit_copies();
  }
  static LONGSPAN_HD SharedRows<W> keys_of(Shared& shared, int side) {
    return SharedRows<W>{shared.k[side]};
  }
  static LONGSPAN_HD SharedRows<W> values_of(Shared& shared, int side) {
    return SharedRows<W>{shared.v[side]};
  }
  static LONGSPAN_HD void copy_keys(const Pass& pass, Shared& shared, const KeyStep& step,
                                    int side) {
    const auto& x = pass.x;
    const int segment = step.segment;
    const auto key = [&](int j) { return pass.valid_key(segment, step.k0, j, step.mask); };
    pass.template copy_rows<keys, threads>(x.k[segment], key, keys_of(shared, side));
    pass.template copy_rows<keys, threads>(x.v[segment], key, values_of(shared, side));
    commit_copies();
  }
  /// Begins the steps of a range of a tile. With two buffers, it also starts copying the first
  /// step.
  static LONGSPAN_HD void begin(const Pass& pass, Shared& shared, const AttentionWork& work) {
    shared.ahead.begin(KeySteps<keys>(pass.x.sizes, pass.head, work.place, work.range));
    block_barrier();
    if (sides > 1 && shared.ahead.at(0).mask != 0) copy_keys(pass, shared, shared.ahead.at(0), 0);
  }
  /// Loads the keys of step `at` into buffer at % sides, see load_keys(), and with two buffers
  /// starts copying the next step.
  static LONGSPAN_HD void load_step(const Pass& pass, Shared& shared, int64_t tile, int at,
                                    bool turn) {
    load_keys(pass, shared, tile, shared.ahead.at(at), turn, sides > 1);
    const KeyStep& next = shared.ahead.at(at + 1);
    if (sides > 1 && next.mask != 0) copy_keys(pass, shared, next, (at + 1) % sides);
    shared.ahead.walk_on(at);
  }
  /// Loads the keys of a step and waits for them. `turn`: the rows are new to the step's segment.
  /// `copied`: the copy was already started.
  static LONGSPAN_HD void load_keys(const Pass& pass, Shared& shared, int64_t tile,
                                    const KeyStep& step, bool turn, bool copied) {
    const int segment = step.segment;
    block_barrier();  // no warp reads the previous step
    if (turn) pass.template turn_to<threads>(segment);
    pass.template note_places<threads>(segment, step.k0, step.mask);
    pass.template note_weights<threads>(tile, segment, step.k0, step.mask);
    if (!copied) copy_keys(pass, shared, step, 0);
    wait_for_copies<0>();
    block_barrier();
  }
  /// Draws the dropout mask of a step's pairs.
  static LONGSPAN_HD uint32_t draw(const Pass& pass, const KeyStep& step) {
    if (!pass.x.sizes.draws.active) return ~0u;
    return pass.template draw<1, Pass::n>(
        pass.notes.query + pass.own, pass.head.ordered(step.segment) ? pass.notes.key : nullptr,
        step.segment, step.k0);
  }
  static LONGSPAN_HD SharedRows<W> relation_rows(const Pass& pass, Shared& shared) {
    return SharedRows<W>{pass.x.own_relation_query ? shared.relation : shared.q};
  }
  /// s = q . k plus its terms.
  static LONGSPAN_HD void score(const Pass& pass, Shared& shared, int side,
                                const typename Pass::Ids& id, typename Pass::Scores& s) {
    const auto& x = pass.x;
    clear<1, Pass::n>(s);
    multiply_rows<T, W, 1, Pass::n>(SharedRows<W>{shared.q}, pass.own, keys_of(shared, side), 0, s);
    pass.add_relation(relation_rows(pass, shared), pass.own, x.key, x.bias, x.sizes.width, id, s);
    pass.weigh_pairs(s);
  }
  /// s = P, ds = dS, see TermsPass::differentiate().
  template <class F>
  static LONGSPAN_HD void differentiate(const Pass& pass, Shared& shared, int side,
                                        const KeyStep& step, const typename Pass::Ids& id,
                                        typename Pass::Scores& s, typename Pass::Scores& ds,
                                        F dmu) {
    const auto& x = pass.x;
    const SharedRows<W> dout{shared.dout};
    const uint32_t kept = draw(pass, step);
    score(pass, shared, side, id, s);
    clear<1, Pass::n>(ds);
    multiply_rows<T, W, 1, Pass::n>(dout, pass.own, values_of(shared, side), 0, ds);
    pass.add_relation(dout, pass.own, x.value, {}, x.sizes.value_width, id, ds);
    pass.differentiate(step.segment, kept, id, s, ds, dmu);
  }
};

// ---------------------------------------------------------------------------------------- forward

template <class T, int W>
struct TermsForward : TermRows<T, W> {
  using Half = TermRows<T, W>;
  using Half::keys, Half::pieces, Half::rows, Half::sides, Half::threads;
  using typename Half::Pass;
  using typename Half::Shared;

  static LONGSPAN_HD int64_t blocks(const AttentionArguments<T>& x) {
    return units_of(x.sizes, x.sizes.layout.row_work, pieces);
  }

  static LONGSPAN_HD void run(const AttentionArguments<T>& x, unsigned char* memory, int64_t index,
                              bool careful) {
    const AttentionWork work(x.sizes, x.sizes.layout.row_work, index, pieces);
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const AttentionHead& head = Half::head_of(x, shared, work);
    const int from = static_cast<int>(work.chunk) * rows;
    const int count = head.tile_rows(x.sizes, work.place) - from;
    if (count <= 0) return;
    const int32_t first = head.tile_row(x.sizes, work.place) + from;
    const int lane = thread_index() % 32, own = thread_index() / 32 * 16;
    const Pass pass(x, head, shared.notes, Half::workspace_of(shared), own);
    Half::load_rows(pass, shared, first, first + count, false);

    const float hidden = -std::numeric_limits<float>::infinity();
    Fragments<1, W / 8> sum;
    float reference[1][2], total[1][2];
    for (;; careful = true) {
      clear<1, W / 8>(sum);
      reference[0][0] = reference[0][1] = hidden;
      total[0][0] = total[0][1] = 0;
      Half::begin(pass, shared, work);
      int segment = -1;
      for (int at = 0; shared.ahead.at(at).mask != 0; ++at) {
        const KeyStep& step = shared.ahead.at(at);
        Half::load_step(pass, shared, work.place, at, segment != step.segment);
        segment = step.segment;
        typename Pass::Ids id;
        if (!pass.find(segment, step.mask, id)) continue;
        typename Pass::Scores s;
        Half::score(pass, shared, at % sides, id, s);
        hide(pass, segment, id, s);
        raise<W, 1, Pass::n>(pass.factor, s, reference, total, sum);
        weights(pass, segment, Half::draw(pass, step), id, reference, total, s);
        multiply_weights<T, W, Pass::n>(s, Half::values_of(shared, at % sides), careful, sum);
        if (x.value.data != nullptr) {
          pass.add_ids(s, id, segment, x.value, x.sizes.value_width, careful, sum);
        }
      }
      if (!any_thread(nonfinite(sum)) || careful) break;
    }
    wait_for_copies<0>();  // in case there was no step
    const auto row = [&](int, int half, float& scale) -> int64_t {
      const int32_t query = shared.notes.query[own + 8 * half + lane / 4];
      const float all = over_row(total[0][half], [](float a, float b) { return a + b; });
      if (query < 0) return -1;
      const float base = reference[0][half] == hidden ? 0.0f : reference[0][half];
      const int64_t workspace =
          work.workspace >= 0 ? work.workspace + from + own + 8 * half + lane / 4 : -1;
      return pass.output_row(workspace, query, base, all, lane % 4 == 0, scale);
    };
    if (work.workspace >= 0) {
      pass.template write<1>(sum, x.sizes.value_width, row, x.wide);
    } else {
      pass.template write<1>(sum, x.sizes.value_width, row, x.out.of(head.b, head.h));
    }
  }

 private:
  /// Sets the scores of pairs that do not exist to -inf.
  static LONGSPAN_HD void hide(const Pass& pass, int segment, const typename Pass::Ids& id,
                               typename Pass::Scores& s) {
    LONGSPAN_UNROLL for (int j = 0; j < Pass::n; ++j) {
      LONGSPAN_UNROLL for (int e = 0; e < 4; ++e) {
        bool there = id[j][e] >= 0;
        if (there && pass.soft(segment)) there = pass.ramp(segment, j, e) > 0;
        if (!there) s[0][j][e] = -std::numeric_limits<float>::infinity();
      }
    }
  }
  /// Replaces scores with probabilities relative to the references. Dropped ones count in `total`
  /// only.
  static LONGSPAN_HD void weights(const Pass& pass, int segment, uint32_t kept,
                                  const typename Pass::Ids& id, const float (&reference)[1][2],
                                  float (&total)[1][2], typename Pass::Scores& s) {
    LONGSPAN_UNROLL for (int half = 0; half < 2; ++half) {
      const float hidden = -std::numeric_limits<float>::infinity();
      const float base = reference[0][half] == hidden ? 0.0f : reference[0][half];
      LONGSPAN_UNROLL for (int j = 0; j < Pass::n; ++j) {
        LONGSPAN_UNROLL for (int e = 2 * half; e < 2 * half + 2; ++e) {
          float p = fast_exp2(fused(s[0][j][e], pass.factor, -base));
          if (p != 0 && id[j][e] >= 0 && pass.soft(segment)) {
            p *= pass.unit(pass.ramp(segment, j, e));
          }
          total[0][half] += p;
          s[0][j][e] = (kept >> (4 * j + e) & 1) != 0 ? p : 0.0f;
        }
      }
    }
  }
};

// --------------------------------------------------------------------------------------- backward

/// dq and the gradients of mu, or the gradient of relation_query in a block of its own.
template <class T, int W>
struct TermsRowGradients : TermRows<T, W> {
  using Half = TermRows<T, W>;
  using Half::keys, Half::pieces, Half::rows, Half::sides, Half::threads;
  using typename Half::Pass;
  using typename Half::Shared;

  static LONGSPAN_HD int results(const AttentionArguments<T>& x) {
    return x.own_relation_query ? 2 : 1;
  }
  static LONGSPAN_HD int64_t blocks(const AttentionArguments<T>& x) {
    return units_of(x.sizes, x.sizes.layout.row_work, pieces * results(x));
  }

  static LONGSPAN_HD void run(const AttentionArguments<T>& x, unsigned char* memory, int64_t index,
                              bool careful) {
    const AttentionWork work(x.sizes, x.sizes.layout.row_work, index, pieces * results(x));
    const bool of_relation = work.chunk >= pieces;
    const HeadRows<T>& to = of_relation ? x.drelation_query : x.dq;
    if (to.data == nullptr) return;
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const AttentionHead& head = Half::head_of(x, shared, work);
    const int from = static_cast<int>(work.chunk % pieces) * rows;
    const int count = head.tile_rows(x.sizes, work.place) - from;
    if (count <= 0) return;
    const int32_t first = head.tile_row(x.sizes, work.place) + from;
    const int lane = thread_index() % 32, own = thread_index() / 32 * 16;
    const Pass pass(x, head, shared.notes, Half::workspace_of(shared), own);
    Half::load_rows(pass, shared, first, first + count, true);

    Fragments<1, W / 8> sum;
    float of_mu[2];
    for (;; careful = true) {
      clear<1, W / 8>(sum);
      of_mu[0] = of_mu[1] = 0;
      Half::begin(pass, shared, work);
      int segment = -1;
      for (int at = 0; shared.ahead.at(at).mask != 0; ++at) {
        const KeyStep& step = shared.ahead.at(at);
        Half::load_step(pass, shared, work.place, at, segment != step.segment);
        segment = step.segment;
        typename Pass::Ids id;
        if (!pass.find(segment, step.mask, id)) continue;
        typename Pass::Scores s, ds;
        Half::differentiate(pass, shared, at % sides, step, id, s, ds,
                            [&](int e, float g) { (e < 2 ? of_mu[0] : of_mu[1]) += g; });
        if (!of_relation) {
          multiply_weights<T, W, Pass::n>(ds, Half::keys_of(shared, at % sides), careful, sum);
        }
        if (x.key.data != nullptr && of_relation == x.own_relation_query) {
          pass.add_ids(ds, id, segment, x.key, x.sizes.width, careful, sum);
        }
      }
      if (!any_thread(nonfinite(sum)) || careful) break;
    }
    wait_for_copies<0>();  // in case there was no step
    const auto row = [&](int, int half, float& scale) -> int64_t {
      const int32_t query = shared.notes.query[own + 8 * half + lane / 4];
      scale = static_cast<float>(x.sizes.scale);
      if (query < 0) return -1;
      if (work.workspace < 0) return int64_t{query} * to.row;
      return (work.workspace + from + own + 8 * half + lane / 4) * x.row_columns() +
             (of_relation ? x.sizes.width : 0);
    };
    if (work.workspace >= 0) {
      pass.template write<1>(sum, x.sizes.width, row, x.wide);
    } else {
      pass.template write<1>(sum, x.sizes.width, row, to.of(head.b, head.h));
    }
    if (x.query_sums != nullptr && !of_relation) {
      write_span(pass, work.workspace < 0 ? -1 : work.workspace + from, of_mu);
    }
  }

 private:
  /// Writes the gradients of mu of the warp's rows; the tile's row 0 is at `workspace`, or it is
  /// negative.
  static LONGSPAN_HD void write_span(const Pass& pass, int64_t workspace, const float (&of_mu)[2]) {
    const auto& x = pass.x;
    LONGSPAN_UNROLL for (int half = 0; half < 2; ++half) {
      const int lane = thread_index() % 32;
      const float total = over_row(of_mu[half], [](float a, float b) { return a + b; });
      const int at = pass.own + 8 * half + lane / 4;
      const int32_t i = pass.notes.query[at];
      if (lane % 4 != 0 || i < 0) continue;
      float& to = workspace >= 0 ? x.wide[(workspace + at + 1) * x.row_columns() - 1]
                                 : x.query_sums[int64_t{pass.number} * x.sizes.queries + i];
      to = total;
    }
  }
};

/// dk and dv of 64 slots, and the gradients of mu.
template <class T, int W>
struct TermsKeyGradients {
  static constexpr int keys = 64, rows = W == 128 ? 16 : 32, warps = 4, threads = 32 * warps,
                       pieces = 1;
  static constexpr int resident = 2;  // blocks per multiprocessor, at least
  static_assert(keys == 16 * warps && keys == kernels::kAttentionWorkKeys &&
                kernels::kAttentionTileRows % rows == 0);
  using Pass = TermsPass<T, W, rows, keys, true>;
  struct alignas(16) Shared {
    uint16_t k[keys * W], v[keys * W], q[rows * W], relation[rows * W], dout[rows * W];
    uint16_t stage[warps][term_stage * W];
    float numbers[warps][rows * term_pitch];
    float dmu[2][threads];  // each thread's sums, here since registers are short
    TermNotes<rows, keys> notes;
  };

  static LONGSPAN_HD int64_t blocks(const AttentionArguments<T>& x) {
    return units_of(x.sizes, x.sizes.layout.column_work);
  }

  static LONGSPAN_HD void run(const AttentionArguments<T>& x, unsigned char* memory, int64_t index,
                              bool careful) {
    const AttentionWork work(x.sizes, x.sizes.layout.column_work, index, 1);
    const AttentionHead head(x.sizes, work.b, work.h);
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const WorkPlace at_keys(x.sizes, work.place);
    const int segment = at_keys.segment, warp = thread_index() / 32, own = 16 * warp;
    const int32_t k0 = at_keys.k0;
    const Pass pass(x, head, shared.notes,
                    {SharedRows<W>{shared.stage[warp]}, shared.numbers[warp]}, own);
    const SharedRows<W> q{shared.q}, dout{shared.dout}, k{shared.k}, v{shared.v},
        relation{x.own_relation_query ? shared.relation : shared.q};
    const auto key = [&](int j) { return pass.valid_key(segment, k0, j, ~uint64_t{0}); };
    pass.template note_places<threads>(segment, k0, ~uint64_t{0});
    pass.template copy_rows<keys, threads>(x.k[segment], key, k);
    pass.template copy_rows<keys, threads>(x.v[segment], key, v);
    commit_copies();

    Fragments<1, W / 8> dk, dv;
    for (;; careful = true) {
      clear<1, W / 8>(dk);
      clear<1, W / 8>(dv);
      shared.dmu[0][thread_index()] = shared.dmu[1][thread_index()] = 0;
      TileSteps<keys> steps(x.sizes, head, segment, k0, work.range);
      for (TileStep step; steps.next(step);) {
        const int32_t begin = head.tile_row(x.sizes, step.tile),
                      end = begin + head.tile_rows(x.sizes, step.tile);
        for (int32_t first = begin; first < end; first += rows) {
          load(pass, shared, first, end, step.tile, segment, k0, step.mask);
          typename Pass::Ids id;
          if (!pass.find(segment, step.mask, id)) continue;
          const uint32_t kept = x.sizes.draws.active
                                    ? pass.template draw_turned<Pass::n>(
                                          shared.notes.query, shared.notes.key + own, segment)
                                    : ~0u;
          typename Pass::Scores s, ds;
          clear<1, Pass::n>(s);
          clear<1, Pass::n>(ds);
          multiply_rows<T, W, 1, Pass::n>(k, own, q, 0, s);
          multiply_rows<T, W, 1, Pass::n>(v, own, dout, 0, ds);
          pass.add_relation(relation, 0, x.key, x.bias, x.sizes.width, id, s);
          pass.add_relation(dout, 0, x.value, {}, x.sizes.value_width, id, ds);
          pass.weigh_pairs(s);
          pass.differentiate(segment, kept, id, s, ds, [&](int e, float g) {
            shared.dmu[e < 2 ? 0 : 1][thread_index()] += g;
          });
          multiply_weights<T, W, Pass::n>(s, dout, careful, dv);
          multiply_weights<T, W, Pass::n>(ds, q, careful, dk);
        }
      }
      if (!any_thread(nonfinite(dk) || nonfinite(dv)) || careful) break;
    }
    wait_for_copies<0>();  // in case there was no row
    if (x.span_sums != nullptr && segment == 0) write_span(pass, work.workspace, shared.dmu);
    const int32_t* const noted = shared.notes.key;
    pass.write_keys(dk, x.dk[segment], x.sizes.scale, noted, own, work.workspace, 0);
    pass.write_keys(dv, x.dv[segment], x.sizes.draws.scale, noted, own, work.workspace,
                    x.sizes.width);
  }

 private:
  /// Loads rows first .. end of a piece and waits for them.
  static LONGSPAN_HD void load(const Pass& pass, Shared& shared, int32_t first, int32_t end,
                               int64_t tile, int segment, int32_t k0, uint64_t mask) {
    const auto& x = pass.x;
    const auto query = [&](int r) { return pass.valid_query(first + r, end); };
    block_barrier();  // no warp reads the previous piece
    pass.template note_queries<threads>(first, end, true);
    pass.template turn_to<threads>(segment);
    pass.template note_weights<threads>(tile, segment, k0, mask);
    pass.template copy_rows<rows, threads>(x.q, query, SharedRows<W>{shared.q});
    pass.template copy_rows<rows, threads>(x.dout, query, SharedRows<W>{shared.dout});
    if (x.own_relation_query) {
      pass.template copy_rows<rows, threads>(x.relation_query, query,
                                             SharedRows<W>{shared.relation});
    }
    commit_copies();
    wait_for_copies<0>();
    block_barrier();
  }
  static LONGSPAN_HD void write_span(const Pass& pass, int64_t workspace,
                                     const float (&dmu)[2][threads]) {
    const auto& x = pass.x;
    LONGSPAN_UNROLL for (int half = 0; half < 2; ++half) {
      const int lane = thread_index() % 32;
      const float total =
          over_row(dmu[half][thread_index()], [](float a, float b) { return a + b; });
      const int at = pass.own + 8 * half + lane / 4;
      const int32_t j = pass.notes.key[at];
      if (lane % 4 != 0 || j < 0) continue;
      float& to = workspace >= 0 ? x.wide[(workspace + at + 1) * x.key_columns() - 1]
                                 : x.span_sums[int64_t{pass.number} * x.sizes.segment[0].keys + j];
      to = total;
    }
  }
};

/// A head's gradient sums for 48 ids over the tiles of a split, without the scale: for the key
/// table and the bias or, in a block of its own, for the value table.
template <class T, int W>
struct TermsTableGradients : TermRows<T, W> {
  using Half = TermRows<T, W>;
  using Half::keys, Half::rows, Half::threads;
  using typename Half::Pass;
  using typename Half::Shared;
  static_assert(term_panel == rows);

  static LONGSPAN_HD int64_t panels(const AttentionArguments<T>& x) {
    return ceil_div(x.ids, term_panel);
  }
  static LONGSPAN_HD bool of_keys(const AttentionArguments<T>& x) {
    return x.key.data != nullptr || x.bias.data != nullptr;
  }
  static LONGSPAN_HD int results(const AttentionArguments<T>& x) {
    return (of_keys(x) ? 1 : 0) + (x.value.data != nullptr ? 1 : 0);
  }
  static LONGSPAN_HD int64_t blocks(const AttentionArguments<T>& x) {
    return panels(x) * x.splits * x.sizes.head_count() * results(x);
  }

  static LONGSPAN_HD void run(const AttentionArguments<T>& x, unsigned char* memory, int64_t index,
                              bool careful) {
    const AttentionWork work(x.sizes, index, results(x));
    const bool of_values = work.chunk > 0 || !of_keys(x);
    const AttentionHead head(x.sizes, work.b, work.h);
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const auto id0 = static_cast<int32_t>(work.place % panels(x) * term_panel);
    const int64_t split = work.place / panels(x), tiles = ceil_div(head.tiles, x.splits);
    const int64_t begin = split * tiles, end = min<int64_t>(begin + tiles, head.tiles);
    const int lane = thread_index() % 32, own = thread_index() / 32 * 16;
    const Pass pass(x, head, shared.notes, Half::workspace_of(shared), own);

    Fragments<1, W / 8> sum;
    float bias;
    for (;; careful = true) {
      clear<1, W / 8>(sum);
      bias = 0;
      for (int64_t at = begin * 2; at < end * 2; ++at) {
        const int from = at % 2 == 0 ? 0 : rows, count = head.tile_rows(x.sizes, at / 2) - from;
        if (count <= 0) continue;
        const int32_t first = head.tile_row(x.sizes, at / 2) + from;
        wait_for_copies<0>();  // in case no step followed
        block_barrier();       // no warp reads the previous rows
        Half::load_rows(pass, shared, first, first + count, true);
        KeySteps<keys> steps(x.sizes, head, at / 2);
        int segment = -1;
        for (KeyStep step; steps.next(step);) {
          if (!reaches(pass, first, step, id0)) continue;
          Half::load_keys(pass, shared, at / 2, step, segment != step.segment, false);
          segment = step.segment;
          typename Pass::Ids id;
          typename Pass::Scores s, ds;
          if (pass.find(segment, step.mask, id)) {
            Half::differentiate(pass, shared, 0, step, id, s, ds, [](int, float) {});
          } else {
            clear<1, Pass::n>(s);
            clear<1, Pass::n>(ds);
          }
          LONGSPAN_UNROLL for (int j = 0; j < Pass::n; ++j) {
            LONGSPAN_UNROLL for (int e = 0; e < 4; ++e) {
              if (of_values) ds[0][j][e] = s[0][j][e];
            }
          }
          pass.gather(ds, id, segment, id0);
          block_barrier();  // the sums of all rows are written
          if (lane < 16) {
            for (int r = 0; r < rows; ++r) bias += shared.numbers[r * term_pitch + own + lane];
          }
          warp_barrier();
          add_rows(shared,
                   of_values ? SharedRows<W>{shared.dout} : Half::relation_rows(pass, shared), own,
                   careful, sum);
        }
      }
      if (!any_thread(nonfinite(sum)) || careful) break;
    }
    wait_for_copies<0>();
    const int64_t row = x.table_width(), column = of_values ? x.sizes.width : 0,
                  to = ((int64_t{pass.number} * x.splits + split) * x.ids + id0) * row;
    pass.template write<1>(
        sum, of_values ? x.sizes.value_width : x.sizes.width,
        [&](int, int half, float& scale) -> int64_t {
          const int id = own + 8 * half + lane / 4;
          scale = of_values ? static_cast<float>(x.sizes.draws.scale) : 1.0f;
          return id0 + id < x.ids ? to + id * row + column : -1;
        },
        x.sums);
    if (!of_values && lane < 16 && id0 + own + lane < x.ids) {
      x.sums[to + (own + lane) * row + row - 1] = bias;
    }
  }

 private:
  /// Whether pairs of a step's keys and the rows from slot `first` on may have one of the ids.
  static LONGSPAN_HD bool reaches(const Pass& pass, int32_t first, const KeyStep& step,
                                  int32_t id0) {
    const auto& x = pass.x;
    const SegmentTables& s = x.sizes.segment[step.segment];
    if (s.masks.has_classes() || pass.head.ordered(step.segment) || pass.head.order_q >= 0) {
      return true;
    }
    const int64_t position = first + s.q_start;
    const auto id = [&](int64_t distance) { return clamped(distance, -x.left, x.right) + x.left; };
    return id(step.k0 - (position + rows - 1)) < id0 + term_panel &&
           id(step.k0 + keys - 1 - position) >= id0;
  }
  /// sum += the transpose of `numbers` of 16 ids, times the rows of b.
  static LONGSPAN_HD void add_rows(const Shared& shared, const SharedRows<W>& b, int id,
                                   bool careful, Fragments<1, W / 8>& sum) {
    const int lane = thread_index() % 32, g = lane / 4, t = lane % 4 * 2;
    LONGSPAN_ROLLED for (int k = 0; k < rows; k += 16) {
      const auto two = [&](int column, int row) {
        const float* const from = shared.numbers + (k + t + row) * term_pitch + id + g + column;
        return pack<T>(from[0], from[term_pitch]);
      };
      const uint32_t a[4] = {two(0, 0), two(8, 0), two(0, 8), two(8, 8)};
      multiply_operand<T, W>(a, b, k, careful, sum);
    }
  }
};

// ----------------------------------------------------------------------------------------- grids

/// Runs one block of a launch. If `checked_units` is 0, that is its work unit. Otherwise the block
/// checks 32 of that many units of the plain pass and recomputes the nonfinite ones; each of them
/// is P::pieces units here.
inline constexpr int nonfinite_units = 32;
template <class P, class T>
LONGSPAN_HD inline void run_terms(const AttentionArguments<T>& x, unsigned char* memory,
                                  int64_t block, int64_t checked_units) {
  int64_t unit = block, piece = 0, end = block + 1;
  const bool again = checked_units > 0;
  if (again) {
    unit = block * nonfinite_units;
    end = min(unit + nonfinite_units, checked_units);
    const int64_t mine = unit + thread_index() % 32;
    if (!any_lane(mine < end && x.nonfinite[mine] != 0)) return;
  }
  while (unit < end) {
    if (!again || x.nonfinite[unit] != 0) {
      const int64_t served = x.sizes.served_by_item();
      const int64_t index = (unit / served * P::pieces + piece) * served + unit % served;
      P::run(x, memory, again ? index : block, again);
      block_barrier();
      if (again && ++piece < P::pieces) continue;
    }
    piece = 0;
    ++unit;
  }
}

}  // namespace longspan::cuda
