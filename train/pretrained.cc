#include "train/pretrained.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "autograd/mode.h"
#include "core/error.h"
#include "ops/copy.h"
#include "ops/kernels/copy.h"
#include "train/files.h"
#include "train/state.h"

namespace longspan {
namespace {

constexpr const char* kOp = "checkpoint";
constexpr const char* kWeights = "model.safetensors";
constexpr const char* kConfig = "config.json";

std::string in_folder(const std::string& path, const char* file) {
  return kind_of_path(path, kOp) == PathKind::folder ? path + "/" + file : path;
}

bool listed(std::span<const std::string_view> parts, std::string_view name, auto matches) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](std::string_view p) { return matches(name, p); });
}

bool begins(std::string_view name, std::string_view part) { return name.starts_with(part); }
bool ends(std::string_view name, std::string_view part) { return name.ends_with(part); }

std::string_view without(std::string_view name, std::string_view prefix) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

/// What is wrong, a line each; at most `shown` of a kind.
class Faults {
 public:
  void add(std::string kind, const std::string& name) { of_kind_[std::move(kind)].push_back(name); }
  bool none() const { return of_kind_.empty(); }
  std::string text() const {
    constexpr size_t shown = 20;
    std::string text;
    for (const auto& [kind, names] : of_kind_) {
      text += fmt::format("\n  {} {}:", names.size(), kind);
      for (size_t i = 0; i < std::min(shown, names.size()); ++i) text += "\n    " + names[i];
      if (names.size() > shown) text += fmt::format("\n    and {} more", names.size() - shown);
    }
    return text;
  }

 private:
  std::map<std::string, std::vector<std::string>> of_kind_;
};

}  // namespace

void load_pretrained(const std::string& path, const TensorList& into,
                     const PretrainedNames& names) {
  const std::string file = in_folder(path, kWeights);
  const TensorList given = read_tensors(file);
  std::map<std::string_view, const Tensor*> found;
  for (const NamedTensor& t : given) found[without(t.name, names.prefix)] = &t.tensor;

  Faults faults;
  std::vector<std::pair<Tensor, Tensor>> copies;
  for (const NamedTensor& want : into) {
    const auto at = found.find(without(want.name, names.prefix));
    if (at == found.end()) {
      if (!listed(names.fresh, want.name, begins)) faults.add("missing", want.name);
      continue;
    }
    const Tensor& x = *at->second;
    found.erase(at);
    if (x.shape() != want.tensor.shape() || !is_floating(x.dtype())) {
      faults.add("of another kind",
                 fmt::format("{}: {} {}, expected {} {}", want.name, name_of(x.dtype()),
                             to_string(x.shape()), name_of(want.tensor.dtype()),
                             to_string(want.tensor.shape())));
      continue;
    }
    copies.emplace_back(want.tensor, x);
  }
  for (const auto& [name, tensor] : found) {
    if (!listed(names.unused, name, ends)) faults.add("unknown", std::string(name));
  }
  require<IoError>(faults.none(), kOp, "{} does not fit the model:{}", file, faults.text());

  const NoGrad off;
  for (auto& [to, from] : copies) {
    const Tensor x = to_device(cast(from, to.dtype()), to.device());
    kernels::copy(to.device(), x.view(), to.mut());
  }
}

void save_pretrained(const std::string& folder, const TensorList& tensors, const Json& config) {
  make_folders(folder, kOp);
  write_tensors(folder + "/" + kWeights, tensors, {{"format", "pt"}});
  replace_file(folder + "/" + kConfig, to_string(config) + "\n", kOp);
}

Settings read_pretrained_config(const std::string& path, const Json& known) {
  const std::string file = in_folder(path, kConfig);
  const Json given = parse_json(read_file(file, kOp));
  Settings settings;
  for (const JsonMember& m : given.object()) {
    const Json* ours = known.find(m.name);
    if (m.value.is_null() || ours == nullptr) continue;
    const bool alone = ours->is_array() && m.value.is_integer();  // a list of one, as num_buckets
    settings.push_back({m.name, alone ? Json(Json::Array{m.value}) : m.value, file});
  }
  return settings;
}

}  // namespace longspan
