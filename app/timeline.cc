#include "app/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "data/io/files.h"
#include "train/step_memory.h"

namespace longspan {
namespace {

constexpr size_t columns = 500;  // of a picture

/// Returns "layer 3", "encoder layer 3", "embed", or "backward and update" without a scope.
std::string part_of(const std::string& scope) {
  constexpr std::string_view layers = "layers.";
  const size_t at = scope.find(layers);
  if (at != std::string::npos) {
    const size_t number = at + layers.size();
    const std::string layer = "layer " + scope.substr(number, scope.find('.', number) - number);
    return scope.find("encoder.") < at ? "encoder " + layer : layer;
  }
  if (scope.empty()) return "backward and update";
  const size_t dot = scope.rfind('.');
  return dot == std::string::npos ? scope : scope.substr(dot + 1);
}

using BandOf = std::function<std::string(const MemoryTrace::Block&, Category)>;

/// Draws, in each column, the instant at which the most bytes were live.
Timeline::Picture picture_of(const MemoryTrace& trace, const Usage& before,
                             const std::string& title, const BandOf& band_of) {
  Timeline::Picture picture;
  picture.title = title;
  std::map<std::string, size_t> index;
  std::vector<double> now;
  const auto band = [&](const std::string& name) {
    const auto [at, added] = index.try_emplace(name, picture.bands.size());
    if (added) {
      picture.bands.push_back(name);
      now.push_back(0);
    }
    return at->second;
  };
  for (int c = 0; c < category_count; ++c) {
    const auto category = static_cast<Category>(c);
    if (before[category] == 0 || category == Category::cache) continue;
    const MemoryTrace::Block old{before[category], category, true, "before the step", "", {}};
    now[band(band_of(old, category))] += static_cast<double>(before[category]);
  }
  const auto& events = trace.events();
  double sum = 0;
  for (const double b : now) sum += b;
  double most = -1;
  for (size_t i = 0; i < events.size(); ++i) {
    const MemoryTrace::Event& e = events[i];
    if (e.category == Category::cache) continue;
    now[band(band_of(trace.blocks()[e.block], e.category))] += static_cast<double>(e.bytes);
    sum += static_cast<double>(e.bytes);
    const size_t column = i * columns / events.size();
    if (picture.points.size() <= column) {
      picture.points.resize(column + 1, {now});
      most = -1;
    }
    if (sum > most) {
      picture.points.back().bytes = now;
      most = sum;
    }
  }
  for (Timeline::Point& p : picture.points) p.bytes.resize(picture.bands.size(), 0.0);
  return picture;
}

std::string colour(size_t i, size_t count) {
  constexpr const char* few[] = {"#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f",
                                 "#edc948", "#b07aa1", "#9c755f", "#bab0ac"};
  if (count <= std::size(few)) return few[i];
  return fmt::format("hsl({},55%,{}%)", i * 360 / count, i % 2 == 0 ? 50 : 62);
}

/// Returns SVG path steps along a line through columns `from` to `to`, in either direction, from
/// the current point.
std::string steps_of(const std::vector<int64_t>& line, int64_t from, int64_t to) {
  const int64_t by = from < to ? 1 : -1;
  std::string text;
  for (int64_t begin = from, i = from + by;; i += by) {
    const auto height = [&](int64_t column) { return line[static_cast<size_t>(column)]; };
    if (i != to && height(i) == height(i - by)) continue;
    text += fmt::format("h{}", i - begin);
    if (i == to) return text;
    text += fmt::format("v{}", height(i) - height(i - by));
    begin = i;
  }
}

/// Returns the outline, as a short SVG path in integers, of the columns where `above` differs from
/// `below`.
std::string outline_of(const std::vector<int64_t>& below, const std::vector<int64_t>& above) {
  std::string text;
  for (size_t from = 0, to = 0; from < below.size(); from = to) {
    to = from + 1;
    if (above[from] == below[from]) continue;
    while (to < below.size() && above[to] != below[to]) ++to;
    const auto first = static_cast<int64_t>(from), last = static_cast<int64_t>(to);
    text += fmt::format("M{} {}{}V{}{}Z", from, above[from], steps_of(above, first, last),
                        below[to - 1], steps_of(below, last - 1, first - 1));
  }
  return text;
}

std::string svg_of(const Timeline::Picture& p) {
  constexpr double width = 860, height = 260, left = 80, top = 10;
  double most = 1;
  for (const Timeline::Point& point : p.points) {
    double sum = 0;
    for (const double b : point.bytes) sum += b;
    most = std::max(most, sum);
  }
  const auto y = [&](double bytes) { return top + height * (1 - bytes / most); };
  const auto thousandths = [&](double bytes) {
    return static_cast<int64_t>(std::lround(1000 * (1 - bytes / most)));
  };
  std::string text = fmt::format("<h3>{}</h3>\n<svg viewBox=\"0 0 {} {}\" role=\"img\">\n", p.title,
                                 width + 10, height + 2 * top + 14);
  text += fmt::format("<g transform=\"translate({},{}) scale({:.5f},{})\">\n", left, top,
                      (width - left) / static_cast<double>(p.points.size()), height / 1000);
  std::vector<double> floor(p.points.size(), 0.0);
  for (size_t b = 0; b < p.bands.size(); ++b) {
    std::vector<int64_t> below, above;
    for (size_t i = 0; i < p.points.size(); ++i) {
      below.push_back(thousandths(floor[i]));
      floor[i] += p.points[i].bytes[b];
      above.push_back(thousandths(floor[i]));
    }
    text += fmt::format("<path fill=\"{}\" d=\"{}\"><title>{}</title></path>\n",
                        colour(b, p.bands.size()), outline_of(below, above), p.bands[b]);
  }
  text += "</g>\n";
  for (int i = 0; i <= 4; ++i) {
    const double bytes = most * i / 4;
    text += fmt::format(
        "<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" class=\"grid\"/>"
        "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
        left, width, y(bytes), y(bytes), left - 6, y(bytes) + 4,
        bytes_text(static_cast<int64_t>(bytes)));
  }
  text += fmt::format(
      "<text x=\"{}\" y=\"{}\">allocations and releases of one step, in order"
      "</text>\n</svg>\n<p class=\"legend\">",
      left, height + top + 16);
  for (size_t b = 0; b < p.bands.size(); ++b) {
    text += fmt::format("<span><i style=\"background:{}\"></i>{}</span> ",
                        colour(b, p.bands.size()), p.bands[b]);
  }
  return text + "</p>\n";
}

}  // namespace

Timeline timeline_of(const MemoryTrace& trace, const Usage& before, const std::string& title) {
  Timeline t;
  t.title = title;
  t.pictures.push_back(
      picture_of(trace, before, "by category",
                 [](const MemoryTrace::Block&, Category c) { return std::string(name_of(c)); }));
  t.pictures.push_back(
      picture_of(trace, before, "by layer",
                 [](const MemoryTrace::Block& block, Category) { return part_of(block.scope); }));
  return t;
}

void write_timelines(const std::string& path, const std::string& title,
                     const std::vector<Timeline>& timelines) {
  std::string page = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{0}</title>\n<style>"
      "body{{font:14px sans-serif;max-width:960px;margin:2em auto;color:#222}}"
      "svg{{width:100%;font-size:11px}}.grid{{stroke:#0002}}"
      ".legend span{{margin-right:1em;white-space:nowrap}}"
      ".legend i{{display:inline-block;width:.8em;height:.8em;margin-right:.3em}}"
      "</style>\n<h1>{0}</h1>\n",
      title);
  for (const Timeline& t : timelines) {
    page += fmt::format("<h2>{}</h2>\n", t.title);
    for (const Timeline::Picture& p : t.pictures) page += svg_of(p);
  }
  replace_file(path, page + "</html>\n", "timeline");
}

}  // namespace longspan
