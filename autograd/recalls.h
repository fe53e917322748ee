#pragma once

#include <cstdint>

namespace longspan::autograd {

/// Number of results of products and of attention that recomputations on this thread have taken
/// from a checkpoint scope that saved them, instead of computing them again.
struct Recalls {
  int64_t products = 0, attention = 0;
};
const Recalls& recalls();

}  // namespace longspan::autograd
