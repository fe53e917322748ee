#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace longspan {

/// Precision and effort of gradcheck().
struct GradcheckOptions {
  double step = 1e-6;      ///< of the central difference, relative to max(1, |x|)
  double relative = 1e-6;  ///< tolerance, relative to the largest gradient of the input
  double absolute = 1e-8;
  uint64_t seed = 1;  ///< of the random weights that reduce the outputs to one value
  /// Maximum number of elements of each input that are compared one by one, evenly spaced. An input
  /// with more elements is also compared along one random direction.
  int64_t max_elements = 64;
};

/// Result of gradcheck(); tests true if all gradients agree.
struct GradcheckResult {
  bool ok = true;
  int64_t checked = 0;  ///< partial derivatives compared one by one
  double worst = 0;     ///< largest error over its tolerance; infinite if a value is not finite
  /// If not ok: the element with the worst error, "input 0 element 17, at [2, 3]: analytic 1.5,
  /// numeric 2.25", and the likely cause; or the reason why nothing could be compared.
  std::string message;
  explicit operator bool() const { return ok; }
};

/// Compares the gradients of f with central differences in f64 (docs/gradcheck.md).
///   f        maps inputs to one or more tensors, deterministically. Every floating output is
///            weighted by random values, so the whole Jacobian is checked. An output without
///            history counts as having zero gradient; outputs that are not floating are ignored
///   inputs   floating ones are f64 on the CPU and get gradients, on copies with their strides;
///            others (integers, undefined) are passed unchanged
/// Besides wrong gradients, it rejects: no floating input or output; outputs that are not f64; no
/// output with history; an f whose outputs or gradients have other bits the second time, or that
/// writes to its inputs; gradients that are not finite; a backward that throws. Inputs that are all
/// empty pass if an output has history, with checked = 0. Records under NoGrad, too. Throws
/// DTypeError on floating inputs other than f64, DeviceError on floating inputs on another device,
/// and whatever f throws.
GradcheckResult gradcheck(const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& f,
                          const std::vector<Tensor>& inputs, const GradcheckOptions& options = {});
/// The same for one output.
GradcheckResult gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& f,
                          const std::vector<Tensor>& inputs, const GradcheckOptions& options = {});

}  // namespace longspan
