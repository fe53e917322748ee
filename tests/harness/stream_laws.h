#pragma once

#include "tests/harness/model_info.h"

namespace longspan::test {

// Laws of models that keep a memory between segments (Streams::memory_length()), whatever the
// model is. RegisteredModel makes them tests of every such model in the table.

/// Any cut of a stream into segments gives the logits of one pass, up to rounding, with the memory
/// of training and with that of evaluation.
void cuts(const ModelInfo& m);
/// A stream that begins anew in the middle of a batch is a stream of its own, streams do not see
/// each other, and rows of a memory that take_rows() selects go on as those streams.
void streams_apart(const ModelInfo& m);
/// Two training segments: no gradient reaches the memory, all memories have one shape, nothing of a
/// segment is alive after it but the next memory, and every memory policy that keeps the function
/// has the same losses, gradients and memories.
void segments_in_training(const ModelInfo& m);

}  // namespace longspan::test
