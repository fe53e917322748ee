#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/io/bytes.h"

namespace longspan {

/// An array of NumPy: numbers in row-major order, as they lie in the file.
struct NumpyArray {
  std::string name;  ///< within an .npz file; empty: of an .npy file
  std::string path;
  char kind = 'u';    ///< b bool, u unsigned, i signed, f floating
  int64_t width = 1;  ///< bytes of a number
  std::vector<int64_t> shape = {};
  FileBytes data = {};

  int64_t numel() const;
  /// "uint8[8, 919]", for messages.
  std::string text() const;
  /// Number i of all, 0 <= i < numel().
  double operator[](int64_t i) const;
};

/// The arrays of an .npy file (one, without a name) or of an .npz file (np.savez and
/// np.savez_compressed), each of which begins with its own magic bytes. Plain arrays stay in the
/// mapped file; those of an .npz file are read once, for their checksums. Taken are bool, integers
/// and f32 and f64 in the order of bytes of this machine and of rows. Throws IoError that names the
/// file, and what to call in NumPy: on files of another kind, cut off or damaged ones, on other
/// dtypes and on Fortran order.
std::vector<NumpyArray> read_numpy(const std::string& path);
/// Those of an .npz file with these names, in this order; others are neither unpacked nor looked
/// at. Throws IoError as above, and where there is none of a name, with those that there are.
std::vector<NumpyArray> read_numpy(const std::string& path,
                                   std::span<const std::string_view> names);

}  // namespace longspan
