#include "data/tokenizers/hub_normalizer.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "core/error.h"
#include "data/io/base64.h"
#include "data/unicode/charsmap.h"
#include "data/unicode/normal_forms.h"
#include "data/unicode/package_classes.h"
#include "data/unicode/package_unicode.h"
#include "data/unicode/unicode.h"

namespace longspan {
namespace {

std::string utf8(char32_t c) {
  std::string text;
  append_utf8(text, static_cast<int32_t>(c));
  return text;
}

/// Puts the lower case of the next character.
void lower(TextChange& change, std::string_view character, int32_t c) {
  if (c == 0x130) {
    change.replace("i");
    change.insert("\u0307");
  } else if ((package_properties(c) & PackageProperty::has_lower) != 0) {
    change.replace(utf8(package_lower(static_cast<char32_t>(c))));
  } else {
    change.replace(character);
  }
}

struct BertRules {
  bool clean = true, ideographs = true, accents = true, lower = true;
};

/// Removes control characters, makes white space spaces, puts spaces around ideographs, and, unless
/// accents are removed first, lower case.
void bert_first(const BertRules& rules, const AlignedText& text, AlignedText& to) {
  TextChange change(text, to);
  const std::string_view bytes = text.bytes;
  const bool lowers = rules.lower && !rules.accents;
  for (size_t at = 0; at < bytes.size();) {
    const auto byte = static_cast<uint8_t>(bytes[at]);
    if (byte >= 0x20 && byte < 0x7F) {
      const char c =
          lowers && byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte | 0x20) : bytes[at];
      if (text.tracked) {
        change.replace({&c, 1});
      } else {
        to.bytes += c;
      }
      ++at;
      continue;
    }
    const CodePoint c = code_point(bytes, at);
    const std::string_view one = bytes.substr(at, static_cast<size_t>(c.length));
    at += one.size();
    const bool space =
        c.value == '\t' || c.value == '\n' || c.value == '\r' || is_white_space(c.value);
    const bool removed =
        c.value < 0 || (package_properties(c.value) & PackageProperty::removed) != 0;
    if (rules.clean && removed && c.value != '\t' && c.value != '\n' && c.value != '\r') {
      change.skip();
    } else if (rules.clean && space) {
      change.replace(" ");
    } else if (rules.ideographs && is_ideograph(c.value)) {
      change.replace(" ");
      change.insert(one);
      change.insert(" ");
    } else if (lowers) {
      lower(change, one, c.value);
    } else {
      change.replace(one);
    }
  }
}

/// Removes nonspacing marks and puts the rest in lower case.
void bert_last(bool lowers, const AlignedText& text, AlignedText& to) {
  TextChange change(text, to);
  const std::string_view bytes = text.bytes;
  for (size_t at = 0; at < bytes.size();) {
    const auto byte = static_cast<uint8_t>(bytes[at]);
    if (byte < 0x80) {
      const char c =
          lowers && byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte | 0x20) : bytes[at];
      if (text.tracked) {
        change.replace({&c, 1});
      } else {
        to.bytes += c;
      }
      ++at;
      continue;
    }
    const CodePoint c = code_point(bytes, at);
    const std::string_view one = bytes.substr(at, static_cast<size_t>(c.length));
    at += one.size();
    if ((package_properties(c.value) & PackageProperty::accent) != 0) {
      change.skip();
    } else if (lowers) {
      lower(change, one, c.value);
    } else {
      change.replace(one);
    }
  }
}

/// Replaces each match by `content`, whose characters have the source of the last one of the match.
/// `match(bytes, at)` returns the end of a match that begins at `at`, or `at`.
template <class Match>
void replace_matches(const AlignedText& text, AlignedText& to, const std::string& content,
                     Match&& match) {
  TextChange change(text, to);
  const std::string_view bytes = text.bytes;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = match(bytes, at);
    if (end == at) {
      at += length_at(bytes, at);
      continue;
    }
    change.keep(at);
    while (change.at() < end) change.skip();
    for (size_t i = 0; i < content.size(); i += length_at(content, i)) {
      change.insert(std::string_view(content).substr(i, length_at(content, i)));
    }
    at = end;
  }
  change.keep(bytes.size());
}

void strip(bool left, bool right, const AlignedText& text, AlignedText& to) {
  const std::string_view bytes = text.bytes;
  size_t begin = 0, end = 0;
  bool inside = false;
  for (size_t at = 0; at < bytes.size();) {
    const CodePoint c = code_point(bytes, at);
    const size_t next = at + static_cast<size_t>(c.length);
    if (!is_white_space(c.value)) {
      if (!inside) begin = at;
      inside = true;
      end = next;
    }
    at = next;
  }
  if (!inside) begin = bytes.size();
  if (!left) begin = 0;
  if (!right) end = bytes.size();
  TextChange change(text, to);
  while (change.at() < begin) change.skip();
  if (end > begin) change.keep(end);
}

void filter(const AlignedText& text, AlignedText& to, uint16_t unwanted) {
  TextChange change(text, to);
  for (size_t at = 0; at < text.bytes.size();) {
    const CodePoint c = code_point(text.bytes, at);
    at += static_cast<size_t>(c.length);
    if ((package_classes(c.value) & unwanted) != 0) {
      change.skip();
    } else {
      change.keep(at);
    }
  }
}

void prepend(const std::string& text, const AlignedText& old, AlignedText& to) {
  TextChange change(old, to);
  if (old.bytes.empty()) return;
  const SourceBytes first = old.tracked ? old.from[0] : SourceBytes{};
  to.bytes = text;
  to.check_size();
  if (old.tracked) to.from.assign(text.size(), first);
  change.keep(old.bytes.size());
  to.check_size();
}

BertRules bert_rules(HubPart& part) {
  BertRules rules;
  rules.clean = part.flag("clean_text", true);
  rules.ideographs = part.flag("handle_chinese_chars", true);
  rules.lower = part.flag("lowercase", true);
  rules.accents = part.flag("strip_accents", rules.lower);
  return rules;
}

/// The regular expression of a Replace, as the end of a match.
using Match = std::function<size_t(std::string_view, size_t)>;

Match match_of(HubPart& part) {
  static const Json nothing;
  const Json* pattern = part.find("pattern");
  HubPart inner(pattern == nullptr ? nothing : *pattern, part.path() + ".pattern", part.issues());
  const std::string literal = inner.text("String", ""), regex = inner.text("Regex", "");
  inner.finish();
  if (!literal.empty()) {
    return [literal](std::string_view text, size_t at) {
      return text.substr(at, literal.size()) == literal ? at + literal.size() : at;
    };
  }
  if (regex == "\n" || regex == "\\n") {
    return [](std::string_view text, size_t at) { return text[at] == '\n' ? at + 1 : at; };
  }
  if (regex == " {2,}") {
    return [](std::string_view text, size_t at) {
      const size_t end = std::min(text.find_first_not_of(' ', at), text.size());
      return end >= at + 2 ? end : at;
    };
  }
  part.issues().add("{}.pattern is {}; expected a String, or the Regex \" {{2,}}\" or \"\\n\"",
                    part.path(), pattern == nullptr ? "absent" : to_string(*pattern));
  return [](std::string_view, size_t at) { return at; };
}

}  // namespace

HubNormalizer::HubNormalizer(const Json& json, HubIssues& issues) {
  read(json, "normalizer", issues, 0);
}

void HubNormalizer::read(const Json& json, const std::string& path, HubIssues& issues, int depth) {
  if (json.is_null()) return;
  HubPart part(json, path, issues);
  if (depth > detail::deepest_component) return issues.add("{} is nested too deeply", path);
  const std::string type = part.type();
  const std::pair<const char*, NormalForm> forms[] = {{"NFC", NormalForm::nfc},
                                                      {"NFD", NormalForm::nfd},
                                                      {"NFKC", NormalForm::nfkc},
                                                      {"NFKD", NormalForm::nfkd}};
  const auto form = std::find_if(std::begin(forms), std::end(forms),
                                 [&](const auto& f) { return type == f.first; });
  if (type == "Sequence") {
    const std::vector<Json> inner = part.list("normalizers");
    for (size_t i = 0; i < inner.size(); ++i) {
      read(inner[i], fmt::format("{}.normalizers[{}]", path, i), issues, depth + 1);
    }
  } else if (form != std::end(forms)) {
    steps_.push_back(
        [f = form->second](const AlignedText& a, AlignedText& b) { normalize(f, a, b); });
  } else if (type == "BertNormalizer") {
    const BertRules rules = bert_rules(part);
    steps_.push_back([rules](const AlignedText& a, AlignedText& b) { bert_first(rules, a, b); });
    if (rules.accents) {
      steps_.push_back(
          [](const AlignedText& a, AlignedText& b) { normalize(NormalForm::nfd, a, b); });
      steps_.push_back(
          [l = rules.lower](const AlignedText& a, AlignedText& b) { bert_last(l, a, b); });
    }
  } else if (type == "Lowercase") {
    const BertRules rules{.clean = false, .ideographs = false, .accents = false};
    steps_.push_back([rules](const AlignedText& a, AlignedText& b) { bert_first(rules, a, b); });
  } else if (type == "StripAccents") {
    steps_.push_back(
        [](const AlignedText& a, AlignedText& b) { filter(a, b, PackageClass::mark); });
  } else if (type == "Strip") {
    const bool left = part.flag("strip_left", true), right = part.flag("strip_right", true);
    if (left || right) {
      steps_.push_back([=](const AlignedText& a, AlignedText& b) { strip(left, right, a, b); });
    }
  } else if (type == "Prepend") {
    const std::string text = part.text("prepend", "");
    steps_.push_back([text](const AlignedText& a, AlignedText& b) { prepend(text, a, b); });
  } else if (type == "Replace") {
    const std::string content = part.text("content", "");
    steps_.push_back([content, match = match_of(part)](const AlignedText& a, AlignedText& b) {
      replace_matches(a, b, content, match);
    });
  } else if (type == "Precompiled") {
    read_rules(part);
  } else {
    issues.add(
        "{} has the type \"{}\"; expected BertNormalizer, Precompiled, Replace, NFC, NFD, NFKC, "
        "NFKD, "
        "Lowercase, Strip, StripAccents, Prepend or Sequence",
        path, type);
    return;
  }
  part.finish();
}

void HubNormalizer::read_rules(HubPart& part) {
  const std::optional<std::string> bytes = from_base64(part.text("precompiled_charsmap", ""));
  if (!bytes) return part.refuse("precompiled_charsmap", "expected Base64");
  try {
    steps_.push_back([rules = std::make_shared<const CharacterRules>(*bytes)](
                         const AlignedText& a, AlignedText& b) { rules->apply(a, b); });
  } catch (const ValueError& error) {
    part.issues().add("{}: {}", part.path(), error.what());
  }
}

void HubNormalizer::apply(AlignedText& text, AlignedText& spare) const {
  for (const Step& step : steps_) {
    step(text, spare);
    std::swap(text, spare);
  }
}

}  // namespace longspan
