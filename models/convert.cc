#include "models/convert.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

#include "autograd/mode.h"
#include "ops/copy.h"
#include "ops/index.h"
#include "ops/kernels/copy.h"

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

void start_from(Module& to, Module& from, int64_t position_offset) {
  const NoGrad off;
  const std::map<std::string, Tensor> old = by_name(from);
  TensorList fresh = named_parameters(to);
  std::vector<std::string> missing;
  std::vector<Tensor> values;
  for (const NamedTensor& p : fresh) {
    const auto at = old.find(source_of(p.name));
    if (at == old.end()) {
      missing.push_back(p.name);
      continue;
    }
    Tensor value = at->second.detach();
    if (p.name.ends_with(kTable)) {
      value = extended_positions(value, position_offset, p.tensor.dim(0) - position_offset);
    }
    require<ShapeError>(value.shape() == p.tensor.shape(), kOp, "{} is {} here and {} there",
                        p.name, to_string(p.tensor.shape()), to_string(value.shape()));
    values.push_back(cast(to_device(value, p.tensor.device()), p.tensor.dtype()));
  }
  require(missing.empty(), kOp, "the model to start from lacks {}", fmt::join(missing, ", "));
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
