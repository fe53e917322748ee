#include "models/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "autograd/mode.h"
#include "ops/copy.h"
#include "ops/index.h"
#include "ops/kernels/copy.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kOp = "start_from";
constexpr std::string_view kGlobal = "_global.", kTable = "position.weight";

/// The name whose values a parameter takes: "q_global.weight" those of "q.weight".
std::string source_of(std::string name) {
  const size_t at = name.find(kGlobal);
  if (at != std::string::npos) name.replace(at, kGlobal.size(), ".");
  return name;
}

std::map<std::string, Tensor> by_name(Module& module) {
  std::map<std::string, Tensor> result;
  for (const NamedTensor& p : named_parameters(module)) result[p.name] = p.tensor;
  return result;
}

constexpr size_t kListed = 8;  // of many names

/// The first names, and how many more there are.
std::string listed(const std::vector<std::string>& names) {
  const size_t n = std::min(names.size(), kListed);
  const std::string first = fmt::format("{}", fmt::join(names.begin(), names.begin() + n, ", "));
  return names.size() > n ? fmt::format("{} and {} more", first, names.size() - n) : first;
}

/// The rows of `old` that `table` has too, then those of `table`.
Tensor kept_positions(const Tensor& old, const Tensor& table) {
  const int64_t n = table.dim(0), known = std::min(old.dim(0), n);
  const Tensor first = narrow(old, 0, 0, known);
  return known == n ? first : concat({first, narrow(table.detach(), 0, known, n - known)}, 0);
}

void write(Tensor& parameter, const Tensor& values) {
  kernels::copy(parameter.device(), contiguous(values).view(), parameter.mut());
}

}  // namespace

Tensor extended_positions(const Tensor& old, int64_t offset, int64_t n_max) {
  const NoGrad off;
  require<ShapeError>(old.rank() == 2 && offset >= 0 && old.dim(0) > offset, "extended_positions",
                      "the table {} has no rows beyond the first {}", to_string(old.shape()),
                      offset);
  require(n_max >= 1, "extended_positions", "n_max is {}; expected 1 or more", n_max);
  const int64_t usable = old.dim(0) - offset;
  std::vector<int64_t> rows;
  for (int64_t r = 0; r < offset + n_max; ++r) {
    rows.push_back(r < offset ? r : offset + (r - offset) % usable);
  }
  const auto n = static_cast<int64_t>(rows.size());
  return take(old.detach(), Tensor::from(rows, {n}, old.device()));
}

void start_from(Module& to, Module& from, int64_t position_offset, NewPositions beyond,
                int64_t dropped_rows) {
  const NoGrad off;
  const std::map<std::string, Tensor> old = by_name(from);
  TensorList fresh = named_parameters(to);
  std::vector<std::string> missing;
  for (const NamedTensor& p : fresh) {
    if (!old.contains(source_of(p.name))) missing.push_back(p.name);
  }
  require(missing.empty(), kOp, "the model to start from lacks {}", listed(missing));
  std::vector<Tensor> values;
  for (const NamedTensor& p : fresh) {
    const Tensor there = old.at(source_of(p.name)).detach();
    Tensor value = cast(to_device(there, p.tensor.device()), p.tensor.dtype());
    if (p.name.ends_with(kTable) && value.rank() == 2 && value.dim(1) == p.tensor.dim(1)) {
      require<ShapeError>(dropped_rows >= 0 && dropped_rows < value.dim(0), kOp,
                          "{} has {} rows, of which {} cannot be dropped", p.name, value.dim(0),
                          dropped_rows);
      value = slice(value, 0, dropped_rows);
      value = beyond == NewPositions::keep
                  ? kept_positions(value, p.tensor)
                  : extended_positions(value, position_offset, p.tensor.dim(0) - position_offset);
    }
    require<ShapeError>(value.shape() == p.tensor.shape(), kOp, "{} is {} here and {} there",
                        p.name, to_string(p.tensor.shape()), to_string(value.shape()));
    values.push_back(value);
  }
  for (size_t i = 0; i < values.size(); ++i) write(fresh[i].tensor, values[i]);
}

void copy_global_projections(Module& model) {
  const NoGrad off;
  const std::map<std::string, Tensor> parameters = by_name(model);
  for (const NamedTensor& p : named_parameters(model)) {
    const std::string name = source_of(p.name);
    Tensor target = p.tensor;
    if (name != p.name) write(target, parameters.at(name).detach());
  }
}

}  // namespace longspan
