#include "data/streams.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/error.h"
#include "nn/objective.h"
#include "ops/copy.h"

namespace longspan {
namespace {

void require_sizes(int64_t streams, int64_t length) {
  require(streams >= 1, "batch", "got {} streams; expected 1 or more", streams);
  require(length >= 1, "length", "got {}; expected 1 or more", length);
}

/// Returns token i of a split; token -1 is the one before it.
int32_t token_at(const CorpusPart& part, int64_t i) { return i < 0 ? part.before : part[i]; }

Batch batch_of(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets,
               int64_t rows, Device device) {
  const auto made = [&](const std::vector<int32_t>& x) {
    Tensor t = Tensor::from(x, {rows, std::ssize(x) / rows}, device);
    t.set_category(Category::data);
    return t;
  };
  return {made(tokens), made(targets)};
}

}  // namespace

Tensor all_anew(int64_t count, Device device) { return full({count}, 1, DType::u8, device); }

TextStreams::TextStreams(CorpusPart part, int64_t streams, int64_t length, uint64_t seed,
                         Device device)
    : part_(std::move(part)), streams_(streams), length_(length), seed_(seed), device_(device) {
  require_sizes(streams, length);
  require(part_.record == 1, "data",
          "{} has records of {} tokens; streams of text have none: choose a model without a memory",
          part_.path, part_.record);
  const int64_t spare = part_.size() - 1 - streams * length;  // the last target is no input
  require(spare >= 0, "data",
          "the {} part of {} has {} tokens, and {} streams of segments of {} need {}: choose a "
          "longer file, a smaller --batch or a shorter --length",
          part_.split, part_.path, part_.size(), streams, length, streams * length + 1);
  segments_ = (part_.size() - 1) / (streams * length);
  // Leaves room for offsets, where a segment less is no great loss.
  if (segments_ > 16) segments_ = (part_.size() - length) / (streams * length);
  slack_ = part_.size() - 1 - streams * length * segments_;
}

StreamBatch TextStreams::at(int64_t segment, int64_t first, int64_t count) const {
  require(segment >= 0, "data", "segment {} is negative", segment);
  require(first >= 0 && count >= 1 && first + count <= streams_, "data", "streams {} to {} of {}",
          first, first + count - 1, streams_);
  const int64_t epoch = segment / segments_, at = segment % segments_;
  const uint64_t draw =
      Generator{seed_}.fork("streams").fork(static_cast<uint64_t>(epoch)).fork("offset").key;
  const auto offset = static_cast<int64_t>(draw % static_cast<uint64_t>(slack_ + 1));
  std::vector<int32_t> tokens, targets;
  for (int64_t s = first; s < first + count; ++s) {
    const int64_t begin = offset + (s * segments_ + at) * length_;
    for (int64_t i = 0; i < length_; ++i) {
      tokens.push_back(token_at(part_, begin + i));
      targets.push_back(token_at(part_, begin + i + 1));
    }
  }
  return {batch_of(tokens, targets, count, device_), reset(segment, count)};
}

Tensor TextStreams::reset(int64_t segment, int64_t count) const {
  return segment % segments_ == 0 ? all_anew(count, device_) : Tensor{};
}

SampleStreams::SampleStreams(std::function<Sample(int64_t)> sample, int64_t tokens, int64_t streams,
                             int64_t length, Device device)
    : sample_(std::move(sample)),
      tokens_(tokens),
      streams_(streams),
      length_(length),
      device_(device) {
  require_sizes(streams, length);
  require(tokens >= 1, "data", "samples have {} tokens; expected 1 or more", tokens);
}

StreamBatch SampleStreams::at(int64_t segment, int64_t first, int64_t count) const {
  require(segment >= 0, "data", "segment {} is negative", segment);
  require(first >= 0 && count >= 1 && first + count <= streams_, "data", "streams {} to {} of {}",
          first, first + count - 1, streams_);
  if (const int64_t turn = segment / segments(); turn != turn_) {
    samples_.assign(static_cast<size_t>(streams_), {});
    turn_ = turn;
  }
  const auto read =
      std::span(samples_).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  for (size_t i = 0; i < read.size(); ++i) {
    if (read[i].tokens.empty()) {
      read[i] = sample_(turn_ * streams_ + first + static_cast<int64_t>(i));
    }
  }
  return {stack_segment(read, segment % segments(), length_, device_), reset(segment, count)};
}

Tensor SampleStreams::reset(int64_t segment, int64_t count) const {
  return segment % segments() == 0 ? all_anew(count, device_) : Tensor{};
}

EvaluationStreams::EvaluationStreams(CorpusPart part, int64_t streams, int64_t length,
                                     int64_t warm_up, Device device)
    : part_(std::move(part)),
      all_(streams),
      streams_(streams),
      length_(length),
      warm_up_(warm_up),
      most_((part_.size() + streams - 1) / std::max<int64_t>(streams, 1)),
      device_(device) {
  require_sizes(streams, length);
  require(warm_up >= 0, "warm-up", "got {}; expected 0 or more", warm_up);
}

int64_t EvaluationStreams::size() const {
  if (part_.size() == 0) return 0;
  return (most_ + (all_ > 1 ? warm_up_ : 0) + length_ - 1) / length_;
}

Batch EvaluationStreams::operator[](int64_t i) const {
  require(i >= 0 && i < size(), "data", "batch {} of {}", i, size());
  const int64_t own = (part_.size() + all_ - 1) / all_;
  const int64_t most = most_ + (all_ > 1 ? warm_up_ : 0);
  const int64_t count = std::min(length_, most - i * length_);
  std::vector<int32_t> tokens, targets;
  for (int64_t s = first_; s < first_ + streams_; ++s) {
    // Target j of the split is predicted from token j - 1. A stream reads from `from` on.
    const int64_t begin = std::min(s * own, part_.size());
    const int64_t end = std::min(begin + most_, part_.size());
    const int64_t from = std::max<int64_t>(begin - warm_up_, 0);
    for (int64_t j = from + i * length_; j < from + i * length_ + count; ++j) {
      tokens.push_back(j < end ? token_at(part_, j - 1) : 0);
      targets.push_back(begin <= j && j < end ? part_[j] : static_cast<int32_t>(ignored_target));
    }
  }
  return batch_of(tokens, targets, streams_, device_);
}

EvaluationStreams EvaluationStreams::some(int64_t first, int64_t count) const {
  require(first >= 0 && count >= 1 && first + count <= streams_, "data", "streams {} to {} of {}",
          first, first + count - 1, streams_);
  EvaluationStreams part = *this;
  part.first_ = first_ + first;
  part.streams_ = count;
  return part;
}

EvaluationStreams EvaluationStreams::shortened(int64_t tokens) const {
  require(tokens >= 1, "data", "streams of {} tokens; expected 1 or more", tokens);
  EvaluationStreams part = *this;
  part.most_ = std::min(most_, tokens);
  return part;
}

}  // namespace longspan
