#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/generator.h"
#include "core/tensor.h"

namespace longspan {

/// How sparse the probabilities of alpha-entmax are, as means over rows.
struct EntmaxSparsity {
  double zeros = 0;    ///< share of the probabilities that are exactly 0
  double keys = 0;     ///< entries of a row with a probability above 0
  double largest = 0;  ///< the largest probability of a row
};

/// Counts in entmax(logits, alpha).
///   logits  [..., n]  f64 f32 f16 bf16, with one row or more
///   throws  as entmax(); ShapeError without rows
EntmaxSparsity entmax_sparsity(const Tensor& logits, double alpha);

/// What study_entmax_sparsity() measures: all combinations.
struct EntmaxSparsityOptions {
  std::vector<double> alphas = {1, 1.05, 1.1, 1.2, 1.3, 1.5, 1.75, 2};
  std::vector<int64_t> lengths = {64, 256, 1024, 4096};
  std::vector<double> scales = {0.5, 1, 2, 4};  ///< standard deviations of the logits
  int64_t rows = 64;
  Generator gen = Generator{1};
};

/// A combination and what was counted.
struct EntmaxSparsityRow {
  double alpha = 0, scale = 0;
  int64_t length = 0;
  EntmaxSparsity sparsity;
};

/// Counts for rows of independent normal logits, in f64. Every alpha gets the same rows, and a
/// scale only multiplies them. `each`, if set, is called with each row. Throws ValueError if an
/// option is out of range.
std::vector<EntmaxSparsityRow> study_entmax_sparsity(
    const EntmaxSparsityOptions& options,
    const std::function<void(const EntmaxSparsityRow&)>& each = {});

}  // namespace longspan
