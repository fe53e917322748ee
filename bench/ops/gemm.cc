// Matrix products of a Transformer: y = x W^T (NT), dx = dy W (NN), dW = dy^T x (TN), and batches
// of small products.

#include <fmt/format.h>

#include "bench/harness.h"
#include "bench/kernels.h"
#include "core/kernels/matmul.h"
#include "ops/shape.h"

namespace longspan::bench {
namespace {

void add_product(int64_t batch, int64_t m, int64_t n, int64_t k, const std::string& layout) {
  const auto size = [batch](int64_t rows, int64_t columns) {
    return batch > 1 ? Shape{batch, rows, columns} : Shape{rows, columns};
  };
  const double elements = static_cast<double>(m * k + k * n + m * n);
  const Cost cost{2.0 * static_cast<double>(batch * m * n * k),
                  4.0 * static_cast<double>(batch) * elements};
  measure(fmt::format("gemm/{}x{}x{}x{}/{}/f32", batch, m, n, k, layout), cost, [=] {
    const bool at = layout[0] == 'T', bt = layout[1] == 'T';
    const Tensor a = values(at ? size(k, m) : size(m, k), 1);
    const Tensor b = values(bt ? size(n, k) : size(k, n), 2);
    return [a = at ? transpose(a) : a, b = bt ? transpose(b) : b,
            c = Tensor::empty(size(m, n))]() mutable {
      kernels::matmul(c.device(), a.view(), b.view(), c.mut(), kernels::no_epilogue);
    };
  });
}

}  // namespace

void add_gemm() {
  add_product(1, 32, 32, 64, "NT");
  add_product(1, 64, 64, 64, "NN");
  add_product(1, 128, 128, 64, "NT");
  add_product(1, 128, 64, 128, "NN");
  add_product(1, 4096, 64, 64, "NT");
  add_product(64, 64, 64, 64, "NN");
  for (const int64_t out : {256, 1024}) {
    for (const int64_t in : {256, 1024}) {
      add_product(1, 2048, out, in, "NT");
      add_product(1, 2048, in, out, "NN");
      add_product(1, out, in, 2048, "TN");
    }
  }
  for (const int64_t rows : {1, 2, 4}) {  // one token of each of a few sequences, as in generation
    add_product(1, rows, 1024, 256, "NT");
    add_product(1, rows, 256, 1024, "NT");
    add_product(1, rows, 4096, 1024, "NT");
  }
}

}  // namespace longspan::bench
