#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/dtype.h"
#include "core/host_device.h"

#if defined(__CUDA_ARCH__)
#define LONGSPAN_UNROLL _Pragma("unroll")
#define LONGSPAN_UNROLL_2 _Pragma("unroll 2")
#define LONGSPAN_ROLLED _Pragma("unroll 1")
#else
#define LONGSPAN_UNROLL
#define LONGSPAN_UNROLL_2
#define LONGSPAN_ROLLED
#endif

/// Tiles of 16-bit values in shared memory, and the instructions that move and multiply them. On
/// the host, the instructions are functions that the host-backed test device defines.
namespace longspan::cuda {

/// Emulation of the device instructions on the host. Threads run in turn; collectives wait for all
/// lanes.
namespace simulated {
unsigned char* block_memory();
int thread();
void barrier();
void warp_barrier();
bool any_thread(bool value);
void copy16(void* to, const void* from, bool take);
void commit();
void wait(int pending);
void load_matrices(const void* row, bool transposed, uint32_t (&x)[4]);
void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bool is_bf16);
uint32_t exchange(uint32_t value, int lanes);
bool any(bool value);
float exp2(float x);
uint32_t pack(float low, float high, bool is_bf16);
}  // namespace simulated

/// The shared memory of a launch; it begins at a multiple of 16 bytes.
LONGSPAN_HD inline unsigned char* block_memory() {
#if defined(__CUDA_ARCH__)
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
#else
  return simulated::block_memory();
#endif
}

LONGSPAN_HD inline int thread_index() {
#if defined(__CUDA_ARCH__)
  return static_cast<int>(threadIdx.x);
#else
  return simulated::thread();
#endif
}

LONGSPAN_HD inline void block_barrier() {
#if defined(__CUDA_ARCH__)
  __syncthreads();
#else
  simulated::barrier();
#endif
}

/// Makes the writes of each lane of a warp visible to the other lanes.
LONGSPAN_HD inline void warp_barrier() {
#if defined(__CUDA_ARCH__)
  __syncwarp();
#else
  simulated::warp_barrier();
#endif
}

/// Whether `value` holds in any thread of the block. Acts as a barrier.
LONGSPAN_HD inline bool any_thread(bool value) {
#if defined(__CUDA_ARCH__)
  return __syncthreads_or(static_cast<int>(value)) != 0;
#else
  return simulated::any_thread(value);
#endif
}

/// An address in shared memory; 32 bits on the device.
#if defined(__CUDA_ARCH__)
using SharedAddress = uint32_t;
#else
using SharedAddress = char*;
#endif
LONGSPAN_HD inline SharedAddress shared_address(void* p) {
#if defined(__CUDA_ARCH__)
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
#else
  return static_cast<char*>(p);
#endif
}

/// Copies 16 bytes to shared memory asynchronously. If `take` is false, it writes zeros and reads
/// nothing.
LONGSPAN_HD inline void copy16(SharedAddress to, const void* from, bool take) {
#if defined(__CUDA_ARCH__)
  const int bytes = take ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
#else
  simulated::copy16(to, from, take);
#endif
}

/// Commits this thread's outstanding copies as a group.
LONGSPAN_HD inline void commit_copies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  simulated::commit();
#endif
}

/// Waits until all but the last `pending` copy groups of this thread are complete.
template <int pending>
LONGSPAN_HD inline void wait_for_copies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#else
  simulated::wait(pending);
#endif
}

/// Loads four 8 x 8 matrices. Lane l passes the address of row l % 8 of matrix l / 8. From each
/// matrix it receives elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 or, if transposed, of
/// column l / 4.
template <bool transposed>
LONGSPAN_HD inline void load_matrices(SharedAddress row, uint32_t (&x)[4]) {
#if defined(__CUDA_ARCH__)
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(row)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(row)
                 : "memory");
  }
#else
  simulated::load_matrices(row, transposed, x);
#endif
}

/// c += a b, 16 x 16 times 16 x 8. With g = lane / 4 and t = 2 (lane % 4): c holds rows g and g +
/// 8, columns t and t + 1. The four elements of a hold rows g, g + 8, g, g + 8 and columns t and t
/// + 1, plus 8 for the last two. b0 holds rows t and t + 1, b1 rows t + 8 and t + 9, of column g.
template <class T>
LONGSPAN_HD inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#else
  simulated::multiply(c, a, b0, b1, std::is_same_v<T, bf16>);
#endif
}

/// Returns the value of the lane whose index differs in the bits of `lanes`.
LONGSPAN_HD inline uint32_t exchange(uint32_t value, int lanes) {
#if defined(__CUDA_ARCH__)
  return __shfl_xor_sync(0xffffffffu, value, lanes);
#else
  return simulated::exchange(value, lanes);
#endif
}
LONGSPAN_HD inline float exchange(float value, int lanes) {
#if defined(__CUDA_ARCH__)
  return __shfl_xor_sync(0xffffffffu, value, lanes);
#else
  uint32_t bits;
  memcpy(&bits, &value, 4);
  bits = simulated::exchange(bits, lanes);
  memcpy(&value, &bits, 4);
  return value;
#endif
}

/// Whether `value` holds in any lane of the warp.
LONGSPAN_HD inline bool any_lane(bool value) {
#if defined(__CUDA_ARCH__)
  return __any_sync(0xffffffffu, value) != 0;
#else
  return simulated::any(value);
#endif
}

/// 2^x with an error of at most 2 ulp; 0 if the result is below the smallest normal value.
LONGSPAN_HD inline float fast_exp2(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return simulated::exp2(x);
#endif
}

/// Rounds two values to T and packs them, the first in the lower half.
template <class T>
LONGSPAN_HD inline uint32_t pack(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t x;
  if constexpr (std::is_same_v<T, bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
  }
  return x;
#else
  return simulated::pack(low, high, std::is_same_v<T, bf16>);
#endif
}

/// A matrix in shared memory whose rows have `width` 16-bit values. Its 16-byte chunks are permuted
/// within 128 bytes, so that the same chunk of 8 adjacent rows covers all 32 banks.
template <int width>
struct SharedRows {
  static_assert(width % 32 == 0);
  static constexpr int chunks = width / 8;
  static constexpr int64_t bytes(int rows) { return int64_t{rows} * width * 2; }

  SharedAddress start;

  LONGSPAN_HD explicit SharedRows(uint16_t* data) : start(shared_address(data)) {}
  LONGSPAN_HD static int place(int row, int chunk) {
    const int turn = chunks >= 8 ? row % 8 : row / 2 % 4;
    return row * chunks + (chunk ^ turn);
  }
  LONGSPAN_HD SharedAddress at(int row, int chunk) const { return start + place(row, chunk) * 16; }

  /// Loads operand a of multiply(): rows row .. row + 16, columns 16 k ..
  LONGSPAN_HD void load_a(int row, int k, uint32_t (&a)[4]) const {
    const int lane = thread_index() % 32;
    load_matrices<false>(at(row + lane % 16, 2 * k + lane / 16), a);
  }
  /// Loads operands b of two products with the transpose: the columns of b are rows row .. row +
  /// 16, its rows are columns 16 k ..; b[0], b[1] are for the first 8 rows.
  LONGSPAN_HD void load_b(int row, int k, uint32_t (&b)[4]) const {
    const int lane = thread_index() % 32;
    load_matrices<false>(at(row + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2), b);
  }
  /// Loads operands b of two products with the matrix itself: rows row .. row + 16, columns 16 n
  /// ..; b[0], b[1] are for the first 8 columns.
  LONGSPAN_HD void load_b_rows(int row, int n, uint32_t (&b)[4]) const {
    const int lane = thread_index() % 32;
    load_matrices<true>(at(row + lane % 16, 2 * n + lane / 16), b);
  }
};

}  // namespace longspan::cuda
