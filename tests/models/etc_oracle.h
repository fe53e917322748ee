#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/etc/etc.h"

namespace longspan::test {

/// Holds the structure of a batch in plain integers. An empty vector means "not specified".
struct Links {
  int64_t batch = 1, n_l = 0, n_g = 0, classes = 0;
  int64_t owners = 1;                                            // O
  std::vector<int64_t> owner;                                    // [B, n_l, O]
  std::vector<int64_t> context, example, link_class, l2g_all;    // [B, n_l]
  std::vector<int64_t> global_context, global_example, g2l_all;  // [B, n_g]
  std::vector<int64_t> global_labels, link_labels;               // [n_g, n_g], [classes, n_g]

  /// Returns random tokens. The last two ids of the vocabulary are the mask and the global token.
  EtcInputs inputs(const EtcConfig& c, uint64_t seed = 1) const;
  /// Whether long token j of sample b belongs to global m.
  bool owns(int64_t b, int64_t m, int64_t j) const;
};

/// Names the four pieces of attention, query stream to key stream.
enum class LinkPiece { l2l, l2g, g2g, g2l };

/// Returns the label of a visible pair, or -1 for a hidden pair, from the definition. Query i, key
/// j of sample b.
int64_t label_of(const EtcConfig& c, const Links& links, LinkPiece piece, int64_t b, int64_t i,
                 int64_t j);

/// Returns sentences of lengths 1, 4, 2, 7 ... with one global token each, in every sample.
Links sentences(int64_t batch, int64_t n_l);

/// Computes the encoder from its definition: dense scores with a table of labels for every pair, in
/// plain ops. Reads the model's parameters by name. Rows with no visible key get zero.
LinkedStreams dense_encoder(const EtcConfig& c, Module& model, const EtcInputs& in,
                            const Links& links);

}  // namespace longspan::test
