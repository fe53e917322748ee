#pragma once

#include "core/kernel.h"
#include "core/view.h"

namespace longspan::kernels {

/// Functions of one number. alpha and beta are their parameters; the comment gives the formula and,
/// after the bar, what the backward function is given: x or y.
enum class Unary : uint8_t {
  exp,  // e^x | y
};

/// y = f(x). One shape and floating dtype; x of any strides, y without overlap.
inline constinit Kernel<void(Unary f, double alpha, double beta, ConstView x, View y)>
    unary_forward{"unary_forward"};
/// dx = f'(x) dy, with x or y as the list says. Strides as above.
inline constinit Kernel<void(Unary f, double alpha, double beta, ConstView x_or_y, ConstView dy,
                             View dx)>
    unary_backward{"unary_backward"};

}  // namespace longspan::kernels
