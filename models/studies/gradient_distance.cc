#include "models/studies/gradient_distance.h"

#include <algorithm>
#include <cmath>

#include "autograd/engine.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "core/error.h"
#include "nn/after_step.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/reduce.h"

namespace longspan {
namespace {

double squares(const Tensor& x) { return sum(square(x)).item(); }

/// Returns the tensor of a name. Throws ValueError if there is none.
const Tensor& find(const TensorList& list, const std::string& name, const char* op) {
  const auto at = std::find_if(list.begin(), list.end(),
                               [&](const NamedTensor& t) { return t.name == name; });
  require(at != list.end(), op, "there is no \"{}\" among the others", name);
  return at->tensor;
}

}  // namespace

TensorList gradients_of(Module& module, const Tensor& loss) {
  backward(loss);
  const NoGrad off;
  TensorList all;
  for (const NamedTensor& p : named_parameters(module)) {
    const Tensor g = grad(p.tensor);
    Tensor copy = g ? cast(to_device(g, Device{}), DType::f64)
                    : Tensor::zeros(p.tensor.shape(), DType::f64);
    all.push_back({p.name, contiguous(copy)});
    set_grad(p.tensor, {});
  }
  return all;
}

GradientDistance gradient_distance(const TensorList& gradients, const TensorList& reference) {
  const NoGrad off;
  GradientDistance distance;
  double wrong = 0, whole = 0;
  for (const NamedTensor& r : reference) {
    const Tensor& g = find(gradients, r.name, "gradient_distance");
    require<ShapeError>(g.shape() == r.tensor.shape(), "gradient_distance",
                        "{} has shape {}, and {} in the reference", r.name, to_string(g.shape()),
                        to_string(r.tensor.shape()));
    const double difference = squares(sub(g, r.tensor)), own = squares(r.tensor);
    wrong += difference;
    whole += own;
    const double relative = own > 0 ? std::sqrt(difference / own) : 0;
    if (relative > distance.largest) {
      distance.largest = relative;
      distance.parameter = r.name;
    }
  }
  require(whole > 0, "gradient_distance", "all gradients of the reference are 0");
  distance.relative = std::sqrt(wrong / whole);
  return distance;
}

void copy_state(Module& to, Module& from) {
  const NoGrad off;
  const TensorList source = named_state(from);
  for (NamedTensor& t : named_state(to)) {
    const Tensor& s = find(source, t.name, "copy_state");
    write_buffer(t.tensor, cast(to_device(s, t.tensor.device()), t.tensor.dtype()));
  }
}

}  // namespace longspan
