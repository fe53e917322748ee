#include "nn/checkpoint.h"

#include <memory>

#include "autograd/frame.h"
#include "autograd/mode.h"
#include "autograd/node.h"

namespace longspan {
namespace {

/// An argument of a layer: its data, and whether its gradient is wanted.
class Argument {
 public:
  Argument() = default;
  explicit Argument(const Tensor& x) : data_(x, "checkpoint"), wanted_(requires_grad(x)) {}

  /// The same data as a leaf of a graph of its own.
  Tensor again() const {
    Tensor x = data_.get("checkpoint");
    if (wanted_) set_requires_grad(x);
    return x;
  }

 private:
  autograd::SavedTensor data_;
  bool wanted_ = false;
};

class LayerFrame final : public autograd::Frame {
 public:
  LayerFrame(const Layer& layer, const Tensor& x, const Given& given, Pass pass)
      : layer_(layer), x_(x), context_(given.context), given_(given), pass_(pass) {
    given_.context = {};
  }

  Output run(const Tensor& x, const Given& given) {
    const Run inside(this);
    Output out = layer_.forward(x, given, pass_);
    if (!out.choices.empty()) given_.choices = out.choices;
    return out;
  }

 private:
  void replay() override {
    Given given = given_;
    given.context = context_.again();
    layer_.forward(x_.again(), given, pass_);
  }

  const Layer& layer_;
  const Argument x_, context_;
  Given given_;
  const Pass pass_;
};

}  // namespace

Output checkpoint(const Layer& layer, const Tensor& x, const Given& given, Pass pass) {
  if (!autograd::recording()) return layer.forward(x, given, pass);
  return std::make_shared<LayerFrame>(layer, x, given, pass)->run(x, given);
}

}  // namespace longspan
