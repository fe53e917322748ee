#include "nn/attention/decoding_memory.h"

#include <algorithm>

#include "core/error.h"
#include "core/kernels/copy.h"

namespace longspan {
namespace {

/// Appends `fresh` to the `kept` slots of old from `begin` on: in the free slots of old if it
/// `fits`, else in new memory to which the kept slots are copied.
Tensor append(const Tensor& old, int64_t begin, int64_t kept, const Tensor& fresh, bool fits) {
  const int64_t n = fresh.dim(2);
  Tensor cache = old;
  if (!fits) {
    Shape shape = fresh.shape();
    shape[2] = 2 * (kept + n) + 14;
    cache = Tensor::empty(shape, fresh.dtype(), fresh.device(), Category::memory);
    if (kept > 0) {
      kernels::copy(cache.device(), memory_slots(old, begin, kept).view(),
                    memory_slots(cache, 0, kept).mut());
    }
    begin = 0;
  }
  kernels::copy(cache.device(), fresh.view(), memory_slots(cache, begin + kept, n).mut());
  return cache;
}

}  // namespace

Tensor memory_slots(const Tensor& cache, int64_t begin, int64_t length) {
  Shape shape = cache.shape();
  shape[2] = length;
  return cache.alias(shape, cache.strides(), begin * cache.strides()[2]);
}

KeyValues remember(const KeyValues& old, const Tensor& k, const Tensor& v, int64_t position,
                   int64_t keep_from) {
  require(!old.keys || old.first + old.count == position, "attention",
          "the memory ends at position {}, the input begins at {}", old.first + old.count,
          position);
  const int64_t n = k.dim(2);
  const int64_t first = old.keys ? std::clamp(keep_from, old.first, position) : position;
  const int64_t kept = position - first;
  const bool fits = old.keys && old.count + n <= old.keys.dim(2);
  KeyValues m;
  m.keys = append(old.keys, first - old.first, kept, k, fits);
  m.values = append(old.values, first - old.first, kept, v, fits);
  m.first = fits ? old.first : first;
  m.count = position + n - m.first;
  return m;
}

}  // namespace longspan
