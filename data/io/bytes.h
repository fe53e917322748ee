#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "data/io/mapped_file.h"

namespace longspan {

/// Opens the bytes of a file: a plain file is mapped (map_file()), a gzip file is decompressed into
/// Category::data. Throws IoError if the file is missing, unreadable, or a damaged or truncated
/// gzip file, or one that require_no_bomb() refuses.
FileBytes open_bytes(const std::string& path, std::string_view op);

/// Identifies the contents of files.
struct Fingerprint {
  int64_t bytes = 0;  ///< decompressed size
  std::string xxh3;   ///< hash of samples: 16 hexadecimal digits
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};
/// Returns the fingerprint of a list of files; a file and its gzip have the same. The hash is XXH3
/// (64 bits) of the first 16 MiB of each file, of 4 KiB at every further MiB, and of its size. Gzip
/// files are decompressed in pieces. Throws IoError.
Fingerprint fingerprint_of(std::span<const std::string> paths);

/// Throws IoError that names `path` if `unpacked` bytes are many, above 256 MiB, and more than 200
/// times the bytes of the packed file. What people pack shrinks to a tenth, or a fiftieth: a small
/// file that fills the memory is damaged, or means harm. Files that are not packed have no bound,
/// and `remedy` says how to make one.
void require_no_bomb(int64_t unpacked, int64_t packed, const std::string& path,
                     std::string_view remedy);

/// Returns XXH3 (64 bits) as 16 hexadecimal digits.
std::string checksum(std::span<const uint8_t> bytes);

/// Copies these bytes into Category::data.
FileBytes own_bytes(std::span<const uint8_t> bytes);

}  // namespace longspan
