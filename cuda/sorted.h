#pragma once

#include <cstdint>

namespace longspan::cuda {

/// Stable sort of n keys of `bits` bits, each with a value. The result is in `keys` and `values`;
/// the other two arrays are workspace.
void sort_pairs(const char* name, uint64_t* keys, uint64_t* other_keys, int64_t* values,
                int64_t* other_values, int64_t n, int bits);

}  // namespace longspan::cuda
