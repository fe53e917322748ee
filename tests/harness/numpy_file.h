#pragma once

#include <cstdint>
#include <string>

namespace longspan::test {

/// Returns the lowest `count` bytes of a value in little-endian order.
inline std::string little_endian(uint64_t value, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

/// Returns a file as numpy.save writes it: npy("|u1", "(2, 3)", six bytes).
inline std::string npy(const std::string& descr, const std::string& shape, const std::string& data,
                       const std::string& fortran = "False") {
  std::string header =
      "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }";
  header += std::string(63 - (header.size() + 10) % 64, ' ') + "\n";
  return "\x93NUMPY" + std::string("\1\0", 2) + little_endian(header.size(), 2) + header + data;
}

}  // namespace longspan::test
