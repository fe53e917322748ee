#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "ops/patterns/pattern.h"

namespace longspan {

struct EtcConfig;

/// Relation labels of ETC \cite ainslie2020 with maximal distance k. For key j and query i of one
/// stream and delta = j - i, labels 0 to k are delta = 0 to k and more, labels k + 1 to 2 k are
/// delta = -1 to -k and less. Then, beyond distances:
struct EtcLabels {
  int64_t k = 0;

  int64_t distance(int64_t delta) const {
    return delta >= 0 ? (delta < k ? delta : k) : k + (-delta < k ? -delta : k);
  }
  int64_t unlinked() const { return 2 * k + 1; }       ///< long and global, not of one another
  int64_t linked() const { return 2 * k + 2; }         ///< long token and the global that owns it
  int64_t other_context() const { return 2 * k + 3; }  ///< two globals of different contexts
  int64_t part_of() const { return 2 * k + 4; }        ///< a global below another
  int64_t has_part() const { return 2 * k + 5; }       ///< and the other way
  /// Where attention keeps a label: it has clamp(delta, -k, k) + k for distances, and the others as
  /// they are. The inverse is label().
  int64_t row(int64_t label) const {
    if (label > 2 * k) return label;
    return label <= k ? label + k : 2 * k - label;
  }
  int64_t label(int64_t row) const {
    if (row > 2 * k) return row;
    return row >= k ? row - k : 2 * k - row;
  }
};

/// Who belongs to whom. All of an integer dtype; a first size of 1 serves every sample, and what is
/// not given does not restrict anything.
struct EtcStructure {
  Tensor owner = {};  ///< [1 or B, n_l]: the global of a long token's sentence; -1: none
  Tensor example = {},
         global_example = {};  ///< [1 or B, n_l], [1 or B, n_g]: only tokens of one packed
                               ///< example, >= 0, see each other; -1: padding, sees nothing
  /// Contexts have no order: long tokens of different contexts do not see each other, and globals
  /// of different contexts, >= 0, have one label instead of a distance.
  Tensor context = {}, global_context = {};
  Tensor g2l_all =
      {};  ///< [1 or B, n_g]: not 0 at globals that see all long tokens, hard g2l or not
  /// [1 or B, n_g, n_g]: labels of key m' for query m; -1: hidden. In place of distances and
  /// contexts: hierarchies and other edges.
  Tensor global_labels = {};
  /// Further edges between the streams: labels [1 or B, C, n_g] of long tokens of class c and
  /// global m, both directions; -1: hidden; [1 or B, n_l] classes of long tokens. In place of
  /// linked and unlinked.
  Tensor link_labels = {}, link_class = {};
};

/// What both sides see.
struct EtcPatterns {
  AttentionPattern long_side, global_side;   ///< keys: long, global; global, long
  int64_t long_pairs = 0, global_pairs = 0;  ///< visible pairs of a head, all samples
  /// More long keys of long queries, none of long_side's, that each head draws: of every layer.
  std::vector<AttentionPattern> random = {};

  /// The same for one layer.
  EtcPatterns of_layer(int64_t i) const;
};

/// Lays out a batch. Examples and contexts must be contiguous. Costs O(B (n_l + n_g + n_g^2)) on
/// the host: nothing of n_l by n_l or n_l by n_g is made, but a table of labels by owner has n_g^2
/// entries, as attention among globals has pairs. Random blocks besides cost as many steps for each
/// layer and head as there are pairs of blocks.
/// Throws ShapeError and ValueError naming the tensor that does not fit.
EtcPatterns etc_patterns(const EtcConfig& config, const EtcStructure& structure, int64_t batch,
                         int64_t n_l, int64_t n_g, Device device);

/// The random blocks of every layer for n_l long tokens, within the bounds of `mask`: block i of
/// queries sees r blocks k with |k - i| > ceil(radius / block), or all where there are fewer.
std::vector<AttentionPattern> etc_random_blocks(const EtcConfig& config, int64_t n_l,
                                                const PairMask& mask);

/// Labels between globals of a hierarchy, such as document, paragraphs, sentences: distances within
/// a level, part_of() and has_part() between a global and the one above it, other_context() else.
///   level    [B, n_g] of an integer dtype
///   parent   [B, n_g]: index of the global above; -1: none
///   returns  i32 [B, n_g, n_g], for EtcStructure::global_labels
/// Throws ValueError where the configuration has fewer than 2 k + 6 labels.
Tensor hierarchy_labels(const EtcConfig& config, const Tensor& level, const Tensor& parent);

/// n keys within `radius` of n queries: n (2 r + 1) - r (r + 1), or n^2 where r >= n - 1.
int64_t band_pairs(int64_t n, int64_t radius);

}  // namespace longspan
