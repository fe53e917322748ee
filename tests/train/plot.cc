#include "train/plot.h"

#include <png.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "core/error.h"
#include "tests/harness/scratch.h"

namespace longspan {
namespace {

using test::contains;
using test::Folder;
using test::message_of;
using test::read_bytes;
using test::write_bytes;

struct Pixels {
  int width = 0, height = 0;
  std::vector<std::array<uint8_t, 3>> rgb;
  const std::array<uint8_t, 3>& at(int x, int y) const {
    return rgb[static_cast<size_t>(y * width + x)];
  }
  std::set<std::array<uint8_t, 3>> colours() const { return {rgb.begin(), rgb.end()}; }
};

/// Reads the picture back with libpng, which validates it.
Pixels read_png(const std::string& path) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  Pixels pixels;
  EXPECT_NE(png_image_begin_read_from_file(&image, path.c_str()), 0) << image.message;
  image.format = PNG_FORMAT_RGB;
  pixels.width = static_cast<int>(image.width);
  pixels.height = static_cast<int>(image.height);
  pixels.rgb.resize(static_cast<size_t>(image.width) * image.height);
  EXPECT_NE(png_image_finish_read(&image, nullptr, pixels.rgb.data(), 0, nullptr), 0)
      << image.message;
  return pixels;
}

constexpr std::array<uint8_t, 3> white{255, 255, 255}, blue{31, 100, 180};

/// Says whether the centre of the bounding box of all blue pixels is blue.
bool middle_is_blue(const Pixels& pixels) {
  int left = pixels.width, right = 0, top = pixels.height, bottom = 0;
  for (int y = 0; y < pixels.height; ++y) {
    for (int x = 0; x < pixels.width; ++x) {
      if (pixels.at(x, y) != blue) continue;
      left = std::min(left, x), right = std::max(right, x);
      top = std::min(top, y), bottom = std::max(bottom, y);
    }
  }
  return pixels.at((left + right) / 2, (top + bottom) / 2) == blue;
}

TEST(Plot, LogarithmicAxesMakePowersStraight) {
  const Folder folder;
  LinePlot plot{.title = "cubes", .x_label = "x", .y_label = "y"};
  plot.series = {{.x = {-1, 1, 2, 4, 8, 16}, .y = {5, 1, 8, 64, 512, 4096}}};
  plot.log_x = plot.log_y = true;
  write_line_plot(folder / "log.png", plot);
  EXPECT_TRUE(middle_is_blue(read_png(folder / "log.png")));
  plot.series = {{.x = {1, 2, 4, 8, 16}, .y = {1, 8, 64, 512, 4096}}};
  plot.log_x = plot.log_y = false;
  write_line_plot(folder / "linear.png", plot);
  EXPECT_FALSE(middle_is_blue(read_png(folder / "linear.png")));
}

TEST(Plot, LogarithmicAxesHaveAFewMarksAtLeast) {
  const Folder folder;
  LinePlot plot{.series = {{.x = {128, 256, 512}, .y = {15.6, 25, 38.2}}}};
  plot.log_x = plot.log_y = true;
  write_line_plot(folder / "x.svg", plot);
  std::string svg = read_bytes(folder / "x.svg");
  for (const char* mark : {">128<", ">256<", ">512<", ">20<", ">30<"}) {
    EXPECT_TRUE(contains(svg, mark)) << mark;
  }
  plot.series[0].y = {10, 300, 1500};
  write_line_plot(folder / "x.svg", plot);
  svg = read_bytes(folder / "x.svg");
  for (const char* mark : {">16<", ">64<", ">256<", ">1k<"}) {
    EXPECT_TRUE(contains(svg, mark)) << mark;
  }
}

TEST(Plot, LinesWithAxes) {
  const Folder folder;
  LinePlot plot{.title = "title", .x_label = "x", .y_label = "y"};
  plot.series = {{.name = "a", .x = {0, 1, 2}, .y = {3, 1, 2}},
                 {.name = "b", .x = {0, 2}, .y = {1, 3}, .markers = true, .colour = 1}};
  write_line_plot(folder / "x.png", plot);
  const Pixels pixels = read_png(folder / "x.png");
  EXPECT_EQ(pixels.width, 1440);
  EXPECT_EQ(pixels.height, 864);
  EXPECT_GT(pixels.colours().size(), 20u);  // antialiased edges
  EXPECT_TRUE(pixels.colours().count(blue));
  EXPECT_EQ(pixels.at(1439, 0), white);

  write_line_plot(folder / "y.png", plot);
  EXPECT_EQ(read_bytes(folder / "x.png"), read_bytes(folder / "y.png"));
  plot.series[0].y[1] = 1.5;
  write_line_plot(folder / "y.png", plot);
  EXPECT_NE(read_bytes(folder / "x.png"), read_bytes(folder / "y.png"));
}

TEST(Plot, PicturesSayThatTheyAreOurs) {
  const Folder folder;
  write_line_plot(folder / "x.png", {.series = {{.x = {0, 1}, .y = {0, 1}}}});
  EXPECT_TRUE(is_own_picture(folder / "x.png"));
  std::string bytes = read_bytes(folder / "x.png");
  bytes[45] ^= 1;  // a letter of the name
  write_bytes(folder / "y.png", bytes);
  write_bytes(folder / "short.png", bytes.substr(0, 40));
  for (const char* name : {"y.png", "short.png", "none.png", ""}) {
    EXPECT_FALSE(is_own_picture(folder / name)) << name;
  }
}

TEST(Plot, PathsInSvgGetVectorPictures) {
  const Folder folder;
  const LinePlot plot{.title = "any \xFF \xEF\xBF\xBF <&> text",
                      .series = {{.x = {0, 1}, .y = {0, 1}}}};
  write_line_plot(folder / "x.svg", plot);
  write_line_plot(folder / "y.svg", plot);
  const std::string bytes = read_bytes(folder / "x.svg");
  EXPECT_EQ(bytes, read_bytes(folder / "y.svg"));
  EXPECT_TRUE(bytes.starts_with("<?xml"));
  EXPECT_TRUE(bytes.ends_with("</svg>\n"));
  EXPECT_TRUE(contains(bytes, "width=\"720px\" height=\"432px\"")) << bytes.substr(0, 400);
  EXPECT_TRUE(contains(bytes, ">any \xE2\x96\xA1 \xE2\x96\xA1 &lt;&amp;&gt; text</text>")) << bytes;
  EXPECT_TRUE(contains(bytes, "font-family=\"'DejaVu Sans'"));
  EXPECT_TRUE(is_own_picture(folder / "x.svg"));
  write_bytes(folder / "z.svg", "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg></svg>\n");
  EXPECT_FALSE(is_own_picture(folder / "z.svg"));
  write_heat_map(folder / "map.svg", {.rows = 1, .columns = 2, .values = {0, 1}});
  EXPECT_TRUE(contains(read_bytes(folder / "map.svg"), "<image"));
  EXPECT_TRUE(is_own_picture(folder / "map.svg"));
}

// A curve that fills top and bottom leaves no room for a legend but beside the plot.
TEST(Plot, LegendsHideNoCurve) {
  const Folder folder;
  const auto right_end = [&](const std::vector<double>& y) {
    LinePlot plot{.series = {{.name = "curve", .x = {0, 3, 0, 3}, .y = y}}};
    write_line_plot(folder / "x.png", plot);
    const Pixels pixels = read_png(folder / "x.png");
    int end = 0;  // of the line below the plot
    for (int x = 0; x < pixels.width; ++x) {
      if (pixels.at(x, 864 - 2 * 58 + 1) == std::array<uint8_t, 3>{40, 44, 52}) end = x;
    }
    return end;
  };
  EXPECT_EQ(right_end({0, 0, 0, 1}), 1440 - 2 * 24 - 1);
  EXPECT_LT(right_end({0, 0, 1, 1}), 1440 - 2 * 24 - 100);
}

TEST(Plot, OddData) {
  const Folder folder;
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const std::vector<Series> all = {
      {.x = {5}, .y = {7}},
      {.x = {0, 1, 2}, .y = {4, 4, 4}},
      {.x = {0, 1, 2, 3, 4}, .y = {1, nan, infinity, 2, -infinity}},
      {.x = {0, 1e9}, .y = {-1e-12, 1e-12}},
      {.x = {-1e300, 1e300}, .y = {-1e300, 1e300}},
      {.name = "text of any bytes \xFF \n \x01", .x = {1, 2}, .y = {1e6, 2e6}},
  };
  for (const Series& s : all) {
    write_line_plot(folder / "x.png", {.series = {s}});
    EXPECT_GT(read_png(folder / "x.png").colours().size(), 5u);
  }
  const auto refuse = [&](const LinePlot& plot, const char* part) {
    const std::string message =
        message_of<ValueError>([&] { write_line_plot(folder / "z.png", plot); });
    EXPECT_TRUE(contains(message, part)) << message;
    EXPECT_EQ(read_bytes(folder / "z.png"), "");
  };
  refuse({}, "no point");
  refuse({.series = {{.x = {nan}, .y = {1}}}}, "no point");
  refuse({.series = {{.name = "s", .x = {1, 2}, .y = {1}}}}, "\"s\" has 2 x and 1 y");
  refuse({.series = {{.x = {1}, .y = {1}}}, .width = 3}, "3 x 432 units");
  EXPECT_THROW(write_line_plot(folder / "no/x.png", {.series = {{.x = {1}, .y = {1}}}}), IoError);
}

TEST(Plot, HeatMapColoursItsCells) {
  const Folder folder;
  const double nan = std::nan("");
  HeatMap map{.title = "map", .rows = 2, .columns = 3, .values = {0, 0.5, 1, nan, 1, 0}};
  map.row_labels = {"a", byte_label('\n')};
  map.column_labels = {"x", byte_label(200), byte_label(' ')};
  write_heat_map(folder / "x.png", map);
  const Pixels pixels = read_png(folder / "x.png");
  // Cells have 266 pixels, starting at the corner of the frame.
  int left = 0;
  while (left < pixels.width && pixels.at(left, 120) != (std::array<uint8_t, 3>{13, 21, 56})) {
    ++left;
  }
  ASSERT_LT(left, 200);
  const auto cell = [&](int row, int column) {
    return pixels.at(left + 266 * column + 133, 88 + 266 * row + 133);
  };
  EXPECT_EQ(cell(0, 0), cell(1, 2));
  EXPECT_EQ(cell(0, 2), cell(1, 1));
  EXPECT_EQ(cell(0, 2), (std::array<uint8_t, 3>{253, 240, 150}));
  EXPECT_EQ(cell(1, 0), white);
  EXPECT_NE(cell(0, 1), cell(0, 0));
  EXPECT_NE(cell(0, 1), cell(0, 2));
  map.dark_high = true;
  write_heat_map(folder / "y.png", map);
  const Pixels dark = read_png(folder / "y.png");
  EXPECT_EQ(dark.at(left + 133, 88 + 133), cell(0, 2));
  EXPECT_EQ(dark.at(left + 2 * 266 + 133, 88 + 133), cell(0, 0));
}

TEST(Plot, CellsMayHaveASizeOfTheirOwn) {
  const Folder folder;
  HeatMap map{.rows = 3, .columns = 5, .values = std::vector<double>(15, 1), .cell = 20};
  write_heat_map(folder / "x.png", map);
  const int width = read_png(folder / "x.png").width;
  map.cell = 30;
  write_heat_map(folder / "x.png", map);
  EXPECT_EQ(read_png(folder / "x.png").width, width + 5 * 20);
  map.cell = 2000;
  EXPECT_TRUE(contains(message_of<ValueError>([&] { write_heat_map(folder / "x.png", map); }),
                       "2000 units"));
}

TEST(Plot, WholeNumbersAreMarkedWhereAskedFor) {
  const Folder folder;
  LinePlot plot{.series = {{.x = {0, 0.75, 2}, .y = {1, 2, 3}}}};
  const auto drawn = [&] {
    write_line_plot(folder / "x.png", plot);
    return read_bytes(folder / "x.png");
  };
  const std::string halves = drawn();
  plot.whole_x = true;
  EXPECT_NE(drawn(), halves);
  plot.series[0].x = {0, 1, 2};  // then nobody needs to ask
  const std::string asked = drawn();
  plot.whole_x = false;
  EXPECT_EQ(drawn(), asked);
  plot.whole_x = true;
  plot.series[0].x = {-0.45, 1, 1.45};  // 0 and 1 are marked
  const auto lines_across = [&] {       // columns of pixels without a grid line, above the curve
    drawn();
    const Pixels pixels = read_png(folder / "x.png");
    int lines = 0;
    for (int x = 200; x < pixels.width - 60; ++x) lines += pixels.at(x, 96) == white ? 0 : 1;
    return lines;
  };
  EXPECT_EQ(lines_across(), 2 * 2);
  plot.series[0].x = {0, 10, 20};
  const std::string tens = drawn();
  plot.whole_x = false;
  EXPECT_EQ(drawn(), tens);
}

TEST(Plot, HeatMapDrawsAFewLabelsBesideManyCells) {
  const Folder folder;
  HeatMap map{.rows = 1000, .columns = 4, .exponent = 0.5};
  map.values.assign(4000, 1);
  map.row_labels.resize(1000);
  const auto drawn = [&] {
    write_heat_map(folder / "x.png", map);
    return read_bytes(folder / "x.png");
  };
  const std::string numbers = drawn();
  map.row_labels[500] = "middle";
  const std::string few = drawn();
  EXPECT_NE(few, numbers);
  map.row_labels.assign(1000, "crowd");
  EXPECT_EQ(drawn(), numbers);
}

TEST(Plot, HeatMapsOfAllSizes) {
  const Folder folder;
  for (const auto& [rows, columns] :
       {std::pair<int, int>{1, 1}, {1, 100}, {100, 1}, {64, 64}, {1441, 1441}, {3000, 10}}) {
    HeatMap map{.rows = rows, .columns = columns, .exponent = 0.5};
    for (int i = 0; i < rows * columns; ++i) map.values.push_back(i % 7);
    write_heat_map(folder / "x.png", map);
    const Pixels pixels = read_png(folder / "x.png");
    EXPECT_LT(pixels.width, 1800);
    EXPECT_LT(pixels.height, 1700);
    EXPECT_GT(pixels.colours().size(), 5u);
  }
  HeatMap map{.rows = 2, .columns = 2, .values = {1, 1, 1, 1}};
  EXPECT_NO_THROW(write_heat_map(folder / "x.png", map));
  const auto refuse = [&](const char* part) {
    const std::string message =
        message_of<ValueError>([&] { write_heat_map(folder / "x.png", map); });
    EXPECT_TRUE(contains(message, part)) << message;
  };
  map.row_labels = {"one"};
  refuse("1 row");
  map.row_labels = {};
  map.values = {1, 2, 3};
  refuse("3 values");
  map.rows = 0;
  refuse("0 x 2");
  map = {.rows = 1, .columns = 1, .values = {std::nan("")}};
  refuse("no finite value");
  map = {.rows = 1, .columns = 1, .values = {1}, .exponent = 0};
  refuse("exponent");
}

/// Returns what stands between the first `begin` after `at` and the next `end`.
std::string between(const std::string& text, const std::string& begin, const std::string& end,
                    size_t at = 0) {
  const size_t from = text.find(begin, at);
  if (from == text.npos) return {};
  return text.substr(from + begin.size(),
                     text.find(end, from + begin.size()) - from - begin.size());
}

struct Written {
  std::string text;
  double left, top, right, bottom;
};

/// Returns the texts of an SVG file with the rectangles that they take.
std::vector<Written> texts_of(const std::string& svg) {
  std::vector<Written> all;
  for (size_t at = svg.find("<text "); at != svg.npos; at = svg.find("<text ", at + 1)) {
    const std::string element = svg.substr(at, svg.find("</text>", at) - at);
    const auto number = [&](const std::string& name) {
      return std::stod(between(element, " " + name + "=\"", "\""));
    };
    const std::string anchor = between(element, "text-anchor=\"", "\"");
    const double width = number("textLength"), size = number("font-size");
    const double before = anchor == "end" ? width : anchor == "middle" ? width / 2 : 0;
    const double x = number("x"), y = number("y");
    Written w{element.substr(element.find('>') + 1), x - before, y - 0.7 * size, x - before + width,
              y};
    if (contains(element, "rotate(-90")) {
      w.left = x - 0.7 * size, w.right = x, w.top = y + before - width, w.bottom = y + before;
    }
    all.push_back(w);
  }
  return all;
}

/// Expects all texts within the picture, none over another one.
void expect_readable(const std::string& svg) {
  const double width = std::stod(between(svg, "width=\"", "px")),
               height = std::stod(between(svg, "height=\"", "px"));
  const std::vector<Written> all = texts_of(svg);
  EXPECT_GT(all.size(), 3u);
  for (size_t i = 0; i < all.size(); ++i) {
    const Written& a = all[i];
    EXPECT_TRUE(a.left >= 0 && a.top >= 0 && a.right <= width && a.bottom <= height)
        << a.text << " leaves the picture";
    for (size_t k = 0; k < i; ++k) {
      const Written& b = all[k];
      EXPECT_FALSE(a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
          << a.text << " is over " << b.text;
    }
  }
}

TEST(Plot, PathsInPdfGetPagesWithText) {
  const Folder folder;
  const LinePlot plot{.title = "one <page>", .series = {{.x = {0, 1}, .y = {0, 1}}}};
  write_line_plot(folder / "x.pdf", plot);
  const std::string bytes = read_bytes(folder / "x.pdf");
  EXPECT_TRUE(bytes.starts_with("%PDF-"));
  for (const char* part : {"/FontFile2", "/ToUnicode", "DejaVuSans", "/Title (one <page>)",
                           "/Creator (Longspan)", "[ 0 0 540 324 ]"}) {
    EXPECT_TRUE(contains(bytes, part)) << part;
  }
  EXPECT_FALSE(contains(bytes, "Date"));
  EXPECT_TRUE(is_own_picture(folder / "x.pdf"));
  std::string other = bytes;
  other[other.find("/Creator (Longspan)") + 10] = 'M';
  write_bytes(folder / "y.pdf", other);
  write_bytes(folder / "z.pdf", "%PDF-1.5\n");
  EXPECT_FALSE(is_own_picture(folder / "y.pdf"));
  EXPECT_FALSE(is_own_picture(folder / "z.pdf"));
  write_line_plot(folder / "y.pdf", plot);  // after others, and at another time
  EXPECT_EQ(read_bytes(folder / "y.pdf"), bytes);
  write_heat_map(folder / "map.pdf", {.rows = 1, .columns = 2, .values = {0, 1}});
  EXPECT_TRUE(contains(read_bytes(folder / "map.pdf"), "/Subtype /Image"));
  EXPECT_TRUE(is_own_picture(folder / "map.pdf"));
}

TEST(Plot, FormatsAreAListOfNames) {
  PictureFormats formats;
  EXPECT_EQ(formats.paths("a/b"), (std::vector<std::string>{"a/b.png"}));
  formats.set("pdf,png");
  EXPECT_EQ(formats.text(), "pdf,png");
  EXPECT_EQ(formats.paths("a/b"), (std::vector<std::string>{"a/b.pdf", "a/b.png"}));
  for (const char* wrong : {"", "gif", "png,", "png,png", "png pdf", ",png"}) {
    EXPECT_FALSE(PictureFormats::valid(wrong)) << wrong;
  }
  EXPECT_TRUE(contains(message_of<ValueError>([&] { formats.set("gif"); }),
                       "got \"gif\"; expected png, svg or pdf"));
}

TEST(Plot, NamesOfPointsHideNothing) {
  const Folder folder;
  LinePlot plot{.title = "what models need",
                .x_label = "GiB",
                .y_label = "bits per byte",
                .series = {{.name = "limit", .x = {0.5, 3}, .y = {1.5, 1.1}}}};
  for (int i = 0; i < 12; ++i) {  // three heaps, and one in the corner
    plot.points.push_back({.name = fmt::format("model {}", i),
                           .x = 1 + 0.02 * (i / 4) + (i % 4 == 0 ? 2.1 : 0),
                           .y = 1.3 + 0.01 * (i % 4),
                           .colour = i});
  }
  write_line_plot(folder / "x.svg", plot);
  const std::string svg = read_bytes(folder / "x.svg");
  expect_readable(svg);
  for (const NamedPoint& p : plot.points) EXPECT_TRUE(contains(svg, ">" + p.name + "<")) << p.name;
  size_t dots = 0;
  for (size_t at = svg.find("<circle"); at != svg.npos; at = svg.find("<circle", at + 1)) ++dots;
  EXPECT_EQ(dots, plot.points.size());
  plot.series.clear();  // points alone
  plot.points.resize(1);
  write_line_plot(folder / "x.svg", plot);
  expect_readable(read_bytes(folder / "x.svg"));
}

TEST(Plot, LongLabelsStayApart) {
  const Folder folder;
  HeatMap map{.title = std::string(200, 'w'),
              .x_label = "predicted, with a label that is longer than the picture is wide, by far",
              .y_label = "label",
              .value_label = "share",
              .rows = 6,
              .columns = 6,
              .values = std::vector<double>(36, 0.5),
              .low = 0,
              .high = 1,
              .cell = 30};
  for (int i = 0; i < 6; ++i) map.row_labels.push_back(fmt::format("a class of its own {}", i));
  map.column_labels = map.row_labels;
  write_heat_map(folder / "x.svg", map);
  expect_readable(read_bytes(folder / "x.svg"));
  map.column_labels = {"a", "b", "c", "d", "e", "f"};
  map.exponent = 0.25;
  write_heat_map(folder / "x.svg", map);
  expect_readable(read_bytes(folder / "x.svg"));
  for (const char* mark : {">0<", ">0.001<", ">0.01<", ">0.1<", ">0.3<", ">1<"}) {
    EXPECT_TRUE(contains(read_bytes(folder / "x.svg"), mark)) << mark;
  }
}

TEST(Plot, PanelsHaveFrames) {
  const Folder folder;
  HeatMap map{.rows = 7, .columns = 11, .values = std::vector<double>(77, 0.5)};
  const auto rectangles = [&] {
    write_heat_map(folder / "x.svg", map);
    const std::string svg = read_bytes(folder / "x.svg");
    int n = 0;
    for (size_t at = svg.find("<rect"); at != svg.npos; at = svg.find("<rect", at + 1)) ++n;
    return n;
  };
  const int one = rectangles();
  map.panel_rows = 3, map.panel_columns = 3, map.gap = 1;  // 2 x 3 panels
  EXPECT_EQ(rectangles(), one + 4 * 5);
  map.panel_rows = 0;
  EXPECT_TRUE(contains(message_of<ValueError>([&] { rectangles(); }), "panels of 0 x 3"));
}

TEST(Plot, TheAxisAtTheRightHasPowers) {
  const Folder folder;
  LinePlot plot{.x_label = "step",
                .y_label = "bits per byte",
                .series = {{.x = {0, 1}, .y = {1, 8}}},
                .right_label = "perplexity",
                .right_bits = 1};
  const auto marks = [&] {
    write_line_plot(folder / "x.svg", plot);
    const std::string svg = read_bytes(folder / "x.svg");
    expect_readable(svg);
    const double end = 720 - 100;
    std::vector<std::pair<std::string, double>> all;
    for (const Written& w : texts_of(svg)) {
      if (w.left > end && w.bottom < 432 - 50 && w.text != "perplexity")
        all.push_back({w.text, w.bottom});
    }
    return all;
  };
  const auto wide = marks();
  ASSERT_GT(wide.size(), 4u);
  EXPECT_EQ(wide[0].first, "2");
  // 2 is at the height of 1 bit, 20 as much higher as log2(10) bits are.
  const auto at = [&](const std::string& text) {
    const auto found = std::find_if(wide.begin(), wide.end(),
                                    [&](const auto& mark) { return mark.first == text; });
    return found == wide.end() ? 0 : found->second;
  };
  const double pixels_of_bit = (at("2") - at("20")) / std::log2(10.0);
  EXPECT_NEAR(at("20") - at("200"), pixels_of_bit * std::log2(10.0), 0.02);
  for (const Written& w : texts_of(read_bytes(folder / "x.svg"))) {
    if (w.left < 60 && w.text == "2") {
      EXPECT_NEAR(w.bottom, at("2") - pixels_of_bit, 0.02);
    }
  }
  plot.series[0].y = {1.40, 1.45};  // so narrow that no power is in between
  EXPECT_GT(marks().size(), 2u);
  plot.right_label = "";
  EXPECT_TRUE(marks().empty());
}

TEST(Plot, LossCurveOfARun) {
  const Folder run;
  const auto rows = [&](const char* name, const std::string& text) {
    write_bytes(run / name, text);
  };
  rows("metrics.jsonl",
       "{\"step\":10,\"bpb\":3}\n{\"step\":20,\"bpb\":null}\n{\"step\":20,\"valid_bpb\":2.5}\n"
       "{\"step\":30,\"bpb\":2}\n{\"step\":40,\"bp");
  const auto drawn = [&](const char* name, const LossUnit& unit) {
    write_loss_curve(run / "loss.svg", run / name, "a run", unit);
    const std::string svg = read_bytes(run / "loss.svg");
    expect_readable(svg);
    return svg;
  };
  const std::string first = drawn("metrics.jsonl", {});
  EXPECT_TRUE(contains(first, ">best: 2.5 at step 20<"));
  EXPECT_TRUE(contains(first, ">bits per byte<"));
  EXPECT_TRUE(contains(first, ">perplexity per byte<"));
  const std::string curve = between(first, "<polyline points=\"", "\"");
  EXPECT_FALSE(curve.empty());
  // Losses are nats per target. The "bpb" values of the version that wrote the rows are ignored.
  rows("loss.jsonl",
       fmt::format("{{\"step\":10,\"loss\":{},\"bpb\":9}}\n{{\"step\":20,\"valid_bpb\":2.5}}\n"
                   "{{\"step\":30,\"loss\":{},\"bpb\":6}}\n",
                   9 * std::numbers::ln2, 6 * std::numbers::ln2));
  // The frame is narrower by the longer numbers of the perplexity of three bytes.
  const std::string answers = drawn("loss.jsonl", {"answer", 1});
  EXPECT_FALSE(contains(answers, "perplexity"));
  const std::string tokens = drawn("loss.jsonl", {"byte", 3});
  EXPECT_TRUE(contains(tokens, ">perplexity per token<"));
  const auto heights = [](const std::string& points) {
    std::vector<double> all;
    for (size_t at = points.find(','); at != points.npos; at = points.find(',', at + 1)) {
      all.push_back(std::stod(points.substr(at + 1)));
    }
    return all;
  };
  EXPECT_EQ(heights(between(tokens, "<polyline points=\"", "\"")), heights(curve));
  EXPECT_TRUE(contains(drawn("metrics.jsonl", {"base", 1}), ">bits per base<"));
  // The best of several validations, of which the last one is worse.
  rows("best.jsonl",
       "{\"step\":10,\"valid_bpb\":2.5}\n{\"step\":20,\"valid_bpb\":2.25}\n"
       "{\"step\":30,\"valid_bpb\":2.75}\n");
  EXPECT_TRUE(contains(drawn("best.jsonl", {}), ">best: 2.25 at step 20<"));
  rows("empty.jsonl", "{\"step\":1}\n");
  EXPECT_TRUE(contains(
      message_of<ValueError>([&] { write_loss_curve(run / "x.png", run / "empty.jsonl", ""); }),
      "no row"));
  EXPECT_THROW(write_loss_curve(run / "x.png", run / "none.jsonl", ""), IoError);
}

}  // namespace
}  // namespace longspan
