#pragma once

#include <cstdint>

namespace longspan::autograd {

/// How many results of products and of attention re-runs on this thread have taken from a frame
/// that keeps them, in place of computing them again.
struct Recalls {
  int64_t products = 0, attention = 0;
};
const Recalls& recalls();

}  // namespace longspan::autograd
