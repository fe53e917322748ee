#pragma once

#include <cstdint>

#include "data/sample_task.h"

namespace longspan {

/// Documents on a topic. Sentence i of topic t is [a_t, b_i, s_{(t + i) mod topics}], so that its
/// place and the topic of the others determine a hidden sentence, while without the others a_t is
/// one of `topics` tokens, ln(topics) nats. All sentences of a document have its topic; with
/// `mixed`, each has it with probability 1/2 and else any topic, drawn again until more than half
/// of them have one topic. The label of a sentence is whether it has that topic. Tokens: 0 ends a
/// sentence, then come a, b and s.
struct TopicTask {
  static constexpr TargetKind kind = TargetKind::sentences;
  int64_t topics = 16, sentences = 8;
  bool mixed = false;

  int64_t length() const { return 4 * sentences; }
  int64_t vocabulary() const { return 1 + 2 * topics + sentences; }
  void visit(auto& v) {
    v("topics", topics, range::at_least(2), "topics of documents");
    v("sentences", sentences, range::positive, "sentences of a document");
  }
  void fit(int64_t /*length*/, int64_t /*vocabulary*/) {}
  SampleShape shape() const { return {length(), vocabulary(), sentences}; }
  /// Throws ValueError unless there are 2 topics and a sentence at least.
  Sample sample(const SampleKey& key) const;
};

}  // namespace longspan
