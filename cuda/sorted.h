#pragma once

#include <cstdint>

namespace longspan::cuda {

/// Sorts n keys of `bits` bits, each with a value, keeping the order of equal keys. The result lies
/// in keys and values; the others are room for it.
void sort_pairs(const char* name, uint64_t* keys, uint64_t* other_keys, int64_t* values,
                int64_t* other_values, int64_t n, int bits);

}  // namespace longspan::cuda
