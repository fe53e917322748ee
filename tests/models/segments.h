#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "autograd/mode.h"
#include "models/capabilities.h"
#include "ops/copy.h"
#include "ops/shape.h"
#include "tests/harness/model_info.h"
#include "tests/models/golden_file.h"

namespace longspan::test {

// What the tests of models with a memory between segments have in common.

/// Returns the entry of a causal model of 17 tokens, without what it sees and costs.
///   dropping  the configuration with dropout
template <class Model, class Config>
ModelInfo streamed_entry(const std::string& name, const Config& c, const Config& dropping) {
  ModelInfo m = entry_of<Model>(name, c, dropping);
  m.task = successor;
  m.counted_from = 1;
  return m;
}

/// Calls f(segment, memory before it) for each segment of tokens [B, L]; f returns the next memory.
inline void each_segment(
    const Tensor& tokens, const std::vector<int64_t>& lengths, SegmentMemory memory,
    const std::function<SegmentMemory(const Tensor&, const SegmentMemory&)>& f) {
  int64_t at = 0;
  for (const int64_t n : lengths) {
    memory = f(contiguous(narrow(tokens, 1, at, n)), memory);
    at += n;
  }
}

/// Returns the loss of each segment of tokens [B, L], summed over its positions, with the tokens
/// themselves as targets. The segments have these lengths.
inline std::vector<double> losses_of(const LanguageModel& model, const Tensor& tokens,
                                     const std::vector<int64_t>& lengths, bool evaluation = false) {
  const NoGrad off;
  const int64_t batch = tokens.dim(0);
  std::vector<double> all;
  each_segment(tokens, lengths,
               evaluation ? evaluation_memory(model, batch) : empty_memory(model, batch),
               [&](const Tensor& x, const SegmentMemory& memory) {
                 auto result = model.loss(x, x, memory, Pass{});
                 all.push_back(result.loss.item() * static_cast<double>(x.dim(1)));
                 return std::move(result.memory);
               });
  return all;
}

/// Expects that 12 tokens have the same losses however they are cut.
inline void expect_equal_cuts(const LanguageModel& model, const Tensor& tokens,
                              bool evaluation = false) {
  ASSERT_EQ(tokens.dim(1), 12);
  const std::vector<double> single = losses_of(model, tokens, std::vector<int64_t>(12, 1));
  for (const std::vector<int64_t>& lengths :
       std::vector<std::vector<int64_t>>{std::vector<int64_t>(12, 1),
                                         {12},
                                         {6, 6},
                                         {4, 4, 4},
                                         {5, 1, 6},
                                         {3, 3, 3, 3},
                                         {2, 2, 2, 2, 2, 2}}) {
    const std::vector<double> losses = losses_of(model, tokens, lengths, evaluation);
    auto token = single.begin();
    for (size_t s = 0; s < lengths.size(); ++s) {
      const double expected = std::accumulate(token, token + lengths[s], 0.0);
      EXPECT_NEAR(losses[s], expected, 1e-13 * (1 + expected));
      token += lengths[s];
    }
  }
}

/// Trains on the segments of a golden file, in turn: f(losses of a segment) runs backward and keeps
/// what it compares. Compares the logits, and returns the last memory.
inline SegmentMemory train_on_segments(const GoldenFile& golden, const LanguageModel& model,
                                       double tolerance,
                                       const std::function<void(const LanguageModel::Losses&)>& f) {
  const Tensor tokens = golden["input.tokens"], targets = golden["input.targets"];
  std::vector<int64_t> ends = golden["input.cuts"].to_vector<int64_t>();
  ends.push_back(tokens.dim(1));
  SegmentMemory memory = empty_memory(model, tokens.dim(0));
  std::vector<Tensor> logits;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    const auto part = [&](const Tensor& x) { return contiguous(narrow(x, 1, begin, end - begin)); };
    SegmentMemory same = memory;
    logits.push_back(memory_length(model) > 0
                         ? need<Streams>(model).logits_after(same, part(tokens))
                         : model.logits(part(tokens), Pass{}));
    auto result = model.loss(part(tokens), part(targets), memory, training);
    f(result);
    memory = std::move(result.memory);
    begin = end;
  }
  golden.expect("output.logits", concat(logits, 1), tolerance);
  return memory;
}

}  // namespace longspan::test
