#include "nn/init.h"

#include <cmath>
#include <unordered_set>
#include <utility>

#include "autograd/node.h"
#include "ops/copy.h"
#include "ops/random.h"

namespace longspan {
namespace {

thread_local InitWatch* watching = nullptr;

double xavier_bound(const Shape& shape, double gain) {
  require<ShapeError>(shape.rank() >= 2, "init", "xavier_uniform needs a matrix, not {}",
                      to_string(shape));
  const auto fans = static_cast<double>(shape[shape.rank() - 1] + shape[shape.rank() - 2]);
  return gain * std::sqrt(6 / fans);
}

Tensor draw(const Shape& shape, const Scheme& s, const Init& init) {
  const bool drawn = s.kind != Scheme::Kind::zeros && s.kind != Scheme::Kind::constant;
  if (init.blank && drawn) return Tensor::zeros(shape, init.dtype, init.device);
  switch (s.kind) {
    case Scheme::Kind::zeros:
      return Tensor::zeros(shape, init.dtype, init.device);
    case Scheme::Kind::constant:
      return full(shape, s.value, init.dtype, init.device);
    case Scheme::Kind::normal:
      return normal(shape, init.gen, 0, s.value, init.dtype, init.device);
    case Scheme::Kind::truncated_normal:
      return truncated_normal(shape, init.gen, 0, s.value, -2, 2, init.dtype, init.device);
    case Scheme::Kind::uniform:
      return uniform(shape, init.gen, -s.value, s.value, init.dtype, init.device);
    case Scheme::Kind::xavier_uniform: {
      const double bound = xavier_bound(shape, s.value);
      return uniform(shape, init.gen, -bound, bound, init.dtype, init.device);
    }
    case Scheme::Kind::orthogonal:
      break;
  }
  require<ShapeError>(shape.rank() >= 2, "init", "orthogonal needs a matrix, not {}",
                      to_string(shape));
  return orthogonal(shape, init.gen, s.value, init.dtype, init.device);
}

}  // namespace

Tensor Init::made(const Shape& shape, const Scheme& scheme, bool gradient) const {
  Tensor x;
  if (meta) {
    checked_numel("init", shape);
    x = Tensor::zeros({1}, dtype, device).alias(shape, Strides::filled(shape.rank(), 0), 0);
  } else {
    x = draw(shape, scheme, *this);
  }
  x.set_category(Category::parameter);
  set_requires_grad(x, gradient);
  InitWatch::note(*this, x);
  return x;
}

Tensor Init::make(const Shape& shape, const Scheme& scheme) const {
  return made(shape, scheme, true);
}

Tensor Init::make_buffer(const Shape& shape, const Scheme& scheme) const {
  return made(shape, scheme, false);
}

std::string Init::path_to(std::string_view label) const {
  std::string all = path;
  if (!all.empty()) all += '.';
  all += label;
  return all;
}

InitWatch::InitWatch() : outer_(std::exchange(watching, this)) {}
InitWatch::~InitWatch() { watching = outer_; }

void InitWatch::note(const Init& init, const Tensor& parameter) {
  for (InitWatch* w = watching; w != nullptr; w = w->outer_) {
    w->made_.push_back({parameter.meta(), init.path, parameter.shape()});
  }
}

void InitWatch::require_visited(Module& module) const {
  std::unordered_set<const autograd::Meta*> visited;
  for (const NamedTensor& t : named_state(module)) visited.insert(t.tensor.meta().get());
  std::string forgotten;
  for (const Made& m : made_) {
    const auto parameter = m.parameter.lock();
    if (parameter == nullptr || visited.contains(parameter.get())) continue;
    forgotten +=
        fmt::format("\n  {}  {}", m.path.empty() ? "(no label)" : m.path, to_string(m.shape));
  }
  require(forgotten.empty(), "module",
          "parameters that Init made will be neither trained nor saved: a visit() leaves out a "
          "parameter or a child; those of Init at{}",
          forgotten);
}

}  // namespace longspan
