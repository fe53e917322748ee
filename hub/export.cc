#include "hub/export.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "autograd/mode.h"
#include "core/error.h"
#include "data/io/files.h"
#include "nn/position.h"
#include "ops/copy.h"
#include "train/pretrained.h"
#include "train/state.h"

namespace longspan {
namespace {

constexpr const char* kExport = "export";

/// Fields that say how a model is trained or computed, and not what it computes.
constexpr std::array<std::string_view, 21> free_fields = {"memory",           "chunks",
                                                          "precision",        "loss_gradient",
                                                          "z_loss",           "init",
                                                          "init_std",         "init_residual_scale",
                                                          "position_init",    "embed_std",
                                                          "head_std",         "mask_id",
                                                          "random_seed",      "label_smoothing",
                                                          "position_std",     "globals",
                                                          "start_token",      "separator_id",
                                                          "constant_bias",    "padding_id",
                                                          "types_share_table"};

bool is_free(std::string_view name) {
  return std::find(free_fields.begin(), free_fields.end(), name) != free_fields.end();
}

int64_t count_of(const Json& fields, std::string_view name) {
  const Json* value = fields.find(name);
  return value != nullptr && value->is_integer() ? value->integer() : 0;
}

bool is_on(const Json& fields, std::string_view name) {
  const Json* value = fields.find(name);
  return value != nullptr && *value == Json(true);
}

/// Returns the tasks that a model's head may be for, the likeliest first.
std::vector<HubTask> tasks_of(const Json& fields) {
  if (is_on(fields, "span_head")) return {HubTask::spans};
  if (count_of(fields, "tags") > 0) return {HubTask::tags};
  if (count_of(fields, "classes") > 0) return {HubTask::classes, HubTask::choice};
  return {HubTask::sequence, HubTask::next_token, HubTask::masked_token, HubTask::hidden};
}

/// Returns the classes of a type that a model may be, the likeliest first.
std::vector<const HubArchitecture*> classes_for(const HubType& type, const Json& fields,
                                                const HubDescription& d) {
  std::vector<const HubArchitecture*> all;
  for (const HubArchitecture& c : type.classes) {
    const bool fits = !d.task || c.task == *d.task;
    if (fits && fmt::format("{}{}", type.class_name, c.name) == d.architecture) all.push_back(&c);
  }
  for (const HubTask task : d.task ? std::vector{*d.task} : tasks_of(fields)) {
    for (const HubArchitecture& c : type.classes) {
      if (c.task == task && c.without.empty()) all.push_back(&c);
    }
  }
  return all;
}

void set(Members& members, std::string_view name, const Json& value) {
  for (JsonMember& m : members) {
    if (m.name == name) {
      m.value = value;
      return;
    }
  }
  members.push_back({std::string(name), value});
}

void set_ids(Members& members, const HubIds& ids) {
  for (const auto& [name, id] : {std::pair{"bos_token_id", ids.begin},
                                 {"eos_token_id", ids.end},
                                 {"sep_token_id", ids.separator},
                                 {"decoder_start_token_id", ids.decoder_start}}) {
    if (id) set(members, name, Json(*id));
  }
  const bool has_pad = std::any_of(members.begin(), members.end(),
                                   [](const JsonMember& m) { return m.name == "pad_token_id"; });
  if (ids.pad && !has_pad) set(members, "pad_token_id", Json(*ids.pad));
}

/// Returns config.json of a type for a class.
Json config_for(const HubType& type, const HubArchitecture& c, const Json& fields,
                const HubDescription& d) {
  const Json keys = pretrained_json(type.members(fields));
  Members members{
      {"architectures", Json::Array{Json(fmt::format("{}{}", type.class_name, c.name))}}};
  for (const JsonMember& m : keys.object()) {
    const bool ours = m.name == "label_smoothing" || m.name == "id2label" || m.name == "label2id";
    if (!ours) members.push_back(m);
  }
  set(members, "model_type", Json(type.name));
  set(members, "dtype", Json("float32"));
  set_ids(members, d.ids);
  // The ids that a gpt2 has where its file is silent may be beyond a smaller vocabulary.
  constexpr int64_t default_id = 50256;
  if (type.name == "gpt2" && count_of(fields, "vocab") <= default_id) {
    if (!d.ids.begin) set(members, "bos_token_id", Json());
    if (!d.ids.end) set(members, "eos_token_id", Json());
  }
  const int64_t labels = c.task == HubTask::classes ? count_of(fields, "classes")
                         : c.task == HubTask::tags  ? count_of(fields, "tags")
                                                    : 0;
  if (labels == 0) return Json(std::move(members));
  Json::Array names;
  for (int64_t i = 0; i < labels; ++i) {
    const bool known = std::ssize(d.labels) == labels;
    names.push_back(known ? d.labels[static_cast<size_t>(i)] : fmt::format("LABEL_{}", i));
  }
  const Json named = pretrained_json(Json(Members{{"id2label", Json(std::move(names))}}));
  members.insert(members.end(), named.object().begin(), named.object().end());
  if (!d.problem_type.empty()) set(members, "problem_type", Json(d.problem_type));
  return Json(std::move(members));
}

/// Returns a field of a model; a dropout of -1 stands for the value of `dropout`.
Json value_of(const Json& fields, const JsonMember& m) {
  const Json* dropout = fields.find("dropout");
  const bool same = m.name.starts_with("dropout_") && m.value.is_number() && m.value.number() == -1;
  return same && dropout != nullptr ? *dropout : m.value;
}

/// Describes the fields to which a folder gives another value; empty if there are none.
std::string differences(const Json& ours, const Json& theirs) {
  std::vector<std::string> all;
  for (const JsonMember& m : ours.object()) {
    const Json* found = theirs.find(m.name);
    const Json value = value_of(ours, m);
    const Json other = found != nullptr ? value_of(theirs, {m.name, *found}) : Json();
    if (is_free(m.name) || other == value) continue;
    const bool close = other.is_number() && value.is_number() &&
                       static_cast<float>(other.number()) == static_cast<float>(value.number());
    if (close) continue;
    all.push_back(fmt::format("{} = {}, where it has {}", m.name, to_string(value),
                              found != nullptr ? to_string(other) : "none"));
  }
  return fmt::format("{}", fmt::join(all, ", "));
}

/// Returns `ours` with the members of `origin`: all if its class is the same, else all but members
/// about the head.
Json overlaid(const Json& ours, const Json& origin) {
  const Json* own = origin.find("architectures");
  const bool same_class = own != nullptr && *own == ours["architectures"];
  Members members = ours.object();
  for (const JsonMember& m : origin.object()) {
    bool of_head = false;
    for (const char* name :
         {"architectures", "id2label", "label2id", "num_labels", "problem_type", "model_type"}) {
      of_head = of_head || m.name == name;
    }
    if (!of_head || same_class) set(members, m.name, m.value);
  }
  return Json(std::move(members));
}

/// Returns a model's folder in a type. If the type cannot express the model, adds the reason to
/// `reasons` and returns nothing.
std::optional<HubFolder> as_type(const HubType& type, const Json& fields, const HubDescription& d,
                                 std::vector<std::string>& reasons) {
  std::string reason = "it has no class with this head";
  for (const HubArchitecture* const c : classes_for(type, fields, d)) {
    try {
      const Json ours = config_for(type, *c, fields, d);
      std::vector<Json> tries = {ours};
      if (d.origin.is_object()) tries.insert(tries.begin(), overlaid(ours, d.origin));
      for (const Json& members : tries) {
        HubFolder folder = hub_folder_of_members(members, "");
        folder.members = members;
        reason = differences(fields, folder.fields);
        if (reason.empty()) return folder;
      }
    } catch (const Error& error) {
      reason = error.what();
    }
  }
  reasons.push_back(fmt::format("{}: {}", type.name, reason));
  return {};
}

/// The tables of Pegasus, which its files hold.
void add_sinusoids(const HubFolder& folder, const Json& fields, TensorList& tensors) {
  if (folder.type->name != "pegasus") return;
  const Tensor rows = sinusoid(0, fields["n_max"].integer(), fields["d_model"].integer(),
                               SinusoidLayout::halves, DType::f32, {});
  for (const char* side : {"encoder", "decoder"}) {
    tensors.push_back({fmt::format("model.{}.embed_positions.weight", side), rows});
  }
}

/// The table that files of encoder-decoders have even where nothing is tied to it.
void add_shared(const HubFolder& folder, TensorList& tensors) {
  const std::string prefix(folder.format().prefix);
  const Tensor* table = nullptr;
  for (const NamedTensor& t : tensors) {
    if (t.name == prefix + "shared.weight") return;
    if (t.name == prefix + "decoder.embed_tokens.weight") table = &t.tensor;
  }
  if (table != nullptr) tensors.push_back({prefix + "shared.weight", *table});
}

/// Returns generation_config.json.
Json generation_of(const HubFolder& folder) {
  Members members{{"_from_model_config", true}};
  for (const char* name : {"bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id",
                           "forced_bos_token_id", "forced_eos_token_id"}) {
    if (const Json* value = folder.members.find(name)) members.push_back({name, *value});
  }
  return Json(std::move(members));
}

}  // namespace

HubFolder hub_folder_for(std::string_view model, const Json& fields, const HubDescription& d) {
  std::vector<std::string> reasons;
  for (const HubType& type : hub_types()) {
    const bool asked = d.type.empty() ? !type.by_name_alone : d.type == type.name;
    if (!asked || type.model != model) continue;
    if (std::optional<HubFolder> folder = as_type(type, fields, d, reasons)) return *folder;
  }
  require<NotImplemented>(!reasons.empty(), kExport,
                          "no type of the package transformers computes what {} does{}", model,
                          d.type.empty() ? "" : fmt::format(" and is called {}", d.type));
  fail<NotImplemented>(kExport,
                       "no type of the package transformers computes what this {} does:\n  {}",
                       model, fmt::join(reasons, "\n  "));
}

void write_hub_folder(const HubFolder& folder, Module& model, const std::string& path,
                      const TensorList& others) {
  const NoGrad off;
  TensorList tensors = others;
  const auto has = [&](const std::string& name) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const NamedTensor& t) { return t.name == name; });
  };
  const std::string_view prefix = folder.format().prefix;
  for (NamedTensor& t : hub_stored(folder, hub_named(folder, model))) {
    // A model without a head is not a part of another.
    if (folder.head->name == "Model" && t.name.starts_with(prefix)) t.name.erase(0, prefix.size());
    if (has(t.name)) continue;
    const Tensor x = contiguous(to_device(cast(t.tensor.detach(), DType::f32), {}));
    tensors.push_back({t.name, x});
  }
  add_sinusoids(folder, folder.fields, tensors);
  add_shared(folder, tensors);
  make_folders(path, kExport);
  write_tensors(path + "/model.safetensors", tensors, {{"format", "pt"}});
  replace_file(path + "/config.json", to_string(folder.members) + "\n", kExport);
  const HubTask task = folder.head->task;
  if (task == HubTask::next_token || task == HubTask::sequence) {
    replace_file(path + "/generation_config.json", to_string(generation_of(folder)) + "\n",
                 kExport);
  }
}

}  // namespace longspan
