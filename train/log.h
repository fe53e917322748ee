#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "core/memory.h"
#include "data/io/files.h"
#include "data/io/json.h"
#include "train/config.h"
#include "train/loss_unit.h"

namespace longspan {

/// Nats as bits.
double bits(double nats);

/// Wall clock of a run: seconds, tokens a second, and how long the rest will take.
class Meter {
 public:
  /// After every step.
  void add(int64_t tokens);
  double seconds() const;
  int64_t tokens() const { return tokens_; }
  /// Over all steps so far; 0 before the first.
  double tokens_per_second() const;
  /// For that many more steps at the speed so far.
  double seconds_for(int64_t steps) const;

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int64_t tokens_ = 0, steps_ = 0;
};

/// What the status line shows. Figures that are NaN, or negative where they cannot be, are left
/// out.
struct Progress {
  int64_t step = 0;                ///< steps done
  int64_t steps = 0;               ///< of this many; 0: unknown
  double loss = 0;                 ///< nats per target
  const LossUnit* unit = nullptr;  ///< what the loss is shown in besides; null: in nats alone
  double gradient_norm = -1;
  double learning_rate = -1;
  double tokens_per_second = -1;
  double seconds_left = -1;
  int64_t peak_bytes = -1;
};

/// "step 120/3000  loss 1.234  bpb 1.780  norm 0.42  lr 9.1e-04  12.3k tok/s  eta 2:31  peak 312
/// MiB"; "loss/token" where a target is not one unit, and "bits/base" where the unit is no byte.
std::string to_string(const Progress& progress);

/// "512 B", "1.5 KiB", "312 MiB".
std::string format_bytes(int64_t bytes);
/// "0:07", "2:31", "1:02:31".
std::string format_seconds(double seconds);

/// How a log behaves.
struct LogOptions {
  /// Rows of this step and before stay, where metrics.jsonl is there already; -1: a new run, none.
  int64_t resume_step = -1;
  std::FILE* status = stderr;  ///< null: no status
  double plain_seconds = 10;   ///< between status lines where it is no terminal
};

/// A run's folder seen from the training loop: RUN/config.toml, RUN/metrics.jsonl, and the status
/// line.
class Log {
 public:
  /// Creates the folder. Throws IoError.
  explicit Log(const std::string& run, const LogOptions& options = {});
  /// Also writes config.toml, by the configuration's visit().
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
  /// line, at most every `plain_seconds`. The first call and `last` are always shown.
  void show(const Progress& progress, bool last = false);
  /// A line of its own, above the status line.
  void say(std::string_view text);

  void write_config(const Json& config);

 private:
  void clear();
  void draw();

  std::string run_;
  LogOptions options_;
  File metrics_;
  bool terminal_ = false, drawn_ = false, shown_ = false;
  std::string line_;
  std::chrono::steady_clock::time_point last_;
};

/// Rows of a metrics.jsonl in order. A line that is no JSON object, such as one cut off by a crash,
/// is passed over. Throws IoError where the file is unreadable.
std::vector<Json> read_rows(const std::string& path);

/// Appends a row to a file of JSON lines, whole or not at all, and returns it. Throws IoError.
std::string append_row(const std::string& path, const Members& row);

/// {"total": ..., "parameter": ..., ..., "other": ...}.
Members to_members(const Usage& usage);
/// The reverse. Throws ValueError where a category is missing or no integer.
Usage to_usage(const Json& members);

/// Replaces RUN/summary.json by the figures, one line of JSON, and returns that line. Throws
/// IoError.
std::string write_summary(const std::string& run, const Members& figures);

/// While it lives, SIGINT and SIGTERM only set a flag, so that the loop can save and leave. A
/// second signal ends the process at once with status 128 + signal. One at a time.
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
