#pragma once

#include <cstdint>
#include <vector>

#include "models/adaptive_span/adaptive_span.h"
#include "models/bigbird/bigbird_pegasus.h"
#include "models/bp_transformer/bp_encoder.h"
#include "models/bp_transformer/bp_transformer.h"
#include "models/bp_transformer/bp_translator.h"
#include "models/compressive/compressive.h"
#include "models/etc/etc.h"
#include "models/expire_span/expire_span.h"
#include "models/hibert/hibert.h"
#include "models/linformer/linformer.h"
#include "models/longformer/led.h"
#include "models/longformer/longformer.h"
#include "models/longformer/longformer_lm.h"
#include "models/performer/performer.h"
#include "models/reformer/reformer.h"
#include "models/routing/routing.h"
#include "models/sparse_transformer/sparse_transformer.h"
#include "models/transformer/transformer.h"
#include "models/transformer_xl/transformer_xl.h"

namespace longspan::test {

// Closed formulas of the multiply-accumulates of the loss over one segment of l tokens, for
// encoder-decoders over a source and a target of l tokens: what forward_macs() must count.

/// Causal, or bidirectional in an encoder.
int64_t macs_of(const TransformerConfig& c, int64_t l);
/// Features of queries and keys, their sums, and the pairs within chunks of a causal one.
int64_t macs_of(const PerformerConfig& c, int64_t l);
/// `pairs` are the visible pairs of all layers and heads, e.g. of outlined_pairs().
int64_t macs_of(const EncoderConfig& c, int64_t pairs, int64_t l);
int64_t macs_of(const LinformerConfig& c, int64_t l);
int64_t macs_of(const LongformerConfig& c, int64_t l);
int64_t macs_of(const LongformerLMConfig& c, int64_t l, int64_t batch = 1);
int64_t macs_of(const SparseTransformerConfig& c, int64_t l);
/// With a memory of mem_len rows, which are projected whether they exist or not.
int64_t macs_of(const TransformerXLConfig& c, int64_t l);
/// Rows of the queue count whether they exist or not, and so do groups that a segment may evict.
int64_t macs_of(const CompressiveConfig& c, int64_t l);
/// `spans` are the computed ones of each layer and head. As much of the memory is projected as the
/// longest span of a layer has, whether its rows exist or not.
int64_t macs_of(const AdaptiveSpanConfig& c, const std::vector<std::vector<int64_t>>& spans,
                int64_t l);
/// All rows of the memory are projected and attended to, whether they exist or not.
int64_t macs_of(const ExpireSpanConfig& c, int64_t l);
/// All scores that LSH layers compute count, masked ones included, and so does hashing.
int64_t macs_of(const ReformerConfig& c, int64_t l);
/// Scores of tokens and centroids count as products.
int64_t macs_of(const RoutingConfig& c, int64_t l);
/// Counts hard links between the streams as if every global saw every token: a mask hides the
/// others, and masks hide nothing from the count. `random` are the pairs of random blocks of all
/// layers and heads.
int64_t macs_of(const EtcConfig& c, int64_t random, int64_t l);
int64_t macs_of(const LedConfig& c, int64_t l);
/// A row of l tokens without end tokens, all of whose sentences are written.
int64_t macs_of(const HibertConfig& c, int64_t l);
/// `pairs` are those of the encoder's self-attention, of all layers and heads.
int64_t macs_of(const BigBirdPegasusConfig& c, int64_t pairs, int64_t l);

/// All nodes are rows of a layer, in the last one the leaves alone.
int64_t macs_of(const BpTransformerConfig& c, int64_t l);
int64_t macs_of(const BpEncoderConfig& c, int64_t l);
/// A target reads all of its source.
int64_t macs_of(const BpTranslatorConfig& c, int64_t l);

/// Returns the visible pairs of all layers and heads, counted from the model's outlines.
int64_t outlined_pairs(const LanguageModel& model, int64_t l);

/// Returns the pairs that all heads of a layer of a Sparse Transformer attend to.
int64_t attended_pairs(const SparseTransformerConfig& c, int64_t layer, int64_t length);

}  // namespace longspan::test
