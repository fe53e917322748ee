#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace longspan {

/// The implementation of f32 and f64 matrix products on the CPU.
enum class MatmulLibrary : uint8_t {
  own,      ///< kernels of this library: a row's result does not depend on other rows
  openblas  ///< OpenBLAS, one thread in each of our tasks; docs/determinism.md lists the guarantees
            ///< that are lost
};

/// Returns the process-wide setting. OpenBLAS accepts f32 or f64 operands with unit stride along
/// rows or columns, and a result of the same dtype; it accepts no f32 under a MatmulPrecision other
/// than f32. All other products, and results that depend on single bits, such as LSH hashes, use
/// our own kernels. OpenBLAS and our kernels treat NaN, infinities and empty sums alike.
MatmulLibrary matmul_library();
/// Applies to every later matmul, also in the backward pass of an earlier forward pass: call it
/// before training, not within a step. The first product on OpenBLAS sets that library to one
/// thread for the whole process.
void set_matmul_library(MatmulLibrary library);

/// Identifies the OpenBLAS, since result bits depend on it: version and kind of kernels, for
/// example "OpenBLAS 0.3.21, Haswell". Empty before register_backends().
std::string_view openblas_description();
/// Called by the backend.
void set_openblas_description(std::string text);

/// Applies a setting while it lives.
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
