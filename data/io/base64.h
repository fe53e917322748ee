#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace longspan {

/// Returns bytes in Base64, with `=` at the end so that the length is a multiple of 4 (RFC 4648).
std::string to_base64(std::string_view bytes);

/// Returns the bytes that to_base64() has written, or nothing if the text is no Base64.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace longspan
