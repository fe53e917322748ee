#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "data/io/mapped_file.h"

namespace longspan {

/// The bytes of a file: mapped where it is plain (map_file()), unpacked into Category::data where
/// it is gzip. Throws IoError where it is missing, unreadable, or damaged or cut off gzip.
FileBytes open_bytes(const std::string& path, std::string_view op);

/// What tells the contents of files apart.
struct Fingerprint {
  int64_t bytes = 0;  ///< unpacked
  std::string xxh3;   ///< of samples: 16 hexadecimal digits
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};
/// That of files one after another, plain or gzip, which give the same: XXH3 (64 bits) of the first
/// 16 MiB of each, of 4 KiB at every further MiB, and of its size. Packed files are unpacked in
/// pieces. Throws IoError.
Fingerprint fingerprint_of(std::span<const std::string> paths);

/// XXH3 (64 bits), 16 hexadecimal digits.
std::string checksum(std::span<const uint8_t> bytes);

/// A copy of these bytes, in Category::data.
FileBytes own_bytes(std::span<const uint8_t> bytes);

}  // namespace longspan
