#include "ops/elementwise.h"

#include <cmath>

#include "tests/harness/op_info.h"

namespace longspan::test {
namespace {

const std::vector<Sample> shapes = {
    {"rows", {randn({5, 7})}},     {"one", {randn({1})}},        {"rank 0", {randn({})}},
    {"empty", {randn({0, 3})}},    {"odd", {randn({3, 1, 17})}}, {"deep", {randn({2, 3, 2, 5})}},
    {"vectors", {randn({2, 33})}},
};

const Registered exp_info = OpInfo{
    .name = "exp",
    .run = [](Inputs in) { return exp(in[0]); },
    .reference = [](Arrays in) { return naive::map(in[0], [](double x) { return std::exp(x); }); },
    .samples = shapes,
    .large = {{"large", {randn({300, 257})}}},
    .rejects = {rejects<DTypeError>("integers", {iota({3})}, "floating")},
    .saved_bytes = [](Inputs in) { return std::vector<int64_t>{in[0].nbytes()}; },
    .row_inputs = {0},
};

}  // namespace
}  // namespace longspan::test
