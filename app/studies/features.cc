// longspan study features: how far attention by random features is from a softmax.

#include <fmt/format.h>

#include "app/studies/study.h"
#include "core/error.h"
#include "models/studies/feature_error.h"

namespace longspan {
namespace {

struct FeaturesStudyOptions {
  FeatureErrorOptions error;
  std::string kinds = "positive,hyperbolic,trigonometric", rows = "gram_schmidt,iid",
              deviations = "0.5,1";
  uint64_t seed = 1;
  void visit(auto& v) {
    constexpr Range count = range::between(1, 1 << 16);
    v("features", error.counts)("kinds", kinds)("rows", rows)("deviations", deviations);
    v("length", error.length, count)("width", error.width, count)("draws", error.draws, count);
    v("causal", error.causal)("seed", seed);
  }
};

std::string csv_of(const std::vector<FeatureErrorRow>& rows, const FeatureErrorOptions& o) {
  CsvTable table(
      "deviation,length,width,causal,kind,rows,features,draws,error,median,standard_deviation,"
      "row_median");
  for (const FeatureErrorRow& r : rows) {
    table.add(r.deviation, o.length, o.width, o.causal, name_of_value(r.features),
              name_of_value(r.rows), r.count, o.draws, fmt::format("{:.6g}", r.mean),
              fmt::format("{:.6g}", r.median), fmt::format("{:.6g}", r.spread),
              fmt::format("{:.6g}", r.row));
  }
  return table.text();
}

/// Plots errors against the number of features, the first kind of rows in full colours.
LinePlot plot_of(const std::vector<FeatureErrorRow>& rows, const FeatureErrorOptions& o,
                 double deviation) {
  LinePlot plot{
      .title = fmt::format("Error of attention by random features: {} tokens of width {}, entries "
                           "of standard deviation {:g}",
                           o.length, o.width, deviation),
      .x_label = "features",
      .y_label = fmt::format("relative error, median of {}", o.draws)};
  plot.log_x = plot.log_y = true;
  for (size_t kind = 0; kind < o.features.size(); ++kind) {
    for (size_t n = 0; n < o.rows.size(); ++n) {
      Series s{
          .name = fmt::format("{}, {}", name_of_value(o.features[kind]), name_of_value(o.rows[n])),
          .faint = n > 0,
          .markers = n == 0,
          .colour = static_cast<int>(kind)};
      for (const FeatureErrorRow& r : rows) {
        if (r.deviation != deviation || r.features != o.features[kind]) continue;
        if (r.rows != o.rows[n]) continue;
        s.x.push_back(static_cast<double>(r.count));
        s.y.push_back(r.median);
      }
      plot.series.push_back(std::move(s));
    }
  }
  return plot;
}

/// Parses names of the values of an enumeration.
template <class E>
std::vector<E> values_of(const std::string& text, std::string_view option) {
  std::vector<E> values;
  for (const std::string& word : words_of(text)) {
    size_t n = 0;
    while (n < value_names<E>.size() && value_names<E>[n] != word) ++n;
    require(n < value_names<E>.size(), option, "got \"{}\"; expected some of {}", word,
            fmt::join(value_names<E>, ", "));
    values.push_back(static_cast<E>(n));
  }
  require(!values.empty(), option, "got none; expected some of {}",
          fmt::join(value_names<E>, ", "));
  return values;
}

void print_features_row(const FeatureErrorRow& r) {
  say_progress(fmt::format("{:>9} {:<14} {:<13} {:>8} {:>10.4g} {:>10.4g} {:>10.4g}", r.deviation,
                           name_of_value(r.features), name_of_value(r.rows), r.count, r.mean,
                           r.median, r.row));
}

}  // namespace

int study_features(int argc, const char* const* argv) {
  const Flag own[] = {
      study_out,
      study_format,
      {"--features", "features", "numbers of features; 16,32,64,128,256,512,1024"},
      {"--kinds", "kinds",
       "positive, hyperbolic, trigonometric or phase; the first three where none are given"},
      {"--rows", "rows",
       "of the projection: gram_schmidt, hadamard or givens (orthogonal), iid; gram_schmidt,iid"},
      {"--deviations", "deviations", "standard deviations of the entries of q and k; 0.5,1"},
      {"--length", "length", "tokens; 256"},
      {"--width", "width", "of the head; 16"},
      {"--draws", "draws", "of inputs and projections; 50"},
      {"--causal", "causal", "queries attend to earlier keys only", true},
      {"--seed", "seed", "seed of inputs and projections; 1"}};
  CommandLine line = read_own_flags(
      argc, argv, own,
      "longspan study features --out DIR: the error of attention by random features, as Performer "
      "has it, against the exact softmax, by their number and kind: features.csv and pictures.");
  FeaturesStudyOptions o;
  set_fields(o, line.settings);
  check_ranges(o, line.settings);
  FeatureErrorOptions& e = o.error;
  require_values(e.counts, "--features", 1, 1 << 16);
  e.features = values_of<FeatureMap>(o.kinds, "--kinds");
  e.rows = values_of<ProjectionRows>(o.rows, "--rows");
  e.deviations = numbers_of(o.deviations, "--deviations", 0, 100);
  e.gen = Generator{o.seed};
  StudyFolder out(line);
  check_feature_errors(e);
  out.open();
  say_progress(fmt::format("{:>9} {:<14} {:<13} {:>8} {:>10} {:>10} {:>10}", "deviation", "kind",
                           "rows", "features", "error", "median", "row median"));
  const std::vector<FeatureErrorRow> rows = study_feature_errors(e, print_features_row);
  out.write("features.csv", csv_of(rows, e));
  for (const double deviation : e.deviations) {
    out.draw(fmt::format("error_{:g}", deviation), plot_of(rows, e, deviation));
  }
  out.say_files();
  return 0;
}

}  // namespace longspan
