#include "data/tokenizers/hub_rows.h"

#include <algorithm>
#include <span>

#include "core/error.h"
#include "data/unicode/unicode.h"

namespace longspan {
namespace {

constexpr int64_t longest_row = 1 << 24;  // what a row may be padded to

using Tokens = std::span<const HubToken>;

/// Returns the parts of at most `most` tokens of a text that is truncated.
std::vector<Tokens> parts_of(Tokens tokens, int64_t most, const HubEncodeOptions& o) {
  const auto size = static_cast<int64_t>(tokens.size());
  if (most >= size) return {tokens};
  if (most <= 0) return {tokens.subspan(0, 0), tokens};
  require(o.stride >= 0 && o.stride < most, detail::tokenizer_op,
          "stride is {} and a window has room for {} tokens of the text; expected a smaller stride",
          o.stride, most);
  std::vector<Tokens> parts;
  const int64_t step = most - o.stride;
  for (int64_t at = 0;; at += step) {
    const int64_t begin = o.truncate_left ? std::max<int64_t>(size - at - most, 0) : at;
    const int64_t end = o.truncate_left ? size - at : std::min(at + most, size);
    parts.push_back(tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
    if (o.truncate_left ? begin == 0 : end == size) return parts;
  }
}

/// Returns how many tokens of each text may stay.
std::vector<int64_t> room_of(const std::vector<std::vector<HubToken>>& texts, int64_t most,
                             HubTruncation truncation) {
  std::vector<int64_t> sizes;
  int64_t total = 0;
  for (const auto& text : texts) {
    sizes.push_back(static_cast<int64_t>(text.size()));
    total += sizes.back();
  }
  if (total <= most) return sizes;
  if (most <= 0) return std::vector<int64_t>(texts.size(), 0);
  if (truncation == HubTruncation::longest_first) {
    if (sizes.size() == 1) return {most};
    const bool swapped = sizes[0] > sizes[1];
    int64_t small = std::min(sizes[0], sizes[1]);
    int64_t large = small > most ? small : std::max(small, most - small);
    if (small + large > most) {
      small = most / 2;
      large = small + most % 2;
    }
    return swapped ? std::vector{large, small} : std::vector{small, large};
  }
  const size_t target = truncation == HubTruncation::only_second ? 1 : 0;
  require(target < sizes.size(), detail::tokenizer_op,
          "only the second text may be truncated, and there is one");
  require(sizes[target] > total - most, detail::tokenizer_op,
          "the texts have {} tokens, {} of them in the one that may be truncated, and a row has "
          "room for {}",
          total, sizes[target], most);
  sizes[target] -= total - most;
  return sizes;
}

/// Returns the source of a token without spaces at its ends. The package counts them in characters
/// of the token, and leaves out as many of the source.
TextSpan trimmed(const HubToken& token, std::pair<int32_t, int32_t> spaces, std::string_view text,
                 bool keeps_one) {
  const auto size = static_cast<int64_t>(text.size());
  TextSpan span{std::min<int64_t>(token.source.begin, size),
                std::min<int64_t>(token.source.end, size)};
  auto [leading, trailing] = spaces;
  if (leading == 1 && keeps_one) leading = 0;
  for (; leading > 0 && span.begin < span.end; --leading) {
    span.begin += code_point(text, static_cast<size_t>(span.begin)).length;
  }
  span.begin = std::min(span.begin, span.end);
  for (; trailing > 0 && span.end > span.begin; --trailing) {
    --span.end;
    while (span.end > span.begin &&
           (static_cast<uint8_t>(text[static_cast<size_t>(span.end)]) & 0xC0) == 0x80)
      --span.end;
  }
  return span;
}

void add(HubEncoding& row, int32_t id, int32_t type, int32_t sequence, int32_t word, TextSpan span,
         uint8_t mask) {
  row.ids.push_back(id);
  row.types.push_back(type);
  row.sequences.push_back(sequence);
  row.words.push_back(word);
  row.spans.push_back(span);
  row.mask.push_back(mask);
}

/// Repeats the padding before or behind a row.
void pad(HubEncoding& row, const HubEncodeOptions& o, const HubPadding& padding) {
  auto size = std::max(static_cast<int64_t>(row.ids.size()), o.pad_to);
  if (o.pad_multiple > 0) size = (size + o.pad_multiple - 1) / o.pad_multiple * o.pad_multiple;
  const auto count = static_cast<size_t>(size) - row.ids.size();
  const auto fill = [&](auto& values, auto value) {
    values.insert(o.pad_left ? values.begin() : values.end(), count, value);
  };
  fill(row.ids, padding.id);
  fill(row.types, padding.type);
  fill(row.sequences, -1);
  fill(row.words, -1);
  fill(row.spans, TextSpan{});
  fill(row.mask, uint8_t{0});
}

}  // namespace

std::pair<int32_t, int32_t> spaces_around(std::string_view token) {
  int32_t leading = 0, trailing = 0;
  bool only = true;
  for (size_t at = 0; at < token.size();) {
    const CodePoint c = code_point(token, at);
    at += static_cast<size_t>(c.length);
    const bool space = c.value == 0x120 || is_white_space(c.value);
    only = only && space;
    leading += only ? 1 : 0;
    trailing = space ? trailing + 1 : 0;
  }
  return {leading, trailing};
}

std::vector<HubEncoding> make_hub_rows(std::vector<std::vector<HubToken>> texts,
                                       const HubProcessor& processor,
                                       const HubEncodeOptions& options, const HubPadding& padding,
                                       const std::function<std::string_view(int32_t)>& spelled,
                                       const HubSource& source, bool all) {
  const bool pair = texts.size() > 1;
  require(options.max_length >= 0 && options.pad_to >= 0 && options.pad_multiple >= 0,
          detail::tokenizer_op,
          "a row of {} tokens, padded to {} and a multiple of {}; expected no negative numbers",
          options.max_length, options.pad_to, options.pad_multiple);
  require(options.pad_to <= longest_row && options.pad_multiple <= longest_row,
          detail::tokenizer_op, "padding to {} tokens and a multiple of {}; expected at most {}",
          options.pad_to, options.pad_multiple, longest_row);
  std::vector<std::vector<Tokens>> parts(texts.size());
  const int64_t extra = options.special ? processor.added(pair) : 0;
  std::vector<int64_t> room(texts.size(), INT64_MAX);
  if (options.max_length > 0) {
    require(options.max_length >= extra, detail::tokenizer_op,
            "a row of {} tokens has no room for the {} of the template", options.max_length, extra);
    room = room_of(texts, options.max_length - extra, options.truncation);
  }
  size_t count = 1;
  for (size_t i = 0; i < texts.size(); ++i) {
    parts[i] = parts_of(texts[i], room[i], options);
    if (!all) parts[i].resize(1);
    require(count == 1 || parts[i].size() == 1, detail::tokenizer_op,
            "windows of two texts of which both are truncated; expected only_first or only_second");
    count = std::max(count, parts[i].size());
  }
  std::vector<HubEncoding> rows(count);
  for (size_t r = 0; r < count; ++r) {
    for (const HubTemplatePart& part : processor.parts(pair)) {
      if (part.sequence < 0) {
        for (const int32_t id : part.ids) {
          if (options.special) add(rows[r], id, part.type, -1, -1, {}, 1);
        }
        continue;
      }
      const auto text = static_cast<size_t>(part.sequence);
      if (text >= parts.size()) continue;
      const Tokens tokens = parts[text][std::min(r, parts[text].size() - 1)];
      for (size_t i = 0; i < tokens.size(); ++i) {
        const HubToken& t = tokens[i];
        TextSpan span{t.source.begin, t.source.end};
        if (processor.trims()) {
          const std::pair<int32_t, int32_t> spaces =
              t.counted ? std::pair{t.leading, t.trailing} : spaces_around(spelled(t.id));
          const bool keeps_one = processor.prefixed() && (i == 0 || span.begin == 0);
          span = trimmed(t, spaces, source(text, t.word), keeps_one);
        }
        add(rows[r], t.id, part.type < 0 ? part.sequence : part.type, part.sequence, t.word, span,
            1);
      }
    }
    pad(rows[r], options, padding);
  }
  return rows;
}

HubEncodeOptions read_file_options(const Json& truncation, const Json& padding, HubIssues& issues) {
  HubEncodeOptions o;
  if (!truncation.is_null()) {
    HubPart part(truncation, "truncation", issues);
    o.max_length = part.integer("max_length", 512);
    o.stride = part.integer("stride", 0);
    const std::string strategy = part.text("strategy", "LongestFirst");
    o.truncate_left = part.text("direction", "Right") == "Left";
    if (strategy == "OnlyFirst") o.truncation = HubTruncation::only_first;
    if (strategy == "OnlySecond") o.truncation = HubTruncation::only_second;
    if (strategy != "LongestFirst" && o.truncation == HubTruncation::longest_first) {
      part.refuse("strategy", "expected LongestFirst, OnlyFirst or OnlySecond");
    }
    part.finish();
  }
  if (!padding.is_null()) {
    HubPart part(padding, "padding", issues);
    const Json* strategy = part.find("strategy");
    const Json* fixed = strategy == nullptr ? nullptr : strategy->find("Fixed");
    if (fixed != nullptr && fixed->is_integer() && fixed->integer() >= 0 &&
        fixed->integer() <= longest_row) {
      o.pad_to = fixed->integer();
    } else if (strategy == nullptr || !strategy->is_string() ||
               strategy->string() != "BatchLongest") {
      part.refuse("strategy", "expected BatchLongest or a Fixed length");
    }
    o.pad_left = part.text("direction", "Right") == "Left";
    o.pad_multiple = part.integer("pad_to_multiple_of", 0);
    part.integer("pad_id", 0);
    part.integer("pad_type_id", 0);
    part.text("pad_token", "");
    part.finish();
  }
  return o;
}

}  // namespace longspan
