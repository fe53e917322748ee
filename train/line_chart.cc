#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"
#include "train/chart.h"
#include "train/plot.h"

namespace longspan::drawing {
namespace {

constexpr Colour palette[] = {{31, 100, 180}, {217, 95, 14},  {38, 140, 80},
                              {140, 80, 170}, {190, 30, 60},  {20, 150, 170},
                              {150, 110, 40}, {220, 90, 160}, {90, 95, 105}};

constexpr double legend_line = 28;  ///< length of a curve's sample in the legend
constexpr double dot = 6.5, ring = 13;
constexpr double name_text = 13;  ///< size of the name of a point

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

/// Whether two rectangles have a point in common.
bool overlap(const PlotArea& a, const PlotArea& b) {
  return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}

/// The name of a point, where it is written.
struct PlacedName {
  std::string text;
  PlotArea box{};
  Canvas::Point point{};
};

/// Draws a LinePlot: measures the axes and the legend, then draws grid, curves, points and legend.
class LineChart {
 public:
  LineChart(const LinePlot& plot, PictureFormat format)
      : plot_(plot),
        across_{.logarithmic = plot.log_x, .whole = plot.whole_x},
        up_{.logarithmic = plot.log_y},
        canvas_(plot.width, plot.height, format, plot.title) {
    measure_axes();
    measure_legend();
    double labels = 0;
    for (const double y : up_.ticks.at) {
      labels = std::max(labels, Canvas::width_of(up_.label(y), small_text));
    }
    frame_ = {std::ceil(46 + labels), 44, plot.width - 24.0, plot.height - 58.0};
    if (!right_.at.empty()) frame_.right = plot.width - std::ceil(42 + right_width());
    place_legend();
    place_names();
  }

  std::string draw() {
    draw_grid();
    if (!legend_names_.empty() && !beside_) {
      canvas_.fill(legend_.left, legend_.top, legend_.right, legend_.bottom, Canvas::paper);
    }
    for (const bool faint : {true, false}) {
      for (const Series& s : plot_.series) {
        if (s.faint == faint) draw_curve(s);
      }
    }
    draw_points();
    draw_legend();
    draw_title(canvas_, frame_, plot_.title);
    draw_axis_labels(canvas_, frame_, plot_.x_label, plot_.y_label);
    return canvas_.file();
  }

 private:
  /// Whether a point can be drawn: it is finite, also as a logarithm.
  bool drawn(double x, double y) const {
    return std::isfinite(across_.place(x)) && std::isfinite(up_.place(y));
  }
  bool drawn(const Series& s, size_t i) const { return drawn(s.x[i], s.y[i]); }

  double at_x(double place) const {
    return frame_.left +
           (place - across_.low) / (across_.high - across_.low) * (frame_.right - frame_.left);
  }
  double at_y(double place) const {
    return frame_.bottom - (place - up_.low) / (up_.high - up_.low) * (frame_.bottom - frame_.top);
  }
  Canvas::Point at(double x, double y) const {
    return {at_x(across_.place(x)), at_y(up_.place(y))};
  }
  Canvas::Point point(const Series& s, size_t i) const { return at(s.x[i], s.y[i]); }

  void measure_axes() {
    bool whole_x = true, whole_y = true;
    const auto include = [&](double x, double y) {
      if (!drawn(x, y)) return;
      across_.include(x), up_.include(y);
      whole_x = whole_x && x == std::floor(x);
      whole_y = whole_y && y == std::floor(y);
    };
    for (const Series& s : plot_.series) {
      require(s.x.size() == s.y.size(), "plot", "\"{}\" has {} x and {} y", s.name, s.x.size(),
              s.y.size());
      for (size_t i = 0; i < s.x.size(); ++i) include(s.x[i], s.y[i]);
    }
    for (const NamedPoint& p : plot_.points) include(p.x, p.y);
    require(across_.low <= across_.high, "plot", "there is no point to draw");
    across_.whole = across_.whole || whole_x;
    up_.whole = whole_y;
    if (across_.low > 0 && across_.low < 0.05 * across_.high) across_.low = 0;
    if (across_.high == across_.low) across_.low -= 0.5, across_.high += 0.5;
    const double margin =
        up_.high > up_.low ? 0.05 * (up_.high - up_.low) : std::max(0.5, 0.05 * std::abs(up_.high));
    up_.low -= margin, up_.high += margin;
    if (!plot_.points.empty()) {  // which would else lie on the frame
      const double side = 0.05 * (across_.high - across_.low);
      if (across_.low != 0) across_.low -= side;
      across_.high += side;
    }
    up_.mark(plot_.height / 66);
    across_.mark(plot_.width / 90);
    mark_right();
  }

  /// Chooses the ticks of the axis at the right: 1, 2 and 5 times powers of ten, or, where that
  /// gives fewer than three, round numbers.
  void mark_right() {
    if (plot_.right_label.empty() || plot_.log_y) return;
    const double low = std::exp2(plot_.right_bits * up_.low);
    const double high = std::exp2(plot_.right_bits * up_.high);
    if (!(low > 0 && high < 1e12)) return;
    Axis scale{.logarithmic = true, .low = std::log2(low), .high = std::log2(high)};
    scale.mark_decades();
    for (const double at : scale.ticks.at) right_.at.push_back(std::exp2(at));
    if (right_.at.size() < 3) right_.at = make_ticks(low, high, plot_.height / 66).at;
    std::erase_if(right_.at, [](double v) { return v <= 0; });
  }

  static std::string right_text(double value) {
    return value < 1e6 ? fmt::format("{:.6g}", value) : fmt::format("{:.0e}", value);
  }
  double right_width() const {
    double widest = 0;
    for (const double v : right_.at) {
      widest = std::max(widest, Canvas::width_of(right_text(v), small_text));
    }
    return widest;
  }

  void measure_legend() {
    double widest = 0;
    for (const Series& s : plot_.series) {
      if (s.name.empty()) continue;
      legend_names_.push_back(shortened(s.name, 0.35 * plot_.width));
      widest = std::max(widest, Canvas::width_of(legend_names_.back(), small_text));
    }
    legend_width_ = std::ceil(widest) + legend_line + 34;
    if (legend_names_.empty()) return;
    line_ = std::min(22.0, (plot_.height - 24.0) / static_cast<double>(legend_names_.size()));
  }

  /// Puts the legend into a corner where it meets no curve, else beside the plot.
  void place_legend() {
    const double height = line_ * static_cast<double>(legend_names_.size()) + 12;
    for (const double y : {frame_.top + 8, frame_.bottom - 10 - height}) {
      for (const double x : {frame_.right - 6 - legend_width_, frame_.left + 12}) {
        legend_ = {x, y, x + legend_width_, y + height};
        if (legend_.top >= frame_.top && legend_.left >= frame_.left && is_free(legend_, 8)) return;
      }
    }
    if (legend_names_.empty()) return;
    beside_ = true;
    const double ticks = plot_.width - 24 - frame_.right;  // of the axis at the right
    frame_.right -= legend_width_;
    const double top = std::max(0.0, std::min(frame_.top, plot_.height - height));
    const double left = frame_.right + ticks + 12;
    legend_ = {left, top, left + legend_width_, top + height};
  }

  /// Whether no curve and no point comes near a part of the plot.
  bool is_free(const PlotArea& part, double margin) const {
    const PlotArea box{part.left - margin, part.top - margin, part.right + margin,
                       part.bottom + margin};
    for (const Series& s : plot_.series) {
      for (size_t i = 0; i < s.x.size(); ++i) {
        if (!drawn(s, i)) continue;
        const size_t next = i + 1 < s.x.size() && drawn(s, i + 1) ? i + 1 : i;
        if (meets(point(s, i), point(s, next), box)) return false;
      }
    }
    return std::none_of(plot_.points.begin(), plot_.points.end(), [&](const NamedPoint& p) {
      const double radius = p.ring ? ring / 2 : dot;
      const Canvas::Point c = drawn(p.x, p.y) ? at(p.x, p.y) : Canvas::Point{-1e9, 0};
      return overlap(box, {c.x - radius, c.y - radius, c.x + radius, c.y + radius});
    });
  }

  /// Returns where a name may be written that is `width` wide: around its point, ever farther away.
  std::vector<PlotArea> places_of(Canvas::Point p, double width) const {
    constexpr double height = name_text, directions = 16;
    std::vector<PlotArea> all;
    for (const double distance : {11.0, 20.0, 32.0, 46.0, 64.0, 90.0, 120.0}) {
      for (int i = 0; i < static_cast<int>(directions); ++i) {
        // To the right, to the left, above, below, then between these.
        constexpr int order[] = {0, 8, 12, 4, 14, 10, 2, 6, 1, 3, 5, 7, 9, 11, 13, 15};
        const double angle = 2 * std::numbers::pi * order[i] / directions;
        const double x = p.x + distance * std::cos(angle) + width / 2 * (std::cos(angle) - 1);
        const double y = p.y + distance * std::sin(angle) + height / 2 * (std::sin(angle) - 1);
        all.push_back({x, y, x + width, y + height});
      }
    }
    return all;
  }

  /// Places the name of each point where it hides nothing or, if there is no such place, no other
  /// name.
  void place_names() {
    for (const NamedPoint& p : plot_.points) {
      if (!drawn(p.x, p.y) || p.name.empty()) continue;
      PlacedName name{.text = shortened(p.name, 0.6 * plot_.width, name_text),
                      .point = at(p.x, p.y)};
      int least = 100;
      for (const PlotArea& box : places_of(name.point, Canvas::width_of(name.text, name_text))) {
        const int faults = faults_of(box);
        if (faults < least) name.box = box, least = faults;
        if (least == 0) break;
      }
      names_.push_back(std::move(name));
    }
  }

  /// Returns 0 for a place that hides nothing, more the worse it is.
  int faults_of(const PlotArea& box) const {
    int faults = is_free(box, 2) ? 0 : 1;
    if (!legend_names_.empty() && overlap(box, legend_)) faults += 4;
    if (box.left < frame_.left + 4 || box.right > frame_.right || box.top < frame_.top ||
        box.bottom > frame_.bottom - 3) {
      faults += 8;
    }
    for (const PlacedName& other : names_) {
      if (overlap(box, other.box)) faults += 2;
    }
    return faults;
  }

  void draw_grid() {
    for (const double y : up_.ticks.at) {
      const double level = at_y(y);
      canvas_.fill(frame_.left, level, frame_.right, level + 1, grey);
      canvas_.text(frame_.left - 8, level + 5, up_.label(y), small_text, dim, Canvas::Anchor::end);
    }
    for (const double x : across_.ticks.at) {
      const double place = at_x(x);
      canvas_.fill(place, frame_.top, place + 1, frame_.bottom, grey);
      canvas_.text(place, frame_.bottom + 19, across_.label(x), small_text, dim,
                   Canvas::Anchor::middle);
    }
    canvas_.fill(frame_.left - 1, frame_.bottom, frame_.right, frame_.bottom + 1.5, ink);
    canvas_.fill(frame_.left - 1.5, frame_.top, frame_.left, frame_.bottom + 1.5, ink);
    if (right_.at.empty()) return;
    canvas_.fill(frame_.right, frame_.top, frame_.right + 1.5, frame_.bottom + 1.5, ink);
    for (const double v : right_.at) {
      const double level = at_y(std::log2(v) / plot_.right_bits);
      canvas_.fill(frame_.right + 1, level, frame_.right + 6, level + 1, ink);
      canvas_.text(frame_.right + 10, level + 5, right_text(v), small_text, dim);
    }
    canvas_.text_upwards(frame_.right + 30 + right_width(), (frame_.top + frame_.bottom) / 2,
                         plot_.right_label, small_text, ink);
  }

  static Colour palette_at(int colour) {
    return palette[static_cast<size_t>(colour) % std::size(palette)];
  }
  static Colour colour_of(const Series& s) {
    return s.faint ? mix(palette_at(s.colour), Canvas::paper, 0.65) : palette_at(s.colour);
  }

  static double width_of(const Series& s) { return s.faint ? 0.9 : 1.9; }

  /// Draws a curve, broken where points cannot be drawn.
  void draw_curve(const Series& s) {
    const Colour colour = colour_of(s);
    std::vector<Canvas::Point> run;
    for (size_t i = 0; i <= s.x.size(); ++i) {
      if (i < s.x.size() && drawn(s, i)) {
        run.push_back(point(s, i));
        if (s.markers) canvas_.stroke({run.back()}, dot, colour);
      } else if (!run.empty()) {
        canvas_.stroke(run, width_of(s), colour);
        run.clear();
      }
    }
  }

  void draw_points() {
    for (const PlacedName& name : names_) {
      const auto [left, top, right, bottom] = name.box;
      const Canvas::Point end{std::clamp(name.point.x, left, right),
                              std::clamp(name.point.y, top, bottom)};
      if (std::hypot(end.x - name.point.x, end.y - name.point.y) > 16) {
        canvas_.stroke({name.point, end}, 0.8, dim);
      }
      canvas_.text(left, bottom - 2, name.text, name_text, ink);
    }
    for (const NamedPoint& p : plot_.points) {
      if (!drawn(p.x, p.y)) continue;
      const Canvas::Point centre = at(p.x, p.y);
      if (p.ring) {
        std::vector<Canvas::Point> circle;
        for (int i = 0; i <= 32; ++i) {
          const double angle = 2 * std::numbers::pi * i / 32;
          circle.push_back(
              {centre.x + ring / 2 * std::cos(angle), centre.y + ring / 2 * std::sin(angle)});
        }
        canvas_.stroke(circle, 1.5, palette_at(p.colour));
      } else {
        canvas_.stroke({centre}, dot + 2, palette_at(p.colour));
      }
    }
  }

  void draw_legend() {
    const double left = legend_.left + 10;
    double y = legend_.top + 6 + line_ / 2;
    auto name = legend_names_.begin();
    for (const Series& s : plot_.series) {
      if (s.name.empty()) continue;
      canvas_.stroke({{left, y}, {left + legend_line, y}}, width_of(s), colour_of(s));
      if (s.markers) canvas_.stroke({{left + legend_line / 2, y}}, dot, colour_of(s));
      canvas_.text(left + legend_line + 10, y + 5, *name++, std::min(small_text, line_), ink);
      y += line_;
    }
  }

  const LinePlot& plot_;
  Axis across_, up_;
  Ticks right_ = {};  // values of the axis at the right
  Canvas canvas_;
  PlotArea frame_{}, legend_{};
  std::vector<std::string> legend_names_;
  std::vector<PlacedName> names_;  // of points
  bool beside_ = false;            // the legend is outside of the plot
  double legend_width_ = 0, line_ = 22;
};

}  // namespace

std::string line_chart(const LinePlot& plot, PictureFormat format) {
  require(plot.width >= 200 && plot.height >= 150 && plot.width <= 5000 && plot.height <= 5000,
          "plot", "a picture of {} x {} units: expected 200 x 150 to 5000 x 5000", plot.width,
          plot.height);
  return LineChart(plot, format).draw();
}

}  // namespace longspan::drawing
