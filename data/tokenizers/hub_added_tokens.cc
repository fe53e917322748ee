#include "data/tokenizers/hub_added_tokens.h"

#include <algorithm>

#include "data/unicode/package_classes.h"
#include "data/unicode/unicode.h"

namespace longspan {
namespace {

bool is_word(int32_t c) { return (package_classes(c) & PackageClass::word) != 0; }

/// Returns the begin of the last character of a text that is not empty.
size_t last_character(std::string_view text) {
  size_t at = text.size() - 1;
  for (int i = 0; i < 3 && at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80; ++i) --at;
  const bool whole = at + static_cast<size_t>(code_point(text, at).length) == text.size();
  return whole ? at : text.size() - 1;
}

size_t spaces_begin(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t at = last_character(text.substr(0, end));
    if (!is_white_space(code_point(text, at).value)) break;
    end = at;
  }
  return end;
}

size_t spaces_end(std::string_view text, size_t at) {
  while (at < text.size()) {
    const CodePoint c = code_point(text, at);
    if (!is_white_space(c.value)) break;
    at += static_cast<size_t>(c.length);
  }
  return at;
}

bool is_alone(std::string_view text, size_t begin, size_t end) {
  const bool before =
      begin > 0 && is_word(code_point(text, last_character(text.substr(0, begin))).value);
  const bool after = end < text.size() && is_word(code_point(text, end).value);
  return !before && !after;
}

}  // namespace

HubAddedTokens::HubAddedTokens(const Json& list, const HubModel& model,
                               const HubNormalizer& normalizer, bool special_in_text,
                               HubIssues& issues) {
  if (list.is_null()) return;
  if (!list.is_array()) {
    issues.add("added_tokens is {}; expected an array", shown(list));
    return;
  }
  const int64_t size = model.tokens().size();
  for (size_t i = 0; i < list.array().size(); ++i) {
    HubPart part(list.array()[i], fmt::format("added_tokens[{}]", i), issues);
    HubAddedToken token{.content = part.text("content", "")};
    token.special = part.flag("special", false);
    token.normalized = part.flag("normalized", !token.special);
    token.left = part.flag("lstrip", false);
    token.right = part.flag("rstrip", false);
    token.single = part.flag("single_word", false);
    const int64_t stated = part.integer("id", -1);
    part.finish();
    if (token.content.empty()) continue;
    const auto known = by_content_.find(token.content);
    token.id =
        known != by_content_.end() ? all_[known->second].id : model.tokens().find(token.content);
    if (token.id < 0) token.id = static_cast<int32_t>(std::max(size, limit_));
    if (stated >= 0 && stated != token.id) {
      issues.add("added_tokens[{}] gives \"{}\" the id {}; the package gives it {}, {}", i,
                 token.content, stated, token.id,
                 model.tokens().find(token.content) == token.id
                     ? "as the vocabulary does"
                     : "the next one after the vocabulary");
    }
    limit_ = std::max<int64_t>(limit_, token.id + 1);
    if (known != by_content_.end()) {
      all_[known->second] = std::move(token);
      continue;
    }
    by_content_.emplace(token.content, all_.size());
    by_id_.emplace(token.id, all_.size());
    all_.push_back(std::move(token));
  }
  index(normalizer, special_in_text);
}

void HubAddedTokens::index(const HubNormalizer& normalizer, bool special_in_text) {
  AlignedText text, spare;
  for (HubAddedToken& token : all_) {
    text.assign(token.content, 0, false);
    if (token.normalized) normalizer.apply(text, spare);
    token.shown = text.bytes;
  }
  for (const bool special : {true, false}) {  // of equal patterns the first one counts
    if (special && !special_in_text) continue;
    for (size_t i = 0; i < all_.size(); ++i) {
      if (all_[i].special != special) continue;
      Finder& finder = finders_[all_[i].normalized ? 1 : 0];
      const std::string& pattern = all_[i].shown;
      if (pattern.empty() || finder.patterns.find(pattern) >= 0) continue;
      finder.patterns.add(pattern, static_cast<int64_t>(finder.tokens.size()));
      finder.tokens.push_back(static_cast<int32_t>(i));
    }
  }
  for (Finder& finder : finders_) {
    if (!finder.tokens.empty()) finder.trie = std::make_unique<PieceTrie>(finder.patterns);
  }
}

void HubAddedTokens::split(std::string_view text, bool normalized, std::vector<Part>& out) const {
  out.clear();
  const Finder& finder = finders_[normalized ? 1 : 0];
  size_t done = 0;
  for (size_t at = 0; finder.trie != nullptr && at < text.size();) {
    if (!finder.trie->begins(text[at])) {
      ++at;
      continue;
    }
    size_t length = 0;
    int32_t pattern = -1;
    finder.trie->for_each_prefix(text, at, [&](size_t l, int32_t id) {
      length = l;
      pattern = id;
    });
    if (pattern < 0) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + length;
    at = end;
    const int32_t index = finder.tokens[static_cast<size_t>(pattern)];
    const HubAddedToken& token = all_[static_cast<size_t>(index)];
    if (token.single && !is_alone(text, begin, end)) continue;
    if (token.left) begin = std::max(spaces_begin(text, begin), done);
    if (token.right) end = spaces_end(text, end);
    end = std::max(end, begin);
    if (begin > done) out.push_back({-1, done, begin});
    out.push_back({index, begin, end});
    done = end;
  }
  if (done < text.size()) out.push_back({-1, done, text.size()});
}

const HubAddedToken* HubAddedTokens::find(int32_t id) const {
  const auto at = by_id_.find(id);
  return at == by_id_.end() ? nullptr : &all_[at->second];
}

const HubAddedToken* HubAddedTokens::find(std::string_view content) const {
  const auto at = by_content_.find(std::string(content));
  return at == by_content_.end() ? nullptr : &all_[at->second];
}

}  // namespace longspan
