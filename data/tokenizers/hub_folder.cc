// Which files of a hub folder make its tokenizer.
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "core/error.h"
#include "data/io/base64.h"
#include "data/io/files.h"
#include "data/io/json_members.h"
#include "data/tokenizers/hub_classes.h"
#include "data/tokenizers/hub_part.h"
#include "data/tokenizers/hub_tokenizer.h"
#include "data/tokenizers/sentence_piece_model.h"
#include "data/unicode/unicode.h"

namespace longspan {
namespace {

constexpr int64_t largest_file = 1 << 30;

bool there(const std::string& path) {
  return kind_of_path(path, detail::tokenizer_op) == PathKind::file;
}

/// Reads an object; a missing file has no members.
Json read_object(const std::string& path) {
  return there(path) ? read_json_object(path, detail::tokenizer_op) : Members{};
}

std::string text_of(const Json* json) {
  return json != nullptr && json->is_string() ? json->string() : std::string();
}

/// A setting that was given on the command line: JSON, or text.
Json value_of(const std::string& text) {
  try {
    return parse_json(text);
  } catch (const ValueError&) {
    return Json(text);
  }
}

/// Throws ValueError unless settings are among those that count, and switches true, false or null.
void require_known(const std::map<std::string, std::string>& settings) {
  constexpr std::string_view known[] = {
      "tokenizer_class",  "do_lower_case",   "strip_accents",
      "add_prefix_space", "offset",          "tokenize_chinese_chars",
      "src_lang",         "tgt_lang",        "bos_token",
      "eos_token",        "unk_token",       "sep_token",
      "pad_token",        "cls_token",       "mask_token",
      "padding_side",     "truncation_side", "clean_up_tokenization_spaces",
      "model_max_length", "trim_offsets",    "split_special_tokens"};
  for (const auto& setting : settings) {
    require(std::ranges::find(known, setting.first) != std::end(known), detail::tokenizer_op,
            "there is no setting {}; expected one of {}, special_in_text", setting.first,
            fmt::join(known, ", "));
    constexpr std::string_view switches[] = {
        "do_lower_case",        "strip_accents", "tokenize_chinese_chars",      "add_prefix_space",
        "split_special_tokens", "trim_offsets",  "clean_up_tokenization_spaces"};
    const bool is_switch = std::ranges::find(switches, setting.first) != std::end(switches);
    const std::string& value = setting.second;
    require(!is_switch || value == "true" || value == "false" || value == "null",
            detail::tokenizer_op, "the setting {} is \"{}\"; expected true, false or null",
            setting.first, value);
  }
}

/// What the files say besides the vocabulary.
class Folder {
 public:
  Folder(const std::string& path, const HubOptions& options) : path_(path), options_(options) {
    require_known(options.settings);
    const Json config = read_object(path + "/tokenizer_config.json");
    for (const JsonMember& member : config.object()) given_[member.name] = member.value;
    const Json special = read_object(path + "/special_tokens_map.json");
    for (const JsonMember& member : special.object()) {
      if (given_.count(member.name) == 0) given_[member.name] = member.value;
    }
    for (const auto& [name, text] : options.settings) given_[name] = value_of(text);
    if (there(path + "/config.json")) {
      const Json model = read_object(path + "/config.json");
      model_class_ = text_of(model.find("tokenizer_class"));
      if (model_class_.empty())
        model_class_ = class_of_model_type(text_of(model.find("model_type")));
    }
    read_class();
    require_effect();
    read_settings();
  }

  /// The class by its family; "": tokenizer.json as it is.
  const std::string& family() const { return family_; }
  const HubMembers& given() const { return given_; }
  const std::string& path() const { return path_; }
  const HubOptions& options() const { return options_; }
  bool chosen(const std::string& name) const { return options_.settings.count(name) != 0; }
  HubSettings settings() const { return settings_; }
  const Json* find(const std::string& name) const {
    const auto at = given_.find(name);
    return at == given_.end() || at->second.is_null() ? nullptr : &at->second;
  }
  bool flag(const std::string& name, bool otherwise) const {
    const Json* value = find(name);
    if (value == nullptr) return otherwise;
    require(value->is_bool(), detail::tokenizer_op, "{} of {} is {}; expected true or false", name,
            path_, shown(*value));
    return value->boolean();
  }

 private:
  void read_class() {
    std::string name = text_of(find("tokenizer_class"));
    if (name.empty()) name = model_class_;
    family_ = hub_class_name(name);
    require(family_ != "?", detail::tokenizer_op,
            "{} is a {}, which may make another pipeline of these files; expected a class of "
            "docs/tokenizers.md, or --tokenizer {}:tokenizer_class=PreTrainedTokenizerFast to take "
            "tokenizer.json as it is",
            path_, name, path_);
    if (family_.empty() && !there(path_ + "/tokenizer.json")) {
      if (there(path_ + "/vocab.txt")) family_ = "BertTokenizer";
      if (there(path_ + "/vocab.json")) family_ = "GPT2Tokenizer";
    }
    settings_.tokenizer_class = name.ends_with("Fast") ? name.substr(0, name.size() - 4) : name;
  }

  /// Throws ValueError if a setting was chosen that the class does not read.
  void require_effect() const {
    const std::vector<std::string> read = hub_class(family_, given_, Json(), {}).settings;
    for (const char* name : {"do_lower_case", "strip_accents", "tokenize_chinese_chars",
                             "add_prefix_space", "offset", "src_lang", "tgt_lang"}) {
      const bool is_offset = std::string_view(name) == "offset",
                 is_language = std::string_view(name).ends_with("_lang");
      const bool used = is_offset     ? family_ == "PegasusTokenizer"
                        : is_language ? family_ == "MBartTokenizer"
                                      : std::ranges::find(read, name) != read.end();
      require(used || !chosen(name), detail::tokenizer_op, "{} changes nothing in {}, {}", name,
              path_,
              family_.empty() ? "whose tokenizer.json is taken as it is; name the class that reads "
                                "it too, with tokenizer_class=NAME"
                              : "a " + family_ + ", which does not read it; leave it out");
    }
  }

  void read_settings() {
    const auto side = [&](const char* name) {
      const std::string value = text_of(find(name));
      require(value.empty() || value == "left" || value == "right", detail::tokenizer_op,
              "{} of {} is \"{}\"; expected left or right", name, path_, value);
      return value == "left";
    };
    settings_.pad_left = side("padding_side");
    settings_.truncate_left = side("truncation_side");
    settings_.clean_up = flag("clean_up_tokenization_spaces", false);
    if (const Json* length = find("model_max_length")) {
      require(length->is_number() && length->number() >= 1, detail::tokenizer_op,
              "model_max_length of {} is {}; expected a number above 0", path_, shown(*length));
      // The package writes 10^30 if there is no limit.
      if (length->number() < 1e9)
        settings_.model_max_length = static_cast<int64_t>(length->number());
    }
    for (const char* list : {"additional_special_tokens", "extra_special_tokens"}) {
      const Json* tokens = find(list);
      if (tokens == nullptr) continue;
      if (tokens->is_object()) {
        for (const JsonMember& member : tokens->object()) given_.emplace(member.name, member.value);
        continue;
      }
      require(tokens->is_array(), detail::tokenizer_op, "{} of {} is {}; expected an array", list,
              path_, shown(*tokens));
      for (const Json& token : tokens->array()) more_.push_back(token);
    }
    for (const Json& token : more_) settings_.more_special.push_back(content_of(token));
    settings_.others = given_;
    const HubClass c = hub_class(family_, given_, Json(), {});
    for (const auto& [name, token] : c.tokens) {
      if (!content_of(token).empty()) settings_.names[name] = content_of(token);
    }
    tokens_ = c.tokens;
  }

 public:
  /// The special tokens by name, and those without one: strings, or objects with flags.
  std::vector<Json> special_tokens() const {
    std::vector<Json> all;
    for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                             "cls_token", "mask_token"}) {
      const auto at = tokens_.find(name);
      if (at != tokens_.end()) all.push_back(at->second);
    }
    for (const auto& named : tokens_) {
      const std::string content = content_of(named.second);
      const bool listed = std::any_of(all.begin(), all.end(),
                                      [&](const Json& t) { return content_of(t) == content; });
      if (!listed) all.push_back(named.second);
    }
    all.insert(all.end(), more_.begin(), more_.end());
    return all;
  }

 private:
  std::string path_;
  HubOptions options_;
  HubMembers given_;
  std::string model_class_, family_;
  HubSettings settings_;
  std::map<std::string, Json> tokens_;
  std::vector<Json> more_;
};

/// A tokenizer.json while it is put together.
class Draft {
 public:
  explicit Draft(const Json& file) {
    for (const JsonMember& member : file.object()) members_.push_back(member);
    const Json* added = file.find("added_tokens");
    if (added != nullptr && added->is_array()) added_ = added->array();
    if (added != nullptr && !added->is_array() && !added->is_null()) {
      fail<IoError>(detail::tokenizer_op,
                    "tokenizer.json is refused: added_tokens is {}; expected an array",
                    shown(*added));
    }
    const Json* model = file.find("model");
    const Json* vocabulary = model == nullptr ? nullptr : model->find("vocab");
    if (vocabulary != nullptr && vocabulary->is_object()) {
      for (const JsonMember& member : vocabulary->object()) {
        if (member.value.is_integer()) ids_.emplace(member.name, member.value.integer());
      }
      next_ = static_cast<int64_t>(vocabulary->object().size());
    } else if (vocabulary != nullptr && vocabulary->is_array()) {
      for (const Json& one : vocabulary->array()) {
        if (one.is_array() && !one.array().empty() && one.array()[0].is_string()) {
          ids_[one.array()[0].string()] = next_;
        }
        ++next_;
      }
    }
    for (const Json& token : added_) {
      const Json* id = token.find("id");
      if (id == nullptr || !id->is_integer()) continue;
      ids_.emplace(content_of(token), id->integer());
      next_ = std::max(next_, id->integer() + 1);
    }
  }

  const Json* find(std::string_view name) const {
    const auto at = std::find_if(members_.begin(), members_.end(),
                                 [&](const JsonMember& m) { return m.name == name; });
    return at == members_.end() ? nullptr : &at->value;
  }
  void set(const std::string& name, Json value) {
    const auto at = std::find_if(members_.begin(), members_.end(),
                                 [&](const JsonMember& m) { return m.name == name; });
    if (at == members_.end()) {
      members_.push_back({name, std::move(value)});
    } else {
      at->value = std::move(value);
    }
  }
  /// Adds a token, a string or an object with flags, unless one of that content is there.
  void add(const Json& token, bool special) {
    const std::string content = content_of(token);
    if (content.empty()) return;
    const bool known = std::any_of(added_.begin(), added_.end(),
                                   [&](const Json& t) { return content_of(t) == content; });
    if (known) return;
    const auto flag = [&](const char* name, bool otherwise) {
      const Json* value = token.find(name);
      return value != nullptr && value->is_bool() ? value->boolean() : otherwise;
    };
    const auto id = ids_.emplace(content, next_);
    if (id.second) ++next_;
    const bool is_special = flag("special", special);
    added_.push_back(Members{{"id", id.first->second},
                             {"content", content},
                             {"single_word", flag("single_word", false)},
                             {"lstrip", flag("lstrip", false)},
                             {"rstrip", flag("rstrip", false)},
                             {"normalized", flag("normalized", !is_special)},
                             {"special", is_special}});
  }
  const std::map<std::string, int64_t>& ids() const { return ids_; }
  Json json() {
    set("added_tokens", added_);
    return members_;
  }

 private:
  Members members_;
  Json::Array added_;
  std::map<std::string, int64_t> ids_;
  int64_t next_ = 0;
};

/// The rules for characters of a normalizer, or null.
Json rules_of(const Json* normalizer) {
  if (normalizer == nullptr) return {};
  if (text_of(normalizer->find("type")) == "Precompiled") {
    const Json* rules = normalizer->find("precompiled_charsmap");
    return rules == nullptr ? Json() : *rules;
  }
  const Json* list = normalizer->find("normalizers");
  if (list == nullptr || !list->is_array()) return {};
  for (const Json& one : list->array()) {
    if (text_of(one.find("type")) == "Precompiled") return rules_of(&one);
  }
  return {};
}

std::string pipeline_of(const HubClass& c) {
  return canonical_form(c.normalizer) + "|" + canonical_form(c.pre_tokenizer);
}

/// Returns settings under which the class makes the pipeline of the file, as "name=value" of those
/// that differ; nothing if there are none.
std::optional<std::string> remedy_for(const Folder& folder, const HubClass& c, const Json& rules,
                                      const std::string& wanted) {
  const std::vector<Json> values = {true, false, Json()};
  size_t combinations = 1;
  for (size_t i = 0; i < c.settings.size(); ++i) combinations *= values.size();
  std::optional<std::string> best;
  size_t fewest = SIZE_MAX;
  for (size_t k = 0; k < combinations; ++k) {
    HubMembers settings = folder.given();
    std::string text;
    size_t changed = 0, rest = k;
    for (const std::string& name : c.settings) {
      const Json& value = values[rest % values.size()];
      rest /= values.size();
      const Json* now = folder.find(name);
      if (value.is_null() ? now == nullptr : now != nullptr && *now == value) continue;
      settings[name] = value;
      ++changed;
      text += (text.empty() ? "" : ",") + fmt::format("{}={}", name, to_string(value));
    }
    if (changed >= fewest || pipeline_of(hub_class(folder.family(), settings, rules, {})) != wanted)
      continue;
    fewest = changed;
    best = text;
  }
  return best;
}

/// Compares the pipeline of tokenizer.json with that of the class, or replaces it if a setting was
/// chosen.
void settle_pipeline(const Folder& folder, Draft& draft) {
  if (folder.family().empty()) return;
  const Json nothing;
  const Json* normalizer = draft.find("normalizer");
  const Json* pre_tokenizer = draft.find("pre_tokenizer");
  const Json rules = rules_of(normalizer);
  const HubClass c = hub_class(folder.family(), folder.given(), rules, draft.ids());
  const Json* model = draft.find("model");
  const std::string kind = model == nullptr ? "" : text_of(model->find("type"));
  const bool level = c.name == "GPT2Tokenizer" || c.name == "RobertaTokenizer";
  const bool fits = c.name == "BertTokenizer" ? kind == "WordPiece"
                    : level                   ? kind == "BPE"
                                              : kind != "WordPiece";
  require(fits, detail::tokenizer_op,
          "{}/tokenizer.json is a {} model, and {} makes another kind; expected --tokenizer "
          "{}:tokenizer_class=PreTrainedTokenizerFast, which takes the file as it is",
          folder.path(), kind, c.name, folder.path());
  const bool chosen = folder.chosen("tokenizer_class") ||
                      std::any_of(c.settings.begin(), c.settings.end(),
                                  [&](const std::string& s) { return folder.chosen(s); });
  if (c.name == "MBartTokenizer" && folder.find("src_lang") != nullptr) {
    require(!c.post_processor.is_null(), detail::tokenizer_op,
            "src_lang of {} is {}, which is no token of its vocabulary", folder.path(),
            shown(*folder.find("src_lang")));
    draft.set("post_processor", c.post_processor);
  }
  const std::string wanted = canonical_form(normalizer == nullptr ? nothing : *normalizer) + "|" +
                             canonical_form(pre_tokenizer == nullptr ? nothing : *pre_tokenizer);
  if (pipeline_of(c) == wanted) return;
  if (chosen) {
    draft.set("normalizer", c.normalizer);
    draft.set("pre_tokenizer", c.pre_tokenizer);
    return;
  }
  const std::optional<std::string> remedy = remedy_for(folder, c, rules, wanted);
  std::string settings;
  for (const std::string& name : c.settings) {
    const Json* value = folder.find(name);
    settings += (settings.empty() ? "" : ", ") + name + " = " +
                (value == nullptr ? "its default" : to_string(*value));
  }
  fail(detail::tokenizer_op,
       "{}/tokenizer.json splits texts otherwise than {} does with {}, which is what the package "
       "transformers computes; choose {}--tokenizer {}:tokenizer_class=PreTrainedTokenizerFast for "
       "the file as it is, or --tokenizer {}:tokenizer_class={} for the class",
       folder.path(), c.name, settings.empty() ? "no settings" : settings,
       remedy ? fmt::format("--tokenizer {}:{} (which is the pipeline of the file), ",
                            folder.path(), *remedy)
              : "",
       folder.path(), folder.path(), c.name);
}

/// Tokens that a class makes special if the vocabulary has them.
std::vector<std::string> class_tokens(const std::string& family) {
  if (family == "MBartTokenizer") return mbart_languages();
  if (family == "CamembertTokenizer") return {"<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"};
  std::vector<std::string> all;
  for (int i = 2; family == "PegasusTokenizer" && i < 103; ++i)
    all.push_back(fmt::format("<unk_{}>", i));
  return all;
}

/// Adds the tokens that files name besides tokenizer.json.
void add_tokens(const Folder& folder, Draft& draft) {
  if (const Json* decoder = folder.find("added_tokens_decoder");
      decoder != nullptr && decoder->is_object()) {
    std::map<int64_t, Json> sorted;
    for (const JsonMember& member : decoder->object()) {
      const bool number = !member.name.empty() && member.name.size() < 10 &&
                          member.name.find_first_not_of("0123456789") == std::string::npos;
      require(number, detail::tokenizer_op,
              "added_tokens_decoder of {} has the id \"{}\"; expected a number", folder.path(),
              member.name);
      sorted.emplace(std::stoll(member.name), member.value);
    }
    for (const auto& [id, token] : sorted) {
      draft.add(token, false);
      const auto made = draft.ids().find(content_of(token));
      require(made == draft.ids().end() || made->second == id, detail::tokenizer_op,
              "added_tokens_decoder of {} gives \"{}\" the id {}; the vocabulary gives it {}",
              folder.path(), content_of(token), id, made == draft.ids().end() ? -1 : made->second);
    }
  }
  const Json old = read_object(folder.path() + "/added_tokens.json");
  std::vector<std::pair<int64_t, std::string>> by_id;
  for (const JsonMember& member : old.object()) {
    require<IoError>(member.value.is_integer(), detail::tokenizer_op,
                     "{}/added_tokens.json: \"{}\" is {}; expected an id", folder.path(),
                     member.name, shown(member.value));
    by_id.emplace_back(member.value.integer(), member.name);
  }
  std::sort(by_id.begin(), by_id.end());
  for (const auto& [id, content] : by_id) {
    draft.add(Json(content), false);
    require<IoError>(
        draft.ids().at(content) == id, detail::tokenizer_op,
        "{}/added_tokens.json gives \"{}\" the id {}; it follows the vocabulary with {}",
        folder.path(), content, id, draft.ids().at(content));
  }
  for (const Json& token : folder.special_tokens()) draft.add(token, true);
  for (const std::string& token : class_tokens(folder.family())) {
    if (draft.ids().count(token) != 0) draft.add(Json(token), true);
  }
}

Json file_with(Json model, const HubClass& c) {
  return Members{{"version", "1.0"},           {"truncation", Json()},
                 {"padding", Json()},          {"added_tokens", Json::Array{}},
                 {"normalizer", c.normalizer}, {"pre_tokenizer", c.pre_tokenizer},
                 {"post_processor", Json()},   {"decoder", c.decoder},
                 {"model", std::move(model)}};
}

std::vector<std::string> lines_of(const std::string& path) {
  const std::string file = read_file(path, detail::tokenizer_op, largest_file);
  require<IoError>(is_utf8(file), detail::tokenizer_op, "{} is no UTF-8", path);
  std::vector<std::string> lines;
  std::string_view rest = without_byte_order_mark(file);
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    lines.emplace_back(line);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return lines;
}

Json word_piece_model(const std::string& path, const std::string& unknown) {
  std::map<std::string, int64_t> last;  // of equal lines the last one counts
  const std::vector<std::string> lines = lines_of(path);
  for (size_t i = 0; i < lines.size(); ++i) last[lines[i]] = static_cast<int64_t>(i);
  Members vocabulary;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (last[lines[i]] == static_cast<int64_t>(i)) vocabulary.push_back({lines[i], i});
  }
  return Members{{"type", "WordPiece"},
                 {"unk_token", unknown},
                 {"continuing_subword_prefix", "##"},
                 {"max_input_chars_per_word", 100},
                 {"vocab", std::move(vocabulary)}};
}

Json byte_pair_model(const std::string& folder) {
  Json::Array merges;
  const std::vector<std::string> lines = lines_of(folder + "/merges.txt");
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty() || (i == 0 && lines[i].starts_with("#version"))) continue;
    merges.emplace_back(lines[i]);
  }
  return Members{
      {"type", "BPE"},
      {"vocab", read_json_object(folder + "/vocab.json", detail::tokenizer_op, largest_file)},
      {"merges", std::move(merges)}};
}

/// The vocabulary of a class made of the pieces of a SentencePiece model, and the id of <unk>.
std::pair<Json::Array, int64_t> pieces_of(const SentencePieceParts& parts, const HubClass& c,
                                          int64_t offset) {
  Json::Array all;
  const auto add = [&](const std::string& text, double score) {
    all.push_back(Json::Array{Json(text), Json(score)});
  };
  const auto token = [&](const char* name) {
    const auto at = c.tokens.find(name);
    return at == c.tokens.end() ? std::string() : content_of(at->second);
  };
  size_t first = 0;
  int64_t unknown = parts.unknown;
  if (c.name == "XLMRobertaTokenizer" || c.name == "MBartTokenizer") {
    for (const char* name : {"bos_token", "pad_token", "eos_token", "unk_token"})
      add(token(name), 0);
    first = unknown = 3;
  } else if (c.name == "CamembertTokenizer") {
    add("<s>NOTUSED", 0);
    add(token("pad_token"), 0);
    add("</s>NOTUSED", 0);
    add(token("unk_token"), 0);
    add("<unk>NOTUSED", -100);
    first = 1;
    unknown = 3;
  } else if (c.name == "PegasusTokenizer" && offset > 0) {
    for (const char* name : {"pad_token", "eos_token", "mask_token_sent", "mask_token"})
      add(token(name), 0);
    for (int64_t i = 2; i < offset; ++i) add(fmt::format("<unk_{}>", i), -100);
    first = 2;
    unknown = offset + 2;
  }
  for (size_t i = first; i < parts.pieces.size(); ++i)
    add(parts.pieces[i].text, static_cast<double>(parts.pieces[i].score));
  if (c.name == "MBartTokenizer") {
    for (const std::string& language : mbart_languages()) add(language, 0);
  }
  if (first == 3 || first == 1) add(token("mask_token"), 0);
  return {std::move(all), unknown};
}

Json sentence_piece_file(const Folder& folder, const std::string& path) {
  require(
      !folder.family().empty(), detail::tokenizer_op,
      "{} is a SentencePiece model, and no file says of which class; expected tokenizer_class in "
      "tokenizer_config.json, or --tokenizer {}:tokenizer_class=NAME",
      path, folder.path());
  const std::string file = read_file(path, detail::tokenizer_op, largest_file);
  require_sound_sentence_pieces(file, path);
  const SentencePieceParts parts = read_sentence_piece_parts(file, path);
  const Json rules = parts.rules.empty() ? Json() : Json(to_base64(parts.rules));
  const HubClass c = hub_class(folder.family(), folder.given(), rules, {});
  require<IoError>(parts.model == 1 || parts.model == 2, detail::tokenizer_op,
                   "{} is neither a unigram nor a BPE model", path);
  const bool pairs = c.name == "ReformerTokenizer";
  const bool fits = c.settings.empty() || c.settings[0] == "add_prefix_space";
  require(fits && c.name != "RobertaTokenizer" && c.name != "GPT2Tokenizer", detail::tokenizer_op,
          "{} is a SentencePiece model, and {} has another vocabulary", path, c.name);
  int64_t offset = 103;
  if (const Json* given = folder.find("offset")) {
    require(given->is_integer() && given->integer() >= 0 && given->integer() <= 1'000'000,
            detail::tokenizer_op, "offset of {} is {}; expected a number of ids", folder.path(),
            shown(*given));
    offset = given->integer();
  }
  Json model;
  if (pairs) {
    Members vocabulary;
    for (size_t i = 0; i < parts.pieces.size(); ++i)
      vocabulary.push_back({parts.pieces[i].text, i});
    model = Members{{"type", "BPE"},
                    {"unk_token", content_of(c.tokens.at("unk_token"))},
                    {"fuse_unk", true},
                    {"vocab", std::move(vocabulary)},
                    {"merges", sentence_piece_merges(parts)}};
  } else {
    auto [pieces, unknown] = pieces_of(parts, c, offset);
    model = Members{{"type", "Unigram"}, {"unk_id", unknown}, {"vocab", std::move(pieces)}};
  }
  Draft draft(file_with(std::move(model), c));
  for (const SentencePieceParts::Piece& piece : parts.pieces) {
    if (piece.kind != 3 && piece.kind != 4) continue;
    draft.add(Members{{"content", piece.text}, {"normalized", false}}, piece.kind == 3);
  }
  return draft.json();
}

/// The tokenizer.json of a folder that has none.
Json file_of(const Folder& folder) {
  const std::string& path = folder.path();
  const std::string& family = folder.family();
  if (there(path + "/vocab.txt") && (family == "BertTokenizer")) {
    const HubClass c = hub_class("BertTokenizer", folder.given(), Json(), {});
    return file_with(word_piece_model(path + "/vocab.txt", content_of(c.tokens.at("unk_token"))),
                     c);
  }
  const bool byte_level = family == "GPT2Tokenizer" || family == "RobertaTokenizer";
  if (there(path + "/vocab.json") && there(path + "/merges.txt") && byte_level) {
    const HubClass c = hub_class(family, folder.given(), Json(), {});
    return file_with(byte_pair_model(path), c);
  }
  const std::string model = only_file(path, ".model");
  if (!model.empty()) return sentence_piece_file(folder, model);
  fail<IoError>(
      detail::tokenizer_op,
      "the folder {} has no vocabulary{}; expected tokenizer.json, vocab.json and merges.txt, "
      "vocab.txt or one .model file",
      path, family.empty() ? "" : " for a " + family);
}

}  // namespace

std::unique_ptr<HubTokenizer> open_hub_tokenizer(const std::string& path,
                                                 const HubOptions& options) {
  const Folder folder(path, options);
  const std::string name = path + "/tokenizer.json";
  const bool whole = there(name);
  const Json file =
      whole ? read_json_object(name, detail::tokenizer_op, largest_file) : file_of(folder);
  Draft draft(file);
  if (whole) settle_pipeline(folder, draft);
  add_tokens(folder, draft);
  if (!whole) {
    draft.set("post_processor",
              hub_class(folder.family(), folder.given(), Json(), draft.ids()).post_processor);
  }
  const bool special = options.special_in_text && !folder.flag("split_special_tokens", false);
  return std::make_unique<HubTokenizer>(draft.json(), folder.settings(), whole ? name : path,
                                        special);
}

}  // namespace longspan
