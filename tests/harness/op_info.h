#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "autograd/gradcheck.h"
#include "core/error.h"
#include "core/kernel.h"
#include "tests/harness/input_spec.h"
#include "tests/harness/naive.h"

namespace longspan::test {

/// The arguments of one call: tensors (or, for references, arrays) and the numbers of the sample.
template <class T>
class Arguments {
 public:
  Arguments(std::span<const T> items, std::span<const double> numbers)
      : items_(items), numbers_(numbers) {}
  const T& operator[](size_t i) const { return items_[i]; }
  size_t size() const { return items_.size(); }
  std::span<const T> all() const { return items_; }
  double number(size_t i) const { return numbers_[i]; }
  int integer(size_t i) const { return static_cast<int>(numbers_[i]); }
  size_t numbers() const { return numbers_.size(); }

 private:
  std::span<const T> items_;
  std::span<const double> numbers_;
};
using Inputs = Arguments<Tensor>;
using Arrays = Arguments<Array>;

/// One or several results.
template <class T>
struct Results : std::vector<T> {
  Results(T one) : std::vector<T>{std::move(one)} {}
  Results(std::initializer_list<T> several) : std::vector<T>(several) {}
  Results(std::vector<T> several) : std::vector<T>(std::move(several)) {}
};

/// One call to test: its arguments, and the numbers that `run` and `reference` read.
struct Sample {
  std::string name;
  std::vector<InputSpec> inputs;
  std::vector<double> numbers = {};
};

/// A call that must throw.
struct Reject {
  std::string name;
  std::vector<InputSpec> inputs;
  std::string message;  ///< must be part of what()
  bool (*is)(const Error&) = nullptr;
  std::vector<double> numbers = {};
  std::function<void(Inputs)> run = {};  ///< replaces the op's
};

/// A call that must throw an E whose message contains `message`.
template <class E>
Reject rejects(std::string name, std::vector<InputSpec> inputs, std::string message,
               std::vector<double> numbers = {}, std::function<void(Inputs)> run = {}) {
  return {std::move(name),    std::move(inputs),
          std::move(message), [](const Error& e) { return dynamic_cast<const E*>(&e) != nullptr; },
          std::move(numbers), std::move(run)};
}

inline std::vector<DType> floating_types() {
  return {DType::f64, DType::f32, DType::f16, DType::bf16};
}

/// The law that a common offset of some inputs changes nothing beyond the rounding of the inputs.
/// The harness rounds the inputs to a grid on which adding the offset, 2^20 in f32, loses no bit.
struct OffsetLaw {
  std::vector<size_t> inputs = {};  ///< to which the offset is added together; empty: no such law
  std::vector<size_t> moved = {};   ///< results that move by the offset; the others stay
  std::vector<Sample> samples = {};
};

/// The law that NaN in gives NaN out and NaN back: with one NaN in an input the results are those
/// of the reference. If one of them is NaN, so is the gradient of the whole row of that NaN, and of
/// no other row; else none is. All samples without inf are tried.
struct NanLaw {
  std::vector<size_t> inputs = {};  ///< in which the NaN is put in turn; empty: no such law
  /// Returns the axis of rows from the numbers of a sample; not given: the last one.
  std::function<int(std::span<const double>)> axis = {};
};

/// An op and its expected behaviour. For each entry, device and dtype the harness generates these
/// tests:
///   forward    against `reference`, every sample in every layout, and the large ones
///   gradcheck  against central differences in f64, every sample in every layout
///   backward   f32, f16 and bf16 gradients against those in f64
///   bitwise    repeated, and with 1, 2 and 3 threads: results and gradients have the same bits
///   offset     if `offset` has inputs: it changes nothing (OffsetLaw)
///   nan        if `nan` has inputs: it is passed on, forward and back (NanLaw)
///   rows       if `row_inputs` is set: a row's bits do not depend on the other rows
///   recorded   on a device: replays with changing inputs have the bits of direct calls
///   rejects    the right exception and message, and no bytes leaked
///   not_given  a missing required argument gives an error that says so
///   saved      the graph saves what `saved_bytes` says
///   parity     CPU and CUDA agree (skipped without a device)
///   devices    arguments on different devices are an error (without a CUDA device)
///   no_kernel  on a device that lacks `host_kernel` calls say so, in place of parity and recorded
/// Every test also checks that it leaks no bytes.
struct OpInfo {
  std::string name;
  std::function<Results<Tensor>(Inputs)> run;
  /// Plain f64 loops from the formula; undefined arrays are arguments that are not given.
  std::function<Results<Array>(Arrays)> reference;
  /// Small: odd, empty, size-one and rank-0 shapes; extreme values.
  std::vector<Sample> samples = {};
  /// At least one, larger than a task of the thread pool; not gradchecked.
  std::vector<Sample> large = {};
  std::vector<Reject> rejects = {};
  /// Bytes of each tensor that the graph saves, including inputs. Empty function: none.
  std::function<std::vector<int64_t>(Inputs)> saved_bytes = {};
  std::vector<DType> dtypes = floating_types();
  bool differentiable = true;
  bool unrecorded = false;  ///< whether the op does work on the host, so that it cannot be recorded
  /// Inputs with rows on their first axis, each of which gives a row of each result.
  std::vector<size_t> row_inputs = {};
  OffsetLaw offset = {};
  NanLaw nan = {};
  /// Errors are measured against |value| + scale * rms of all values.
  double scale = 1;
  /// Factors on the tolerance of results and gradients, and why they are not 1.
  double tolerance = 1, gradient_tolerance = 1;
  std::string reason = {};
  GradcheckOptions gradcheck = {};
  /// Whether arguments may be on different devices.
  bool many_devices = false;
  /// A kernel that some backends lack: on a device without it calls must throw NotImplemented.
  const KernelBase* host_kernel = nullptr;
  /// Inputs without which the call is a different one, with its own requirements on the rest.
  std::vector<size_t> optional = {};
  /// Whether inputs may be repeated along their first axis.
  bool expandable = true;
};

/// Adds an entry to the table; each tests/ops/<family>.cc defines static objects of this class.
class Registered {
 public:
  Registered(OpInfo info);  // NOLINT: converting on purpose
};

/// Names kernels that this program does not call, with the test program that does.
class ReachedElsewhere {
 public:
  ReachedElsewhere(std::string kernel, std::string program);
};

}  // namespace longspan::test
