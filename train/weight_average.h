#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/named_tensor.h"

namespace longspan {

/// A moving average of parameters: a = d a + (1 - d) p after each step, with
/// d = min(decay, (1 + t) / (10 + t)) after t steps, so that the beginning is soon forgotten. Its
/// tensors are in Category::optimizer.
class WeightAverage {
 public:
  /// Begins with the parameters as they are. Throws ValueError unless 0 <= decay < 1.
  WeightAverage(const TensorList& parameters, double decay);

  /// Takes the parameters into the average after step `steps`, counted from 1. Allocates nothing.
  void update(int64_t steps);
  /// Begins again with the parameters as they are.
  void restart();
  /// "NAME.average", sharing storage with the average, so that loading into them restores it.
  TensorList state() const;

  /// Puts the average, if there is one, in the parameters' places as long as it lives. It takes
  /// scratch memory of the size of the largest parameter.
  class Instead {
   public:
    explicit Instead(std::optional<WeightAverage>& average);
    ~Instead();
    Instead(const Instead&) = delete;
    Instead& operator=(const Instead&) = delete;

   private:
    std::optional<WeightAverage>& average_;
  };

  /// What the name of a parameter is followed by.
  static constexpr const char* suffix = ".average";

 private:
  void exchange();

  TensorList parameters_;
  std::vector<Tensor> averages_;
  double decay_;
};

}  // namespace longspan
