#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/sequence_hf.h"
#include "models/transformer/transformer.h"

namespace longspan {

/// Checkpoints of BART \cite lewis2020, mBART \cite liu2020 and Pegasus \cite zhang2020 in the
/// format of the package transformers; `untied`: of those whose tables are not one.
extern const CheckpointFormat bart_format, mbart_format, pegasus_format;
extern const CheckpointFormat bart_untied_format, mbart_untied_format, pegasus_untied_format;

/// The keys of config.json for BART.
struct BartKeys : SequenceKeys {
  BartKeys() { model_type = "bart"; }

  int64_t max_position_embeddings = 1024;
  bool scale_embedding = false;
  std::vector<std::string> id2label = {"LABEL_0", "LABEL_1", "LABEL_2"};  ///< the default of
                                                                          ///< transformers

  void visit(auto& v) {
    SequenceKeys::visit(v);
    v("max_position_embeddings", max_position_embeddings)("scale_embedding", scale_embedding)(
        "id2label", id2label);
  }
};

/// The keys of config.json for mBART, which is a BART with norms before its layers.
struct MBartKeys : BartKeys {
  MBartKeys() {
    model_type = "mbart";
    id2label.clear();
  }
};

/// The keys of config.json for Pegasus, whose positions are sines and cosines.
struct PegasusKeys : BartKeys {
  PegasusKeys() {
    model_type = "pegasus";
    pad_token_id = decoder_start_token_id = 0;
    id2label.clear();
  }
};

/// Convert between keys and configuration. BART's position tables begin at row 2 whatever
/// pad_token_id is. A Transformer does not store ids of special tokens: keep those of the keys.
/// Throws ValueError when such a model cannot have this configuration.
TransformerConfig bart_config(const BartKeys& keys);
BartKeys bart_keys(const TransformerConfig& config);
TransformerConfig mbart_config(const MBartKeys& keys);
MBartKeys mbart_keys(const TransformerConfig& config);
TransformerConfig pegasus_config(const PegasusKeys& keys);
PegasusKeys pegasus_keys(const TransformerConfig& config);

}  // namespace longspan
