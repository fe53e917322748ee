#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/io/bytes.h"

namespace longspan {

/// A NumPy array: elements in row-major order, as stored in the file.
struct NumpyArray {
  std::string name;  ///< within an .npz file; empty for an .npy file
  std::string path;
  char kind = 'u';    ///< b bool, u unsigned, i signed, f floating
  int64_t width = 1;  ///< bytes of an element
  std::vector<int64_t> shape = {};
  FileBytes data = {};

  int64_t numel() const;
  /// "uint8[8, 919]", for messages.
  std::string text() const;
  /// Returns element i in row-major order, 0 <= i < numel().
  double operator[](int64_t i) const;
};

/// Reads the arrays of an .npy file (one, without a name) or of an .npz file (np.savez and
/// np.savez_compressed); the magic bytes tell the two apart. Arrays of plain .npy files stay
/// memory-mapped; those of an .npz file are read once to verify their checksums. Supported are
/// bool, integers, f32 and f64, in native byte order and row-major. Throws IoError that names the
/// file and the NumPy call to use: for other file formats, truncated or damaged files, other
/// dtypes, and Fortran order.
std::vector<NumpyArray> read_numpy(const std::string& path);
/// Reads the arrays with these names from an .npz file, in this order; others are neither
/// decompressed nor checked. Throws IoError as read_numpy(path) does, and if a name is missing,
/// with the names in the file.
std::vector<NumpyArray> read_numpy(const std::string& path,
                                   std::span<const std::string_view> names);

}  // namespace longspan
