#include "models/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "autograd/mode.h"
#include "core/kernels/copy.h"
#include "core/scope.h"
#include "ops/copy.h"
#include "ops/index.h"
#include "ops/shape.h"

namespace longspan {
namespace {

constexpr const char* kStartFrom = "start_from";
constexpr std::string_view kGlobal = "_global.", kTable = "position.weight";
constexpr std::string_view kTokens = "embed.token.weight";

/// The sliding projection of a global one: "q.weight" of "q_global.weight"; returns other names
/// unchanged.
std::string sliding_of(std::string name) {
  const size_t at = name.find(kGlobal);
  if (at != std::string::npos) name.replace(at, kGlobal.size(), ".");
  return name;
}

std::map<std::string, Tensor> by_name(Module& module) {
  std::map<std::string, Tensor> result;
  for (const NamedTensor& p : named_state(module)) result[p.name] = p.tensor;
  return result;
}

/// Returns the parameter of that name, or else its sliding projection, or else nullptr.
const Tensor* find(const std::map<std::string, Tensor>& all, const std::string& name) {
  const auto own = all.find(name);
  const auto at = own != all.end() ? own : all.find(sliding_of(name));
  return at != all.end() ? &at->second : nullptr;
}

constexpr size_t kListed = 8;  // of a longer list of names

/// Lists the first names and the number of the others.
std::string listed(const std::vector<std::string>& names) {
  const size_t n = std::min(names.size(), kListed);
  const std::string first = fmt::format("{}", fmt::join(names.begin(), names.begin() + n, ", "));
  return names.size() > n ? fmt::format("{} and {} more", first, names.size() - n) : first;
}

/// Whether a parameter belongs to a task head, which models that predict tokens lack.
bool of_task(const std::string& name) {
  for (const std::string_view head : {"pool.", "classifier.", "classes.", "tags.", "spans.",
                                      "choice.", "span_block.", "span_norm."}) {
    if (name.starts_with(head)) return true;
  }
  return false;
}

/// Returns the rows that `old` and `table` share, taken from `old`, then the other rows of `table`.
Tensor kept_rows(const Tensor& old, const Tensor& table) {
  const int64_t n = table.dim(0), known = std::min(old.dim(0), n);
  const Tensor first = narrow(old, 0, 0, known);
  return known == n ? first : concat({first, narrow(table.detach(), 0, known, n - known)}, 0);
}

void write(Tensor& parameter, const Tensor& values) {
  kernels::copy(parameter.device(), contiguous(values).view(), parameter.mut());
}

/// Returns the name of the encoder parameter whose values a parameter of an encoder-decoder takes;
/// empty: none.
std::string encoder_name(std::string name) {
  constexpr std::string_view source = "embed.source_";
  const bool cross = name.starts_with("decoder.") && (name.find(".cross.") != std::string::npos ||
                                                      name.find(".norm2.") != std::string::npos);
  if (cross || name == "head.bias") return {};
  if (name.starts_with(source)) return "embed." + name.substr(source.size());
  for (const std::string_view side : {"encoder.", "decoder."}) {
    if (name.starts_with(side)) name = name.substr(side.size());
  }
  const size_t third = name.find(".norm3.");
  return third == std::string::npos ? name : name.replace(third, 7, ".norm2.");
}

/// How position tables are converted.
struct PositionRows {
  int64_t offset = 0;  // rows before position 0
  NewPositions beyond = NewPositions::repeat;
  int64_t dropped = 0;  // first rows of the source's table to skip
};

/// Copies to each parameter of `to` the parameter of `from` that `name_of` names.
void copy_values(TensorList to, Module& from, std::string (*name_of)(std::string),
                 const PositionRows& rows) {
  const NoGrad off;
  const std::map<std::string, Tensor> old = by_name(from);
  std::vector<std::string> missing;
  for (const NamedTensor& p : to) {
    if (find(old, name_of(p.name)) == nullptr) missing.push_back(p.name);
  }
  require(missing.empty(), kStartFrom, "the model to start from lacks {}", listed(missing));
  std::vector<Tensor> values;
  for (const NamedTensor& p : to) {
    const Tensor there = find(old, name_of(p.name))->detach();
    Tensor value = cast(to_device(there, p.tensor.device()), p.tensor.dtype());
    if (p.name.ends_with(kTable) && value.rank() == 2 && value.dim(1) == p.tensor.dim(1)) {
      require<ShapeError>(rows.dropped >= 0 && rows.dropped < value.dim(0), kStartFrom,
                          "{} has {} rows, of which {} cannot be dropped", p.name, value.dim(0),
                          rows.dropped);
      value = slice(value, 0, rows.dropped);
      value = rows.beyond == NewPositions::keep
                  ? kept_rows(value, p.tensor)
                  : extended_positions(value, rows.offset, p.tensor.dim(0) - rows.offset);
    }
    const bool more_tokens =
        p.name == kTokens && value.dim(0) < p.tensor.dim(0) && value.dim(1) == p.tensor.dim(1);
    if (more_tokens) value = kept_rows(value, p.tensor);
    require<ShapeError>(value.shape() == p.tensor.shape(), kStartFrom, "{} is {} here and {} there",
                        p.name, to_string(p.tensor.shape()), to_string(value.shape()));
    values.push_back(value);
  }
  for (size_t i = 0; i < values.size(); ++i) write(to[i].tensor, values[i]);
}

/// Returns the name of a parameter of an ETC in an encoder in the shape of BERT; empty: it has
/// none.
std::string lifted_name(std::string name) {
  const auto swap = [&](std::string_view from, std::string_view to) {
    const size_t at = name.find(from);
    if (at != std::string::npos) name.replace(at, from.size(), to);
    return at != std::string::npos;
  };
  if (name.starts_with("cpc.") || name.find(".relation_") != std::string::npos) return {};
  for (const char* s : {"long", "global"}) {
    swap(std::string("attention.") + s + ".", "attention.");
    swap(std::string("norm_") + s, name.starts_with("embed.") ? "norm" : "norm1");
    swap(std::string(s) + "_feed_forward.", "feed_forward.");
  }
  for (const char* p : {"l2l", "l2g", "g2g", "g2l"})
    swap(std::string("attention.") + p + ".", "attention.");
  swap("feed_forward.norm1", "norm2");
  swap("feed_forward.ff", "ff");
  return name;
}

void copy_into(NamedTensor& to, const NamedTensor& from, const Tensor& value) {
  if (to.tensor.shape() != value.shape() || to.tensor.dtype() != value.dtype()) {
    fail_with<ShapeError>("lift", "an encoder of another shape or dtype cannot be lifted",
                          {{to.name, to.tensor}, {from.name, from.tensor}});
  }
  kernels::copy(to.tensor.device(), value.view(), to.tensor.mut());
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

std::vector<std::string> start_from(Module& to, Module& from, int64_t position_offset,
                                    const StartOptions& options) {
  const auto same = [](std::string name) { return name; };
  const std::map<std::string, Tensor> old = by_name(from);
  TensorList known;
  std::vector<std::string> heads;
  std::set<std::string> buffers;
  for (const NamedTensor& b : named_buffers(to)) buffers.insert(b.name);
  for (const NamedTensor& p : named_state(to)) {
    const bool own = of_task(p.name) || buffers.contains(p.name);
    const bool drawn = options.new_heads && of_task(p.name) && !p.name.starts_with("pool.");
    if (drawn || (own && find(old, p.name) == nullptr)) {
      heads.push_back(p.name);
    } else {
      known.push_back(p);
    }
  }
  copy_values(std::move(known), from, same,
              {position_offset, options.beyond, options.dropped_rows});
  return heads;
}

std::vector<std::string> start_from_encoder(Module& to, Module& from, int64_t position_offset) {
  TensorList known;
  std::vector<std::string> others;
  for (const NamedTensor& p : named_state(to)) {
    if (encoder_name(p.name).empty()) {
      others.push_back(p.name);
    } else {
      known.push_back(p);
    }
  }
  copy_values(std::move(known), from, encoder_name, {.offset = position_offset});
  return others;
}

std::vector<std::string> lift(const TensorList& encoder, Module& model) {
  const Scope scope("lift");
  std::vector<std::string> kept;
  for (NamedTensor& p : named_parameters(model)) {
    const std::string source = lifted_name(p.name);
    const NamedTensor* found = nullptr;
    for (const NamedTensor& t : encoder) {
      if (t.name == source) found = &t;
    }
    if (p.name == "embed.type.weight") {
      if (found == nullptr) {
        kept.push_back(p.name);
        continue;
      }
      const Tensor& types = found->tensor;  // its first row is copied to all rows
      copy_into(p, *found, types.alias(p.tensor.shape(), Strides{0, types.strides()[1]}, 0));
      continue;
    }
    const bool own = source.empty() || p.name.starts_with("embed.projection") ||
                     p.name.starts_with("head.projection") ||
                     p.name.starts_with("embed.position") ||
                     p.name.starts_with("embed.global_position");
    if (own) {
      kept.push_back(p.name);
      continue;
    }
    require(found != nullptr, "lift", "\"{}\" needs \"{}\", which the encoder lacks", p.name,
            source);
    copy_into(p, *found, found->tensor);
  }
  return kept;
}

void copy_global_projections(Module& model) {
  const NoGrad off;
  const std::map<std::string, Tensor> parameters = by_name(model);
  for (const NamedTensor& p : named_parameters(model)) {
    const std::string name = sliding_of(p.name);
    Tensor target = p.tensor;
    if (name != p.name) write(target, parameters.at(name).detach());
  }
}

}  // namespace longspan
