#pragma once

#include <span>
#include <string>
#include <string_view>

#include "app/run.h"
#include "app/task_data.h"
#include "train/config.h"

namespace longspan {

// The commands of longspan: argv[0] is "longspan train" and the like. Each returns the exit status
// or throws.

int train_command(int argc, const char* const* argv);
int eval_command(int argc, const char* const* argv);
int generate_command(int argc, const char* const* argv);
int models_command(int argc, const char* const* argv);
int data_command(int argc, const char* const* argv);
int tokens_command(int argc, const char* const* argv);
int draw_command(int argc, const char* const* argv);
int memory_command(int argc, const char* const* argv);
int study_command(int argc, const char* const* argv);

/// Flags that set what a run is made of.
std::span<const Flag> run_flags();
/// The command line with these flags and those of run_flags(). Prints --help and ends the process
/// where that is asked for. Throws ValueError on words that belong to nothing.
CommandLine read_command_line(int argc, const char* const* argv, std::span<const Flag> flags,
                              const std::string& about, size_t words = 0);

/// The settings whose keys begin with `prefix`, without it; the line keeps the others.
Settings taken(CommandLine& line, std::string_view prefix);

/// Flags of beam search, and what they say. Throws ValueError on numbers out of range.
std::span<const Flag> search_flags();
BeamSearch taken_search(CommandLine& line);

/// A trained run, ready to be scored or sampled from.
struct Trained {
  TrainingRun run;
  Position at;
};

/// The newest checkpoint in the folder of --out, or that of --step, with config.toml changed by the
/// command line. Throws IoError where there is none or it is damaged.
Trained load_run(const CommandLine& line);

/// "pictures/loss.png": loss and validation over steps, from metrics.jsonl.
void draw_loss(const TrainingRun& run, const LossUnit& unit);
/// "pictures/attention.png": how each layer and head spreads its attention over the beginning of
/// the validation part.
void draw_attention(const TrainingRun& run, const TaskData& task_data);

}  // namespace longspan
