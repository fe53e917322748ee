#include "train/chart.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace longspan::drawing {
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
  if (logarithmic && ticks.at.size() < 3) {
    plain = true;
    ticks = make_ticks(std::exp2(low), std::exp2(high), count);
    std::erase_if(ticks.at, [](double value) { return value <= 0; });
    for (double& at : ticks.at) at = std::log2(at);
    return;
  }
  if (!whole || ticks.step >= 1) return;
  ticks = {};
  for (double i = std::ceil(low); i <= high; ++i) ticks.at.push_back(i + 0.0);
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
  if (plain) return tick_label(std::exp2(place), ticks.step);
  if (place >= 10) return fmt::format("{:g}k", std::exp2(place - 10));
  return fmt::format("{:.3g}", std::exp2(place));
}

std::string shortened(std::string text, double limit, double size) {
  if (Canvas::width_of(text, size) <= limit) return text;
  const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
  while (!text.empty() && Canvas::width_of(text + "..", size) > limit) {
    while (!text.empty() && continues(text.back())) text.pop_back();  // of UTF-8
    if (!text.empty()) text.pop_back();
  }
  return text + "..";
}

namespace {

/// Returns the size, from `size` down to a readable one, in which a text fits.
double size_that_fits(const std::string& text, double room, double size) {
  constexpr double least = 10;
  const double width = Canvas::width_of(text, size);
  return width > room ? std::max(size * room / width, least) : size;
}

}  // namespace

void draw_title(Canvas& canvas, const PlotArea& frame, const std::string& title) {
  const double room = canvas.width() - frame.left - 10;
  const double size = size_that_fits(title, room, large_text);
  canvas.text(frame.left, frame.top - 14, shortened(title, room, size), size, ink);
}

void draw_axis_labels(Canvas& canvas, const PlotArea& frame, const std::string& x_label,
                      const std::string& y_label) {
  const double across = canvas.width() - 20, up = canvas.height() - 20;
  const double x_size = size_that_fits(x_label, across, small_text);
  const double y_size = size_that_fits(y_label, up, small_text);
  const auto middle = [](double at, double size, double room) {
    return std::max(std::min(at, room - 8 - size / 2), 8 + size / 2);
  };
  const std::string x_text = shortened(x_label, across, x_size);
  const std::string y_text = shortened(y_label, up, y_size);
  canvas.text(
      middle((frame.left + frame.right) / 2, Canvas::width_of(x_text, x_size), canvas.width()),
      canvas.height() - 12, x_text, x_size, ink, Canvas::Anchor::middle);
  canvas.text_upwards(
      19, middle((frame.top + frame.bottom) / 2, Canvas::width_of(y_text, y_size), canvas.height()),
      y_text, y_size, ink);
}

}  // namespace longspan::drawing
