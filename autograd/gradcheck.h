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
  uint64_t seed = 1;  ///< of the random weights that turn outputs into one number
  /// Of each input so many are compared one by one, evenly spread where it has more; those are
  /// then compared along one random direction as well.
  int64_t max_elements = 64;
};

/// What gradcheck() found; tests true where all is well.
struct GradcheckResult {
  bool ok = true;
  int64_t checked = 0;  ///< partial derivatives compared one by one
  double worst = 0;     ///< largest error over its tolerance; infinite where a number is not finite
  /// If not ok: "input 0 element 17, at [2, 3]: analytic 1.5, numeric 2.25", where it is worst, and
  /// what that suggests; or why nothing could be compared.
  std::string message;
  explicit operator bool() const { return ok; }
};

/// Compares the gradients of f with central differences in f64 (docs/gradcheck.md).
///   f        maps inputs to one or more tensors, deterministically. Every floating output is
///            weighted by random numbers, so all of the Jacobian takes part, also that of outputs
///            without history, whose gradient counts as zero; others are passed over
///   inputs   floating ones are f64 on the CPU and get gradients, on copies with their strides;
///            others (integers, undefined) are passed as they are
/// Refused besides wrong gradients: no floating input or output; outputs that are not f64; no
/// output with history; an f whose outputs or gradients are other bits the second time, or that
/// writes to what it is given; gradients that are not finite; a backward that throws. Inputs that
/// are all empty pass where an output has history, with checked = 0. Records under NoGrad, too.
/// Throws DTypeError on floating inputs other than f64, DeviceError on those elsewhere, and what f
/// throws.
GradcheckResult gradcheck(const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& f,
                          const std::vector<Tensor>& inputs, const GradcheckOptions& options = {});
/// The same for one output.
GradcheckResult gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& f,
                          const std::vector<Tensor>& inputs, const GradcheckOptions& options = {});

}  // namespace longspan
