#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "nn/attention/performer.h"

namespace longspan {

/// The error of linear attention against softmax attention over the same q, k and v.
struct OutputError {
  double all = 0;  ///< |out - exact| / |exact| of all rows together, in the L2 norm
  double row = 0;  ///< median over rows of |out - exact| / |exact| of a row
};

/// Compares linear_attention() with block_attention().
///   q, k, v     [B, H, L, d], [B, H, T, d], [B, H, T, dv], one dtype; T = L if causal
///   projection  as for linear_attention()
///   options     without state and masks
///   throws      as linear_attention(); ValueError with a state or masks
OutputError feature_error(const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& projection, const LinearAttentionOptions& options);

/// What study_feature_errors() measures: all combinations.
struct FeatureErrorOptions {
  std::vector<FeatureMap> features = {FeatureMap::positive, FeatureMap::hyperbolic,
                                      FeatureMap::trigonometric};
  std::vector<ProjectionRows> rows = {ProjectionRows::gram_schmidt, ProjectionRows::iid};
  std::vector<int64_t> counts = {16, 32, 64, 128, 256, 512, 1024};  ///< numbers of features
  /// Standard deviations of the entries of queries and keys. The mean |x|^2 of a scaled query is
  /// the square of one, times sqrt(width).
  std::vector<double> deviations = {0.5, 1.0};
  int64_t length = 256, width = 16;
  int64_t draws = 50;  ///< of inputs and projections
  bool causal = false;
  Generator gen = Generator{1};
};

/// Throws ValueError if an option is out of range, and for features that approximate no softmax.
void check_feature_errors(const FeatureErrorOptions& options);

/// A combination and its errors, of all draws.
struct FeatureErrorRow {
  double deviation = 0;
  FeatureMap features = FeatureMap::positive;
  ProjectionRows rows = ProjectionRows::gram_schmidt;
  int64_t count = 0;
  double mean = 0, median = 0;  ///< of OutputError::all
  double spread = 0;            ///< its standard deviation; 0 for one draw
  double row = 0;               ///< mean of OutputError::row
};

/// Measures the errors of one head with normal inputs, in f64. Draw n has the same inputs and the
/// same first rows of the projection in all combinations. `each`, if set, is called with each row.
/// Throws as check_feature_errors().
std::vector<FeatureErrorRow> study_feature_errors(
    const FeatureErrorOptions& options,
    const std::function<void(const FeatureErrorRow&)>& each = {});

}  // namespace longspan
