#include "train/chart.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace longspan::drawing {
namespace {

/// Formats a tick with as many digits as the step needs; thousands as "12k", millions as "12M".
std::string tick_label(double value, double step) {
  if (std::abs(value) < 1e-9 * step) return "0";
  for (const auto& [unit, letter] : {std::pair{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}}) {
    if (step >= unit && std::fmod(step, unit) == 0)
      return fmt::format("{:.0f}{}", value / unit, letter);
  }
  const double digits = -std::floor(std::log10(step) + 1e-9);
  if (digits > 6 || std::abs(value) >= 1e7) return fmt::format("{:.3g}", value);
  return fmt::format("{:.{}f}", value, std::max(0, static_cast<int>(digits)));
}

}  // namespace

Ticks make_ticks(double low, double high, int count) {
  const double raw = (high - low) / std::max(count, 1);
  const double power = std::pow(10, std::floor(std::log10(raw)));
  Ticks ticks;
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    ticks.step = factor * power;
    if (ticks.step >= raw * 0.999) break;
  }
  const double first = std::ceil(low / ticks.step - 1e-9);
  for (double i = first; i * ticks.step <= high + 1e-9 * ticks.step; ++i) {
    ticks.at.push_back(i * ticks.step + 0.0);  // -0 becomes 0
  }
  return ticks;
}

void Axis::mark(int count) {
  if (logarithmic && low < -1) return mark_decades();  // what is below 1 is no length
  ticks = make_ticks(low, high, count);
  if (logarithmic && ticks.step < 1) ticks = make_ticks(low, high, static_cast<int>(high - low));
  if (logarithmic && ticks.at.size() < 2) mark_few(count);
  if (!whole || ticks.step >= 1) return;
  ticks = {};
  for (double i = std::ceil(low); i <= high; ++i) ticks.at.push_back(i + 0.0);
}

void Axis::mark_few(int count) {
  ticks = {};
  for (double power = std::ceil(low); power <= high; ++power) ticks.at.push_back(power);
  constexpr double thousand = 10;  // from 2^10 on, labels are of units of 1024
  if (ticks.at.size() >= 2 || high > thousand) return;
  ticks = make_ticks(std::exp2(low), std::exp2(high), count);
  for (double& at : ticks.at) at = place(at);
}

void Axis::mark_decades() {
  ticks = {};
  const double decades = (high - low) * std::log10(2.0);
  for (double power = std::floor(low * std::log10(2.0)); power <= high * std::log10(2.0); ++power) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor > 1 && decades > 3) continue;
      const double at = std::log2(factor * std::pow(10, power));
      if (at >= low - 1e-9 && at <= high + 1e-9) ticks.at.push_back(at);
    }
  }
}

std::string Axis::label(double place) const {
  if (!logarithmic) return tick_label(place, ticks.step);
  if (place >= 10) return fmt::format("{:g}k", std::exp2(place - 10));
  return fmt::format("{:.3g}", std::exp2(place));
}

void draw_title(Canvas& canvas, const PlotArea& frame, const std::string& title) {
  const double room = canvas.width() - frame.left - 10;
  const double width = Canvas::width_of(title, large_text);
  const double size = width > room ? large_text * room / width : large_text;
  canvas.text(frame.left, frame.top - 18, title, std::max(size, 9.0), ink);
}

void draw_axis_labels(Canvas& canvas, const PlotArea& frame, const std::string& x_label,
                      const std::string& y_label) {
  canvas.text((frame.left + frame.right) / 2, canvas.height() - 16, x_label, small_text, ink,
              Canvas::Anchor::middle);
  canvas.text_upwards(26, (frame.top + frame.bottom) / 2, y_label, small_text, ink);
}

}  // namespace longspan::drawing
