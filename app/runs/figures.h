#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "app/run_config.h"
#include "train/config.h"
#include "train/loss_unit.h"
#include "train/plot.h"

namespace longspan {

/// What a run folder says of a run, which may still be training.
struct RunFigures {
  std::string folder;
  std::string model;
  std::vector<std::pair<std::string, std::string>> keys;  ///< of its configuration, with values
  LossUnit unit;
  int64_t parameters = 0, steps = 0, tokens = 0, peak = 0;
  int64_t planned = 0;            ///< steps; 0: by time alone
  bool ended = false;             ///< whether summary.json is of the last step
  double seconds = 0, speed = 0;  ///< of training, and tokens per second
  double macs_per_token = 0;      ///< of the forward pass
  double train = 0, valid = 0;    ///< bits per unit in the end; NaN: there is none
  double valid_perplexity = 0;    ///< of the last validation; 0: earlier versions did not say
  double best = 0;                ///< the lowest of `valid`
  int64_t best_step = -1;

  /// What a curve is drawn over.
  struct Point {
    int64_t step = 0;
    double tokens = 0, seconds = 0, bits = 0;
  };
  std::vector<Point> training, validations;

  /// 2^bits of a target: of a token, where targets are tokens. NaN where there is no validation.
  double perplexity() const;
};

/// Reads a run folder. Throws IoError if it is none, or has no figures yet.
RunFigures figures_of(const std::string& folder);

/// The axes that curves are drawn over.
enum class Axis : uint8_t { steps, tokens, seconds, macs };
inline constexpr std::string_view axis_names[] = {"steps", "tokens", "seconds", "macs"};
Axis axis_of(const std::string& name);

/// Returns the curves of runs: validations, or training losses where there are fewer than two of
/// them. Names them in `labels`. Throws ValueError if they count bits per different units.
LinePlot curves_of(const std::vector<RunFigures>& runs, const std::vector<std::string>& labels,
                   Axis axis);

/// Returns the names of folders without what all have in common before them.
std::vector<std::string> short_names(const std::vector<std::string>& folders);

/// Returns the keys whose values differ between runs, each with the values in order of the runs,
/// "-" where a run has no such key.
std::vector<std::pair<std::string, std::vector<std::string>>> differing_keys(
    const std::vector<RunFigures>& runs);

/// Writes a picture. Throws IoError if there is a file that Longspan has not drawn.
void write_own_picture(const std::string& path, const LinePlot& plot);

}  // namespace longspan
