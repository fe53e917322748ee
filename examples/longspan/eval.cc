#include <chrono>
#include <cstdio>

#include "core/error.h"
#include "examples/longspan/commands.h"

namespace longspan {

int eval_command(int argc, const char* const* argv) {
  const Flag own[] = {{"--out", "", "the run folder"},
                      {"--step", "", "step of the checkpoint; without it the newest"},
                      {"--part", "", "train, valid or test; without it valid"}};
  const CommandLine line = read_command_line(
      argc, argv, own,
      "longspan eval --out DIR: scores a checkpoint on every byte of a part of the data once.");
  Trained trained = load_run(line);
  const Run& run = trained.run;
  const ByteCorpus corpus = run.corpus();
  const std::string part = line.value("--part") != nullptr ? *line.value("--part") : "valid";
  require(part == "train" || part == "valid" || part == "test", "--part",
          "got \"{}\"; expected train, valid or test", part);
  const BytePart& bytes = part == "train"   ? corpus.train()
                          : part == "valid" ? corpus.valid()
                                            : corpus.test();
  require(bytes.size() > 0, "--part", "the {} part of {} is empty with --split {}", part,
          corpus.path(), run.config.split);

  MemoryTracker& tracker = memory_tracker(run.device);
  tracker.reset_peak();
  const auto start = std::chrono::steady_clock::now();
  const double bits = bits_per_byte(run, bytes);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::fprintf(stderr, "step %lld, %s part of %s: %.4f bits per byte\n",
               static_cast<long long>(trained.step), part.c_str(), corpus.path().c_str(), bits);
  const Json* before = trained.values.find("train_bpb");
  finish(run.out, {.model = run.config.model_name,
                   .parameters = parameter_count(*run.model),
                   .steps = trained.step,
                   .tokens = bytes.size(),
                   .train_bpb = before != nullptr && before->is_number() ? before->number() : 0,
                   .valid_bpb = bits,
                   .seconds = seconds,
                   .peak = tracker.peak()});
  return 0;
}

}  // namespace longspan
