// The weights of a hub folder: model.safetensors, or the parts that model.safetensors.index.json
// lists.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "autograd/mode.h"
#include "core/error.h"
#include "data/io/files.h"
#include "hub/folder.h"
#include "ops/copy.h"
#include "ops/shape.h"
#include "train/state.h"

namespace longspan {
namespace {

constexpr const char* one_file = "model.safetensors";
constexpr const char* index_file = "model.safetensors.index.json";

/// The parameter names of a folder's class: its own names, then the names of its type.
struct ClassNames {
  explicit ClassNames(const HubFolder& folder);

  std::vector<NamePair> heads;
  std::deque<std::string> texts;
  std::vector<OtherName> unused;
  CheckpointFormat format;
};

ClassNames::ClassNames(const HubFolder& folder) : format(folder.format()) {
  const std::string_view prefix = format.prefix;
  heads.assign(folder.head->heads.begin(), folder.head->heads.end());
  heads.insert(heads.end(), format.heads.begin(), format.heads.end());
  unused.assign(format.unused.begin(), format.unused.end());
  const auto add = [&](std::string_view theirs) {
    if (theirs.starts_with(prefix)) theirs.remove_prefix(prefix.size());
    const bool whole = theirs.ends_with(".weight") || theirs.ends_with(".bias");
    for (const char* ending : {".weight", ".bias"}) {
      texts.push_back(std::string(theirs) + (whole ? "" : ending));
      unused.emplace_back(std::string_view(texts.back()));
    }
  };
  for (const NamePair& pair : format.heads) add(pair.theirs);
  for (const HubArchitecture& c : folder.type->classes) {
    for (const NamePair& pair : c.heads) add(pair.theirs);
  }
  format.heads = heads;
  format.unused = unused;
}

bool ends_with_one_of(std::string_view name, std::span<const std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

bool is_transposed(const HubType& type, const std::string& name) {
  return ends_with_one_of(name, type.transposed);
}

/// Returns LayerNorm.weight for LayerNorm.gamma, as old files call it, and LayerNorm.bias for beta.
std::string renamed(std::string name) {
  for (const auto& [old, now] : {std::pair{"LayerNorm.gamma", "LayerNorm.weight"},
                                 std::pair{"LayerNorm.beta", "LayerNorm.bias"}}) {
    if (name.ends_with(old))
      return name.substr(0, name.size() - std::string_view(old).size()) + now;
  }
  return name;
}

/// The files of the weights, with the tensors that an index says each has; no tensors: all.
std::map<std::string, std::set<std::string>> weight_files(const std::string& folder) {
  if (kind_of_path(folder + "/" + one_file, detail::hub_op) != PathKind::nothing)
    return {{one_file, {}}};
  const std::string path = folder + "/" + index_file;
  if (kind_of_path(path, detail::hub_op) == PathKind::nothing) {
    const bool old =
        kind_of_path(folder + "/pytorch_model.bin", detail::hub_op) != PathKind::nothing;
    require<IoError>(!old, detail::hub_op,
                     "{0} has pytorch_model.bin, which can run code when it is read; expected "
                     "safetensors. Convert it in Python:\n"
                     "  from transformers import AutoModel\n"
                     "  AutoModel.from_pretrained(\"{0}\").save_pretrained(\"{0}\")",
                     folder);
    fail<IoError>(detail::hub_op, "{} has neither {} nor {}", folder, one_file, index_file);
  }
  std::map<std::string, std::set<std::string>> files;
  try {
    const Json index = parse_json(read_file(path, detail::hub_op));
    for (const JsonMember& m : index["weight_map"].object()) {
      const std::string& file = m.value.string();
      require(!file.empty() && file.find('/') == std::string::npos && file != ".." && file != ".",
              detail::hub_op, "it has {} in \"{}\"; expected a file in the same folder", m.name,
              file);
      files[file].insert(m.name);
    }
  } catch (const ValueError& error) {
    fail<IoError>(detail::hub_op, "{}: {}", path, error.what());
  }
  require<IoError>(!files.empty(), detail::hub_op, "{} lists no tensors", path);
  return files;
}

/// Throws IoError that names the tensors which a file should have by the index and has not.
void require_listed(const std::string& path, std::set<std::string> listed,
                    const TensorHeader& header) {
  for (const TensorEntry& e : header.entries) listed.erase(e.name);
  require<IoError>(listed.empty(), detail::hub_op, "{} lacks {}, which {} says it has", path,
                   fmt::join(listed, ", "), index_file);
}

TensorList read_weights(const HubFolder& folder) {
  TensorList all;
  for (const auto& [file, listed] : weight_files(folder.path)) {
    const std::string path = folder.path + "/" + file;
    if (!listed.empty()) require_listed(path, listed, read_tensor_header(path));
    for (NamedTensor& t : read_tensors(path)) {
      if (ends_with_one_of(t.name, folder.type->ignored)) continue;
      t.name = renamed(std::move(t.name));
      if (is_transposed(*folder.type, t.name) && t.tensor.rank() == 2) {
        t.tensor = transpose(t.tensor);
      }
      all.push_back(std::move(t));
    }
  }
  return all;
}

std::string_view without_prefix(std::string_view name, std::string_view prefix) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}

/// The heads that fine-tuning draws.
bool is_new_head(std::string_view ours) {
  for (const std::string_view head :
       {"pool.", "classifier.", "classes.", "tags.", "spans.", "span_block.", "span_norm."}) {
    if (ours.starts_with(head)) return true;
  }
  return false;
}

/// Returns the storage of the head for tokens where the class has none.
std::set<const void*> unread_heads(const HubFolder& folder, Module& model) {
  const HubTask task = folder.head->task;
  std::set<const void*> unread;
  if (task == HubTask::masked_token || task == HubTask::next_token || task == HubTask::sequence) {
    return unread;
  }
  const TensorList parameters = named_parameters(model);
  for (const NamedTensor& p : parameters) {
    if (p.name.starts_with("head.")) unread.insert(p.tensor.view().data);
  }
  return unread;
}

/// Returns how many tensors are read, and which are drawn and left out.
HubTensors fate_of(const TensorList& tensors, const TensorList& named,
                   const CheckpointFormat& format) {
  std::set<std::string_view> there, wanted, copies;
  for (const NamedTensor& t : tensors) there.insert(without_prefix(t.name, format.prefix));
  for (const NamedTensor& t : named) wanted.insert(without_prefix(t.name, format.prefix));
  for (const OtherName& o : format.unused) {
    const bool dead = o.kind == OtherName::Kind::instead && there.contains(o.of);
    const bool known = !o.of.empty() || o.kind != OtherName::Kind::unused;
    if (known && !dead) copies.insert(o.name);
  }
  const auto is_dead = [&](std::string_view name) {
    return std::any_of(format.unused.begin(), format.unused.end(), [&](const OtherName& o) {
      return o.kind == OtherName::Kind::instead && o.name == name && there.contains(o.of) &&
             wanted.contains(o.of);
    });
  };
  HubTensors fate;
  for (const std::string_view name : wanted) {
    if (there.contains(name) && !is_dead(name)) {
      ++fate.read;
    } else if (!there.contains(name)) {
      fate.drawn.emplace_back(name);
    }
  }
  for (const std::string_view name : there) {
    const bool unread = !wanted.contains(name) && !copies.contains(name);
    if (unread || is_dead(name)) fate.left_out.emplace_back(name);
  }
  return fate;
}

/// Returns the shapes that a file has, by names without the prefix.
std::map<std::string, Shape> stored_shapes(const HubFolder& folder, const TensorList& named,
                                           std::string_view prefix) {
  std::map<std::string, Shape> shapes;
  for (const NamedTensor& t : named) {
    const std::string name(without_prefix(t.name, prefix));
    const auto [at, is_new] = shapes.try_emplace(name, t.tensor.shape());
    if (!is_new) at->second[0] += t.tensor.dim(0);
  }
  for (auto& [name, shape] : shapes) {
    if (is_transposed(*folder.type, name) && shape.rank() == 2) std::swap(shape[0], shape[1]);
  }
  return shapes;
}

}  // namespace

TensorList hub_named(const HubFolder& folder, Module& model) {
  const std::set<const void*> unread = unread_heads(folder, model);
  TensorList named = named_as(ClassNames(folder).format, model);
  std::erase_if(named, [&](const NamedTensor& t) { return unread.contains(t.tensor.view().data); });
  return named;
}

TensorList hub_left_out(const HubFolder& folder, const HubTensors& tensors) {
  const std::set<std::string_view> wanted(tensors.left_out.begin(), tensors.left_out.end());
  TensorList all;
  for (NamedTensor& t : read_weights(folder)) {
    if (!wanted.contains(without_prefix(t.name, folder.format().prefix))) continue;
    if (is_transposed(*folder.type, t.name)) t.tensor = contiguous(transpose(t.tensor));
    all.push_back(std::move(t));
  }
  return all;
}

HubTensors load_hub_weights(const HubFolder& folder, Module& model) {
  const NoGrad off;
  const ClassNames names(folder);
  const TensorList tensors = read_weights(folder);
  const std::string bad = first_nonfinite(tensors);
  require<IoError>(bad.empty(), detail::hub_op, "{}: \"{}\" holds NaN or infinity", folder.path,
                   bad);
  const TensorList parameters = named_parameters(model);
  const TensorList named = hub_named(folder, model);
  // What may be missing: heads that fine-tuning draws, and the bias of logits, a table of zeros
  // that some files leave out.
  std::set<const void*> optional;
  for (const NamedTensor& p : parameters) {
    if (is_new_head(p.name)) optional.insert(p.tensor.view().data);
  }
  std::vector<std::string> heads;
  for (const NamedTensor& t : named) {
    const bool zeros = t.name == "final_logits_bias";
    if (zeros || optional.contains(t.tensor.view().data)) heads.push_back(t.name);
  }
  const std::vector<std::string_view> fresh(heads.begin(), heads.end());
  load_pretrained(tensors, folder.path, named,
                  {.prefix = names.format.prefix, .unused = names.format.unused, .fresh = fresh});
  return fate_of(tensors, named, names.format);
}

void check_hub_shapes(const HubFolder& folder, const ModelSpec& spec) {
  const std::unique_ptr<LanguageModel> model = spec.build(Init{.meta = true});
  const ClassNames names(folder);
  const std::map<std::string, Shape> expected =
      stored_shapes(folder, named_as(names.format, *model), names.format.prefix);
  std::string faults;
  for (const auto& [file, listed] : weight_files(folder.path)) {
    const std::string path = folder.path + "/" + file;
    const TensorHeader header = read_tensor_header(path);
    if (!listed.empty()) require_listed(path, listed, header);
    for (const TensorEntry& e : header.entries) {
      const std::string name = renamed(e.name);
      const auto at = expected.find(std::string(without_prefix(name, names.format.prefix)));
      if (at == expected.end() || at->second == e.shape) continue;
      std::vector<std::string> members;
      for (const JsonMember& m : folder.members.object()) {
        for (int i = 0; i < std::min(at->second.rank(), e.shape.rank()); ++i) {
          if (m.value == Json(at->second[i]) && e.shape[i] != at->second[i]) {
            members.push_back(fmt::format("{} is {}", m.name, at->second[i]));
          }
        }
      }
      faults += fmt::format(
          "\n  {}: {}, expected {}{}", e.name, to_string(e.shape), to_string(at->second),
          members.empty() ? "" : fmt::format(", as {}", fmt::join(members, ", ")));
    }
  }
  require<IoError>(faults.empty(), detail::hub_op,
                   "{}: tensors of other shapes than config.json says:{}", folder.path, faults);
}

TensorList hub_stored(const HubFolder& folder, const TensorList& named) {
  TensorList whole;
  std::map<std::string, size_t> place;
  std::vector<std::vector<Tensor>> parts;
  for (const NamedTensor& t : named) {
    const auto [at, is_new] = place.try_emplace(t.name, whole.size());
    if (is_new) {
      whole.push_back(t);
      parts.emplace_back();
    }
    parts[at->second].push_back(t.tensor);
  }
  for (size_t i = 0; i < whole.size(); ++i) {
    Tensor& x = whole[i].tensor;
    if (parts[i].size() > 1) x = concat(parts[i], 0);
    if (is_transposed(*folder.type, whole[i].name)) x = contiguous(transpose(x));
  }
  return whole;
}

}  // namespace longspan
