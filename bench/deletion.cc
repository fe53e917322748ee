// Measures how many rows are saved if each sample deletes its own memories. Prints JSON lines on
// standard output.
//   bench_deletion CHECKPOINT FILE   rows that the layers of the small Expire-Span keep of a text
// by the number of streams that it is read in: a mean over them (own), the rows of the stream that
// keeps most, and the rows that each would keep if all deleted equally many, as in the authors'
// code (common).
// That rule deletes a multiple of the segment's length: as many whole segments as have died in the
// stream of which most lives. Rows are counted after each of 8 segments, once a stream has read as
// many tokens as a memory can live. There are rows for all that can.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "autograd/mode.h"
#include "core/error.h"
#include "data/corpus.h"
#include "models/expire_span/expire_span.h"
#include "train/state.h"

namespace longspan::bench {
namespace {

constexpr int64_t kLength = 128, kSegments = 8;

/// Rows that a layer keeps, means over the segments that count.
struct Kept {
  double own = 0;     // a mean over the streams
  double most = 0;    // of the stream that keeps most
  double common = 0;  // by the rule of the batch
  int64_t held = 0;   // at present, by that rule
};

/// Reads a text in so many streams; returns what each layer keeps.
std::vector<Kept> kept_of(const ExpireSpan& model, const CorpusPart& text, int64_t streams) {
  const NoGrad off;
  const int64_t rows = model.memory_length(), warm_up = (rows + kLength - 1) / kLength;
  const int64_t own = (warm_up + kSegments) * kLength;
  require(text.size() >= streams * own, "bench_deletion", "the text has {} tokens; expected {}",
          text.size(), streams * own);
  SegmentMemory memory = model.evaluation_memory(streams);
  std::vector<Kept> layers(memory.layers.size());
  for (int64_t s = 0; s < warm_up + kSegments; ++s) {
    std::vector<int32_t> tokens;
    for (int64_t b = 0; b < streams; ++b) {
      for (int64_t i = 0; i < kLength; ++i) tokens.push_back(text[b * own + s * kLength + i]);
    }
    model.logits_after(memory, Tensor::from(tokens, {streams, kLength}));
    for (size_t i = 0; i < layers.size(); ++i) {
      double mean = 0;
      int64_t most = 0;
      for (const int64_t begin : memory.layers[i].get<InputRows>().begin.to_vector<int64_t>()) {
        mean += static_cast<double>(rows - begin) / static_cast<double>(streams);
        most = std::max(most, rows - begin);
      }
      Kept& k = layers[i];
      k.held += kLength;
      k.held -= (k.held - most) / kLength * kLength;
      if (s < warm_up) continue;
      k.own += mean / kSegments;
      k.most += static_cast<double>(most) / kSegments;
      k.common += static_cast<double>(k.held) / kSegments;
    }
  }
  return layers;
}

void run(const std::string& checkpoint, const std::string& file) {
  ExpireSpanConfig config = expire_span_preset("small");
  config.max_memory = 0;
  ExpireSpan model(config, Init{});
  read_parameters(checkpoint, named_parameters(model));
  const auto corpus = ByteCorpus::open(file);
  for (const int64_t streams : {1, 4, 16, 64}) {
    const std::vector<Kept> layers = kept_of(model, corpus.valid(), streams);
    for (size_t i = 0; i < layers.size(); ++i) {
      const Kept& k = layers[i];
      std::puts(fmt::format("{{\"streams\":{},\"layer\":{},\"own\":{:.1f},\"most\":{:.1f},"
                            "\"common\":{:.1f},\"ratio\":{:.3f}}}",
                            streams, i, k.own, k.most, k.common, k.own / k.common)
                    .c_str());
    }
  }
}

}  // namespace
}  // namespace longspan::bench

int main(int argc, char** argv) try {
  longspan::require(argc == 3, "bench_deletion", "expected CHECKPOINT FILE");
  longspan::bench::run(argv[1], argv[2]);
} catch (const longspan::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
