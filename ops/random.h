#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/generator.h"
#include "core/tensor.h"

namespace longspan {

// A Generator, which is a value, selects the random numbers of a draw: the same one gives the same
// numbers on every device and for any number of threads. Two draws need two forks. Numbers are made
// in f32 and rounded to the dtype.

/// y = x / (1 - p) where kept, else 0; each element is dropped with probability p. Element c of row
/// r (over the last axis) uses random number (pass.row + r) * width + c: a chunk of rows with its
/// first row in the Pass draws the same as the whole tensor would. Returns x itself, without a
/// copy, if p is 0 or the pass does not train.
///   x       [..., width]  floating
///   returns shape and dtype of x
///   saves   nothing: the backward pass draws again
///   throws  ValueError unless 0 <= p <= 1
Tensor dropout(const Tensor& x, double p, const Pass& pass);

/// Detects two draws of the same random numbers in a forward pass, such as two call sites with one
/// label of Pass::at(). While it lives, the second draw of this thread from the same numbers, by an
/// op of this header or by block_attention(), throws ValueError with the scopes of both. Other rows
/// of a Pass are other numbers. Draws during a Replay, and draws that an enclosing check recorded,
/// do not count. For tests and debugging: it stores every draw.
class RngReuseCheck {
 public:
  RngReuseCheck();
  ~RngReuseCheck();
  RngReuseCheck(const RngReuseCheck&) = delete;
  RngReuseCheck& operator=(const RngReuseCheck&) = delete;

  /// Number of draws recorded.
  size_t draws() const { return draws_.size(); }
  /// Records in the innermost check of this thread, if there is one, that an op draws numbers
  /// [first, end) of a generator.
  static void note(std::string_view op, Generator gen, int64_t first, int64_t end);

 private:
  struct Draw {
    uint64_t key;
    int64_t first, end;
    std::string scope;
  };
  std::vector<Draw> draws_;
  RngReuseCheck* outer_;
};

/// Uniform in [low, high), on a grid of 2^24 steps; equals high only through rounding.
Tensor uniform(const Shape& shape, Generator gen, double low = 0.0, double high = 1.0,
               DType dtype = DType::f32, Device device = {});
/// Normal with a mean and a standard deviation.
Tensor normal(const Shape& shape, Generator gen, double mean = 0.0, double deviation = 1.0,
              DType dtype = DType::f32, Device device = {});
/// Normal, restricted to mean + deviation * [low, high] by rejection sampling. Throws ValueError if
/// that interval holds less than 1 % of the draws.
Tensor truncated_normal(const Shape& shape, Generator gen, double mean = 0.0,
                        double deviation = 1.0, double low = -2.0, double high = 2.0,
                        DType dtype = DType::f32, Device device = {});
/// 1 with probability p, else 0.
Tensor bernoulli(const Shape& shape, Generator gen, double p, DType dtype = DType::u8,
                 Device device = {});
/// Integers in [low, high), each equally likely (to within (high - low) / 2^64).
Tensor randint(const Shape& shape, Generator gen, int64_t low, int64_t high,
               DType dtype = DType::i64, Device device = {});
/// 0 to n - 1 in random order, every order equally likely up to ties of 63 bits: an argsort of
/// random keys.
Tensor permutation(int64_t n, Generator gen, DType dtype = DType::i64, Device device = {});

/// A random orthogonal matrix times `gain` (Saxe et al. 2014), uniformly distributed: the Q of a
/// normal matrix, with signs that make R's diagonal positive. Viewed as a matrix [first axis, all
/// others], the result has orthonormal columns if it is tall and orthonormal rows if it is wide.
/// Computed in f64.
///   shape   rank 2 or more
Tensor orthogonal(const Shape& shape, Generator gen, double gain = 1.0, DType dtype = DType::f32,
                  Device device = {});

}  // namespace longspan
