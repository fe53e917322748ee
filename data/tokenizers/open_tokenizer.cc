// Tokenizers by name, and their settings in files of the transformers package.

#include <algorithm>
#include <filesystem>
#include <initializer_list>

#include "core/error.h"
#include "data/io/files.h"
#include "data/io/json.h"
#include "data/io/json_members.h"
#include "data/tokenizers/hub_part.h"
#include "data/tokenizers/hub_tokenizer.h"
#include "data/tokenizers/tokenizer.h"

namespace longspan {
namespace {

constexpr int32_t pegasus_offset = 103;

/// Settings of a tokenizer in tokenizer_config.json and config.json of a folder.
class FolderSettings {
 public:
  explicit FolderSettings(const std::string& folder)
      : file_(folder + "/tokenizer_config.json"), settings_(read(file_)) {
    const Json model = read_model(folder + "/config.json");
    kind_ = text(settings_, "tokenizer_class");
    if (kind_.empty()) kind_ = text(model, "tokenizer_class");
    if (kind_.empty() && text(model, "model_type").ends_with("pegasus")) kind_ = "PegasusTokenizer";
    if (kind_.ends_with("Fast")) kind_.resize(kind_.size() - 4);
  }

  const std::string& file() const { return file_; }
  bool pegasus() const { return kind_ == "PegasusTokenizer"; }
  const Json* find(const char* name) const {
    const Json* value = settings_.find(name);
    return value != nullptr && !value->is_null() ? value : nullptr;
  }
  bool flag(const char* name, bool otherwise) const {
    const Json* value = find(name);
    if (value == nullptr) return otherwise;
    require(value->is_bool(), detail::tokenizer_op, "{}: {} is {}; expected true or false", file_,
            name, to_string(*value));
    return value->boolean();
  }
  int32_t offset() const {
    const Json* value = find("offset");
    if (value == nullptr) return pegasus_offset;
    require(value->is_integer() && value->integer() >= 0 && value->integer() <= 1'000'000,
            detail::tokenizer_op, "{}: offset is {}; expected a number of ids", file_,
            to_string(*value));
    return static_cast<int32_t>(value->integer());
  }
  /// Throws ValueError if the files name a tokenizer class other than the compatible ones in
  /// `known`.
  void require_kind(std::initializer_list<std::string_view> known) const {
    const bool fits = kind_.empty() || std::find(known.begin(), known.end(), kind_) != known.end();
    if (fits) return;
    std::string names;
    for (const std::string_view name : known)
      names += (names.empty() ? "" : ", ") + std::string(name);
    fail(detail::tokenizer_op,
         "{} or config.json beside it names {}, which may give these files other ids; expected "
         "one of {}, or nothing",
         file_, kind_, names);
  }
  /// Throws ValueError unless a setting is absent or has this value.
  void require_only(const char* name, const Json& value, std::string_view why) const {
    const Json* given = find(name);
    require(given == nullptr || *given == value, detail::tokenizer_op,
            "{}: {} is {}; expected {}: {}", file_, name, given == nullptr ? "" : to_string(*given),
            to_string(value), why);
  }

 private:
  static Json read(const std::string& file) {
    if (kind_of_path(file, detail::tokenizer_op) == PathKind::nothing) return Json(Members{});
    return read_json_object(file, detail::tokenizer_op);
  }
  /// A file of that name may belong to another program, so an unreadable file is ignored.
  static Json read_model(const std::string& file) {
    try {
      return read(file);
    } catch (const IoError&) {
      return Json(Members{});
    }
  }
  static std::string text(const Json& json, const char* name) {
    const Json* value = json.find(name);
    return value != nullptr && value->is_string() ? value->string() : std::string();
  }

  std::string file_;
  Json settings_;
  std::string kind_;  // without "Fast"
};

std::unique_ptr<Tokenizer> byte_pairs_of(const std::string& folder) {
  const FolderSettings s(folder);
  s.require_kind({"GPT2Tokenizer", "RobertaTokenizer", "LongformerTokenizer", "LEDTokenizer",
                  "BartTokenizer"});
  return open_byte_pairs(folder + "/vocab.json", folder + "/merges.txt",
                         {.prefix_space = s.flag("add_prefix_space", false)});
}

/// Returns a token with a capital letter that does not begin with a bracket, or nothing.
std::string capital_token(const Tokenizer& t) {
  const auto capital = [](char c) { return c >= 'A' && c <= 'Z'; };
  for (int32_t id = 0; id < t.vocabulary(); ++id) {
    const std::string token = t.token(id);
    if (token[0] != '[' && std::any_of(token.begin(), token.end(), capital)) return token;
  }
  return {};
}

std::unique_ptr<Tokenizer> word_pieces_of(const std::string& path, const std::string& folder) {
  const FolderSettings s(folder);
  s.require_kind(
      {"BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"});
  const bool lower = s.flag("do_lower_case", true);
  s.require_only("strip_accents", lower, "accents go where capitals do");
  s.require_only("tokenize_chinese_chars", true, "each ideograph is a word");
  s.require_only("do_basic_tokenize", true, "texts are split into words first");
  std::unique_ptr<Tokenizer> tokenizer = open_word_pieces(path, {.lower_case = lower});
  if (s.find("do_lower_case") != nullptr) return tokenizer;
  const std::string capital = capital_token(*tokenizer);
  require(capital.empty(), detail::tokenizer_op,
          "{} has tokens with capital letters, such as \"{}\", and nothing says whether texts are "
          "put in lower case first; write {{\"do_lower_case\": false}} to {}, or true",
          path, capital, s.file());
  return tokenizer;
}

std::unique_ptr<Tokenizer> sentence_pieces_of(const std::string& path, const std::string& folder) {
  const FolderSettings s(folder);
  s.require_kind({"BigBirdTokenizer", "PegasusTokenizer", "ReformerTokenizer"});
  s.require_only("sp_model_kwargs", Json(Members{}), "pieces are not drawn");
  s.require_only("do_lower_case", false, "texts are taken as they are");
  return open_sentence_pieces(path, {.offset = s.pegasus() ? s.offset() : 0});
}

/// Where the settings of "FOLDER:NAME=VALUE,NAME=VALUE" begin; npos: there are none.
size_t settings_in(const std::string& name) {
  const size_t colon = name.rfind(':');
  if (colon == std::string::npos || name.find('=', colon) == std::string::npos ||
      name.find('/', colon) != std::string::npos ||
      kind_of_path(name, detail::tokenizer_op) != PathKind::nothing)
    return std::string::npos;
  return colon;
}

HubOptions options_of(std::string_view text) {
  HubOptions options;
  while (!text.empty()) {
    const size_t end = std::min(text.find(','), text.size());
    const std::string_view one = text.substr(0, end);
    const size_t equals = one.find('=');
    require(equals != std::string_view::npos && equals > 0, detail::tokenizer_op,
            "got the setting \"{}\"; expected NAME=VALUE, with commas between several", one);
    const std::string name(one.substr(0, equals)), value(one.substr(equals + 1));
    if (name == "special_in_text") {
      require(value == "true" || value == "false", detail::tokenizer_op,
              "special_in_text is \"{}\"; expected true or false", value);
      options.special_in_text = value == "true";
    } else {
      const bool is_new = options.settings.emplace(name, value).second;
      require(is_new, detail::tokenizer_op, "the setting {} is given twice", name);
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return options;
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace

std::string tokenizer_path(const std::string& name) { return name.substr(0, settings_in(name)); }

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name) {
  if (const size_t colon = settings_in(name); colon != std::string::npos) {
    const std::string folder = name.substr(0, colon);
    require(kind_of_path(folder, detail::tokenizer_op) == PathKind::folder, detail::tokenizer_op,
            "got settings for \"{}\", which is no folder; expected FOLDER:NAME=VALUE", folder);
    return open_hub_tokenizer(folder, options_of(std::string_view(name).substr(colon + 1)));
  }
  if (name == "bytes") return byte_tokenizer();
  if (name == "char27") return char27_tokenizer();
  const auto there = [&](const char* file) {
    return kind_of_path(name + "/" + file, detail::tokenizer_op) != PathKind::nothing;
  };
  if (kind_of_path(name, detail::tokenizer_op) == PathKind::folder) {
    if (there("tokenizer.json")) return open_hub_tokenizer(name);
    if (there("vocab.json") && there("merges.txt")) {
      return byte_pairs_of(name);
    }
    if (there("vocab.txt")) return word_pieces_of(name + "/vocab.txt", name);
    const std::string model = only_file(name, ".model");
    if (!model.empty()) return sentence_pieces_of(model, name);
    fail(detail::tokenizer_op,
         "the folder {} has no vocabulary; expected tokenizer.json, vocab.json and merges.txt, "
         "vocab.txt or one .model file",
         name);
  }
  if (name.ends_with(".model")) return sentence_pieces_of(name, folder_of(name));
  if (name.ends_with(".txt")) return word_pieces_of(name, folder_of(name));
  fail(detail::tokenizer_op,
       "got \"{}\"; expected bytes, char27, a SentencePiece file (.model), a WordPiece file "
       "(.txt), or a folder with tokenizer.json, vocab.json and merges.txt, vocab.txt or one "
       ".model file",
       name);
}

}  // namespace longspan
