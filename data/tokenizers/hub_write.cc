// Writes tokenizers as files of the packages tokenizers and transformers.
#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"
#include "data/io/files.h"
#include "data/tokenizers/hub_classes.h"
#include "data/tokenizers/hub_part.h"
#include "data/tokenizers/hub_tokenizer.h"

namespace longspan {
namespace {

std::string pipeline_of(const Json& normalizer, const Json& pre_tokenizer) {
  return canonical_form(normalizer) + "|" + canonical_form(pre_tokenizer);
}

Json member_of(const Json& json, const char* name) {
  const Json* value = json.find(name);
  return value == nullptr ? Json() : *value;
}

/// The rules for characters in a normalizer, or null.
Json rules_in(const Json& normalizer) {
  if (const Json* rules = normalizer.find("precompiled_charsmap")) return *rules;
  const Json* list = normalizer.find("normalizers");
  if (list == nullptr || !list->is_array()) return {};
  for (const Json& one : list->array()) {
    if (Json rules = rules_in(one); !rules.is_null()) return rules;
  }
  return {};
}

/// Whether a component puts a space before texts; otherwise null.
Json prefix_of(const Json& component) {
  if (const Json* prefix = component.find("add_prefix_space")) return *prefix;
  if (const Json* scheme = component.find("prepend_scheme"))
    return scheme->is_string() && scheme->string() != "never";
  const Json* list = component.find("pretokenizers");
  if (list == nullptr || !list->is_array()) return {};
  for (const Json& one : list->array()) {
    if (Json prefix = prefix_of(one); !prefix.is_null()) return prefix;
  }
  return {};
}

/// The settings of a class that its pipeline shows.
HubMembers shown_settings(const Json& file) {
  HubMembers settings;
  const Json normalizer = member_of(file, "normalizer");
  if (member_of(normalizer, "type") == Json("BertNormalizer")) {
    settings["do_lower_case"] = member_of(normalizer, "lowercase");
    settings["strip_accents"] = member_of(normalizer, "strip_accents");
    settings["tokenize_chinese_chars"] = member_of(normalizer, "handle_chinese_chars");
  }
  const Json prefix = prefix_of(member_of(file, "pre_tokenizer"));
  if (!prefix.is_null()) settings["add_prefix_space"] = prefix;
  return settings;
}

/// Names of special tokens by what they are called, for a tokenizer whose files do not say.
std::map<std::string, std::string> customary_names(const HubTokenizer& t) {
  const std::pair<const char*, std::vector<const char*>> customs[] = {
      {"unk_token", {"[UNK]", "<unk>", "<|endoftext|>"}},
      {"pad_token", {"[PAD]", "<pad>"}},
      {"cls_token", {"[CLS]", "<s>"}},
      {"sep_token", {"[SEP]", "</s>"}},
      {"bos_token", {"<s>", "<|endoftext|>"}},
      {"eos_token", {"</s>", "<|endoftext|>"}},
      {"mask_token", {"[MASK]", "<mask>"}}};
  std::map<std::string, std::string> names;
  for (const auto& [member, contents] : customs) {
    for (const char* content : contents) {
      const int32_t id = t.find(content);
      if (id < 0 || !t.is_special(id)) continue;
      names[member] = content;
      break;
    }
  }
  return names;
}

/// The class that makes this pipeline, or PreTrainedTokenizerFast, which takes the file as it is.
std::string class_for(const HubTokenizer& t, const Json& file, const HubMembers& settings) {
  const std::string& name = t.settings().tokenizer_class;
  const std::string family = hub_class_name(name);
  if (family.empty() || family == "?") return "PreTrainedTokenizerFast";
  const Json normalizer = member_of(file, "normalizer"),
             pre_tokenizer = member_of(file, "pre_tokenizer");
  const HubClass c = hub_class(family, settings, rules_in(normalizer), {});
  const bool same =
      pipeline_of(c.normalizer, c.pre_tokenizer) == pipeline_of(normalizer, pre_tokenizer);
  // Members of the model that the class does not set.
  const Json model = member_of(file, "model");
  const auto absent = [&](const char* member) {
    const Json value = member_of(model, member);
    return value.is_null() || value == Json(false) || value == Json("");
  };
  const bool plain = absent("byte_fallback") && absent("ignore_merges") &&
                     absent("end_of_word_suffix") &&
                     (family == "ReformerTokenizer" ||
                      (absent("fuse_unk") && (family == "BertTokenizer" || absent("unk_token"))));
  return same && plain ? name : "PreTrainedTokenizerFast";
}

/// A tokenizer.json with the template that a class would have.
Json with_template(const Json& file, const char* family, const Tokenizer& t) {
  std::map<std::string, int64_t> ids;
  for (const char* token : {"[CLS]", "[SEP]", "<s>", "</s>"}) {
    if (const int32_t id = t.find(token); id >= 0) ids[token] = id;
  }
  Members members;
  for (const JsonMember& member : file.object()) {
    if (member.name != "post_processor") members.push_back(member);
  }
  members.push_back({"post_processor", hub_class(family, {}, Json(), ids).post_processor});
  return members;
}

/// The tokenizer.json of a tokenizer of ours as one of a hub folder.
HubTokenizer as_hub(const Tokenizer& t) {
  Json file = t.hub_file();
  HubSettings settings;
  const Json kind = member_of(member_of(file, "model"), "type");
  const bool words = kind == Json("WordPiece"), level = !member_of(file, "pre_tokenizer").is_null();
  const bool ends = t.find("<s>") >= 0 && t.find("</s>") >= 0;
  if (words && t.find("[CLS]") >= 0 && t.find("[SEP]") >= 0) {
    settings.tokenizer_class = "BertTokenizer";
  } else if (kind == Json("BPE") && level && t.vocabulary() > 256) {
    settings.tokenizer_class = ends ? "RobertaTokenizer" : "GPT2Tokenizer";
  }
  if (!settings.tokenizer_class.empty())
    file = with_template(file, settings.tokenizer_class.c_str(), t);
  return HubTokenizer(file, std::move(settings), "the tokenizer");
}

void write(const HubTokenizer& t, const std::string& folder) {
  const Json file = t.json();
  HubMembers settings = shown_settings(file);
  const HubSettings& s = t.settings();
  for (const char* member : {"src_lang", "tgt_lang", "offset", "trim_offsets"}) {
    const auto at = s.others.find(member);
    if (at != s.others.end()) settings[member] = at->second;
  }
  Members config = {{"tokenizer_class", class_for(t, file, settings)}};
  for (const auto& [name, value] : settings) config.push_back({name, value});
  std::map<std::string, std::string> names = s.names.empty() ? customary_names(t) : s.names;
  for (const auto& [member, content] : names) {
    const auto at = s.others.find(member);
    const bool has_flags = at != s.others.end() && at->second.is_object();
    config.push_back({member, has_flags ? at->second : Json(content)});
  }
  if (!s.more_special.empty()) {
    Json::Array more;
    for (const std::string& token : s.more_special) more.emplace_back(token);
    config.push_back({"extra_special_tokens", std::move(more)});
  }
  if (s.model_max_length > 0) config.push_back({"model_max_length", s.model_max_length});
  config.push_back({"padding_side", s.pad_left ? "left" : "right"});
  config.push_back({"truncation_side", s.truncate_left ? "left" : "right"});
  config.push_back({"clean_up_tokenization_spaces", s.clean_up});
  make_folders(folder, detail::tokenizer_op);
  replace_file(folder + "/tokenizer.json", to_string(file) + "\n", detail::tokenizer_op);
  replace_file(folder + "/tokenizer_config.json", to_string(Json(config)) + "\n",
               detail::tokenizer_op);
}

}  // namespace

void write_hub_tokenizer(const Tokenizer& tokenizer, const std::string& folder) {
  if (const auto* hub = dynamic_cast<const HubTokenizer*>(&tokenizer)) return write(*hub, folder);
  write(as_hub(tokenizer), folder);
}

}  // namespace longspan
