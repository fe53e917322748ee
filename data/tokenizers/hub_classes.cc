#include "data/tokenizers/hub_classes.h"

#include <algorithm>
#include <utility>

#include "data/tokenizers/hub_part.h"

namespace longspan {
namespace {

constexpr const char* kMark = "\u2581";

const Json* find(const HubMembers& settings, const std::string& name) {
  const auto at = settings.find(name);
  return at == settings.end() || at->second.is_null() ? nullptr : &at->second;
}

bool flag(const HubMembers& settings, const std::string& name, bool otherwise) {
  const Json* value = find(settings, name);
  return value != nullptr && value->is_bool() ? value->boolean() : otherwise;
}

Json replace(const char* kind, const char* pattern, const char* content) {
  return Members{{"type", "Replace"}, {"pattern", Members{{kind, pattern}}}, {"content", content}};
}

Json sequence(const char* member, Json::Array parts) {
  return Members{{"type", "Sequence"}, {member, std::move(parts)}};
}

Json metaspace(bool prefix) {
  return Members{{"type", "Metaspace"},
                 {"replacement", kMark},
                 {"prepend_scheme", prefix ? "always" : "never"},
                 {"split", true}};
}

Json precompiled(const Json& rules) {
  return Members{{"type", "Precompiled"}, {"precompiled_charsmap", rules}};
}

/// Writes a template: "A" and "B" are the texts, 1 behind a name makes its type 1, other names are
/// special tokens.
Json template_of(const std::vector<std::string>& single, const std::vector<std::string>& pair,
                 const std::map<std::string, int64_t>& ids) {
  Members special;
  bool known = true;
  const auto parts = [&](const std::vector<std::string>& names) {
    Json::Array list;
    for (std::string name : names) {
      const bool second = name.ends_with(":1");
      if (second) name.resize(name.size() - 2);
      const int64_t type = second ? 1 : 0;
      if (name == "A" || name == "B") {
        list.push_back(Members{{"Sequence", Members{{"id", name}, {"type_id", type}}}});
        continue;
      }
      list.push_back(Members{{"SpecialToken", Members{{"id", name}, {"type_id", type}}}});
      const auto id = ids.find(name);
      known = known && id != ids.end();
      const bool is_new = std::none_of(special.begin(), special.end(),
                                       [&](const auto& m) { return m.name == name; });
      if (!is_new || id == ids.end()) continue;
      special.push_back({name, Members{{"id", name},
                                       {"ids", Json::Array{Json(id->second)}},
                                       {"tokens", Json::Array{Json(name)}}}});
    }
    return list;
  };
  Json::Array one = parts(single), two = parts(pair);
  if (!known) return {};
  return Members{{"type", "TemplateProcessing"},
                 {"single", std::move(one)},
                 {"pair", std::move(two)},
                 {"special_tokens", std::move(special)}};
}

Json word_piece_decoder() {
  return Members{{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
}

Json byte_level(bool prefix) {
  return Members{{"type", "ByteLevel"},
                 {"add_prefix_space", prefix},
                 {"trim_offsets", true},
                 {"use_regex", true}};
}

Json with_flags(const char* content) {
  return Members{{"content", content}, {"lstrip", true}, {"special", true}};
}

using Ids = std::map<std::string, int64_t>;

void fill_bert(HubClass& c, const HubMembers& s, const Ids& ids) {
  c.settings = {"do_lower_case", "strip_accents", "tokenize_chinese_chars"};
  const Json* accents = find(s, "strip_accents");
  c.normalizer = Members{{"type", "BertNormalizer"},
                         {"clean_text", true},
                         {"handle_chinese_chars", flag(s, "tokenize_chinese_chars", true)},
                         {"strip_accents", accents == nullptr ? Json() : *accents},
                         {"lowercase", flag(s, "do_lower_case", true)}};
  c.pre_tokenizer = Members{{"type", "BertPreTokenizer"}};
  c.decoder = word_piece_decoder();
  const std::string begin = content_of(c.tokens["cls_token"]),
                    end = content_of(c.tokens["sep_token"]);
  c.post_processor = template_of({begin, "A", end}, {begin, "A", end, "B:1", end + ":1"}, ids);
}

void fill_byte_level(HubClass& c, const HubMembers& s, const Ids& ids) {
  c.settings = {"add_prefix_space"};
  const bool prefix = flag(s, "add_prefix_space", false);
  c.pre_tokenizer = byte_level(prefix);
  c.decoder = byte_level(true);
  if (c.name != "RobertaTokenizer") return;
  const std::string begin = content_of(c.tokens["cls_token"]),
                    end = content_of(c.tokens["sep_token"]);
  if (ids.count(begin) == 0 || ids.count(end) == 0) return;
  c.post_processor = Members{{"type", "RobertaProcessing"},
                             {"sep", Json::Array{Json(end), Json(ids.at(end))}},
                             {"cls", Json::Array{Json(begin), Json(ids.at(begin))}},
                             {"trim_offsets", flag(s, "trim_offsets", true)},
                             {"add_prefix_space", prefix}};
}

/// XLM-RoBERTa, CamemBERT and mBART: words between white space.
void fill_words(HubClass& c, const HubMembers& s, const Json& rules, const Ids& ids) {
  const bool mbart = c.name == "MBartTokenizer";
  const bool prefix = mbart || flag(s, "add_prefix_space", true);
  if (!mbart) c.settings = {"add_prefix_space"};
  if (!mbart && !rules.is_null()) c.normalizer = precompiled(rules);
  c.pre_tokenizer =
      sequence("pretokenizers", {Members{{"type", "WhitespaceSplit"}}, metaspace(prefix)});
  c.decoder = metaspace(prefix);
  const std::string begin = content_of(c.tokens["bos_token"]),
                    end = content_of(c.tokens["eos_token"]);
  c.post_processor = template_of({begin, "A", end}, {begin, "A", end, end, "B", end}, ids);
  if (!mbart) return;
  const Json* language = find(s, "src_lang");
  const std::string code =
      language != nullptr && language->is_string() ? language->string() : "en_XX";
  c.post_processor = template_of({"A", end, code}, {"A", "B", end, code}, ids);
}

/// Pegasus, BigBird and Reformer: spaces are part of pieces.
void fill_pieces(HubClass& c, const HubMembers& s, const Json& rules, const Ids& ids) {
  const Json spaces = replace("Regex", " {2,}", " ");
  const std::string end = content_of(c.tokens["eos_token"]);
  bool prefix = true;
  if (c.name == "PegasusTokenizer") {
    c.normalizer =
        sequence("normalizers",
                 {rules.is_null() ? replace("Regex", "\\n", " ") : precompiled(rules), spaces});
    c.post_processor = template_of({"A", end}, {"A", "B", end}, ids);
  } else if (c.name == "BigBirdTokenizer") {
    c.settings = {"add_prefix_space"};
    prefix = flag(s, "add_prefix_space", true);
    c.normalizer = sequence(
        "normalizers", {Members{{"type", "Strip"}, {"strip_left", false}, {"strip_right", false}},
                        replace("Regex", " {2,}", kMark)});
    const std::string first = content_of(c.tokens["cls_token"]),
                      last = content_of(c.tokens["sep_token"]);
    c.post_processor = template_of({first, "A", last}, {first, "A", last, "B:1", last + ":1"}, ids);
  } else {
    if (!rules.is_null()) c.normalizer = sequence("normalizers", {precompiled(rules), spaces});
    c.post_processor = template_of({"A"}, {"A", "B:1"}, ids);
  }
  c.pre_tokenizer = metaspace(prefix);
  c.decoder = metaspace(prefix);
}

/// The special tokens of a class before settings.
std::map<std::string, Json> tokens_of(const std::string& name) {
  if (name == "BertTokenizer") {
    return {{"unk_token", "[UNK]"},
            {"sep_token", "[SEP]"},
            {"pad_token", "[PAD]"},
            {"cls_token", "[CLS]"},
            {"mask_token", "[MASK]"}};
  }
  if (name == "GPT2Tokenizer") {
    return {{"unk_token", "<|endoftext|>"},
            {"bos_token", "<|endoftext|>"},
            {"eos_token", "<|endoftext|>"}};
  }
  if (name == "PegasusTokenizer") {
    return {{"pad_token", "<pad>"},
            {"eos_token", "</s>"},
            {"unk_token", "<unk>"},
            {"mask_token", "<mask_2>"},
            {"mask_token_sent", "<mask_1>"}};
  }
  if (name == "ReformerTokenizer") return {{"eos_token", "</s>"}, {"unk_token", "<unk>"}};
  if (name == "BigBirdTokenizer") {
    return {{"unk_token", "<unk>"}, {"bos_token", "<s>"},   {"eos_token", "</s>"},
            {"pad_token", "<pad>"}, {"sep_token", "[SEP]"}, {"mask_token", with_flags("[MASK]")},
            {"cls_token", "[CLS]"}};
  }
  if (name.empty()) return {};
  const bool takes_space = name == "CamembertTokenizer" || name == "MBartTokenizer";
  return {{"bos_token", "<s>"},
          {"eos_token", "</s>"},
          {"sep_token", "</s>"},
          {"cls_token", "<s>"},
          {"unk_token", "<unk>"},
          {"pad_token", "<pad>"},
          {"mask_token", takes_space ? with_flags("<mask>") : Json("<mask>")}};
}

void append_canonical(const Json& json, std::string& to) {
  if (json.is_null()) return;
  for (const char* member : {"normalizers", "pretokenizers"}) {
    const Json* list = json.find(member);
    if (list == nullptr || !list->is_array()) continue;
    for (const Json& one : list->array()) append_canonical(one, to);
    return;
  }
  const auto text = [&](const char* name, const char* otherwise) {
    const Json* value = json.find(name);
    return value != nullptr && value->is_string() ? value->string() : std::string(otherwise);
  };
  const auto holds = [&](const char* name, bool otherwise) {
    const Json* value = json.find(name);
    return value != nullptr && value->is_bool() ? value->boolean() : otherwise;
  };
  const std::string type = text("type", "");
  if (type == "Metaspace") {
    const char* old = holds("add_prefix_space", true) ? "always" : "never";
    to += "Metaspace " + text("replacement", kMark) + text("prepend_scheme", old) +
          (holds("split", true) ? "" : " whole");
  } else if (type == "ByteLevel") {
    to += std::string("ByteLevel") + (holds("add_prefix_space", true) ? " prefix" : "") +
          (holds("use_regex", true) ? "" : " whole");
  } else if (type == "BertNormalizer") {
    const bool lower = holds("lowercase", true);
    to += std::string("Bert") + (holds("clean_text", true) ? " clean" : "") +
          (holds("handle_chinese_chars", true) ? " ideographs" : "") + (lower ? " lower" : "") +
          (holds("strip_accents", lower) ? " accents" : "");
  } else if (type == "Strip") {
    if (!holds("strip_left", true) && !holds("strip_right", true)) return;
    to += to_string(json);
  } else if (type == "Replace" && to_string(json).find("\"Regex\":\"\\n\"") != std::string::npos) {
    to += to_string(replace("Regex", "\\n", text("content", "").c_str()));
  } else {
    to += to_string(json);
  }
  to += '\n';
}

}  // namespace

std::string hub_class_name(std::string_view name) {
  if (name.ends_with("Fast")) name.remove_suffix(4);
  if (name.empty() || name == "PreTrainedTokenizer" || name == "TokenizersBackend") return "";
  const std::pair<std::string_view, std::vector<std::string_view>> families[] = {
      {"BertTokenizer",
       {"BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"}},
      {"GPT2Tokenizer", {"GPT2Tokenizer"}},
      {"RobertaTokenizer",
       {"RobertaTokenizer", "LongformerTokenizer", "LEDTokenizer", "BartTokenizer"}},
      {"XLMRobertaTokenizer", {"XLMRobertaTokenizer"}},
      {"CamembertTokenizer", {"CamembertTokenizer"}},
      {"MBartTokenizer", {"MBartTokenizer"}},
      {"PegasusTokenizer", {"PegasusTokenizer"}},
      {"BigBirdTokenizer", {"BigBirdTokenizer"}},
      {"ReformerTokenizer", {"ReformerTokenizer"}}};
  for (const auto& [family, names] : families) {
    if (std::find(names.begin(), names.end(), name) != names.end()) return std::string(family);
  }
  return "?";
}

std::string class_of_model_type(std::string_view type) {
  const std::pair<std::string_view, std::string_view> types[] = {
      {"bert", "BertTokenizer"},
      {"distilbert", "BertTokenizer"},
      {"electra", "BertTokenizer"},
      {"roberta", "RobertaTokenizer"},
      {"longformer", "RobertaTokenizer"},
      {"led", "RobertaTokenizer"},
      {"bart", "RobertaTokenizer"},
      {"gpt2", "GPT2Tokenizer"},
      {"xlm-roberta", "XLMRobertaTokenizer"},
      {"camembert", "CamembertTokenizer"},
      {"mbart", "MBartTokenizer"},
      {"pegasus", "PegasusTokenizer"},
      {"big_bird", "BigBirdTokenizer"},
      {"reformer", "ReformerTokenizer"}};
  for (const auto& [name, made] : types) {
    if (name == type) return std::string(made);
  }
  return "";
}

HubClass hub_class(const std::string& name, const HubMembers& settings, const Json& rules,
                   const std::map<std::string, int64_t>& ids) {
  HubClass c{.name = name};
  c.tokens = tokens_of(name);
  for (const auto& [member, value] : settings) {
    const bool token = member.ends_with("_token") || member == "mask_token_sent";
    if (token && (value.is_string() || value.is_object())) c.tokens[member] = value;
  }
  if (name == "BertTokenizer") {
    fill_bert(c, settings, ids);
  } else if (name == "GPT2Tokenizer" || name == "RobertaTokenizer") {
    fill_byte_level(c, settings, ids);
  } else if (name == "XLMRobertaTokenizer" || name == "CamembertTokenizer" ||
             name == "MBartTokenizer") {
    fill_words(c, settings, rules, ids);
  } else if (!name.empty()) {
    fill_pieces(c, settings, rules, ids);
  }
  return c;
}

std::string canonical_form(const Json& component) {
  std::string text;
  append_canonical(component, text);
  return text;
}

const std::vector<std::string>& mbart_languages() {
  static const std::vector<std::string> all = {
      "ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fi_FI", "fr_XX", "gu_IN",
      "hi_IN", "it_IT", "ja_XX", "kk_KZ", "ko_KR", "lt_LT", "lv_LV", "my_MM", "ne_NP",
      "nl_XX", "ro_RO", "ru_RU", "si_LK", "tr_TR", "vi_VN", "zh_CN"};
  return all;
}

}  // namespace longspan
