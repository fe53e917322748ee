#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/generator.h"
#include "core/tensor.h"

namespace longspan {

// Draws name their numbers by a Generator, which is a value: the same one gives the same numbers,
// on every device and for any number of threads. Two draws need two forks. Numbers are made in f32
// and rounded to the dtype.

/// y = x / (1 - p) where kept, else 0, each element being dropped with probability p. Element c of
/// row r (over the last axis) is drawn by number (pass.row + r) * width + c: a chunk of rows with
/// its row in the Pass draws what the whole would. x itself, without a copy, where p is 0 or the
/// pass does not train.
///   x       [..., width]  floating
///   returns shape and dtype of x
///   saves   nothing: the way back draws again
///   throws  ValueError unless 0 <= p <= 1
Tensor dropout(const Tensor& x, double p, const Pass& pass);

/// Looks for two draws of the same numbers in a forward pass, as two sites make with one label of
/// Pass::at(). While it lives, the second draw of this thread from the same numbers, by an op of
/// this header or by block_attention(), throws ValueError with the scopes of both. Other rows of a
/// Pass are other numbers. Draws of a Replay, and of a watch further out, do not count. For tests
/// and debugging: it remembers every draw.
class RngReuseCheck {
 public:
  RngReuseCheck();
  ~RngReuseCheck();
  RngReuseCheck(const RngReuseCheck&) = delete;
  RngReuseCheck& operator=(const RngReuseCheck&) = delete;

  /// How many draws there were.
  size_t draws() const { return draws_.size(); }
  /// Tells the watch of this thread, if there is one, that an op draws numbers [first, end) of a
  /// generator.
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

/// Uniform in [low, high), on a grid of 2^24 steps; high only where rounding leads there.
Tensor uniform(const Shape& shape, Generator gen, double low = 0.0, double high = 1.0,
               DType dtype = DType::f32, Device device = {});
/// Normal with a mean and a standard deviation.
Tensor normal(const Shape& shape, Generator gen, double mean = 0.0, double deviation = 1.0,
              DType dtype = DType::f32, Device device = {});
/// Normal, restricted to mean + deviation * [low, high] by drawing again what lies outside. Throws
/// ValueError where that interval holds less than 1 % of the draws.
Tensor truncated_normal(const Shape& shape, Generator gen, double mean = 0.0,
                        double deviation = 1.0, double low = -2.0, double high = 2.0,
                        DType dtype = DType::f32, Device device = {});
/// 1 with probability p, else 0.
Tensor bernoulli(const Shape& shape, Generator gen, double p, DType dtype = DType::u8,
                 Device device = {});
/// Whole numbers in [low, high), each equally likely (to within (high - low) / 2^64).
Tensor randint(const Shape& shape, Generator gen, int64_t low, int64_t high,
               DType dtype = DType::i64, Device device = {});
/// 0 to n - 1 in random order, every order equally likely up to ties of 63 bits: an argsort of
/// random keys.
Tensor permutation(int64_t n, Generator gen, DType dtype = DType::i64, Device device = {});

/// A random orthogonal matrix times `gain` (Saxe et al. 2014), uniformly distributed: the Q of a
/// normal matrix, with the signs that make R's diagonal positive. Seen as a matrix of its first
/// axis by all others, the result has orthonormal columns where it is tall and orthonormal rows
/// where it is wide. Computed in f64.
///   shape   rank 2 or more
Tensor orthogonal(const Shape& shape, Generator gen, double gain = 1.0, DType dtype = DType::f32,
                  Device device = {});

}  // namespace longspan
