#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizers/hub_encoding.h"
#include "data/tokenizers/hub_processor.h"
#include "data/unicode/aligned_text.h"

namespace longspan {

/// A token of a text before it has become part of a row.
struct HubToken {
  int32_t id = 0;
  int32_t word = 0;
  SourceBytes source = {};
  bool starts_word = false;
  bool counted = false;               ///< whether its spaces are counted below
  int32_t leading = 0, trailing = 0;  ///< spaces at its ends, in characters
};

/// What fills a row up.
struct HubPadding {
  int32_t id = 0, type = 0;
};

/// Returns how many characters at the begin and at the end of a token are spaces, U+0120 included.
std::pair<int32_t, int32_t> spaces_around(std::string_view token);

/// The text of a token's source: by its sequence and its word.
using HubSource = std::function<std::string_view(size_t sequence, int32_t word)>;

/// Makes rows of the tokens of one text or two: truncates them, puts them into the template, and
/// pads. The first row comes first; with `all`, those with the rest of the truncated text follow.
/// `spelled` gives the spelling of a token, `source` the text that its source refers to. Throws
/// ValueError if texts cannot be made that short, and for `all` with two texts of which both may be
/// truncated.
std::vector<HubEncoding> make_hub_rows(std::vector<std::vector<HubToken>> texts,
                                       const HubProcessor& processor,
                                       const HubEncodeOptions& options, const HubPadding& padding,
                                       const std::function<std::string_view(int32_t)>& spelled,
                                       const HubSource& source, bool all);

/// Reads the members "truncation" and "padding" of a tokenizer.json.
HubEncodeOptions read_file_options(const Json& truncation, const Json& padding, HubIssues& issues);

}  // namespace longspan
