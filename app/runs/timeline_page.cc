#include "app/runs/timeline_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>

#include "data/io/files.h"
#include "data/io/json.h"
#include "train/step_memory.h"

namespace longspan {
namespace {

// Of a picture, in units of its SVG.
constexpr double left = 70, right = 710, top = 22, bottom = 262, width = 720, height = 300;

constexpr const char* style = R"(
body{font:15px/1.45 system-ui,"DejaVu Sans",sans-serif;max-width:1120px;margin:2em auto;padding:0 1em;color:#282c34}
h1{font-size:1.5em}h2{font-size:1.2em;margin:2em 0 .2em}h3{font-size:1em;margin:.8em 0 .2em}p{margin:.3em 0}
.row{display:grid;grid-template-columns:minmax(0,1fr) 300px;gap:1em;align-items:start}
.charts:focus{outline:3px solid #1f64b4;outline-offset:4px}.charts{cursor:crosshair;touch-action:none}
svg{width:100%;height:auto;display:block}svg text{font-size:13px;fill:#5f6672}.grid{stroke:#dee1e6}
.mark{stroke:#282c34;stroke-dasharray:5 4}.cursor{stroke:#be1e3c;stroke-width:1.5}svg .note{fill:#282c34}
table{border-collapse:collapse;width:100%;font-size:.87em;font-variant-numeric:tabular-nums}
td,th{padding:1px 6px;text-align:right;font-weight:normal}td:first-child,th:first-child{text-align:left}
th{color:#5f6672}i{display:inline-block;width:.8em;height:.8em;margin-right:.4em}
.now{min-height:3em}kbd{border:1px solid #bbb;border-radius:3px;padding:0 4px;font-size:.85em}
@media(max-width:800px){.row{grid-template-columns:1fr}}
)";

constexpr const char* script = R"(
'use strict';
const data = JSON.parse(document.getElementById('timelines').textContent);
const text = bytes => {
  for (const [unit, name, digits] of [[2 ** 30, 'GiB', 2], [2 ** 20, 'MiB', 1], [2 ** 10, 'KiB', 1]])
    if (bytes >= unit) return (bytes / unit).toFixed(digits) + ' ' + name;
  return bytes + ' B';
};
document.querySelectorAll('.charts').forEach((charts, which) => {
  const t = data.timelines[which], section = charts.closest('section');
  const last = t.total.length - 1;
  let at = t.peak;
  const show = to => {
    at = Math.max(0, Math.min(last, to));
    const x = data.left + (at + .5) / (last + 1) * (data.right - data.left);
    section.querySelectorAll('.cursor').forEach(line => {
      line.setAttribute('x1', x);
      line.setAttribute('x2', x);
      line.removeAttribute('visibility');
    });
    const says = `${text(t.total[at])} live, ${t.parts[t.part[at]]} pass, ${t.ops[t.op[at]]}`
        .replace('update pass', 'update').replace('backward pass, of', 'backward pass of');
    section.querySelector('.now').textContent = 'Chosen moment: ' + says;
    charts.setAttribute('aria-valuenow', at);
    charts.setAttribute('aria-valuetext', says);
    section.querySelectorAll('tr[data-of]').forEach(row => {
      row.cells[1].textContent = text(data.unit * t[row.dataset.of][row.dataset.index][at]);
    });
  };
  const point = event => {
    const box = section.querySelector('svg').getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * data.width;
    show(Math.floor((x - data.left) / (data.right - data.left) * (last + 1)));
  };
  charts.addEventListener('pointermove', point);
  charts.addEventListener('pointerdown', point);
  charts.addEventListener('keydown', event => {
    const far = Math.ceil((last + 1) / 20);
    const to = {ArrowLeft: at - 1, ArrowRight: at + 1, ArrowDown: at - 1, ArrowUp: at + 1,
                PageDown: at - far, PageUp: at + far, Home: 0, End: last,
                p: t.peak, b: t.backward, u: t.update}[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    show(to);
  });
  show(at);
});
)";

std::string escaped(std::string_view text) {
  std::string all;
  for (const char c : text) {
    all += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  }
  return all;
}

/// The bytes of one kind over a timeline: those of `name` at each instant.
struct Band {
  std::string name, colour;
  std::vector<int64_t> bytes;
};

/// Returns the colour of a category or layer, the same in all pictures.
std::string colour_of(const std::string& name, size_t index, size_t count) {
  static const std::map<std::string, std::string> known = {
      {"parameter", "#4e79a7"}, {"gradient", "#f28e2b"},       {"optimizer", "#76b7b2"},
      {"saved", "#e15759"},     {"workspace", "#edc948"},      {"memory", "#59a14f"},
      {"data", "#9c755f"},      {"graph", "#b07aa1"},          {"other", "#bab0ac"},
      {"update", "#7a7f87"},    {"before the step", "#c5c9d0"}};
  const auto found = known.find(name);
  if (found != known.end()) return found->second;
  return fmt::format("hsl({},{}%,{}%)", 215 + index * 290 / std::max<size_t>(count, 1),
                     index % 2 == 0 ? 55 : 45, index % 2 == 0 ? 48 : 64);
}

std::vector<Band> bands_of(const Timeline& t, bool by_layer) {
  const std::vector<std::string>& names = by_layer ? t.layers : t.categories;
  std::vector<Band> bands;
  for (size_t i = 0; i < names.size(); ++i) {
    Band band{.name = names[i], .colour = colour_of(names[i], i, names.size()), .bytes = {}};
    for (const Timeline::Instant& instant : t.instants) {
      band.bytes.push_back((by_layer ? instant.by_layer : instant.by_category)[i]);
    }
    bands.push_back(std::move(band));
  }
  return bands;
}

/// Returns SVG path steps along a line through columns `from` to `to`, in either direction, from
/// the current point.
std::string steps_of(const std::vector<int64_t>& line, int64_t from, int64_t to) {
  const int64_t by = from < to ? 1 : -1;
  std::string text;
  for (int64_t begin = from, i = from + by;; i += by) {
    const auto height_at = [&](int64_t column) { return line[static_cast<size_t>(column)]; };
    if (i != to && height_at(i) == height_at(i - by)) continue;
    text += fmt::format("h{}", i - begin);
    if (i == to) return text;
    text += fmt::format("v{}", height_at(i) - height_at(i - by));
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

/// What the pictures of a page have in common.
struct Scale {
  int64_t most = 1;  ///< bytes at the top
  int64_t step = 1;  ///< bytes between grid lines
  double y(int64_t bytes) const {
    return bottom - (bottom - top) * static_cast<double>(bytes) / static_cast<double>(most);
  }
};

/// Returns one whose grid lines are at 1, 2 or 5 times powers of ten of KiB, MiB or GiB.
Scale scale_of(const std::vector<Timeline>& timelines) {
  Scale scale;
  for (const Timeline& t : timelines) {
    if (!t.instants.empty()) scale.most = std::max(scale.most, t.instants[t.peak].total());
  }
  int64_t unit = 1;
  while (scale.most / 4 >= unit * 1024 && unit < int64_t{1} << 30) unit *= 1024;
  for (scale.step = unit; scale.most / scale.step > 6;) {
    for (const int64_t factor : {2, 5, 10}) {
      if (scale.most / scale.step <= 6) break;
      scale.step = factor == 5 ? scale.step / 2 * 5 : scale.step * 2;
    }
  }
  return scale;
}

double x_of(const Timeline& t, size_t instant) {
  return left + (right - left) * static_cast<double>(instant) /
                    static_cast<double>(std::max<size_t>(t.instants.size(), 1));
}

/// Returns the parts of a step below a picture, and a line where each begins.
std::string parts_of(const Timeline& t) {
  constexpr const char* shades[] = {"#e7edf5", "#f8e8dd", "#e9efe6"};
  std::string text;
  for (const StepPart part : {StepPart::forward, StepPart::backward, StepPart::update}) {
    size_t end = t.instants.size();
    for (const StepPart later : {StepPart::backward, StepPart::update}) {
      if (later > part) end = std::min(end, t.begin_of(later));
    }
    const size_t begin = t.begin_of(part);
    if (begin >= end) continue;
    const double x0 = x_of(t, begin), x1 = x_of(t, end);
    text +=
        fmt::format("<rect x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"20\" fill=\"{}\"/>\n",
                    x0, bottom + 4, x1 - x0, shades[static_cast<int>(part)]);
    if (part != StepPart::forward) {
      text += fmt::format(
          "<line class=\"mark\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>\n", x0, top,
          bottom + 24);
    }
    const std::string name = name_of(part);
    if (x1 - x0 > 8 * static_cast<double>(name.size())) {
      text += fmt::format(
          "<text class=\"note\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
          (x0 + x1) / 2, bottom + 19, name);
    }
  }
  return text;
}

/// Returns the mark of the peak above a picture.
std::string peak_of(const Timeline& t, const Scale& scale) {
  const double x = x_of(t, t.peak) + (right - left) / 2 / static_cast<double>(t.instants.size());
  const int64_t bytes = t.instants[t.peak].total();
  const bool is_right = x > (left + right) / 2;
  return fmt::format(
      "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"none\" stroke=\"#282c34\" "
      "stroke-width=\"1.5\"/>\n<text class=\"note\" x=\"{:.1f}\" y=\"{:.1f}\" "
      "text-anchor=\"{}\">peak {}</text>\n",
      x, scale.y(bytes), x + (is_right ? -8 : 8), scale.y(bytes) - 6, is_right ? "end" : "start",
      bytes_text(bytes));
}

std::string svg_of(const Timeline& t, const std::vector<Band>& bands, const Scale& scale,
                   const std::string& what) {
  constexpr int64_t rows = 2000;  // of the heights of paths
  std::string text = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
                                 width, height, what);
  for (int64_t bytes = 0; bytes <= scale.most; bytes += scale.step) {
    text += fmt::format(
        "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
        "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
        left, right, scale.y(bytes), scale.y(bytes), left - 8, scale.y(bytes) + 4,
        bytes == 0 ? "0" : bytes_text(bytes));
  }
  text +=
      fmt::format("<g transform=\"translate({},{}) scale({:.6f},{:.6f})\">\n", left, top,
                  (right - left) / static_cast<double>(t.instants.size()), (bottom - top) / rows);
  std::vector<int64_t> floor(t.instants.size(), 0);
  const auto height_of = [&](int64_t bytes) {
    const double share = static_cast<double>(bytes) / static_cast<double>(scale.most);
    return std::lround(rows * (1 - share));
  };
  for (const Band& band : bands) {
    std::vector<int64_t> below, above;
    for (size_t i = 0; i < floor.size(); ++i) {
      below.push_back(height_of(floor[i]));
      floor[i] += band.bytes[i];
      above.push_back(height_of(floor[i]));
    }
    text += fmt::format("<path fill=\"{}\" d=\"{}\"><title>{}</title></path>\n", band.colour,
                        outline_of(below, above), escaped(band.name));
  }
  return text + "</g>\n" + parts_of(t) + peak_of(t, scale) +
         fmt::format(
             "<line class=\"cursor\" visibility=\"hidden\" x1=\"{0}\" x2=\"{0}\" "
             "y1=\"{1}\" y2=\"{2}\"/>\n</svg>\n",
             left, top, bottom + 24);
}

/// Returns the table beside a picture: its colours, bytes at the chosen instant and at the peak.
std::string table_of(const Timeline& t, const std::vector<Band>& bands, const char* of) {
  std::string text = fmt::format(
      "<table><thead><tr><th scope=\"col\">{}</th><th scope=\"col\">chosen</th>"
      "<th scope=\"col\">at the peak</th></tr></thead>\n<tbody>\n",
      of);
  for (size_t i = bands.size(); i-- > 0;) {  // as they lie above one another
    const std::string bytes = bytes_text(bands[i].bytes[t.peak]);
    text += fmt::format(
        "<tr data-of=\"{}\" data-index=\"{}\"><td><i style=\"background:{}\"></i>{}</td>"
        "<td>{}</td><td>{}</td></tr>\n",
        of, i, bands[i].colour, escaped(bands[i].name), bytes, bytes);
  }
  return text + "</tbody></table>\n";
}

std::string peak_text(const Timeline& t) {
  const Timeline::Instant& at = t.instants[t.peak];
  const bool is_pass = at.part != StepPart::update;
  return fmt::format("The peak is {}, in the {}{}{}{}.", bytes_text(at.total()), name_of(at.part),
                     is_pass ? " pass" : "", at.op.starts_with("of ") ? " " : ", ", at.op);
}

std::string section_of(const Timeline& t, const Scale& scale) {
  std::string text = fmt::format("<section>\n<h2>{}</h2>\n", escaped(t.title));
  if (t.instants.empty()) return text + "<p>This step allocates nothing.</p>\n</section>\n";
  text += fmt::format("<p class=\"peak\">{}</p>\n", escaped(peak_text(t)));
  text += fmt::format(
      "<p class=\"now\" aria-live=\"off\"></p>\n<div class=\"charts\" tabindex=\"0\" "
      "role=\"slider\" aria-label=\"instant of the step\" aria-valuemin=\"0\" "
      "aria-valuemax=\"{}\" aria-valuenow=\"{}\">\n",
      t.instants.size() - 1, t.peak);
  for (const bool by_layer : {false, true}) {
    const std::vector<Band> bands = bands_of(t, by_layer);
    const std::string what = by_layer ? "by layer" : "by category";
    text += fmt::format("<h3>Live bytes {}</h3>\n<div class=\"row\">\n{}{}</div>\n", what,
                        svg_of(t, bands, scale, "live bytes " + what + " over a step"),
                        table_of(t, bands, by_layer ? "layer" : "category"));
  }
  return text + "</div>\n</section>\n";
}

/// Returns rows of numbers, in memory blocks of `unit` bytes.
Json numbers_of(const std::vector<Band>& bands, int64_t unit) {
  Json::Array rows;
  for (const Band& band : bands) {
    Json::Array row;
    for (const int64_t bytes : band.bytes) row.emplace_back(bytes / unit);
    rows.emplace_back(std::move(row));
  }
  return Json(std::move(rows));
}

Json json_of(const Timeline& t, int64_t unit) {
  Json::Array total, part, op, ops, names, categories, layers;
  std::map<std::string, int64_t> index;
  for (const Timeline::Instant& i : t.instants) {
    const auto [at, added] = index.try_emplace(i.op, std::ssize(ops));
    if (added) ops.emplace_back(i.op);
    total.emplace_back(i.total());
    part.emplace_back(static_cast<int64_t>(i.part));
    op.emplace_back(at->second);
  }
  for (const StepPart p : {StepPart::forward, StepPart::backward, StepPart::update}) {
    names.emplace_back(std::string(name_of(p)));
  }
  for (const std::string& name : t.categories) categories.emplace_back(name);
  for (const std::string& name : t.layers) layers.emplace_back(name);
  const auto instant = [](size_t i) { return Json(static_cast<int64_t>(i)); };
  return Json(Members{{"title", Json(t.title)},
                      {"peak", instant(t.peak)},
                      {"backward", instant(t.begin_of(StepPart::backward))},
                      {"update", instant(t.begin_of(StepPart::update))},
                      {"parts", Json(std::move(names))},
                      {"part", Json(std::move(part))},
                      {"ops", Json(std::move(ops))},
                      {"op", Json(std::move(op))},
                      {"total", Json(std::move(total))},
                      {"categories", Json(std::move(categories))},
                      {"category", numbers_of(bands_of(t, false), unit)},
                      {"layers", Json(std::move(layers))},
                      {"layer", numbers_of(bands_of(t, true), unit)}});
}

/// Returns JSON that can stand in an element of HTML.
std::string json_text(const std::vector<Timeline>& timelines) {
  constexpr int64_t unit = 64;  // of memory blocks
  Json::Array all;
  for (const Timeline& t : timelines) {
    if (!t.instants.empty()) all.push_back(json_of(t, unit));
  }
  const std::string text = to_string(Json(Members{{"unit", Json(unit)},
                                                  {"left", Json(left)},
                                                  {"right", Json(right)},
                                                  {"width", Json(width)},
                                                  {"timelines", Json(std::move(all))}}));
  std::string safe;
  for (const char c : text) safe += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return safe;
}

}  // namespace

std::string timeline_page(const std::string& title, const std::vector<Timeline>& timelines) {
  const Scale scale = scale_of(timelines);
  std::string page = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width\"/>\n"
      "<meta name=\"generator\" content=\"Longspan\"/>\n<title>{0}</title>\n<style>{1}</style>\n"
      "</head>\n<body>\n<h1>{0}</h1>\n",
      escaped(title), style);
  page +=
      "<p>All pictures have one scale of bytes, up to the highest peak. Across are the allocations "
      "and releases of a step, in their order, not its time; each column shows the moment of its "
      "most bytes.</p>\n<p>Point at a picture, or go to it with <kbd>Tab</kbd>: <kbd>\xE2\x86\x90"
      "</kbd> <kbd>\xE2\x86\x92</kbd> <kbd>Page Up</kbd> <kbd>Page Down</kbd> <kbd>Home</kbd> "
      "<kbd>End</kbd> choose a moment, <kbd>p</kbd> the peak, <kbd>b</kbd> the beginning of the "
      "backward pass, <kbd>u</kbd> that of the update.</p>\n";
  for (const Timeline& t : timelines) page += section_of(t, scale);
  return page + fmt::format(
                    "<script type=\"application/json\" id=\"timelines\">{}</script>\n"
                    "<script>{}</script>\n</body>\n</html>\n",
                    json_text(timelines), script);
}

void write_timelines(const std::string& path, const std::string& title,
                     const std::vector<Timeline>& timelines) {
  replace_file(path, timeline_page(title, timelines), "timeline");
}

}  // namespace longspan
