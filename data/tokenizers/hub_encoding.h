#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace longspan {

/// [begin, end) of a text, in bytes unless something else is said.
struct TextSpan {
  int64_t begin = 0, end = 0;
  friend bool operator==(const TextSpan&, const TextSpan&) = default;
};

/// The tokens of one row of a model, as vectors of equal length L.
struct HubEncoding {
  std::vector<int32_t> ids = {};
  std::vector<int32_t> types = {};  ///< token types
  std::vector<int32_t> sequences =
      {};  ///< 0: of the first text, 1: of the second, -1: of the template, padding
  std::vector<int32_t> words = {};   ///< index of its word; -1 of template and padding
  std::vector<TextSpan> spans = {};  ///< bytes of its text or word; empty of template and padding
  std::vector<uint8_t> mask = {};    ///< 1, and 0 for padding

  friend bool operator==(const HubEncoding&, const HubEncoding&) = default;
};

/// What a row that is too long loses.
enum class HubTruncation : uint8_t {
  longest_first,  ///< of two texts, the longer one, until both are equally long
  only_first,
  only_second
};

/// How a row is made.
struct HubEncodeOptions {
  bool special = true;     ///< the special tokens of the template
  int64_t max_length = 0;  ///< tokens, those of the template included; 0: no limit
  HubTruncation truncation = HubTruncation::longest_first;
  int64_t stride = 0;          ///< tokens that windows() repeats from the window before
  bool truncate_left = false;  ///< the begin of a text goes, not its end
  int64_t pad_to = 0;          ///< tokens; 0: no padding
  int64_t pad_multiple = 0;    ///< pads to a multiple of it; 0: none
  bool pad_left = false;
};

/// Returns spans of bytes of a text as spans of its code points. A byte within a character counts
/// as its begin.
std::vector<TextSpan> in_code_points(std::string_view text, std::span<const TextSpan> spans);

}  // namespace longspan
