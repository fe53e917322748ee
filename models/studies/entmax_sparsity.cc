#include "models/studies/entmax_sparsity.h"

#include "autograd/mode.h"
#include "core/error.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/entmax.h"
#include "ops/random.h"
#include "ops/reduce.h"

namespace longspan {

EntmaxSparsity entmax_sparsity(const Tensor& logits, double alpha) {
  require<ShapeError>(logits.rank() >= 1 && logits.numel() > 0, "entmax_sparsity",
                      "the logits have shape {}; expected rows with entries",
                      to_string(logits.shape()));
  const NoGrad off;
  const Tensor p = entmax(logits, alpha);
  const int64_t length = p.dim(-1);
  const auto count = static_cast<double>(p.numel());
  int64_t zeros = 0;
  for (const double x : contiguous(cast(p, DType::f64)).to_vector<double>()) {
    zeros += x == 0 ? 1 : 0;
  }
  EntmaxSparsity s;
  s.zeros = static_cast<double>(zeros) / count;
  s.keys = (count - static_cast<double>(zeros)) / count * static_cast<double>(length);
  s.largest = mean(cast(max(p, -1).values, DType::f64)).item();
  return s;
}

std::vector<EntmaxSparsityRow> study_entmax_sparsity(
    const EntmaxSparsityOptions& o, const std::function<void(const EntmaxSparsityRow&)>& each) {
  constexpr const char* op = "study_entmax_sparsity";
  require(o.rows >= 1, op, "{} rows; expected 1 or more", o.rows);
  for (const int64_t n : o.lengths) require(n >= 1, op, "a length of {}; expected 1 or more", n);
  for (const double s : o.scales) require(s >= 0, op, "a scale of {}; expected 0 or more", s);
  std::vector<EntmaxSparsityRow> all;
  for (const int64_t length : o.lengths) {
    const Generator gen = o.gen.fork(static_cast<uint64_t>(length));
    const Tensor logits = normal({o.rows, length}, gen, 0, 1, DType::f64);
    for (const double scale : o.scales) {
      for (const double alpha : o.alphas) {
        all.push_back({alpha, scale, length, entmax_sparsity(mul(logits, scale), alpha)});
        if (each) each(all.back());
      }
    }
  }
  return all;
}

}  // namespace longspan
