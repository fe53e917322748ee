#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/device.h"
#include "core/generator.h"
#include "core/tensor.h"
#include "nn/module.h"

namespace longspan {

/// A distribution for a matrix [out, in]; fan-in and fan-out are its last two sizes. The default is
/// Glorot's uniform, so that no layer starts as zeros unless asked to.
struct Scheme {
  enum class Kind : uint8_t {
    zeros,
    constant,
    normal,
    truncated_normal,
    uniform,
    xavier_uniform,
    orthogonal
  };
  Kind kind = Kind::xavier_uniform;
  double value = 1;  ///< constant, deviation, half width, or gain

  static constexpr Scheme zeros() { return {Kind::zeros, 0}; }
  static constexpr Scheme constant(double c) { return {Kind::constant, c}; }
  /// N(0, deviation^2).
  static constexpr Scheme normal(double deviation) { return {Kind::normal, deviation}; }
  /// The same, truncated at two deviations.
  static constexpr Scheme truncated_normal(double deviation) {
    return {Kind::truncated_normal, deviation};
  }
  /// U(-half, half).
  static constexpr Scheme uniform(double half) { return {Kind::uniform, half}; }
  /// U(-a, a), a = gain sqrt(6 / (fan-in + fan-out)). \cite glorot2010
  static constexpr Scheme xavier_uniform(double gain = 1) { return {Kind::xavier_uniform, gain}; }
  /// Orthonormal rows or columns, whichever are fewer, times gain. Saxe et al. 2014.
  static constexpr Scheme orthogonal(double gain = 1) { return {Kind::orthogonal, gain}; }

  /// Returns the same distribution, `factor` times as wide; e.g. 1 / sqrt(2 N) for the output
  /// weights of residual branches \cite radford2019 .
  constexpr Scheme scaled(double factor) const { return {kind, value * factor}; }
};

/// Makes parameters: leaves that require gradients, in Category::parameter. It is a value, like its
/// generator: the initial value of a parameter depends on the seed, its labels and its shape.
struct Init {
  Generator gen = {};
  Device device = {};
  DType dtype = DType::f32;
  /// Parameters get one element of storage, expanded to their shape: to count them without the
  /// memory.
  bool meta = false;
  std::string path = {};  ///< the labels so far, joined by dots, for error messages
  /// Nothing is drawn, and parameters are 0 where something would be: for models whose weights are
  /// read right after they are built.
  bool blank = false;

  Init at(std::string_view label) const {
    return {gen.fork(label), device, dtype, meta, path_to(label), blank};
  }
  Init at(int64_t label) const {
    return {gen.fork(static_cast<uint64_t>(label)), device, dtype, meta,
            path_to(std::to_string(label)),         blank};
  }

  /// Throws ShapeError if the scheme needs a matrix and the shape is not one.
  Tensor make(const Shape& shape, const Scheme& scheme) const;
  /// Makes a buffer: as make(), also in Category::parameter, but without a gradient.
  Tensor make_buffer(const Shape& shape, const Scheme& scheme) const;

 private:
  Tensor made(const Shape& shape, const Scheme& scheme, bool gradient) const;
  std::string path_to(std::string_view label) const;
};

/// Records the parameters and buffers that this thread makes with Init while it lives, to find
/// those that a module forgets to visit:
///   const InitWatch made;
///   MyModel model(config, init);
///   made.require_visited(model);
class InitWatch {
 public:
  InitWatch();
  ~InitWatch();
  InitWatch(const InitWatch&) = delete;
  InitWatch& operator=(const InitWatch&) = delete;

  /// Throws ValueError with labels and shapes if parameters that are still alive are not visited by
  /// the module: they would be neither trained nor saved.
  void require_visited(Module& module) const;
  /// Called by Init: records a parameter that it has made.
  static void note(const Init& init, const Tensor& parameter);

 private:
  struct Made {
    std::weak_ptr<autograd::Meta> parameter;
    std::string path;
    Shape shape;
  };
  std::vector<Made> made_;
  InitWatch* outer_;
};

}  // namespace longspan
