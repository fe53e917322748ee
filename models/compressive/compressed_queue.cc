#include "models/compressive/compressed_queue.h"

#include "autograd/mode.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/shape.h"

namespace longspan {
namespace {

/// Returns floor(x / n) for whole numbers x in f64: x / n is at most (n - 1) / 2n away from it
/// after the shift, so that rounding finds it.
Tensor whole_quotient(const Tensor& x, int64_t n) {
  const auto by = static_cast<double>(n);
  return round_to_grid(div(sub(x, (by - 1) / 2), by), 0);
}

/// Returns row numbers, or an index of each sample if x is [B, 1], as i64.
Tensor whole(const Tensor& x) { return cast(x, DType::i64); }

}  // namespace

int64_t CompressedQueue::capacity() const {
  return compressed + fine + (eviction == Eviction::carry ? rate - 1 : 0);
}

int64_t CompressedQueue::max_groups(int64_t length) const {
  return (length + (eviction == Eviction::carry ? rate - 1 : 0)) / rate;
}

// All numbers are whole, in f64, one for each sample: [B, 1].
CompressedQueue::Update CompressedQueue::after(const Tensor& begin, const Tensor& fine_begin,
                                               int64_t length) const {
  const NoGrad off;
  const Device device = begin.device();
  const auto n = [](int64_t x) { return static_cast<double>(x); };
  const auto places = [&](int64_t count) {
    return unsqueeze(iota(count, DType::f64, device), 0);  // [1, count]
  };
  const Tensor b = unsqueeze(cast(begin, DType::f64), 1);
  const Tensor f = unsqueeze(cast(fine_begin, DType::f64), 1);
  const int64_t rows = capacity() + length;  // of [queue; segment]
  const Tensor none = full({1, 1}, -1, DType::f64, device);

  Update u;
  u.groups = max_groups(length);
  const Tensor evicted = clamp(sub(n(rows - fine), f), 0, n(rows));  // e
  const Tensor groups = whole_quotient(evicted, rate);               // g
  const Tensor grouped = mul(groups, n(rate));                       // c g
  const Tensor gone = eviction == Eviction::carry ? grouped : evicted;

  const Tensor old_begin = sub(n(u.groups * rate), grouped);  // [B, 1]
  const Tensor slots = places(u.groups * rate);
  u.old = whole(where(greater_equal(slots, old_begin), add(sub(slots, old_begin), f), none));
  u.old_begin = whole(squeeze(old_begin, 1));
  u.new_begin = whole(squeeze(sub(n(u.groups), groups), 1));

  const Tensor next_fine = sub(add(f, gone), n(length));  // row f + gone, moved by the segment
  const Tensor held = clamp(add(sub(f, b), groups), 0, n(compressed));
  const Tensor next_begin = sub(next_fine, held);
  const Tensor place = places(capacity());
  const Tensor from_end = sub(place, next_fine);  // of compressed rows: -1 is the newest
  const Tensor is_fresh = greater_equal(from_end, neg(groups));
  const Tensor fresh = add(from_end, n(rows + u.groups));
  const Tensor earlier = add(add(from_end, f), groups);
  const Tensor squeezed = where(is_fresh, fresh, earlier);
  const Tensor exists = greater_equal(place, next_begin), is_fine = greater_equal(place, next_fine);
  u.next = whole(where(exists, where(is_fine, add(place, n(length)), squeezed), none));
  u.begin = whole(squeeze(next_begin, 1));
  u.fine_begin = whole(squeeze(next_fine, 1));
  return u;
}

}  // namespace longspan
