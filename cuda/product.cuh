#pragma once

#include "cuda/tile.cuh"

/// Small matrix products of a block of threads, whose operands are functions of their indices.
namespace longspan::cuda {

inline constexpr int product_threads = 256;
inline constexpr int product_tile = 64;   // rows and columns of a tile of the result
inline constexpr int product_depth = 16;  // of operands loaded at a time

/// a b + c, rounded once.
__device__ inline float fused(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double fused(double a, double b, double c) { return fma(a, b, c); }

/// Operands of one step of a product, in shared memory.
template <class A>
struct ProductTiles {
  static constexpr int stride = product_tile + 4;
  A left[product_depth * stride], right[product_depth * stride];
};

/// The index along which an operand is stored: adjacent threads load adjacent elements.
enum class Along { depth, line };

/// Loads lines [0, lines) and steps [0, depth) of an operand; zeros beyond.
template <Along along, class A, class Load>
__device__ void load_operand(A* to, int lines, int depth, Load load) {
  constexpr int elements = product_tile * product_depth;
  LONGSPAN_UNROLL
  for (int e = static_cast<int>(threadIdx.x); e < elements; e += product_threads) {
    const int line = along == Along::depth ? e / product_depth : e % product_tile;
    const int k = along == Along::depth ? e % product_depth : e / product_tile;
    to[k * ProductTiles<A>::stride + line] = line < lines && k < depth ? load(line, k) : A(0);
  }
}

/// Calls store(i, j, sum over k of left(i, k) right(k, j)) for i < rows and j < columns, each pair
/// in one thread, which adds in the order of k, in fused steps. Begins and ends with a barrier, so
/// what was written before may be read, and what `store` writes may be read afterwards; `store` may
/// not write what left() and right() read.
template <Along along_left, Along along_right, class A, class Left, class Right, class Store>
__device__ void block_product(ProductTiles<A>& tiles, int rows, int columns, int depth, Left left,
                              Right right, Store store) {
  constexpr int side = 4;  // of the results of a thread
  const int i = static_cast<int>(threadIdx.x) / (product_tile / side) * side;
  const int j = static_cast<int>(threadIdx.x) % (product_tile / side) * side;
  __syncthreads();
  for (int i0 = 0; i0 < rows; i0 += product_tile) {
    for (int j0 = 0; j0 < columns; j0 += product_tile) {
      A sum[side][side] = {};
      for (int k0 = 0; k0 < depth; k0 += product_depth) {
        __syncthreads();
        load_operand<along_left>(tiles.left, rows - i0, depth - k0,
                                 [&](int r, int k) { return left(i0 + r, k0 + k); });
        load_operand<along_right>(tiles.right, columns - j0, depth - k0,
                                  [&](int c, int k) { return right(k0 + k, j0 + c); });
        __syncthreads();
        LONGSPAN_UNROLL
        for (int k = 0; k < product_depth; ++k) {
          const A* const a = tiles.left + k * ProductTiles<A>::stride + i;
          const A* const b = tiles.right + k * ProductTiles<A>::stride + j;
          LONGSPAN_UNROLL
          for (int r = 0; r < side; ++r) {
            LONGSPAN_UNROLL
            for (int c = 0; c < side; ++c) sum[r][c] = fused(a[r], b[c], sum[r][c]);
          }
        }
      }
      LONGSPAN_UNROLL
      for (int r = 0; r < side; ++r) {
        LONGSPAN_UNROLL
        for (int c = 0; c < side; ++c) {
          if (i0 + i + r < rows && j0 + j + c < columns) {
            store(i0 + i + r, j0 + j + c, sum[r][c]);
          }
        }
      }
    }
  }
  __syncthreads();
}

}  // namespace longspan::cuda
