#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/view.h"

/// Which pairs of a key segment are hidden, in every run and whatever the window allows. The
/// conditions are written down here alone: the op, the kernels of every device and the pictures use
/// them.
namespace longspan::kernels {

/// The masks of one key segment. Query i sees key j only if
///   k_begin[b] <= j < k_valid[b],  q_from[b, i] <= j < q_to[b, i],  k_hidden[b, j] == 0,
///   class_id[b, q_class[b, i], k_class[b, j]] >= 0.
/// An undefined tensor drops its condition; one whose first size is 1 serves every sample. X is
/// Tensor for ops, ConstView for kernels.
template <class X>
struct PairMasks {
  X k_valid;           ///< i64 [B]: keys from this index on do not exist
  X k_begin;           ///< i64 [B]: nor do keys before this index, such as a memory's free rows
  X q_from, q_to;      ///< i32 [1 or B, L], both or neither
  X k_hidden;          ///< u8 [1 or B, T]: nonzero for keys that no query sees
  X q_class, k_class;  ///< i32 [1 or B, L], [1 or B, T]
  /// i32 [1 or B, Cq, Ck], with q_class and k_class or undefined like them: the label of a pair.
  /// Any label but -1 is the row of the relation tables, in place of the clipped distance.
  X class_id;

  /// Returns the masks without those that are lengths, for callers that must not read values.
  PairMasks without_lengths() const {
    PairMasks other = *this;
    other.k_valid = other.k_begin = {};
    return other;
  }

  /// Calls f(tensor) for every tensor, or f(tensor, tensor of other, ...) for several masks.
  template <class F, class... M>
  static void visit_tensors(F&& f, M&... masks) {
    f(masks.k_valid...);
    f(masks.k_begin...);
    f(masks.q_from...);
    f(masks.q_to...);
    f(masks.k_hidden...);
    f(masks.q_class...);
    f(masks.k_class...);
    f(masks.class_id...);
  }
};

/// Keys lo .. hi, by index; none if lo >= hi.
struct KeyInterval {
  int64_t lo, hi;
};

/// The masks of one sample. A null pointer drops the condition.
struct SampleMasks {
  int64_t k_valid = 0;  // keys from here on do not exist
  int64_t k_begin = 0;  // nor do keys before
  const int32_t *q_from = nullptr, *q_to = nullptr;
  const uint8_t* k_hidden = nullptr;
  const int32_t *q_class = nullptr, *k_class = nullptr, *class_id = nullptr;
  int64_t key_classes = 0;

  /// Whether rows see intervals that depend on more than the window and k_valid.
  LONGSPAN_HD bool bounds_rows() const { return q_from != nullptr; }
  /// Whether a key inside a row's interval may be hidden from it.
  LONGSPAN_HD bool hides_pairs() const { return k_hidden != nullptr || class_id != nullptr; }

  /// Returns the part of an interval that query i may see.
  LONGSPAN_HD KeyInterval narrowed(int64_t i, KeyInterval keys) const {
    if (keys.hi > k_valid) keys.hi = k_valid;
    if (keys.lo < k_begin) keys.lo = k_begin;
    if (q_from == nullptr) return keys;
    if (keys.lo < q_from[i]) keys.lo = q_from[i];
    if (keys.hi > q_to[i]) keys.hi = q_to[i];
    return keys;
  }
  /// The keys that exist.
  LONGSPAN_HD KeyInterval existing() const { return {k_begin, k_valid}; }
  LONGSPAN_HD bool exists(int64_t j) const { return k_begin <= j && j < k_valid; }
  /// Whether key j, which exists, is hidden from all queries.
  LONGSPAN_HD bool hides_key(int64_t j) const { return k_hidden != nullptr && k_hidden[j] != 0; }
  /// The classes of a query, as an offset into class_id, and of a key.
  LONGSPAN_HD int32_t class_of_query(int64_t i) const {
    return q_class[i] * static_cast<int32_t>(key_classes);
  }
  LONGSPAN_HD int32_t class_of_key(int64_t j) const { return k_class[j]; }
  /// The label of a pair, -1 if it is hidden; requires class_id.
  LONGSPAN_HD int32_t label_of_classes(int32_t of_query, int32_t of_key) const {
    return class_id[of_query + of_key];
  }
  LONGSPAN_HD int32_t label(int64_t i, int64_t j) const {
    return label_of_classes(class_of_query(i), class_of_key(j));
  }
  /// Whether query i sees key j, which is in its interval.
  LONGSPAN_HD bool shows_pair(int64_t i, int64_t j) const {
    return !hides_key(j) && (class_id == nullptr || label(i, j) >= 0);
  }
  /// Whether query i sees key j.
  LONGSPAN_HD bool allows(int64_t i, int64_t j) const {
    const KeyInterval keys = narrowed(i, {j, j + 1});
    return keys.lo < keys.hi && shows_pair(i, j);
  }
};

/// The masks of all samples, as kernels hold them.
class MaskTables {
 public:
  MaskTables() = default;
  /// For a segment of `keys` keys.
  MaskTables(const PairMasks<ConstView>& masks, int64_t keys)
      : first_{keys,
               0,
               masks.q_from.as<int32_t>(),
               masks.q_to.as<int32_t>(),
               masks.k_hidden.as<uint8_t>(),
               masks.q_class.as<int32_t>(),
               masks.k_class.as<int32_t>(),
               masks.class_id.as<int32_t>(),
               masks.class_id ? masks.class_id.dim(2) : 0},
        lengths_(masks.k_valid.as<int64_t>()),
        begins_(masks.k_begin.as<int64_t>()),
        length_(step_of(masks.k_valid)),
        begin_(step_of(masks.k_begin)),
        bounds_(step_of(masks.q_from)),
        hidden_(step_of(masks.k_hidden)),
        query_classes_(step_of(masks.q_class)),
        key_classes_(step_of(masks.k_class)),
        ids_(step_of(masks.class_id)) {}

  LONGSPAN_HD bool bounds_rows() const { return first_.bounds_rows(); }
  LONGSPAN_HD bool hides_keys() const { return first_.k_hidden != nullptr; }
  LONGSPAN_HD bool has_classes() const { return first_.class_id != nullptr; }
  LONGSPAN_HD bool hides_pairs() const { return first_.hides_pairs(); }
  /// Whether a key inside a row's window, before the sample's last one, may still be hidden from
  /// it.
  LONGSPAN_HD bool hides_any() const {
    return begins_ != nullptr || bounds_rows() || hides_pairs();
  }

  /// Returns the number of keys that exist in a sample.
  LONGSPAN_HD int64_t keys_of(int64_t sample) const {
    if (lengths_ == nullptr) return first_.k_valid;
    const int64_t length = lengths_[sample * length_];
    return length < 0 ? 0 : (length < first_.k_valid ? length : first_.k_valid);
  }
  LONGSPAN_HD SampleMasks of(int64_t sample) const { return of(sample, keys_of(sample)); }
  /// The same, for a kernel that has read keys_of(sample) already.
  LONGSPAN_HD SampleMasks of(int64_t sample, int64_t keys) const {
    SampleMasks m = first_;
    m.k_valid = keys;
    if (begins_ != nullptr) {
      const int64_t begin = begins_[sample * begin_];
      m.k_begin = begin < 0 ? 0 : (begin < first_.k_valid ? begin : first_.k_valid);
    }
    move(m.q_from, sample * bounds_);
    move(m.q_to, sample * bounds_);
    move(m.k_hidden, sample * hidden_);
    move(m.q_class, sample * query_classes_);
    move(m.k_class, sample * key_classes_);
    move(m.class_id, sample * ids_);
    return m;
  }

 private:
  /// The distance between the samples of a table, 0 if all share it.
  static int64_t step_of(const ConstView& x) { return x && x.dim(0) > 1 ? x.stride(0) : 0; }
  template <class T>
  LONGSPAN_HD static void move(const T*& at, int64_t by) {
    if (at != nullptr) at += by;
  }

  SampleMasks first_;
  const int64_t *lengths_ = nullptr, *begins_ = nullptr;
  int64_t length_ = 0, begin_ = 0, bounds_ = 0, hidden_ = 0, query_classes_ = 0, key_classes_ = 0,
          ids_ = 0;
};

}  // namespace longspan::kernels
