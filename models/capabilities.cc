#include "models/capabilities.h"

#include <algorithm>
#include <limits>

#include "autograd/mode.h"
#include "core/error.h"
#include "models/reads_documents.h"
#include "ops/copy.h"
#include "ops/cost.h"
#include "ops/elementwise.h"
#include "ops/shape.h"

namespace longspan {
namespace {

template <class Capability>
void add_name(const LanguageModel& model, std::string& names) {
  if (ask<Capability>(model) == nullptr) return;
  if (!names.empty()) names += ", ";
  names += Capability::capability;
}

template <class... Capabilities>
std::string names_of(const LanguageModel& model) {
  std::string names;
  (add_name<Capabilities>(model, names), ...);
  return names;
}

}  // namespace

std::string capabilities_of(const LanguageModel& model) {
  return names_of<ContinuesSequences, WritesSequences, FillsMasks, ClassifiesSequences, TagsTokens,
                  FindsSpans, ChoosesCandidates, ReadsDocuments, Streams, SplitsSequences,
                  ShowsAttention, ShowsDecoder, LearnsSpans, ForgetsTokens, BeginsWithData,
                  ReversibleLayers>(model);
}

void fail_for_capability(const LanguageModel& model, std::string_view capability) {
  const std::string has = capabilities_of(model);
  fail<NotImplemented>("model", "needs {}, and this model has {}", capability,
                       has.empty() ? "nothing but its loss" : has);
}

AttentionOutline ShowsAttention::attention_outline(int64_t, int64_t) const {
  fail<NotImplemented>("model", "this model has no outline of its attention");
}

SpanLogits span_logits_of(const Tensor& logits, const Tensor& lengths) {
  const auto side = [&](int64_t i) {
    Tensor x = select(logits, 2, i);  // [B, L]
    if (!lengths) return x;
    const Tensor valid = less(iota(x.dim(1), DType::i64, x.device()), unsqueeze(lengths, 1));
    return where(valid, x, full_like(x.detach(), -std::numeric_limits<double>::infinity()));
  };
  return {side(0), side(1)};
}

namespace {

void refuse_mask(std::string_view model, const Tensor& mask) {
  require<NotImplemented>(!mask, model,
                          "this model reads no mask of single tokens; expected padding at the end "
                          "alone, and lengths");
}

}  // namespace

void require_no_mask(std::string_view model, const EncoderInputs& in) {
  refuse_mask(model, in.mask);
}
void require_no_mask(std::string_view model, const SourceTokens& in) {
  refuse_mask(model, in.mask);
}

int64_t memory_length(const LanguageModel& model) {
  const auto* const streams = ask<Streams>(model);
  return streams != nullptr ? streams->memory_length() : 0;
}

int64_t memory_tokens(const LanguageModel& model) {
  const auto* const streams = ask<Streams>(model);
  return streams != nullptr ? streams->memory_tokens() : 0;
}

SegmentMemory empty_memory(const LanguageModel& model, int64_t batch) {
  const auto* const streams = ask<Streams>(model);
  return streams != nullptr ? streams->empty_memory(batch) : SegmentMemory{};
}

SegmentMemory evaluation_memory(const LanguageModel& model, int64_t batch) {
  const auto* const streams = ask<Streams>(model);
  return streams != nullptr ? streams->evaluation_memory(batch) : SegmentMemory{};
}

int64_t mask_token(const LanguageModel& model) {
  const auto* const fills = ask<FillsMasks>(model);
  return fills != nullptr ? fills->mask_token() : -1;
}

int64_t max_input_length(const LanguageModel& model) {
  const auto* const writer = ask<WritesSequences>(model);
  return writer != nullptr ? writer->max_source_length() : model.max_length();
}

std::string remark(const LanguageModel& model, int64_t length) {
  const auto* const remarks = ask<Remarks>(model);
  return remarks != nullptr ? remarks->remark(length) : std::string{};
}

int64_t forward_macs(const LanguageModel& model, int64_t length, int64_t batch) {
  const NoGrad off;
  const auto ids = [&](int64_t n) { return zeros({batch, n}, DType::i32, model.device()); };
  const MacCount macs;
  if (const auto* const writer = ask<WritesSequences>(model)) {
    const Tensor target = ids(std::min(length, model.max_length()));
    writer->sequence_loss({ids(length)}, target, target, Pass{});
  } else {
    model.loss(ids(length), ids(length), empty_memory(model, batch), Pass{});
  }
  return macs.total();
}

}  // namespace longspan
