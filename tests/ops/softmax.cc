#include "ops/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/harness/op_info.h"

namespace longspan::test {
namespace {

const std::vector<Sample> softmax_samples = {
    {"rows", {randn({5, 7})}},
    {"one column", {randn({3, 1})}},
    {"vector", {randn({9})}},
    {"deep", {randn({2, 3, 2, 5})}},
    {"vector and a bit", {randn({3, 17})}},
    {"two vectors and a bit", {randn({2, 37})}},
    {"long", {randn({2, 130})}},
    {"wide range", {5 * randn({4, 9})}},
    {"huge", {constant(1e4 * randn({4, 9}))}},
    {"masked", {constant(values({3, 3}, {-inf, 1, 2, -inf, -inf, -inf, 0, -inf, -inf}))}},
    // inf - inf is NaN, in which the whole row ends.
    {"infinite", {constant(values({3, 3}, {inf, 0, 1, -inf, 2, inf, 0, 1, 2}))}},
    {"empty", {randn({0, 3})}},
    {"no columns", {randn({3, 0})}},
};

const std::vector<Sample> large_softmax_samples = {{"large", {randn({300, 257})}},
                                                   {"rows", {randn({9, 5000})}}};

const std::vector<Sample> softmax_offset_samples = {{"rows", {2 * randn({5, 7})}},
                                                    {"two equal", {full({1, 2}, 0)}},
                                                    {"vectors and a bit", {2 * randn({2, 130})}}};

const std::vector<Reject> softmax_rejects = {
    rejects<ShapeError>("rank 0", {scalar(1)}, "rank 1"),
    rejects<DTypeError>("integers", {iota({3})}, "must be floating")};

const Registered softmax_info = OpInfo{
    .name = "softmax",
    .run = [](Inputs in) { return softmax(in[0]); },
    .reference =
        [](Arrays in) {
          return naive::rows(in[0], [](std::vector<double>& row) {
            double m = -inf, s = 0;
            for (const double x : row) m = std::max(m, x);
            for (double& x : row) s += x = m == -inf ? std::exp(x) : std::exp(x - m);
            for (double& x : row) x = s == 0 ? 0 : x / s;
          });
        },
    .samples = softmax_samples,
    .large = large_softmax_samples,
    .rejects = softmax_rejects,
    .saved_bytes = [](Inputs in) { return std::vector<int64_t>{in[0].nbytes()}; },
    .row_inputs = {0},
    .offset = {.inputs = {0}, .samples = softmax_offset_samples},
    .nan = {.inputs = {0}},
};

const Registered log_softmax_info = OpInfo{
    .name = "log_softmax",
    .run = [](Inputs in) { return log_softmax(in[0]); },
    .reference =
        [](Arrays in) {
          return naive::rows(in[0], [](std::vector<double>& row) {
            double m = -inf, s = 0;
            for (const double x : row) m = std::max(m, x);
            if (m == -inf) m = 0;
            for (const double x : row) s += std::exp(x - m);
            for (double& x : row) x = s == 0 ? x : x - m - std::log(s);
          });
        },
    .samples = softmax_samples,
    .large = large_softmax_samples,
    .rejects = softmax_rejects,
    .saved_bytes = [](Inputs in) { return std::vector<int64_t>{in[0].nbytes()}; },
    .row_inputs = {0},
    .offset = {.inputs = {0}, .samples = softmax_offset_samples},
    .nan = {.inputs = {0}},
    .gradient_tolerance = 4,
    .reason = "the derivative comes from y as stored",
};

}  // namespace
}  // namespace longspan::test
