#pragma once

#include <cstdint>

#include "core/generator.h"
#include "core/tensor.h"

namespace longspan {

/// How the rows of a random projection depend on each other. All but iid make blocks of rows that
/// are orthogonal, so that random features cover all directions evenly and their error falls
/// (sec. 2.4 and theorem 2 of \cite choromanski2021 ):
///   iid           independent normal rows
///   gram_schmidt  blocks of d rows of a uniformly distributed orthogonal matrix (R-ORF)
///   hadamard      blocks H D H D H D, with the normalised Hadamard matrix H of Sylvester and
///   random
///                 signs D (H-ORF); if d is no power of two, the first d columns of the next one's,
///                 whose rows are not quite orthogonal
///   givens        blocks of d rows of a product of 3 d ceil(ln d) rotations of random planes by
///                 random angles, from random signs (G-ORF)
/// References use the Q of a Householder QR as it is, whose first row never points along +e_1: that
/// biases positive features by -9 % (d = 8). Here R has a positive diagonal. The official G-ORF
/// takes a third of the rotations, with pairs of equal indices and the same seed for all blocks,
/// which is biased by 3 to 34 %.
enum class ProjectionRows : uint8_t { iid, gram_schmidt, hadamard, givens };

/// The norms of the rows of orthogonal blocks: those of independent normal vectors, so that each
/// row alone is normal and estimates of the softmax kernel are unbiased, or sqrt(d) for all, which
/// is biased (the regularised softmax kernel).
enum class ProjectionNorms : uint8_t { normal, constant };

/// Draws the projection W of random features (linear_attention()), row by row from blocks that each
/// have a stream of their own, so that more rows keep the first ones. Computed on the host in f64.
///   returns  [m, d], f32 or f64
///   throws   ValueError unless m >= 1 and 1 <= d <= 2^20; DTypeError
Tensor random_projection(int64_t m, int64_t d, Generator gen,
                         ProjectionRows rows = ProjectionRows::gram_schmidt,
                         ProjectionNorms norms = ProjectionNorms::normal, DType dtype = DType::f32,
                         Device device = {});
/// Draws the phases of the features `phase`, uniform in [0, 2 pi).
///   returns  [m], f32 or f64
Tensor random_phases(int64_t m, Generator gen, DType dtype = DType::f32, Device device = {});

/// The number of random features that the theory asks for, d ln d rounded down, at least 1
/// (theorem 4).
int64_t default_features(int64_t d);

}  // namespace longspan
