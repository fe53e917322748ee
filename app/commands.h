#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/provenance.h"
#include "app/run.h"
#include "app/tasks/task_data.h"
#include "train/config.h"
#include "train/log.h"

namespace longspan {

// The commands of longspan; argv[0] is "longspan train" and the like, or has the name of a program
// of one's own. Each returns the exit status or throws.

int import_command(int argc, const char* const* argv);
int export_command(int argc, const char* const* argv);
int train_command(int argc, const char* const* argv);
int eval_command(int argc, const char* const* argv);
int generate_command(int argc, const char* const* argv);
int models_command(int argc, const char* const* argv);
int tasks_command(int argc, const char* const* argv);
int data_command(int argc, const char* const* argv);
int tokens_command(int argc, const char* const* argv);
int draw_command(int argc, const char* const* argv);
int memory_command(int argc, const char* const* argv);
int profile_command(int argc, const char* const* argv);
int summary_command(int argc, const char* const* argv);
int info_command(int argc, const char* const* argv);
int compare_command(int argc, const char* const* argv);
int sweep_command(int argc, const char* const* argv);
int predict_command(int argc, const char* const* argv);
int answer_command(int argc, const char* const* argv);
int summarise_command(int argc, const char* const* argv);
int study_command(int argc, const char* const* argv);

/// Returns the flags that configure a run.
std::span<const Flag> run_flags();
/// Parses the command line with these flags. For --help, it prints the help and ends the process.
/// `about` begins with the name of the command, "longspan train", in whose place the help has
/// argv[0]; the help ends with those of `keys` that no flag sets.
CommandLine read_own_flags(int argc, const char* const* argv, std::span<const Flag> flags,
                           const std::string& about, std::span<const Key> keys = {});
/// Parses the command line of a command that takes no more than a name, and returns it, "" if
/// there is none. Throws ValueError on settings and on a second name.
std::string name_given(int argc, const char* const* argv, const std::string& command,
                       const std::string& about);
/// Parses the command line with these flags and those of run_flags(), as read_own_flags(). Throws
/// ValueError on unexpected positional arguments, and on an option that the command does not use,
/// whatever the model. `command` names the command whose options it takes, if argv[0] does not.
CommandLine read_command_line(int argc, const char* const* argv, std::span<const Flag> flags,
                              const std::string& about, size_t words = 0,
                              std::string_view command = {});

/// Throws ValueError if an option was typed that this command does not use with this model and
/// task: it would be ignored. Files (--config, config.toml) may hold such settings.
void require_used(const CommandLine& line, RunConfig& config);

/// Returns the configuration of a command that needs no run, such as memory, and says which sizes
/// and positions follow from its task and length. Throws as make_config() and require_used() do.
RunConfig planned_config(const CommandLine& line);

/// Moves the settings whose keys begin with `prefix` out of the line and returns them without the
/// prefix.
Settings taken(CommandLine& line, std::string_view prefix);

/// Flags of beam search, and their parsed values. taken_search() throws ValueError if a number is
/// out of range.
std::span<const Flag> search_flags();
BeamSearch taken_search(CommandLine& line);

/// A trained run, ready for evaluation or sampling.
struct Trained {
  TrainingRun run;
  Position at;
  std::vector<std::string> remarks;  ///< with --other-data: what has changed in the data
  bool is_hub = false;               ///< of a hub folder, where nothing is written
};

/// The flag --other-data of commands that load_run().
inline const Flag other_data_flag{
    "--other-data", "", "with other data, tokens or splits than the run was trained with", true};

/// Loads the newest checkpoint in the folder of --out, or that of --step, with config.toml modified
/// by the command line. `typed` is the whole command line, for require_used(). Throws IoError if
/// there is none or it is damaged, and as compare_inputs() does if the tokens or data are others
/// than the run was trained with, without --other-data; with it, prints what differs.
Trained load_run(const CommandLine& line, const CommandLine& typed, Reads reads);

/// Reads a file, or standard input if the path is "-", without a byte order mark. Throws IoError.
std::string read_input(const std::string& path, const char* op);
/// Returns the lines of a text, without their ends.
std::vector<std::string> lines_of(std::string_view text);
/// Returns a text with spaces for line ends and tabs.
std::string one_line(std::string text);

/// Prints a text, which may hold any bytes, and a line feed to standard output.
void print_text(const std::string& text);

/// What run_program() was given; empty: nothing.
OnRow& on_row();

/// Prints a line to standard error, as errors show what files and their names hold.
void say(const std::string& text);

/// Whether a switch without a key was given.
bool is_on(const CommandLine& line, std::string_view flag);

}  // namespace longspan
