#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "data/io/files.h"

namespace longspan {

/// Bytes and the object that owns them.
struct FileBytes {
  std::shared_ptr<const void> owner;
  std::span<const uint8_t> bytes;

  std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
};

/// Maps a plain file of `bytes` > 0 for reading. If the file is truncated while it is mapped or its
/// disk fails, the process prints a line with its name on standard error and exits with status 1,
/// instead of dying of SIGBUS. Other causes of SIGBUS are handled as before. Throws IoError.
FileBytes map_file(const File& file, const std::string& path, std::string_view op, int64_t bytes);

}  // namespace longspan
