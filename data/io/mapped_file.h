#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "data/io/files.h"

namespace longspan {

/// Bytes and what keeps them alive.
struct FileBytes {
  std::shared_ptr<const void> owner;
  std::span<const uint8_t> bytes;

  std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
};

/// Maps a plain file of `bytes` > 0 for reading. Where it is cut short while it is mapped, or its
/// disk fails, a line on standard error names it and the process ends with status 1, in place of
/// dying of SIGBUS; causes of SIGBUS that are none of ours stay as they were. Throws IoError.
FileBytes map_file(const File& file, const std::string& path, std::string_view op, int64_t bytes);

}  // namespace longspan
