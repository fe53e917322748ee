// longspan study entmax: how many keys alpha-entmax leaves.

#include <fmt/format.h>

#include "app/studies/study.h"
#include "core/error.h"
#include "models/studies/entmax_sparsity.h"

namespace longspan {
namespace {

struct EntmaxStudyOptions {
  EntmaxSparsityOptions entmax;
  std::string alphas = "1,1.05,1.1,1.2,1.3,1.5,1.75,2", scales = "0.5,1,2,4";
  uint64_t seed = 1;
  void visit(auto& v) {
    v("alphas", alphas)("lengths", entmax.lengths)("scales", scales);
    v("rows", entmax.rows, range::between(1, 1 << 20))("seed", seed);
  }
};

std::string csv_of(const std::vector<EntmaxSparsityRow>& rows, int64_t count) {
  CsvTable table("alpha,length,scale,rows,zeros,keys,largest");
  for (const EntmaxSparsityRow& r : rows) {
    table.add(r.alpha, r.length, r.scale, count, fmt::format("{:.6f}", r.sparsity.zeros),
              fmt::format("{:.6g}", r.sparsity.keys), fmt::format("{:.6g}", r.sparsity.largest));
  }
  return table.text();
}

/// Plots how many keys have weight against the length, a line for each alpha.
LinePlot keys_by_length(const std::vector<EntmaxSparsityRow>& rows,
                        const EntmaxSparsityOptions& o) {
  const double scale = o.scales[(o.scales.size() - 1) / 2];
  LinePlot plot{.title = fmt::format("Keys with weight under alpha-entmax, logits of standard "
                                     "deviation {:g}",
                                     scale),
                .x_label = "keys",
                .y_label = "keys with weight"};
  plot.log_x = plot.log_y = true;
  for (size_t i = 0; i < o.alphas.size(); ++i) {
    Series s{.name = fmt::format("{}{:g}", i == 0 ? "alpha = " : "", o.alphas[i]),
             .markers = true,
             .colour = static_cast<int>(i)};
    for (const EntmaxSparsityRow& r : rows) {
      if (r.alpha != o.alphas[i] || r.scale != scale) continue;
      s.x.push_back(static_cast<double>(r.length));
      s.y.push_back(r.sparsity.keys);
    }
    add_curve(plot, std::move(s), 0.01);
  }
  return plot;
}

/// Plots how many keys have weight against alpha, a line for each scale.
LinePlot keys_by_alpha(const std::vector<EntmaxSparsityRow>& rows, const EntmaxSparsityOptions& o) {
  const int64_t length = o.lengths.back();
  LinePlot plot{.title = fmt::format("Keys with weight under alpha-entmax, of {} keys", length),
                .x_label = "alpha",
                .y_label = "keys with weight"};
  plot.log_y = true;
  for (size_t i = 0; i < o.scales.size(); ++i) {
    Series s{.name = fmt::format("logits of standard deviation {:g}", o.scales[i]),
             .markers = true,
             .colour = static_cast<int>(i)};
    for (const EntmaxSparsityRow& r : rows) {
      if (r.scale != o.scales[i] || r.length != length) continue;
      s.x.push_back(r.alpha);
      s.y.push_back(r.sparsity.keys);
    }
    add_curve(plot, std::move(s), 0.01);
  }
  return plot;
}

void print_entmax_row(const EntmaxSparsityRow& r) {
  say_progress(fmt::format("{:>6} {:>8} {:>6} {:>8.4f} {:>10.2f} {:>9.4f}", r.alpha, r.length,
                           r.scale, r.sparsity.zeros, r.sparsity.keys, r.sparsity.largest));
}

}  // namespace

int study_entmax(int argc, const char* const* argv) {
  const Flag own[] = {
      study_out,
      study_format,
      {"--alphas", "alphas", "1 (softmax) to 2 (sparsemax); 1,1.05,1.1,1.2,1.3,1.5,1.75,2"},
      {"--lengths", "lengths", "numbers of keys; 64,256,1024,4096"},
      {"--scales", "scales", "standard deviations of the logits; 0.5,1,2,4"},
      {"--rows", "rows", "rows of logits, over which figures are means; 64"},
      {"--seed", "seed", "seed of the logits; 1"}};
  CommandLine line = read_own_flags(
      argc, argv, own,
      "longspan study entmax --out DIR: how many of the keys keep some weight under alpha-entmax, "
      "by alpha, length and scale of the logits: entmax.csv and pictures.");
  EntmaxStudyOptions o;
  set_fields(o, line.settings);
  check_ranges(o, line.settings);
  require_values(o.entmax.lengths, "--lengths", 1, 1 << 24);
  o.entmax.alphas = numbers_of(o.alphas, "--alphas", 1, 2);
  o.entmax.scales = numbers_of(o.scales, "--scales", 0, 1e6);
  o.entmax.gen = Generator{o.seed};
  StudyFolder out(line);
  out.open();
  say_progress(fmt::format("{:>6} {:>8} {:>6} {:>8} {:>10} {:>9}", "alpha", "length", "scale",
                           "zeros", "keys", "largest"));
  const std::vector<EntmaxSparsityRow> rows = study_entmax_sparsity(o.entmax, print_entmax_row);
  out.write("entmax.csv", csv_of(rows, o.entmax.rows));
  out.draw("keys_by_length", keys_by_length(rows, o.entmax));
  out.draw("keys_by_alpha", keys_by_alpha(rows, o.entmax));
  out.say_files();
  return 0;
}

}  // namespace longspan
