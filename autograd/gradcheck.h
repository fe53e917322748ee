#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace longspan {

/// How closely gradcheck() looks.
struct GradcheckOptions {
  double step = 1e-6;      ///< of the central difference, relative to max(1, |x|)
  double relative = 1e-6;  ///< tolerance, relative to the largest gradient of the input
  double absolute = 1e-8;
  uint64_t seed = 1;          ///< of the random weights that turn outputs into one number
  int64_t max_elements = 64;  ///< per input; more are sampled evenly
};

/// What gradcheck() found; tests true where all is well.
struct GradcheckResult {
  bool ok = true;
  int64_t checked = 0;  ///< partial derivatives compared
  double worst = 0;     ///< largest error over its tolerance
  std::string message;  ///< where it is worst, if not ok
  explicit operator bool() const { return ok; }
};

/// Compares the gradients of f with central differences in f64. f maps inputs to one or more
/// floating tensors and must be deterministic; inputs that are floating must be f64 and get
/// gradients, others are passed as they are. Inputs may be strided views. Every output is weighted
/// by random numbers, so all of the Jacobian takes part. Throws DTypeError on floating inputs other
/// than f64.
GradcheckResult gradcheck(const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& f,
                          const std::vector<Tensor>& inputs, const GradcheckOptions& options = {});
/// The same for one output.
GradcheckResult gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& f,
                          const std::vector<Tensor>& inputs, const GradcheckOptions& options = {});

}  // namespace longspan
