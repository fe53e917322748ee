#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/etc.h"

namespace longspan::test {

/// Who belongs to whom in a batch, in plain numbers; empty: not given.
struct Links {
  int64_t batch = 1, n_l = 0, n_g = 0, classes = 0;
  std::vector<int64_t> owner, context, example, link_class;      // [B, n_l]
  std::vector<int64_t> global_context, global_example, g2l_all;  // [B, n_g]
  std::vector<int64_t> global_labels, link_labels;               // [n_g, n_g], [classes, n_g]

  /// Random tokens of a vocabulary whose last two are the mask and the global.
  EtcInputs inputs(const EtcConfig& c, uint64_t seed = 1) const;
};

/// The pieces of attention.
enum class Piece { l2l, l2g, g2g, g2l };

/// The definition, pair by pair: label of a visible pair, -1: hidden. Query i, key j of sample b.
int64_t label_of(const EtcConfig& c, const Links& links, Piece piece, int64_t b, int64_t i,
                 int64_t j);

/// Sentences of lengths 1, 4, 2, 7 ... and a global for each, in every sample.
Links sentences(int64_t batch, int64_t n_l);

/// The encoder again, from its definition: dense scores with a table of labels for every pair, in
/// plain ops. Reads the parameters of the model by name. Rows that see nothing get zero.
EtcStreams dense_encoder(const EtcConfig& c, Module& model, const EtcInputs& in,
                         const Links& links);

}  // namespace longspan::test
