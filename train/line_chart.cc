#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "train/chart.h"
#include "train/plot.h"

namespace longspan::drawing {
namespace {

constexpr Colour palette[] = {{31, 100, 180}, {217, 95, 14},  {38, 140, 80},
                              {140, 80, 170}, {190, 30, 60},  {20, 150, 170},
                              {150, 110, 40}, {220, 90, 160}, {90, 95, 105}};

constexpr double legend_line = 34;  ///< length of a curve's sample in the legend

/// Returns a text that is at most `limit` pixels wide, cut if it must be.
std::string shortened(std::string text, double limit) {
  if (Canvas::width_of(text, small_text) <= limit) return text;
  const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
  while (!text.empty() && Canvas::width_of(text + "..", small_text) > limit) {
    while (!text.empty() && continues(text.back())) text.pop_back();  // of UTF-8
    if (!text.empty()) text.pop_back();
  }
  return text + "..";
}

/// Whether the segment from a to b meets a rectangle.
bool meets(Canvas::Point a, Canvas::Point b, const PlotArea& box) {
  double from = 0, to = 1;  // the part of the segment that is in the box so far
  const auto clip = [&](double start, double delta, double low, double high) {
    if (delta == 0) return start >= low && start <= high;
    const double enter = (low - start) / delta, leave = (high - start) / delta;
    from = std::max(from, std::min(enter, leave)), to = std::min(to, std::max(enter, leave));
    return from <= to;
  };
  return clip(a.x, b.x - a.x, box.left, box.right) && clip(a.y, b.y - a.y, box.top, box.bottom);
}

/// Draws a LinePlot: measures the axes and the legend, then draws grid, curves and legend.
class LineChart {
 public:
  LineChart(const LinePlot& plot, PictureFormat format)
      : plot_(plot),
        across_{.logarithmic = plot.log_x, .whole = plot.whole_x},
        up_{.logarithmic = plot.log_y},
        canvas_(plot.width, plot.height, format) {
    measure_axes();
    measure_legend();
    double labels = 0;
    for (const double y : up_.ticks.at) {
      labels = std::max(labels, Canvas::width_of(up_.label(y), small_text));
    }
    frame_ = {std::ceil(58 + labels), 62, plot.width - 34.0, plot.height - 76.0};
    place_legend();
  }

  std::string draw() {
    draw_grid();
    if (!names_.empty() && !beside_) {
      canvas_.fill(legend_.left, legend_.top, legend_.right, legend_.bottom, Canvas::paper);
    }
    for (const bool faint : {true, false}) {
      for (const Series& s : plot_.series) {
        if (s.faint == faint) draw_curve(s);
      }
    }
    draw_legend();
    draw_labels();
    draw_title(canvas_, frame_, plot_.title);
    draw_axis_labels(canvas_, frame_, plot_.x_label, plot_.y_label);
    return canvas_.file();
  }

 private:
  /// Whether point i of a series can be drawn: it is finite, also as a logarithm.
  bool drawn(const Series& s, size_t i) const {
    return std::isfinite(across_.place(s.x[i])) && std::isfinite(up_.place(s.y[i]));
  }

  double at_x(double place) const {
    return frame_.left +
           (place - across_.low) / (across_.high - across_.low) * (frame_.right - frame_.left);
  }
  double at_y(double place) const {
    return frame_.bottom - (place - up_.low) / (up_.high - up_.low) * (frame_.bottom - frame_.top);
  }
  Canvas::Point point(const Series& s, size_t i) const {
    return {at_x(across_.place(s.x[i])), at_y(up_.place(s.y[i]))};
  }

  void measure_axes() {
    for (const Series& s : plot_.series) {
      require(s.x.size() == s.y.size(), "plot", "\"{}\" has {} x and {} y", s.name, s.x.size(),
              s.y.size());
      for (size_t i = 0; i < s.x.size(); ++i) {
        if (drawn(s, i)) across_.include(s.x[i]), up_.include(s.y[i]);
      }
    }
    require(across_.low <= across_.high, "plot", "there is no point to draw");
    if (across_.low > 0 && across_.low < 0.05 * across_.high) across_.low = 0;
    if (across_.high == across_.low) across_.low -= 0.5, across_.high += 0.5;
    const bool labelled = std::any_of(plot_.series.begin(), plot_.series.end(),
                                      [](const Series& s) { return !s.label.empty(); });
    const double beside = labelled ? 0.06 * (across_.high - across_.low) : 0;  // for their points
    across_.low -= beside, across_.high += beside;
    const double share = labelled ? 0.1 : 0.05;
    const double margin = up_.high > up_.low ? share * (up_.high - up_.low)
                                             : std::max(0.5, 0.05 * std::abs(up_.high));
    up_.low -= margin, up_.high += margin;
    up_.mark(plot_.height / 90);
    across_.mark(plot_.width / 130);
  }

  void measure_legend() {
    double widest = 0;
    for (const Series& s : plot_.series) {
      if (s.name.empty()) continue;
      names_.push_back(shortened(s.name, 0.35 * plot_.width));
      widest = std::max(widest, Canvas::width_of(names_.back(), small_text));
    }
    legend_width_ = std::ceil(widest) + legend_line + 38;
    if (names_.empty()) return;
    line_ = std::min(26.0, (plot_.height - 24.0) / static_cast<double>(names_.size()));
  }

  /// Puts the legend into a corner where it meets no curve, else beside the plot.
  void place_legend() {
    const double height = line_ * static_cast<double>(names_.size()) + 12;
    for (const double y : {frame_.top + 10, frame_.bottom - 10 - height}) {
      for (const double x : {frame_.right - 6 - legend_width_, frame_.left + 12}) {
        legend_ = {x, y, x + legend_width_, y + height};
        if (legend_.top >= frame_.top && legend_.left >= frame_.left && is_free(legend_)) return;
      }
    }
    if (names_.empty()) return;
    beside_ = true;
    frame_.right -= legend_width_;
    const double top = std::max(0.0, std::min(frame_.top, plot_.height - height));
    legend_ = {frame_.right + 12, top, frame_.right + 12 + legend_width_, top + height};
  }

  /// Whether no curve comes near a part of the plot.
  bool is_free(const PlotArea& part) const {
    const PlotArea box{part.left - 8, part.top - 8, part.right + 8, part.bottom + 8};
    for (const Series& s : plot_.series) {
      for (size_t i = 0; i < s.x.size(); ++i) {
        if (!drawn(s, i)) continue;
        const size_t next = i + 1 < s.x.size() && drawn(s, i + 1) ? i + 1 : i;
        if (meets(point(s, i), point(s, next), box)) return false;
      }
    }
    return true;
  }

  void draw_grid() {
    for (const double y : up_.ticks.at) {
      const double at = std::floor(at_y(y));
      canvas_.fill(frame_.left, at, frame_.right, at + 1, grey);
      const std::string label = up_.label(y);
      canvas_.text(frame_.left - 12, at + 5, label, small_text, dim, Canvas::Anchor::end);
    }
    for (const double x : across_.ticks.at) {
      const double at = std::floor(at_x(x));
      canvas_.fill(at, frame_.top, at + 1, frame_.bottom, grey);
      const std::string label = across_.label(x);
      canvas_.text(at, frame_.bottom + 24, label, small_text, dim, Canvas::Anchor::middle);
    }
    canvas_.fill(frame_.left, frame_.bottom, frame_.right, frame_.bottom + 2, ink);
    canvas_.fill(frame_.left - 2, frame_.top, frame_.left, frame_.bottom + 2, ink);
  }

  static Colour colour_of(const Series& s) {
    const Colour full = palette[static_cast<size_t>(s.colour) % std::size(palette)];
    return s.faint ? mix(full, Canvas::paper, 0.65) : full;
  }

  static double width_of(const Series& s) { return s.faint ? 1.2 : 2.6; }

  /// Draws a curve, broken where points cannot be drawn.
  void draw_curve(const Series& s) {
    const Colour colour = colour_of(s);
    std::vector<Canvas::Point> run;
    for (size_t i = 0; i <= s.x.size(); ++i) {
      if (i < s.x.size() && drawn(s, i)) {
        run.push_back(point(s, i));
        if (s.markers) canvas_.stroke({run.back()}, 9, colour);
      } else if (!run.empty()) {
        canvas_.stroke(run, width_of(s), colour);
        run.clear();
      }
    }
  }

  void draw_legend() {
    const double left = legend_.left + 12;
    double y = legend_.top + 6 + line_ / 2;
    auto name = names_.begin();
    for (const Series& s : plot_.series) {
      if (s.name.empty()) continue;
      canvas_.stroke({{left, y}, {left + legend_line, y}}, width_of(s), colour_of(s));
      if (s.markers) canvas_.stroke({{left + legend_line / 2, y}}, 9, colour_of(s));
      canvas_.text(left + legend_line + 14, y + 5, *name++, std::min(small_text, line_), ink);
      y += line_;
    }
  }

  static constexpr size_t label_places = 12;

  /// Returns the part of the plot that a label of this width takes at the n-th place around a
  /// point: at its right or left, then above and below, further and further away.
  PlotArea place_beside(Canvas::Point p, double width, size_t n) const {
    constexpr double high = 18, gap = 11;
    constexpr struct {
      double x, y;  // -1: before the point; 0: over it; 1: behind it; y in lines
    } places[label_places] = {{1, 0}, {-1, 0}, {0, -1}, {0, 1}, {1, -1}, {-1, -1},
                              {1, 1}, {-1, 1}, {0, -2}, {0, 2}, {0, -3}, {0, 3}};
    const double y = p.y + places[n].y * (high + 2);
    double x = p.x + places[n].x * (gap + width / 2);
    if (places[n].x == 0) {  // as far to the side as the frame asks for
      x = std::clamp(x, frame_.left + 6 + width / 2,
                     std::max(frame_.left + 6 + width / 2, frame_.right - 6 - width / 2));
    }
    return {x - width / 2, y - high / 2, x + width / 2, y + high / 2};
  }

  /// Whether a label may be written there: within the frame, over no point, curve or other label.
  bool label_fits(const PlotArea& box, const std::vector<PlotArea>& others) const {
    if (box.left < frame_.left || box.right > frame_.right || box.top < frame_.top ||
        box.bottom > frame_.bottom) {
      return false;
    }
    for (const PlotArea& o : others) {
      if (box.left < o.right && o.left < box.right && box.top < o.bottom && o.top < box.bottom) {
        return false;
      }
    }
    for (const Series& s : plot_.series) {
      for (size_t i = 0; i < s.x.size(); ++i) {
        if (!drawn(s, i)) continue;
        const size_t next = i + 1 < s.x.size() && drawn(s, i + 1) ? i + 1 : i;
        const PlotArea wide{box.left - 5, box.top - 5, box.right + 5, box.bottom + 5};
        if (meets(point(s, i), point(s, next), wide)) return false;
      }
    }
    return true;
  }

  /// Writes the label of each series at the first place around its last point that is free; the
  /// right or left one where none is.
  void draw_labels() {
    std::vector<PlotArea> taken;
    if (!names_.empty()) taken.push_back(legend_);
    for (const Series& s : plot_.series) {
      size_t last = s.x.size();
      while (last > 0 && !drawn(s, last - 1)) --last;
      if (s.label.empty() || last == 0) continue;
      const Canvas::Point p = point(s, last - 1);
      const double width = Canvas::width_of(s.label, small_text);
      size_t n = 0;
      while (n < label_places && !label_fits(place_beside(p, width, n), taken)) ++n;
      if (n == label_places) n = p.x > (frame_.left + frame_.right) / 2 ? 1 : 0;
      taken.push_back(place_beside(p, width, n));
      canvas_.text(taken.back().left, taken.back().bottom - 4, s.label, small_text, colour_of(s));
    }
  }

  const LinePlot& plot_;
  Axis across_, up_;
  Canvas canvas_;
  PlotArea frame_{}, legend_{};
  std::vector<std::string> names_;  // of the legend
  bool beside_ = false;             // the legend is outside of the plot
  double legend_width_ = 0, line_ = 26;
};

}  // namespace

std::string line_chart(const LinePlot& plot, PictureFormat format) {
  require(plot.width >= 200 && plot.height >= 150 && plot.width <= 10'000 && plot.height <= 10'000,
          "plot", "{} x {} pixels: expected 200 x 150 to 10000 x 10000", plot.width, plot.height);
  return LineChart(plot, format).draw();
}

}  // namespace longspan::drawing
