#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/memory.h"
#include "data/io/files.h"
#include "data/io/json.h"
#include "train/config.h"
#include "train/event_file.h"
#include "train/loss_unit.h"

namespace longspan {

/// Converts nats to bits.
double bits(double nats);

/// Measures a run: wall-clock seconds, tokens per second, and the time left.
class Meter {
 public:
  /// Call it after every step.
  void add(int64_t tokens);
  double seconds() const;
  int64_t tokens() const { return tokens_; }
  /// Average over all steps so far; 0 before the first.
  double tokens_per_second() const;
  /// Estimates the seconds for this many more steps at the speed so far.
  double seconds_for(int64_t steps) const;

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int64_t tokens_ = 0, steps_ = 0;
};

/// Told of each row of a run's metrics.jsonl when it is written: the run folder, the step, and the
/// row's figures in order (docs/file-formats.md). With several processes only the first one calls
/// it. An exception ends the run as an error.
using OnRow = std::function<void(const std::string& run, int64_t step, const Members& figures)>;

/// Numbers with their names, in order.
using NamedNumbers = std::vector<std::pair<std::string, double>>;

/// The figures of the status line. Figures that are NaN, or negative where negative values make no
/// sense, are left out.
struct Progress {
  int64_t step = 0;                ///< steps done
  int64_t steps = 0;               ///< total number of steps; 0: unknown
  double loss = 0;                 ///< nats per target
  NamedNumbers auxiliary = {};     ///< values of the auxiliary losses, by name
  const LossUnit* unit = nullptr;  ///< unit in which the loss is also shown; null: only nats
  double gradient_norm = -1;
  double learning_rate = -1;
  bool perplexity = false;  ///< whether e^loss is shown, the perplexity of a target
  double tokens_per_second = -1;
  double seconds_left = -1;
  int64_t peak_bytes = -1;
};

/// Formats "step 120/3000  loss 1.234  bpb 1.780  norm 0.42  lr 9.1e-04  12.3k tok/s  eta 2:31
/// peak 312 MiB"; "loss/token" if a target is not one unit, and "bits/base" and the like if the
/// unit is not the byte. Auxiliary losses follow the loss: "span_penalty 1.2e-03".
std::string to_string(const Progress& progress);

/// "512 B", "1.5 KiB", "312 MiB".
std::string format_bytes(int64_t bytes);
/// "0:07", "2:31", "1:02:31".
std::string format_seconds(double seconds);

/// Options of a Log.
struct LogOptions {
  /// For a resumed run: the rows of an existing metrics.jsonl up to this step are kept. -1: a new
  /// run, which keeps none.
  int64_t resume_step = -1;
  std::FILE* status = stderr;  ///< null: no status line
  double plain_seconds = 10;   ///< between status lines if `status` is not a terminal
  bool silent = false;         ///< writes nothing at all: another process does
  bool tensorboard = false;    ///< also writes the rows to RUN/tensorboard (EventFile)
};

/// Writes a run's folder for the training loop: RUN/config.toml, RUN/metrics.jsonl, and the status
/// line.
class Log {
 public:
  /// Creates the folder. Throws IoError.
  explicit Log(const std::string& run, const LogOptions& options = {});
  /// Also writes config.toml from the configuration's visit().
  template <class Config>
  Log(const std::string& run, Config config, const LogOptions& options = {}) : Log(run, options) {
    write_config(to_json(config));
  }
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  /// Appends {"step":STEP, figures...} to metrics.jsonl, in one write. Throws IoError.
  void row(int64_t step, const Members& figures);
  /// On a terminal redraws the status line, at most ten times a second; elsewhere writes a plain
  /// line, at most every `plain_seconds`. The first call and calls with `last` always print; the
  /// line of the latter stays.
  void show(const Progress& progress, bool last = false);
  /// The same of any text.
  void show_line(const std::string& line, bool last = false);
  /// Prints a line in place of the status line, which the next call of show() draws again.
  void say(std::string_view text);
  /// Lets the status line stay as it is: what follows begins on a new line.
  void end_line();

  void write_config(const Json& config);

 private:
  void clear();
  void draw();

  std::string run_;
  LogOptions options_;
  File metrics_;
  std::optional<EventFile> events_;
  bool terminal_ = false, drawn_ = false, shown_ = false;
  std::string line_;
  std::chrono::steady_clock::time_point last_;
};

/// Reads the rows of a metrics.jsonl in order. A line that is not a JSON object, such as one cut
/// off by a crash, is skipped. Throws IoError if the file is unreadable.
std::vector<Json> read_rows(const std::string& path);

/// Appends a row to a JSON lines file, completely or not at all, and returns it. Throws IoError.
std::string append_row(const std::string& path, const Members& row);

/// Returns {"total": ..., "parameter": ..., ..., "other": ...}.
Members to_members(const Usage& usage);
/// The inverse; a missing category counts as 0. Throws ValueError if a value is not an integer or
/// the categories do not add up to "total".
Usage to_usage(const Json& members);

/// Replaces RUN/summary.json by the figures as one line of JSON, and returns that line. Throws
/// IoError.
std::string write_summary(const std::string& run, const Members& figures);

/// While it lives, SIGINT, SIGTERM and SIGUSR1 only set a flag, so that the loop can save and exit,
/// and say so on standard error. A second signal ends the process at once with status 128 + signal.
/// At most one may exist at a time.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool requested() const { return number() != 0; }
  /// SIGINT, SIGTERM or 0.
  int number() const;
};

}  // namespace longspan
