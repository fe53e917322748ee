#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/memory.h"
#include "examples/longspan/run_config.h"
#include "models/model.h"
#include "train/data.h"
#include "train/json.h"

namespace longspan {

/// The parts of a run that training, scoring and sampling have in common.
struct Run {
  RunConfig config;
  std::string out;  ///< the run folder
  Device device;
  std::unique_ptr<LanguageModel> model;

  /// Builds the model and applies threads, device and memory limit. Parameters are drawn from the
  /// seed.
  Run(RunConfig config, std::string out);

  Generator generator() const { return Generator{config.seed}; }
  ByteCorpus corpus() const;
  BatchOptions batches() const;
};

/// The figures of summary.json.
struct Summary {
  std::string model;
  int64_t parameters = 0, steps = 0, tokens = 0;
  double train_bpb = 0, valid_bpb = 0, seconds = 0;
  Usage peak;
};

/// Writes summary.json and prints the same line, the last on standard output.
void finish(const std::string& out, const Summary& summary);

/// Bits per byte of a part: every byte is scored once (causal), or at least one of each window
/// (masked). NaN where the part is empty.
double bits_per_byte(const Run& run, const BytePart& part);

}  // namespace longspan
