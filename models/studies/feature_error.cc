#include "models/studies/feature_error.h"

#include <algorithm>
#include <cmath>

#include "autograd/mode.h"
#include "core/error.h"
#include "ops/attention/block_attention.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "ops/reduce.h"

namespace longspan {
namespace {

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  const size_t half = x.size() / 2;
  return x.size() % 2 == 1 ? x[half] : (x[half - 1] + x[half]) / 2;
}

bool approximates_softmax(FeatureMap map) {
  return map == FeatureMap::positive || map == FeatureMap::hyperbolic ||
         map == FeatureMap::trigonometric || map == FeatureMap::phase;
}

}  // namespace

OutputError feature_error(const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& projection, const LinearAttentionOptions& options) {
  require(!options.state.sums && !options.key_lengths && !options.hidden_keys, "feature_error",
          "got a state or masks; expected none");
  const NoGrad off;
  const Tensor out = cast(linear_attention(q, k, v, projection, options).out, DType::f64);
  const AttentionPattern pattern = options.causal ? patterns::causal() : patterns::dense();
  const Tensor exact = cast(block_attention(q, k, v, pattern).out, DType::f64);
  const Tensor wrong = sum(square(sub(out, exact)), {3}), whole = sum(square(exact), {3});
  return {std::sqrt(sum(wrong).item() / sum(whole).item()),
          median(contiguous(sqrt(div(wrong, whole))).to_vector<double>())};
}

void check_feature_errors(const FeatureErrorOptions& o) {
  constexpr const char* op = "features";
  require(o.length >= 1 && o.width >= 1 && o.draws >= 1, op,
          "length {}, width {}, draws {}; expected 1 or more of each", o.length, o.width, o.draws);
  for (const FeatureMap map : o.features) {
    require(approximates_softmax(map), op,
            "features {} approximate no softmax; expected positive, hyperbolic, trigonometric or "
            "phase",
            name_of_value(map));
    for (const int64_t n : o.counts) {
      const int64_t halves = kernels::feature_halves(map);
      require(n >= halves && n % halves == 0, op, "{} features {}; expected a multiple of {}", n,
              name_of_value(map), halves);
    }
  }
}

namespace {

/// Returns the errors of one draw.
OutputError error_of_draw(const FeatureErrorOptions& o, const FeatureErrorRow& row, int64_t draw) {
  const Generator gen = o.gen.fork(static_cast<uint64_t>(draw));
  const auto inputs = [&](const char* name, double deviation) {
    return normal({1, 1, o.length, o.width}, gen.fork(name), 0, deviation, DType::f64);
  };
  const Tensor q = inputs("q", row.deviation), k = inputs("k", row.deviation), v = inputs("v", 1);
  const int64_t rows = row.count / kernels::feature_halves(row.features);
  const Tensor projection = random_projection(rows, o.width, gen.fork("projection"), row.rows,
                                              ProjectionNorms::normal, DType::f64);
  LinearAttentionOptions options;
  options.features = row.features;
  options.causal = o.causal;
  if (row.features == FeatureMap::phase) {
    options.phase = random_phases(rows, gen.fork("phases"), DType::f64);
  }
  return feature_error(q, k, v, projection, options);
}

void measure(const FeatureErrorOptions& o, FeatureErrorRow& row) {
  const auto n = static_cast<double>(o.draws);
  std::vector<double> all;
  for (int64_t draw = 0; draw < o.draws; ++draw) {
    const OutputError e = error_of_draw(o, row, draw);
    all.push_back(e.all);
    row.mean += e.all / n;
    row.row += e.row / n;
  }
  row.median = median(all);
  double squares = 0;
  for (const double e : all) squares += (e - row.mean) * (e - row.mean);
  row.spread = o.draws > 1 ? std::sqrt(squares / (n - 1)) : 0;
}

}  // namespace

std::vector<FeatureErrorRow> study_feature_errors(
    const FeatureErrorOptions& o, const std::function<void(const FeatureErrorRow&)>& each) {
  check_feature_errors(o);
  std::vector<FeatureErrorRow> all;
  for (const double deviation : o.deviations) {
    for (const FeatureMap map : o.features) {
      for (const ProjectionRows rows : o.rows) {
        for (const int64_t count : o.counts) {
          FeatureErrorRow row{
              .deviation = deviation, .features = map, .rows = rows, .count = count};
          measure(o, row);
          all.push_back(row);
          if (each) each(row);
        }
      }
    }
  }
  return all;
}

}  // namespace longspan
