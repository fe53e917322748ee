#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/loss_unit.h"

namespace longspan {

/// A curve. Points that are not finite are gaps.
struct Series {
  std::string name = {};  ///< in the legend; empty: not there
  std::vector<double> x = {}, y = {};
  bool faint = false;    ///< thin and pale, behind the others
  bool markers = false;  ///< a disc at every point
  int colour = 0;        ///< index into the palette
};

/// Curves over one pair of axes.
struct LinePlot {
  std::string title = {}, x_label = {}, y_label = {};
  std::vector<Series> series = {};
  bool log_x = false,
       log_y = false;  ///< equal ratios are equal distances; values from 0 down are gaps
  int width = 1200, height = 720;
};

/// A matrix as coloured cells, row 0 on top.
struct HeatMap {
  std::string title = {}, x_label = {}, y_label = {};
  int64_t rows = 0, columns = 0;
  std::vector<double> values = {};  ///< row-major; NaN is drawn as paper
  /// A label for every row or column, "" for none; drawn where there is room for them. Empty:
  /// numbers at some.
  std::vector<std::string> row_labels = {}, column_labels = {};
  double low = 0, high = 0;  ///< of the colours; equal: from the smallest value to the largest
  double exponent = 1;       ///< of the share of the range, e.g. 0.5 to tell small values apart
};

/// Writes a PNG picture, which says that Longspan made it. Throws IoError, ValueError where x and y
/// differ in length or there is nothing to draw.
void write_line_plot(const std::string& path, const LinePlot& plot);

/// Writes a PNG picture. Throws IoError, ValueError where sizes do not fit.
void write_heat_map(const std::string& path, const HeatMap& map);

/// The loss curve of a run, from the rows of a metrics.jsonl, against "step": "loss", nats per
/// target, in the unit (without it "bpb"), also as a running mean; and "valid_bpb", which is in the
/// unit. Throws ValueError where no row has them.
void write_loss_curve(const std::string& path, const std::string& metrics, const std::string& title,
                      const LossUnit& unit = {});

/// Whether a file is a picture that a function above has written.
bool is_own_picture(const std::string& path);

/// A byte as a short label: itself, "_" for a space, or two hexadecimal digits. A line break is
/// drawn as an arrow.
std::string byte_label(int byte);

}  // namespace longspan
