#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "ops/patterns/pattern.h"

namespace longspan {

// Attention of two linked streams \cite ainslie2020 : long tokens attend to their neighbours and to
// globals, globals to each other and to long tokens.

/// Relation labels with maximum distance k. For key j and query i of one
/// stream and delta = j - i, labels 0 to k stand for delta = 0 to k (and more), labels k + 1 to 2 k
/// for delta = -1 to -k (and less). Other relations follow:
struct RelationLabels {
  int64_t k = 0;

  int64_t distance(int64_t delta) const {
    return delta >= 0 ? (delta < k ? delta : k) : k + (-delta < k ? -delta : k);
  }
  int64_t unlinked() const { return 2 * k + 1; }       ///< long token and a global, not its owner
  int64_t linked() const { return 2 * k + 2; }         ///< long token and a global that owns it
  int64_t other_context() const { return 2 * k + 3; }  ///< two globals of different contexts
  int64_t part_of() const { return 2 * k + 4; }        ///< query global and its parent as key
  int64_t has_part() const { return 2 * k + 5; }       ///< query global and its child as key
  /// The row in which attention stores a label: clamp(delta, -k, k) + k for distances, the label
  /// itself for the others. label() is the inverse.
  int64_t row(int64_t label) const {
    if (label > 2 * k) return label;
    return label <= k ? label + k : 2 * k - label;
  }
  int64_t label(int64_t row) const {
    if (row > 2 * k) return row;
    return row >= k ? row - k : 2 * k - row;
  }
};

/// Which tokens belong together. All tensors are of an integer dtype; a first size of 1 serves
/// every sample, and an undefined tensor restricts nothing.
struct LinkedStructure {
  /// [1 or B, n_l]: the global that owns a long token; -1: none. [1 or B, n_l, O]: the globals that
  /// own it, in any order, such as those of its sentence and of its paragraph; -1: fewer than O.
  Tensor owner = {};
  Tensor example = {}, global_example = {};  ///< [1 or B, n_l], [1 or B, n_g]: only tokens of the
                                             ///< same packed example, >= 0, attend to each other;
                                             ///< -1: padding, attends to nothing
  /// Contexts have no order: long tokens of different contexts do not attend to each other, and
  /// globals of different contexts, >= 0, have one label instead of a distance.
  Tensor context = {}, global_context = {};
  Tensor g2l_all =
      {};  ///< [1 or B, n_g]: nonzero at globals that attend to all long tokens, even with hard_g2l
  Tensor l2g_all =
      {};  ///< [1 or B, n_l]: nonzero at long tokens that attend to all globals, even with hard_l2g
  /// [1 or B, n_g, n_g]: label of key m' for query m; -1: masked. Replaces distances and contexts,
  /// for hierarchies and other edges.
  Tensor global_labels = {};
  /// Other edges between the streams, in place of linked and unlinked. link_labels: labels [1 or B,
  /// C, n_g] of long tokens of class c and global m, for both directions; -1: masked. link_class:
  /// [1 or B, n_l], classes of long tokens.
  Tensor link_labels = {}, link_class = {};
};

/// Which of the possible pairs the streams use, and how they are labelled.
struct LinkedOptions {
  int64_t radius = 0;        ///< long token i attends to long tokens i - r to i + r
  bool hard_g2l = true;      ///< a global attends only to the long tokens that it owns
  bool hard_l2g = false;     ///< a long token attends only to the globals that own it
  bool labels = true;        ///< pairs have relation labels
  int64_t max_distance = 0;  ///< k of RelationLabels
  int64_t relations = 0;     ///< number of labels
};

/// The attention patterns of both sides. Keys of the long side are long tokens, then globals; those
/// of the global side globals, then long tokens.
struct LinkedPatterns {
  AttentionPattern long_side, global_side;
  /// More long keys of long queries for each layer, none of them in long_side; empty: none.
  std::vector<AttentionPattern> more = {};

  /// Returns the patterns of one layer, with at most one in `more`.
  LinkedPatterns of_layer(int64_t i) const;
};

namespace patterns {

/// Builds the patterns of a batch. The tokens of an example or context must be contiguous. Costs
/// O(B (n_l O + n_g + n_g^2)) on the host for O owners of a token: it makes nothing of size n_l x
/// n_l or n_l x n_g, but a table of labels by owner has n_g^2 entries, like the attention among
/// globals, and n_g more for each set of two or more owners that occurs in the batch. Throws
/// ShapeError and ValueError that name the tensor that does not fit.
LinkedPatterns linked(const LinkedOptions& options, const LinkedStructure& structure, int64_t batch,
                      int64_t n_l, int64_t n_g, Device device);

}  // namespace patterns

/// Returns labels between the globals of a hierarchy, such as document, paragraphs, sentences:
/// distances within a level, part_of() and has_part() between a global and its parent, otherwise
/// other_context().
///   level    [B, n_g] of an integer dtype
///   parent   [B, n_g]: index of the parent; -1: none
///   returns  i32 [B, n_g, n_g], for LinkedStructure::global_labels
/// Throws ValueError when the options have fewer than 2 k + 6 labels.
Tensor hierarchy_labels(const LinkedOptions& options, const Tensor& level, const Tensor& parent);

}  // namespace longspan
