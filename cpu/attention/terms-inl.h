// Terms of scores and values besides the products: relations, labels, soft masks, dropout.

#if defined(LONGSPAN_CPU_ATTENTION_TERMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_ATTENTION_TERMS_INL_H_
#undef LONGSPAN_CPU_ATTENTION_TERMS_INL_H_
#else
#define LONGSPAN_CPU_ATTENTION_TERMS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/generator.h"
#include "cpu/attention/plan.h"
#include "cpu/attention/tile-inl.h"
#include "cpu/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

// ------------------------------------------------------------------------------------- relations

// Ids of pairs, and rows of tables with a column for each id. Ids of distances come first, then ids
// that only classes reach. In packed tables each kind starts a new panel, and an id is stored in
// row row_of(id). In a row of a table, the kLanes columns on either side of the distances repeat
// the two end values, so that any vector of adjacent keys is one unaligned load.
template <class T>
struct Relation {
  // The panels of one kind that a tile can reach, and the number of ids in the last one.
  struct IdPanels {
    int64_t first = 0, panels = 0, last_ids = 0;
    int64_t ids(int64_t p) const { return p + 1 == first + panels ? last_ids : kPanel<T>; }
    int64_t end() const { return first + panels; }
  };

  int64_t left = 0, right = 0;
  int64_t others = 0;  // ids after the ids of distances
  int64_t stride = 0;  // of a row: whole panels and the repeated ends
  IdPanels part[2];    // distances, others

  int64_t distances() const { return left + right + 1; }
  int64_t ids() const { return distances() + others; }
  int64_t distance_rows() const { return round_up(distances(), kPanel<T>); }
  int64_t padded() const { return distance_rows() + round_up(others, kPanel<T>); }
  int64_t row_of(int64_t id) const {
    return id < distances() ? id : distance_rows() + id - distances();
  }
  int64_t column_of_row(int64_t row) const {
    return row + kLanes<T> * (row < distance_rows() ? 1 : 2);
  }
  bool reaches_first() const { return part[0].first == 0; }
  bool reaches_last() const {
    return (part[0].end() - 1) * kPanel<T> + part[0].last_ids == distances();
  }
  int64_t panels() const { return part[0].panels + part[1].panels; }

  void init(int64_t l, int64_t r, int64_t ids) {
    left = l;
    right = r;
    others = ids - distances();
    stride = padded() + 3 * kLanes<T>;
  }
  // Sets the panels of a tile whose pairs have distances min .. max, and any label if `all`.
  void reach(int64_t min_distance, int64_t max_distance, bool all) {
    constexpr int64_t N = kPanel<T>;
    const int64_t low = all ? 0 : std::clamp(min_distance, -left, right) + left;
    const int64_t high = all ? distances() - 1 : std::clamp(max_distance, -left, right) + left;
    part[0] = {low / N, high / N - low / N + 1, high % N + 1};
    part[1] = {};
    if (all && others > 0)
      part[1] = {distance_rows() / N, ceil_div(others, N), (others - 1) % N + 1};
  }
  // Returns the first column for the vector of keys at distances distance, distance + 1, ...
  int64_t column(int64_t distance) const {
    return std::clamp(distance, -left - kLanes<T>, right + 1) + left + kLanes<T>;
  }
};

// Calls f(part, panel, index) for the panels that a tile can reach; `index` counts them.
template <class T, class F>
HWY_INLINE void for_panels(const Relation<T>& rel, F&& f) {
  int64_t index = 0;
  for (const auto& part : rel.part) {
    for (int64_t p = part.first; p < part.end(); ++p) f(part, p, index++);
  }
}

// table[r][id] = x_r . a[id] + b[id] for reachable ids, and the repeated ends.
template <class T>
void relation_table(const Relation<T>& rel, int64_t rows, const T* x, int64_t width, const T* a,
                    const T* b, T* table) {
  constexpr int64_t N = kPanel<T>;
  constexpr int64_t V = kLanes<T>;
  const std::vector<InnerRange> over = over_panels<T>(width, kTileRows * N);
  for_panels(rel, [&](const auto& part, int64_t p, int64_t) {
    T* column = table + rel.column_of_row(p * N);
    const int64_t ids = part.ids(p);
    if (a != nullptr) {
      const T* const panel = a + p * N * width;
      if (ids > V) {
        product<2, N>(rows, x, 1, panel, over, column, rel.stride, false);
      } else {
        product<1, N>(rows, x, 1, panel, over, column, rel.stride, false);
      }
    }
    if (a != nullptr && b == nullptr) return;
    for (int64_t r = 0; r < rows; ++r) {
      T* put = column + r * rel.stride;
      for (int64_t c = 0; c < ids; ++c) put[c] = (a != nullptr ? put[c] : T{0}) + b[p * N + c];
    }
  });
  for (int64_t r = 0; r < rows; ++r) {
    T* row = table + r * rel.stride;
    if (rel.reaches_first()) std::fill(row, row + V, row[V]);
    if (rel.reaches_last()) {
      T* end = row + V + rel.distances();
      std::fill(end, end + V, end[-1]);
    }
  }
}

template <class T>
void clear_sums(const Relation<T>& rel, int64_t rows, T* sums) {
  constexpr int64_t N = kPanel<T>;
  constexpr int64_t V = kLanes<T>;
  for (int64_t r = 0; r < rows; ++r) {
    T* row = sums + r * rel.stride;
    std::fill(row, row + V, T{0});
    for (const auto& part : rel.part) {
      T* const from = row + rel.column_of_row(part.first * N);
      std::fill(from, from + part.panels * N, T{0});
    }
    T* const end = row + V + rel.part[0].end() * N;
    std::fill(end, end + V, T{0});
  }
}

// Returns the table's entries for the vector of keys at distances `distance`, distance + 1, ...
template <class T>
HWY_INLINE Vec<T> from_table(const Relation<T>& rel, int64_t distance, const T* table) {
  return hn::LoadU(Tag<T>(), table + rel.column(distance));
}

// Adds a vector of those keys to the sums of their ids.
template <class T>
HWY_INLINE void add_to_bins(const Relation<T>& rel, int64_t distance, Vec<T> x, T* sums) {
  const Tag<T> d;
  T* const at = sums + rel.column(distance);
  hn::StoreU(hn::Add(hn::LoadU(d, at), x), d, at);
}

// Writes sums per id, as panels [reachable panels][kTileRows][NR]; folds the repeated ends.
template <class T>
void fold_sums(const Relation<T>& rel, int64_t rows, T* sums, T* to) {
  constexpr int64_t N = kPanel<T>;
  constexpr int64_t V = kLanes<T>;
  for (int64_t r = 0; r < rows; ++r) {
    T* row = sums + r * rel.stride;
    if (rel.reaches_first()) {
      for (int64_t v = 0; v < V; ++v) row[V] += row[v];
    }
    if (rel.reaches_last()) {
      T* end = row + V + rel.distances();
      for (int64_t v = 0; v < V; ++v) end[-1] += end[v];
      std::fill(end, row + V + rel.distance_rows(), T{0});
    }
    for_panels(rel, [&](const auto&, int64_t p, int64_t index) {
      std::copy_n(row + rel.column_of_row(p * N), N, to + (index * kTileRows + r) * N);
    });
  }
  const int64_t padded = round_up(rows, kRest);
  for (int64_t p = 0; p < rel.panels(); ++p) {
    std::fill(to + (p * kTileRows + rows) * N, to + (p * kTileRows + padded) * N, T{0});
  }
}

// to[r] += sum_id bins[r][id] a_id, with a as panels [panels][padded ids][NR] and `to` as
// [panels][to_rows][NR].
template <class T>
void add_bins_product(const Relation<T>& rel, int64_t rows, const T* bins, const T* a,
                      int64_t panels, int64_t to_rows, T* to) {
  constexpr int64_t N = kPanel<T>;
  for (const auto& part : rel.part) {
    if (part.panels == 0) continue;
    const std::vector<InnerRange> over =
        over_panels<T>((part.panels - 1) * N + part.last_ids, kTileRows * N);
    for (int64_t p = 0; p < panels; ++p) {
      product<2, N>(rows, bins, 1, a + (p * rel.padded() + part.first * N) * N, over,
                    to + p * to_rows * N, N, true);
    }
    bins += part.panels * kTileRows * N;
  }
}

// sums[id] += sum_r bins[r][id] x_r, with x as panels [panels][kTileRows][NR].
template <class T>
void add_table_gradient(const Relation<T>& rel, int64_t rows, const T* bins, const T* x,
                        int64_t panels, T* sums) {
  constexpr int64_t N = kPanel<T>;
  const InnerRange over[] = {{0, 0, rows}};
  for_panels(rel, [&](const auto& part, int64_t i, int64_t index) {
    for (int64_t p = 0; p < panels; ++p) {
      product<2, 1, T>(part.ids(i), bins + index * kTileRows * N, N, x + p * kTileRows * N, over,
                       sums + (p * rel.padded() + i * N) * N, N, true);
    }
  });
}

// Sets the ids that a tile's pairs can have with these keys.
template <class T>
void reach(const AttentionHead& head, int64_t row, int64_t rows,
           const std::vector<KeyRange>& ranges, Relation<T>& relation) {
  int64_t low = std::numeric_limits<int64_t>::max(), high = std::numeric_limits<int64_t>::min();
  bool all = head.order_q != nullptr;
  for (const KeyRange& k : ranges) {
    const HeadSegment& s = head.at_place(k.k0);
    all = all || s.masks.class_id != nullptr || s.order != nullptr;
    const int64_t position = row + s.q_start;
    low = std::min(low, k.k0 - s.first - (position + rows - 1));
    high = std::max(high, k.k1 - 1 - s.first - position);
  }
  relation.reach(low, high, all);
}

// ---------------------------------------------------------------------------------------- labels

// Per-pair masks and table columns of a block, beyond intervals: which pairs are hidden, and the
// column of the relation tables if it does not follow from the distance.
template <class T>
class Labels {
 public:
  using Label = hn::TFromD<hn::RebindToSigned<Tag<T>>>;

  /// Starts the block of `keys` keys at position `origin`. Without tables, labels only hide.
  void begin(const HeadSegment& s, const Relation<T>& relation, bool tables, int64_t origin,
             int64_t keys) {
    segment_ = &s;
    relation_ = &relation;
    origin_ = origin;
    keys_ = keys;
    const bool classes = s.masks.class_id != nullptr;
    hides_ = classes;
    for (int64_t j = 0; s.masks.hides_pairs() && !hides_ && j < keys; ++j) {
      hides_ = s.masks.hides_key(s.key(origin + j));
    }
    columns_ = tables && (classes || s.order != nullptr);
    if (!active()) return;
    of_class_ = -1;
    std::fill(label_ + keys, label_ + kBlock, Label{-1});
    if (!classes && !columns_) {
      for (int64_t j = 0; j < keys; ++j) {
        label_[j] = s.masks.hides_key(s.key(origin + j)) ? Label{-1} : Label{0};
      }
    }
  }

  bool active() const { return hides_ || columns_; }
  /// hides(): whether some pairs are hidden. columns(): whether labels are columns of tables.
  bool hides() const { return hides_; }
  bool columns() const { return columns_; }

  /// Returns the labels of the block's keys for query i: -1 if hidden; else a column, if columns().
  const Label* of_row(int64_t i) {
    const HeadSegment& s = *segment_;
    if (s.masks.class_id != nullptr) {
      if (s.masks.q_class[i] != of_class_) fill_class(s.masks, i);
    } else if (columns_) {
      for (int64_t j = 0; j < keys_; ++j) {
        const int64_t key = s.key(origin_ + j);
        const int64_t distance = key - (i + s.q_start);
        const bool hidden = !s.masks.shows_pair(i, key);
        label_[j] =
            hidden ? Label{-1}
                   : static_cast<Label>(std::clamp(distance, -relation_->left, relation_->right) +
                                        relation_->left + kLanes<T>);
      }
    }
    return label_;
  }

  /// Whether query i sees key j of the block, according to labels.
  bool shows(int64_t i, int64_t j) const {
    return segment_->masks.shows_pair(i, segment_->key(origin_ + j));
  }

  /// sums[label j] += x_j for from <= j < to, skipping labels of -1.
  void add(const Label* label, int64_t from, int64_t to, const T* x, T* sums) const {
    for (int64_t j = from; j < to;) {  // adjacent keys often share a label
      const Label at = label[j];
      T total = x[j++];
      while (j < to && label[j] == at) total += x[j++];
      if (at >= 0) sums[at] += total;
    }
  }

 private:
  HWY_NOINLINE void fill_class(const kernels::SampleMasks& masks, int64_t i) {
    of_class_ = masks.q_class[i];
    for (int64_t j = 0; j < keys_; ++j) {
      const int64_t key = segment_->key(origin_ + j);
      const int32_t id = masks.shows_pair(i, key) ? masks.label(i, key) : -1;
      label_[j] = id < 0 || !columns_
                      ? static_cast<Label>(id < 0 ? -1 : 0)
                      : static_cast<Label>(relation_->column_of_row(relation_->row_of(id)));
    }
  }

  const HeadSegment* segment_ = nullptr;
  const Relation<T>* relation_ = nullptr;
  int64_t origin_ = 0, keys_ = 0;
  int64_t of_class_ = -1;
  bool hides_ = false, columns_ = false;
  alignas(64) Label label_[kBlock];
};

template <class T>
HWY_INLINE hn::Mask<Tag<T>> shown(const typename Labels<T>::Label* label, int64_t v) {
  const hn::RebindToSigned<Tag<T>> di;
  return hn::RebindMask(Tag<T>(), hn::Gt(hn::Load(di, label + v * kLanes<T>), hn::Set(di, -1)));
}

// Returns the entries of a table's row at vector v of labels.
template <class T>
HWY_INLINE Vec<T> from_labels(const T* table, const typename Labels<T>::Label* label, int64_t v) {
  const hn::RebindToSigned<Tag<T>> di;
  const auto at = hn::Max(hn::Load(di, label + v * kLanes<T>), hn::Zero(di));
  return hn::GatherIndex(Tag<T>(), table, at);
}

// ------------------------------------------------------------------------------------- soft mask

// mu = clamp((offset + span + query_span - (q - k)) / ramp, 0, 1) of one head, before clamping.
template <class T>
struct SoftMask {
  const T* span = nullptr;        // one for each key, or one; null: none
  const T* query_span = nullptr;  // one for each query; null: none
  bool by_key = false;
  T inverse = 0, offset = 0;

  bool given() const { return span != nullptr || query_span != nullptr; }
  /// Returns the part of offset + span + query_span that query i has with every key.
  T of_query(int64_t i) const {
    const T all = span != nullptr && !by_key ? *span + offset : offset;
    return query_span != nullptr ? query_span[i] + all : all;
  }
  /// Returns vector v of mu for keys from `key` on, whose first has distance k - q = `distance`,
  /// and the query with the of_query() `own`.
  HWY_INLINE Vec<T> at(int64_t v, int64_t distance, int64_t key, T own) const {
    const Tag<T> d;
    const Vec<T> far = hn::Iota(d, static_cast<T>(distance + v * kLanes<T>));
    Vec<T> both = hn::Set(d, own);
    if (by_key) both = hn::Add(hn::LoadU(d, span + key + v * kLanes<T>), both);
    return hn::Mul(hn::Add(far, both), hn::Set(d, inverse));
  }
  /// Whether the query sees the key at position `origin` + k and distance `distance` + k at all.
  bool shows(int64_t k, int64_t distance, int64_t origin, T own) const {
    const T far = static_cast<T>(distance + k), both = by_key ? span[origin + k] + own : own;
    return (far + both) * inverse > T{0};
  }
  /// Whether mu is below 0 for this query and all keys up to distance k - q = `distance`, whose
  /// span is not asked.
  bool ends_before(int64_t distance, T own) const {
    return !by_key && (static_cast<T>(distance) + own) * inverse < T{0};
  }
};

template <class T>
HWY_INLINE Vec<T> clamped(Vec<T> x) {
  const Tag<T> d;
  return hn::Min(hn::Max(x, hn::Zero(d)), hn::Set(d, T{1}));
}

// Spans of all heads. Those of keys are padded for whole vectors at the end.
template <class T>
struct SpanRows {
  int64_t batch = 0, heads = 0, keys = 0, row = 0;
  std::vector<T> values;
  ConstView by_query;

  explicit SpanRows(const AttentionProblem& in) {
    if (in.inputs.query_span && in.inputs.query_span.device != meta_device) {
      by_query = in.inputs.query_span;
    }
    const ConstView& span = in.inputs.span;
    if (!span) return;
    batch = span.dim(0);
    heads = span.dim(1);
    keys = span.dim(2);
    row = keys + kBlock;
    values.assign(static_cast<size_t>(batch * heads * row), T{0});
    if (span.device == meta_device) return;
    for (int64_t i = 0; i < span.numel(); ++i) {
      values[static_cast<size_t>(i / keys * row + i % keys)] = span.template as<T>()[i];
    }
  }
  SoftMask<T> of(const AttentionProblem& in, int64_t b, int64_t h) const {
    const auto place = [b, h](int64_t samples, int64_t count) {
      return (samples > 1 ? b : 0) * count + (count > 1 ? h : 0);
    };
    SoftMask<T> mask;
    if (!values.empty()) mask.span = values.data() + place(batch, heads) * row;
    if (by_query) {
      mask.query_span =
          by_query.as<T>() + place(by_query.dim(0), by_query.dim(1)) * by_query.dim(2);
    }
    mask.by_key = keys > 1;
    mask.inverse = static_cast<T>(1 / in.numbers.ramp);
    mask.offset = static_cast<T>(in.numbers.offset);
    return mask;
  }
};

enum class Direction { forward, backward };

// The relation tables of a call, packed once for all heads. Forward multiplies queries by columns
// of keys, and probabilities by rows of values; backward needs columns of both and rows of keys.
template <class T>
struct RelationPanels {
  Relation<T> shape;
  int64_t width = 0, value_width = 0;
  bool key_heads = false, bias_heads = false, value_heads = false;  // one table for each head
  // Per head: columns are [panels of ids][width][NR], rows are [panels of width][padded ids][NR].
  // Null if the table is not given or the direction does not need them.
  T *key_columns = nullptr, *key_rows = nullptr;
  T *value_columns = nullptr, *value_rows = nullptr;
  T* bias = nullptr;  // [padded ids], times scale log2(e)

  int64_t key_size() const { return shape.padded() * round_up(width, kPanel<T>); }
  int64_t value_size() const { return shape.padded() * round_up(value_width, kPanel<T>); }
  const T* key_columns_of(int64_t h) const { return offset(key_columns, key_heads, h, key_size()); }
  const T* key_rows_of(int64_t h) const { return offset(key_rows, key_heads, h, key_size()); }
  const T* value_columns_of(int64_t h) const {
    return offset(value_columns, value_heads, h, value_size());
  }
  const T* value_rows_of(int64_t h) const {
    return offset(value_rows, value_heads, h, value_size());
  }
  const T* bias_of(int64_t h) const { return offset(bias, bias_heads, h, shape.padded()); }

  /// Returns the elements of the buffer that the constructor fills.
  static int64_t size(const AttentionProblem& in, Direction direction) {
    return RelationPanels(in, direction, nullptr).used_;
  }

  RelationPanels(const AttentionProblem& in, Direction direction, T* buffer) {
    const bool back = direction == Direction::backward;
    const auto& terms = in.inputs;
    width = in.inputs.q.dim(3);
    value_width = in.inputs.v[0].dim(3);
    if (!terms.relation_key && !terms.relation_bias && !terms.relation_value) return;
    shape.init(in.numbers.left, in.numbers.right, in.numbers.ids);
    if (terms.relation_key) {
      key_heads = terms.relation_key.dim(0) > 1;
      key_columns = take_table(terms.relation_key, buffer);
      if (back) key_rows = take_table(terms.relation_key, buffer);
      pack(terms.relation_key, buffer, key_columns, key_rows);
    }
    if (terms.relation_value) {
      value_heads = terms.relation_value.dim(0) > 1;
      (back ? value_columns : value_rows) = take_table(terms.relation_value, buffer);
      pack(terms.relation_value, buffer, value_columns, value_rows);
    }
    if (terms.relation_bias) {
      bias_heads = terms.relation_bias.dim(0) > 1;
      const int64_t heads = terms.relation_bias.dim(0);
      bias = take(buffer, heads * shape.padded());
      if (buffer == nullptr || in.inputs.q.device == meta_device) return;
      RowSource<T> x;
      x.base = terms.relation_bias.template as<char>();
      x.dtype = terms.relation_bias.dtype;
      x.stride = x.width = shape.ids();
      std::vector<T> temporary(static_cast<size_t>(shape.ids()));
      std::fill_n(bias, heads * shape.padded(), T{0});
      for (int64_t h = 0; h < heads; ++h) {
        const T* row = x.row(h, temporary.data());
        T* to = bias + h * shape.padded();
        for (int64_t i = 0; i < shape.ids(); ++i) {
          to[shape.row_of(i)] = row[i] * static_cast<T>(in.numbers.scale * kLog2E);
        }
      }
    }
  }

 private:
  int64_t used_ = 0;

  static const T* offset(const T* base, bool heads, int64_t h, int64_t size) {
    return base == nullptr || !heads ? base : base + h * size;
  }
  T* take(T* buffer, int64_t count) {
    const int64_t at = used_;
    used_ += round_up(count, 64);
    return buffer == nullptr ? nullptr : buffer + at;
  }
  int64_t table_size(const ConstView& table) const {
    return shape.padded() * round_up(table.dim(2), kPanel<T>);
  }
  T* take_table(const ConstView& table, T* buffer) {
    return take(buffer, table.dim(0) * table_size(table));
  }
  // Fills the ones of `columns` and `rows` that are not null.
  void pack(const ConstView& table, const T* buffer, T* columns, T* rows) const {
    if (buffer == nullptr || table.device == meta_device) return;  // only allocates the workspace
    constexpr int64_t N = kPanel<T>;
    const int64_t ids = shape.ids(), padded = shape.padded(), w = table.dim(2);
    const int64_t size = table_size(table);
    const int64_t near = shape.distances(), near_rows = shape.distance_rows();
    const Buffer<T> collected(N * w * num_threads());
    parallel_for(table.dim(0), [&](int64_t h) {
      RowSource<T> x;
      x.base = table.template as<char>() + h * ids * w * size_of(table.dtype);
      x.dtype = table.dtype;
      x.stride = x.width = w;
      for (int64_t j = 0; columns != nullptr && j < padded; j += N) {
        const int64_t first = j < near_rows ? j : near + j - near_rows;
        const int64_t end = j < near_rows ? near : ids;
        pack_columns(x, first, std::min(N, end - first), collected.data() + N * w * worker_index(),
                     columns + h * size + j * w);
      }
      if (rows == nullptr) return;
      pack_rows(x, 0, near, near_rows, T{1}, rows + h * size, padded);
      pack_rows(x, near, ids - near, padded - near_rows, T{1}, rows + h * size + near_rows * N,
                padded);
    });
  }
};

// ---------------------------------------------------------------------------------------- dropout

// Dropout factors of one head: keep(i, j) / (1 - p), see kernels::AttentionDropout.
template <class T>
class KeepRow {
 public:
  static constexpr int64_t kSize = kBlock + 4 * HWY_LANES(uint32_t);

  KeepRow(const kernels::AttentionDropout& dropout, int64_t head)
      : key_(dropout.key),
        threshold_(static_cast<uint32_t>(drop_threshold(dropout.p))),
        head_(static_cast<uint32_t>(dropout.first_head + head)),
        scale_(static_cast<T>(1 / (1 - dropout.p))),
        active_(dropout.p > 0) {}

  bool active() const { return active_; }

  // Sets keep[j] for from <= j < to: keys at positions origin + j of a segment and query `index`.
  // With an order, positions from the segment's end on get 0. `keep` has kSize elements.
  void fill(int64_t index, const HeadSegment& s, int64_t origin, int64_t from, int64_t to,
            T* keep) const {
    const int32_t* const order = s.order;
    const int64_t keys = s.keys;
    const auto segment = static_cast<uint32_t>(s.number);
    origin -= s.first;
    if (order != nullptr || HWY_TARGET == HWY_SCALAR) {
      for (int64_t j = from; j < to; ++j) {
        if (origin + j >= keys) {
          keep[j] = T{0};
          continue;
        }
        const auto key = static_cast<uint32_t>(order != nullptr ? order[origin + j] : origin + j);
        const Philox4 words = philox(key_, key / 4, static_cast<uint32_t>(index), head_, segment);
        keep[j] = words.word[key % 4] >= threshold_ ? scale_ : T{0};
      }
      return;
    }
#if HWY_TARGET != HWY_SCALAR
    const hn::ScalableTag<uint32_t> d;
    using V = hn::Vec<decltype(d)>;
    constexpr int64_t kWords = 4 * HWY_LANES(uint32_t);
    for (int64_t j = from / 4 * 4; j < to; j += kWords) {
      V c0 = hn::Iota(d, static_cast<uint32_t>((origin + j) / 4));
      V c1 = hn::Set(d, static_cast<uint32_t>(index));
      V c2 = hn::Set(d, head_);
      V c3 = hn::Set(d, segment);
      philox_lanes(key_, c0, c1, c2, c3);
      if constexpr (sizeof(T) == 4) {
        const Tag<T> df;
        const Vec<T> scale = hn::Set(df, scale_);
        const V least = hn::Set(d, threshold_);
        const auto factor = [&](V w) {
          return hn::IfThenZeroElse(hn::RebindMask(df, hn::Lt(w, least)), scale);
        };
        hn::StoreInterleaved4(factor(c0), factor(c1), factor(c2), factor(c3), df, keep + j);
      } else {
        alignas(64) uint32_t words[kWords];
        hn::StoreInterleaved4(c0, c1, c2, c3, d, words);
        for (int64_t i = 0; i < kWords; ++i) keep[j + i] = words[i] >= threshold_ ? scale_ : T{0};
      }
    }
#endif
  }

 private:
  uint64_t key_;
  uint32_t threshold_, head_;
  T scale_;
  bool active_;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
