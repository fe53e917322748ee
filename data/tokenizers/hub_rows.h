#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
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
};

/// What fills a row up.
struct HubPadding {
  int32_t id = 0, type = 0;
};

/// Makes rows of the tokens of one text or two: truncates them, puts them into the template, and
/// pads. The first row comes first; with `all`, those with the rest of the truncated text follow.
/// `spelled` gives the spelling of a token. Throws ValueError if texts cannot be made that short,
/// and for `all` with two texts of which both may be truncated.
std::vector<HubEncoding> make_hub_rows(std::vector<std::vector<HubToken>> texts,
                                       const HubProcessor& processor,
                                       const HubEncodeOptions& options, const HubPadding& padding,
                                       const std::function<std::string_view(int32_t)>& spelled,
                                       bool all);

/// Reads the members "truncation" and "padding" of a tokenizer.json.
HubEncodeOptions read_file_options(const Json& truncation, const Json& padding, HubIssues& issues);

}  // namespace longspan
