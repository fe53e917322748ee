// Ops along rows: softmax, norms, losses and reductions.

#include <fmt/format.h>

#include <vector>

#include "bench/harness.h"
#include "bench/kernels.h"
#include "ops/loss.h"
#include "ops/norm.h"
#include "ops/reduce.h"
#include "ops/softmax.h"

namespace longspan::bench {

void add_rows() {
  for (const int64_t rows : {2048, 32768}) {
    const int64_t n = 256;
    const double elements = static_cast<double>(rows * n);
    const std::string size = fmt::format("{}x{}/f32", rows, n);
    const auto x = [=] { return std::vector<Tensor>{values({rows, n}, 1, 4.0f)}; };
    const auto with_affine = [=] {
      return std::vector<Tensor>{values({rows, n}, 1, 4.0f), values({n}, 2), values({n}, 3)};
    };
    const auto with_targets = [=] {
      std::vector<int64_t> targets(static_cast<size_t>(rows));
      for (int64_t i = 0; i < rows; ++i) targets[static_cast<size_t>(i)] = i * 7919 % n;
      return std::vector<Tensor>{values({rows, n}, 1, 4.0f), Tensor::from(targets, {rows})};
    };
    const Cost one{.bytes = 4 * elements}, two{.bytes = 8 * elements},
        three{.bytes = 12 * elements};
    measure_op("softmax/" + size, two, three, x,
               [](const std::vector<Tensor>& in) { return softmax(in[0]); });
    measure_op("log_softmax/" + size, two, three, x,
               [](const std::vector<Tensor>& in) { return log_softmax(in[0]); });
    measure_op("layer_norm/" + size, two, three, with_affine,
               [](const std::vector<Tensor>& in) { return layer_norm(in[0], in[1], in[2]); });
    measure_op("rms_norm/" + size, two, three, with_affine,
               [](const std::vector<Tensor>& in) { return rms_norm(in[0], in[1]); });
    measure_op("cross_entropy/" + size, one, two, with_targets,
               [](const std::vector<Tensor>& in) { return cross_entropy(in[0], in[1]); });
    measure_op("sum of rows/" + size, one, one, x,
               [](const std::vector<Tensor>& in) { return sum(in[0], {1}); });
    measure_op("sum of columns/" + size, one, one, x,
               [](const std::vector<Tensor>& in) { return sum(in[0], {0}); });
    measure_op("logsumexp/" + size, one, two, x,
               [](const std::vector<Tensor>& in) { return logsumexp(in[0], 1); });
  }

  const int64_t tokens = 2048, model = 256;
  for (const int64_t classes : {256, 8192}) {
    const double products = 2.0 * static_cast<double>(tokens * model * classes);
    measure_op(
        fmt::format("linear_cross_entropy/{}x{}x{}/f32", tokens, model, classes),
        {.flops = products}, {.flops = 2 * products},
        [=] {
          std::vector<int64_t> targets(static_cast<size_t>(tokens));
          for (int64_t i = 0; i < tokens; ++i) {
            targets[static_cast<size_t>(i)] = i * 7919 % classes;
          }
          return std::vector<Tensor>{values({tokens, model}, 1), values({classes, model}, 2),
                                     Tensor::from(targets, {tokens})};
        },
        [](const std::vector<Tensor>& in) {
          return linear_cross_entropy(in[0], in[1], {}, in[2]);
        });
  }
}

}  // namespace longspan::bench
