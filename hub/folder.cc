#include "hub/folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "core/error.h"
#include "data/io/files.h"
#include "models/all/registry.h"
#include "train/pretrained.h"

namespace longspan {
namespace {

/// The members that say what the labels are, which ids are special and how numbers are stored: read
/// here for all types.
constexpr std::string_view common_members[] = {
    "architectures", "id2label", "label2id", "num_labels", "problem_type", "dtype", "torch_dtype"};
/// Members whose presence says that the files need other code than the type's.
constexpr std::pair<std::string_view, std::string_view> never[] = {
    {"quantization_config", "the weights are compressed; save them in a plain format"},
    {"auto_map", "the model has code of its own"},
};

/// Collects what is wrong with a config.json.
using Objections = std::vector<std::string>;

std::string join_types() {
  std::vector<std::string_view> names;
  for (const HubType& t : hub_types()) names.push_back(t.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

const HubType* find_type(std::string_view name) {
  for (const HubType& t : hub_types()) {
    if (t.name == name) return &t;
  }
  return nullptr;
}

const HubArchitecture* find_class(const HubType& type, std::string_view architecture) {
  if (!architecture.starts_with(type.class_name)) return nullptr;
  architecture.remove_prefix(type.class_name.size());
  for (const HubArchitecture& c : type.classes) {
    if (c.name == architecture) return &c;
  }
  return nullptr;
}

/// Returns the first of the architectures; empty if there is none. All others are refused.
std::string architecture_of(const Json& members, Objections& objections) {
  const Json* list = members.find("architectures");
  if (list == nullptr) return {};
  if (!list->is_array() || list->array().empty() || !list->array()[0].is_string()) {
    objections.push_back(
        fmt::format("architectures is {}; expected one name in brackets", to_string(*list)));
    return {};
  }
  if (list->array().size() > 1) {
    objections.push_back(
        fmt::format("architectures is {}; expected one: leave only that whose head you want",
                    to_string(*list)));
  }
  return list->array()[0].string();
}

/// Returns the type that model_type names, or the only one that has the architecture.
const HubType& type_of(const Json& members, const std::string& file,
                       const std::string& architecture) {
  if (const Json* name = members.find("model_type")) {
    require(name->is_string(), detail::hub_op, "{}: model_type is {}; expected one of {}", file,
            to_string(*name), join_types());
    const HubType* type = find_type(name->string());
    require(type != nullptr, detail::hub_op,
            "{}: this is {}, a type that is not here; expected one of {}", file, name->string(),
            join_types());
    return *type;
  }
  const HubType* found = nullptr;
  for (const HubType& t : hub_types()) {
    if (find_class(t, architecture) != nullptr) found = &t;
  }
  require(found != nullptr, detail::hub_op,
          "{} has no model_type, and its architectures ({}) do not say it; expected one of {}",
          file, architecture.empty() ? "absent" : architecture, join_types());
  return *found;
}

const HubArchitecture& class_of(const HubType& type, const std::string& architecture,
                                Objections& objections) {
  const HubArchitecture* found = find_class(type, architecture);
  if (found != nullptr) return *found;
  if (!architecture.empty()) {
    std::vector<std::string> names;
    for (const HubArchitecture& c : type.classes)
      names.push_back(fmt::format("{}{}", type.class_name, c.name));
    objections.push_back(fmt::format("architectures is [\"{}\"]; expected one of {}", architecture,
                                     fmt::join(names, ", ")));
  }
  return type.classes[0];
}

/// Returns the labels of "0" to "n - 1".
std::vector<std::string> labels_of(const Json& members, Objections& objections) {
  const Json* names = members.find("id2label");
  const Json* count = members.find("num_labels");
  std::vector<std::string> labels;
  if (names != nullptr && names->is_object()) {
    labels.resize(names->object().size());
    for (const JsonMember& m : names->object()) {
      size_t i = labels.size();
      std::from_chars(m.name.data(), m.name.data() + m.name.size(), i);
      if (i >= labels.size() || fmt::format("{}", i) != m.name || !m.value.is_string()) {
        objections.push_back(
            fmt::format("id2label has \"{}\": {}; expected names for \"0\" to \"{}\"", m.name,
                        to_string(m.value), static_cast<int64_t>(labels.size()) - 1));
        return {};
      }
      labels[i] = m.value.string();
    }
  } else if (names != nullptr) {
    objections.push_back(fmt::format("id2label is {}; expected an object", to_string(*names)));
    return {};
  }
  if (count == nullptr) return labels;
  const bool is_count = count->is_integer() && count->integer() >= 1 && count->integer() <= 1 << 20;
  if (!is_count || (!labels.empty() && std::ssize(labels) != count->integer())) {
    objections.push_back(fmt::format(
        "num_labels is {}; expected {}", to_string(*count),
        labels.empty() ? "1 or more" : fmt::format("{}, as id2label has", labels.size())));
    return labels;
  }
  for (int64_t i = std::ssize(labels); i < count->integer(); ++i) {
    labels.push_back(fmt::format("LABEL_{}", i));
  }
  return labels;
}

std::string problem_of(const Json& members, Objections& objections) {
  const Json* problem = members.find("problem_type");
  if (problem == nullptr) return {};
  for (const std::string_view known :
       {"single_label_classification", "multi_label_classification", "regression"}) {
    if (*problem == Json(known)) return std::string(known);
  }
  objections.push_back(
      fmt::format("problem_type is {}; expected \"single_label_classification\", "
                  "\"multi_label_classification\" "
                  "or \"regression\"",
                  to_string(*problem)));
  return {};
}

HubIds ids_of(const Json& members, Objections& objections) {
  HubIds ids;
  const std::pair<std::string_view, std::optional<int64_t>*> all[] = {
      {"pad_token_id", &ids.pad},
      {"bos_token_id", &ids.begin},
      {"eos_token_id", &ids.end},
      {"sep_token_id", &ids.separator},
      {"decoder_start_token_id", &ids.decoder_start},
  };
  for (const auto& [name, id] : all) {
    const Json* value = members.find(name);
    if (value == nullptr) continue;
    if (value->is_integer()) {
      *id = value->integer();
    } else {
      objections.push_back(fmt::format("{} is {}; expected one id", name, to_string(*value)));
    }
  }
  return ids;
}

/// Returns the members under their first names, without null members.
Json without_aliases(const Json& given, const HubType& type, Objections& objections) {
  Members members;
  for (const JsonMember& m : given.object()) {
    if (m.value.is_null()) continue;
    std::string_view name = m.name;
    for (const NamePair& alias : type.aliases) {
      if (alias.ours != m.name) continue;
      name = alias.theirs;
      const Json* other = given.find(name);
      if (other == nullptr || other->is_null()) break;
      if (!(*other == m.value)) {
        objections.push_back(
            fmt::format("{} is {}, and {}, which means the same, is {}; expected one of them",
                        m.name, to_string(m.value), name, to_string(*other)));
      }
      name = {};
    }
    if (!name.empty()) members.push_back({std::string(name), m.value});
  }
  return Json(std::move(members));
}

/// Returns the members that the fields of the model come from.
Json without_common(const Json& members) {
  Members rest;
  for (const JsonMember& m : members.object()) {
    const auto is_name = [&](std::string_view name) { return name == m.name; };
    if (std::none_of(std::begin(common_members), std::end(common_members), is_name)) {
      rest.push_back(m);
    }
  }
  return Json(std::move(rest));
}

void object_to_never(const Json& members, Objections& objections) {
  for (const auto& [name, why] : never) {
    if (const Json* value = members.find(name)) {
      objections.push_back(
          fmt::format("{} is {}; expected none: {}", name, to_string(*value), why));
    }
  }
}

}  // namespace

std::unique_ptr<ModelSpec> HubFolder::spec() const {
  std::unique_ptr<ModelSpec> spec = find_model(type->model);
  Settings settings;
  for (const JsonMember& m : fields.object()) {
    settings.push_back({m.name, m.value, path + "/config.json"});
  }
  set_fields(*spec, settings);
  return spec;
}

const CheckpointFormat& HubFolder::format() const {
  return type->format_of != nullptr ? type->format_of(fields) : *type->format;
}

bool is_hub_folder(const std::string& path) {
  return kind_of_path(path, detail::hub_op) == PathKind::folder &&
         kind_of_path(path + "/config.json", detail::hub_op) == PathKind::file &&
         kind_of_path(path + "/config.toml", detail::hub_op) == PathKind::nothing;
}

HubFolder read_hub_folder(const std::string& path) {
  return hub_folder_of_members(read_pretrained_json(path + "/config.json"), path);
}

HubFolder hub_folder_of_members(const Json& given, const std::string& path) {
  const std::string file = path + "/config.json";
  HubFolder folder;
  Objections objections;
  const std::string architecture = architecture_of(given, objections);
  folder.path = path;
  folder.type = &type_of(given, file, architecture);
  folder.head = &class_of(*folder.type, architecture, objections);
  folder.members = without_aliases(given, *folder.type, objections);
  folder.labels = labels_of(folder.members, objections);
  folder.problem_type = problem_of(folder.members, objections);
  folder.ids = ids_of(folder.members, objections);
  object_to_never(folder.members, objections);
  const bool labelled = folder.head->task == HubTask::classes || folder.head->task == HubTask::tags;
  if (labelled && folder.labels.empty()) folder.labels = {"LABEL_0", "LABEL_1"};  // the default
  const Json rest = without_common(folder.members);
  try {
    folder.fields = folder.type->fields(
        {rest, file, folder.head->task, std::ssize(folder.labels), folder.type->only, objections});
  } catch (const ValueError& error) {
    objections.emplace_back(error.what());
  }
  require(objections.empty(), detail::hub_op,
          "{}: this is {}, and it says what the model here would not do:\n  {}", file,
          folder.type->name, fmt::join(objections, "\n  "));
  return folder;
}

HubFolder with_hub_head(const HubFolder& folder, HubTask head) {
  if (folder.head->task == head) return folder;
  for (const HubArchitecture& c : folder.type->classes) {
    if (c.task != head || !c.without.empty()) continue;
    Members members;
    for (const JsonMember& m : folder.members.object()) {
      if (m.name != "architectures") members.push_back(m);
    }
    const std::string name = fmt::format("{}{}", folder.type->class_name, c.name);
    members.emplace_back("architectures", Json::Array{Json(name)});
    return hub_folder_of_members(Json(std::move(members)), folder.path);
  }
  return folder;
}

std::unique_ptr<LanguageModel> build_loaded(const HubFolder& folder, const ModelSpec& spec,
                                            const Init& init, HubTensors& tensors) {
  Init blank = init;
  blank.blank = true;
  std::unique_ptr<LanguageModel> model = spec.build(blank);
  tensors = load_hub_weights(folder, *model);
  if (tensors.drawn.empty()) return model;
  model.reset();
  model = spec.build(init);
  tensors = load_hub_weights(folder, *model);
  return model;
}

LoadedHubFolder load_hub_folder(const std::string& path, std::optional<HubTask> head,
                                int64_t outputs, Generator gen) {
  LoadedHubFolder loaded;
  loaded.folder = read_hub_folder(path);
  if (head) {
    loaded.folder = with_hub_head(loaded.folder, *head);
    require(loaded.folder.head->task == *head, detail::hub_op,
            "{}: no class of {} that is read here has this head", path, loaded.folder.type->name);
  }
  if (head && (*head == HubTask::classes || *head == HubTask::tags) && outputs > 0) {
    Members fields;
    const char* const count = *head == HubTask::classes ? "classes" : "tags";
    for (const JsonMember& m : loaded.folder.fields.object()) {
      fields.emplace_back(m.name, m.name == count ? Json(outputs) : m.value);
    }
    loaded.folder.fields = Json(std::move(fields));
    loaded.folder.labels.clear();
  }
  loaded.spec = loaded.folder.spec();
  check_hub_shapes(loaded.folder, *loaded.spec);
  loaded.model = build_loaded(loaded.folder, *loaded.spec, Init{.gen = gen}, loaded.tensors);
  return loaded;
}

}  // namespace longspan
