#pragma once

#include <functional>

#include "tests/harness/input_spec.h"

/// References in f64: plain loops, written directly from the formulas.
namespace longspan::test::naive {

/// y_i = f(x_i).
Array map(const Array& x, const std::function<double(double)>& f);
/// y_i = f(a_i, b_i), with broadcasting.
Array zip(const Array& a, const Array& b, const std::function<double(double, double)>& f);
/// Returns the shape that two shapes broadcast to.
Shape broadcast(const Shape& a, const Shape& b);
/// Broadcasts x to `shape`.
Array expand(const Array& x, const Shape& shape);
/// Reduces the axes with keep[axis] = false: f receives the values of one result, in row-major
/// order. Reduced axes keep size 1 if `keepdim`.
Array reduce(const Array& x, const std::vector<bool>& keep, bool keepdim,
             const std::function<double(const std::vector<double>&)>& f);
/// Applies f in place to every row (along the last axis).
Array rows(Array x, const std::function<void(std::vector<double>&)>& f);
/// [.., M, K] x [.., K, N] with equal leading axes.
Array matmul(const Array& a, const Array& b);
/// Swaps the last two axes.
Array transpose(const Array& x);

}  // namespace longspan::test::naive
