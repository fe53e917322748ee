#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace longspan {

/// What multiplies matrices of f32 and f64 on the CPU.
enum class MatmulLibrary : uint8_t {
  own,      ///< kernels of this library, whose rows do not depend on the rows beside them
  openblas  ///< OpenBLAS, on one thread within our tasks; docs/determinism.md says what is lost
};

/// The setting, one for the process. OpenBLAS takes operands in f32 or f64 of which rows or columns
/// lie side by side, and a result of the same dtype; it takes no f32 under a MatmulPrecision other
/// than f32. All other products, and what bits decide, as LSH hashing, stay with our own kernels.
/// NaN, infinities and empty sums come out the same with both.
MatmulLibrary matmul_library();
/// For every product from here on, also those of backward passes whose forward is done: set it
/// before training, not within a step. A first product on OpenBLAS gives that library one thread
/// for the whole process.
void set_matmul_library(MatmulLibrary library);

/// Which OpenBLAS this is, as its bits depend on it: version and kind of kernels, as
/// "OpenBLAS 0.3.21, Haswell". Empty before register_backends().
std::string_view openblas_description();
/// For the backend.
void set_openblas_description(std::string text);

/// The setting for as long as this lives.
class WithMatmulLibrary {
 public:
  explicit WithMatmulLibrary(MatmulLibrary library) : before_(matmul_library()) {
    set_matmul_library(library);
  }
  ~WithMatmulLibrary() { set_matmul_library(before_); }
  WithMatmulLibrary(const WithMatmulLibrary&) = delete;
  WithMatmulLibrary& operator=(const WithMatmulLibrary&) = delete;

 private:
  MatmulLibrary before_;
};

}  // namespace longspan
