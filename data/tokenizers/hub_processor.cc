#include "data/tokenizers/hub_processor.h"

#include <algorithm>
#include <array>

#include "data/unicode/unicode.h"

namespace longspan {
namespace {

/// The special tokens of a template by their names there.
using Names = std::vector<std::pair<std::string, std::vector<int32_t>>>;

bool fits_id(const Json& id, int64_t limit) {
  return id.is_integer() && id.integer() >= 0 && id.integer() < limit;
}

Names special_tokens(HubPart& part, int64_t limit) {
  Names names;
  const Json* map = part.find("special_tokens");
  if (map == nullptr || !map->is_object()) return names;
  for (const JsonMember& member : map->object()) {
    HubPart one(member.value, part.path() + ".special_tokens." + member.name, part.issues());
    one.text("id", "");
    one.list("tokens");
    std::vector<int32_t> ids;
    for (const Json& id : one.list("ids")) {
      if (fits_id(id, limit)) {
        ids.push_back(static_cast<int32_t>(id.integer()));
      } else {
        one.refuse("ids", fmt::format("expected ids below {}", limit));
      }
    }
    one.finish();
    names.emplace_back(member.name, std::move(ids));
  }
  return names;
}

std::vector<HubTemplatePart> template_of(HubPart& part, const char* name, const Names& names) {
  std::vector<HubTemplatePart> out;
  const std::vector<Json> list = part.list(name);
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string path = fmt::format("{}.{}[{}]", part.path(), name, i);
    const Json* text = list[i].find("Sequence");
    const Json* token = list[i].find("SpecialToken");
    if (text == nullptr && token == nullptr) {
      part.issues().add("{} is {}; expected a Sequence or a SpecialToken", path, shown(list[i]));
      continue;
    }
    HubPart one(text != nullptr ? *text : *token, path, part.issues());
    const std::string id = one.text("id", "");
    HubTemplatePart made{.type = static_cast<int32_t>(one.integer("type_id", 0))};
    one.finish();
    if (text != nullptr) {
      made.sequence = id == "B" ? 1 : 0;
      if (id != "A" && id != "B")
        part.issues().add("{} is the text \"{}\"; expected A or B", path, id);
    } else {
      const auto at =
          std::find_if(names.begin(), names.end(), [&](const auto& n) { return n.first == id; });
      if (at == names.end()) {
        part.issues().add("{} is \"{}\", which special_tokens does not have", path, id);
      } else {
        made.ids = at->second;
      }
    }
    out.push_back(std::move(made));
  }
  return out;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

void decode_word_pieces(std::vector<std::string>& tokens, const std::string& prefix, bool cleanup) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::string& token = tokens[i];
    const bool inside = token.substr(0, prefix.size()) == prefix;
    if (i > 0 && inside) token.erase(0, prefix.size());
    if (i > 0 && !inside) token.insert(0, 1, ' ');
    if (!cleanup) continue;
    for (const auto& [from, to] : {std::pair{" .", "."},
                                   {" ?", "?"},
                                   {" !", "!"},
                                   {" ,", ","},
                                   {" ' ", "'"},
                                   {" n't", "n't"},
                                   {" 'm", "'m"},
                                   {" do not", " don't"},
                                   {" 's", "'s"},
                                   {" 've", "'ve"},
                                   {" 're", "'re"}}) {
      replace_all(token, from, to);
    }
  }
}

/// The byte that each character of byte-level BPE stands for; -1: none.
int byte_of(int32_t c) {
  if (c < 0x100) return (c >= '!' && c <= '~') || (c >= 0xA1 && c != 0xAD) ? c : -1;
  if (c <= 0x120) return c - 0x100;
  if (c <= 0x142) return c - 0x121 + 0x7F;
  return c == 0x143 ? 0xAD : -1;
}

void decode_byte_level(std::vector<std::string>& tokens, bool utf8) {
  std::string text, bytes;
  for (const std::string& token : tokens) {
    bytes.clear();
    bool all = true;
    for (size_t at = 0; at < token.size() && all;) {
      const CodePoint c = code_point(token, at);
      const int byte = byte_of(c.value);
      all = byte >= 0;
      if (all) bytes += static_cast<char>(byte);
      at += static_cast<size_t>(c.length);
    }
    text += all ? bytes : token;
  }
  tokens = {utf8 ? with_replacement_characters(text) : text};
}

/// The byte that a token such as <0x0A> stands for, or -1.
int fallback_byte(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = 16 * value + digit;
  }
  return value;
}

void decode_bytes(std::vector<std::string>& tokens, bool utf8) {
  std::vector<std::string> out;
  std::string bytes;
  const auto settle = [&] {
    if (bytes.empty()) return;
    if (!utf8 || is_utf8(bytes)) {
      out.push_back(bytes);
    } else {
      for (size_t i = 0; i < bytes.size(); ++i) out.push_back("\uFFFD");
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    const int byte = fallback_byte(token);
    if (byte >= 0) {
      bytes += static_cast<char>(byte);
      continue;
    }
    settle();
    out.push_back(std::move(token));
  }
  settle();
  tokens = std::move(out);
}

void decode_metaspace(std::vector<std::string>& tokens, const std::string& mark, bool never) {
  for (size_t i = 0; i < tokens.size(); ++i)
    replace_all(tokens[i], mark, i == 0 && !never ? "" : " ");
}

void strip_token(std::string& token, const std::string& content, int64_t start, int64_t stop) {
  const size_t size = content.size();
  for (; start > 0 && token.substr(0, size) == content; --start) token.erase(0, size);
  for (; stop > 0 && token.ends_with(content); --stop) token.erase(token.size() - size);
}

}  // namespace

std::string with_replacement_characters(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point(text, at);
    const auto length = static_cast<size_t>(c.length);
    if (c.value >= 0) {
      out += text.substr(at, length);
      at += length;
      continue;
    }
    out += "\uFFFD";
    const auto byte = [&](size_t i) {
      return at + i < text.size() ? static_cast<uint8_t>(text[at + i]) : 0;
    };
    const int first = byte(0), second = byte(1);
    const int least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    const int most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    const bool begins = first >= 0xE0 && first <= 0xF4 && second >= least && second <= most;
    const bool longer = begins && first >= 0xF0 && (byte(2) & 0xC0) == 0x80;
    at += begins ? longer ? 3u : 2u : 1u;
  }
  return out;
}

std::string without_token_spaces(std::string text) {
  for (const auto& [from, to] : {std::pair{" .", "."},
                                 {" ?", "?"},
                                 {" !", "!"},
                                 {" ,", ","},
                                 {" ' ", "'"},
                                 {" n't", "n't"},
                                 {" 'm", "'m"},
                                 {" 's", "'s"},
                                 {" 've", "'ve"},
                                 {" 're", "'re"}}) {
    replace_all(text, from, to);
  }
  return text;
}

HubProcessor::HubProcessor(const Json& json, int64_t limit, HubIssues& issues) {
  read(json, "post_processor", limit, issues, 0);
}

int64_t HubProcessor::added(bool pair) const {
  int64_t count = 0;
  for (const HubTemplatePart& part : parts(pair)) count += static_cast<int64_t>(part.ids.size());
  return count;
}

void HubProcessor::read_template(HubPart& part, int64_t limit) {
  const Names names = special_tokens(part, limit);
  single_ = template_of(part, "single", names);
  pair_ = template_of(part, "pair", names);
}

void HubProcessor::read_pair_of_tokens(HubPart& part, int64_t limit, bool roberta) {
  const auto token = [&](const char* name) {
    const std::vector<Json> both = part.list(name);
    const bool fits = both.size() == 2 && both[0].is_string() && fits_id(both[1], limit);
    if (!fits) part.refuse(name, fmt::format("expected a token and its id below {}", limit));
    return std::vector<int32_t>{fits ? static_cast<int32_t>(both[1].integer()) : 0};
  };
  const HubTemplatePart begin{.ids = token("cls")}, end{.ids = token("sep")};
  single_ = {begin, {0, 0}, end};
  if (roberta) {
    trims_ = part.flag("trim_offsets", true);
    prefixed_ = part.flag("add_prefix_space", true);
    pair_ = {begin, {0, 0}, end, end, {1, 0}, end};
  } else {
    pair_ = {begin, {0, 0}, end, {1, 1}, {.type = 1, .ids = end.ids}};
  }
}

void HubProcessor::read(const Json& json, const std::string& path, int64_t limit, HubIssues& issues,
                        int depth) {
  if (json.is_null()) return;
  HubPart part(json, path, issues);
  if (depth > detail::deepest_component) return issues.add("{} is nested too deeply", path);
  const std::string type = part.type();
  const bool adds =
      type == "TemplateProcessing" || type == "RobertaProcessing" || type == "BertProcessing";
  if (adds && templated_) return issues.add("{} is a second {}; expected one", path, type);
  templated_ = templated_ || adds;
  if (type == "Sequence") {
    const std::vector<Json> inner = part.list("processors");
    for (size_t i = 0; i < inner.size(); ++i) {
      read(inner[i], fmt::format("{}.processors[{}]", path, i), limit, issues, depth + 1);
    }
  } else if (type == "TemplateProcessing") {
    read_template(part, limit);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    read_pair_of_tokens(part, limit, type == "RobertaProcessing");
  } else if (type == "ByteLevel") {
    trims_ = part.flag("trim_offsets", true);
    prefixed_ = part.flag("add_prefix_space", true);
    part.flag("use_regex", true);
  } else {
    issues.add(
        "{} has the type \"{}\"; expected TemplateProcessing, RobertaProcessing, BertProcessing, "
        "ByteLevel or Sequence",
        path, type);
    return;
  }
  part.finish();
}

HubDecoder::HubDecoder(const Json& json, HubIssues& issues) {
  joins_ = json.is_null();
  read(json, "decoder", issues, 0);
}

void HubDecoder::read_strip(HubPart& part) {
  const std::string content = part.text("content", " ");
  const int64_t start = part.integer("start", 0), stop = part.integer("stop", 0);
  if (content.empty() || code_point(content, 0).length != static_cast<int32_t>(content.size())) {
    return part.refuse("content", "expected one character");
  }
  steps_.push_back([=](std::vector<std::string>& tokens, bool) {
    for (std::string& token : tokens) strip_token(token, content, start, stop);
  });
}

void HubDecoder::read(const Json& json, const std::string& path, HubIssues& issues, int depth) {
  if (json.is_null()) return;
  HubPart part(json, path, issues);
  if (depth > detail::deepest_component) return issues.add("{} is nested too deeply", path);
  const std::string type = part.type();
  using Tokens = std::vector<std::string>;
  if (type == "Sequence") {
    const std::vector<Json> inner = part.list("decoders");
    for (size_t i = 0; i < inner.size(); ++i) {
      read(inner[i], fmt::format("{}.decoders[{}]", path, i), issues, depth + 1);
    }
  } else if (type == "WordPiece") {
    steps_.push_back([prefix = part.text("prefix", "##"), cleanup = part.flag("cleanup", true)](
                         Tokens& t, bool) { decode_word_pieces(t, prefix, cleanup); });
  } else if (type == "ByteLevel") {
    part.flag("add_prefix_space", true);
    part.flag("trim_offsets", true);
    part.flag("use_regex", true);
    steps_.push_back(decode_byte_level);
  } else if (type == "Metaspace") {
    const std::string mark = part.text("replacement", "\u2581");
    const std::string old = part.flag("add_prefix_space", true) ? "always" : "never";
    part.flag("split", true);
    part.text("str_rep", "");
    if (mark.empty()) part.refuse("replacement", "expected one character");
    steps_.push_back([mark, never = part.text("prepend_scheme", old) == "never"](Tokens& t, bool) {
      decode_metaspace(t, mark, never);
    });
  } else if (type == "BPEDecoder") {
    const std::string suffix = part.text("suffix", "</w>");
    if (suffix.empty()) part.refuse("suffix", "expected some characters");
    steps_.push_back([suffix](Tokens& t, bool) {
      for (size_t i = 0; i < t.size(); ++i) replace_all(t[i], suffix, i + 1 == t.size() ? "" : " ");
    });
  } else if (type == "Replace") {
    const Json* pattern = part.find("pattern");
    const Json* literal = pattern == nullptr ? nullptr : pattern->find("String");
    const bool fits = literal != nullptr && literal->is_string() && !literal->string().empty();
    if (!fits) part.refuse("pattern", "expected a String");
    steps_.push_back(
        [from = fits ? literal->string() : " ", to = part.text("content", "")](Tokens& t, bool) {
          for (std::string& token : t) replace_all(token, from, to);
        });
  } else if (type == "ByteFallback") {
    steps_.push_back(decode_bytes);
  } else if (type == "Fuse") {
    steps_.push_back([](Tokens& t, bool) {
      std::string all;
      for (const std::string& token : t) all += token;
      t = {all};
    });
  } else if (type == "Strip") {
    read_strip(part);
  } else {
    issues.add(
        "{} has the type \"{}\"; expected WordPiece, ByteLevel, Metaspace, BPEDecoder, Replace, "
        "ByteFallback, Fuse, Strip or Sequence",
        path, type);
    return;
  }
  part.finish();
}

std::string HubDecoder::decode(std::vector<std::string> tokens, bool utf8) const {
  for (const Step& step : steps_) step(tokens, utf8);
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (joins_ && i > 0) text += ' ';
    text += tokens[i];
  }
  return text;
}

}  // namespace longspan
