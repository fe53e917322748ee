#pragma once

#include <functional>

#include "tests/harness/input_spec.h"

/// References in f64: plain loops, written from the formulas and for nothing but being obvious.
namespace longspan::test::naive {

/// y_i = f(x_i).
Array map(const Array& x, const std::function<double(double)>& f);
/// y_i = f(a_i, b_i), with broadcasting.
Array zip(const Array& a, const Array& b, const std::function<double(double, double)>& f);
/// The shape that two shapes broadcast to.
Shape broadcast(const Shape& a, const Shape& b);
/// x repeated to `shape`.
Array expand(const Array& x, const Shape& shape);
/// f over the axes with keep[axis] = false: called with the values that belong to one result, in
/// row-major order. Reduced axes stay with size 1 where `keepdim`.
Array reduce(const Array& x, const std::vector<bool>& keep, bool keepdim,
             const std::function<double(const std::vector<double>&)>& f);
/// f on every row (over the last axis), written in place.
Array rows(Array x, const std::function<void(std::vector<double>&)>& f);
/// [.., M, K] x [.., K, N] of equal leading axes.
Array matmul(const Array& a, const Array& b);
/// The last two axes swapped.
Array transpose(const Array& x);

}  // namespace longspan::test::naive
