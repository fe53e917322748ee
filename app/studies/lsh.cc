// longspan study lsh: which share of full attention LSH attention sees.

#include <fmt/format.h>

#include "app/studies/study.h"
#include "core/error.h"
#include "models/studies/lsh_recall.h"

namespace longspan {
namespace {

struct LshStudyOptions {
  LshRecallOptions recall;
  uint64_t seed = 1;
  void visit(auto& v) {
    constexpr Range count = range::between(1, 1 << 20);
    v("chunks", recall.chunks)("rounds", recall.rounds);
    v("length", recall.length, range::between(2, 16384))("width", recall.width, count);
    v("heads", recall.heads, range::between(1, 1024))("clusters", recall.clusters, count);
    v("spread", recall.spread, range::between(0, 1))("scale", recall.scale, range::not_negative);
    v("top", recall.top, count)("causal", recall.causal)("seed", seed);
  }
};

std::string csv_of(const std::vector<LshRecallRow>& rows, const LshRecallOptions& o) {
  CsvTable table(
      "vectors,length,width,heads,scale,causal,chunk,rounds,buckets,keys_of,seen,mass,largest,top,"
      "top_keys");
  for (const LshRecallRow& r : rows) {
    table.add(name_of_value(r.vectors), o.length, o.width, o.heads, o.scale, o.causal, r.chunk,
              r.rounds, r.buckets, r.same_bucket ? "bucket" : "chunks",
              fmt::format("{:.6f}", r.recall.keys), fmt::format("{:.6f}", r.recall.mass),
              fmt::format("{:.6f}", r.recall.largest), fmt::format("{:.6f}", r.recall.top), o.top);
  }
  return table.text();
}

/// Plots one figure against the rounds: a line for all keys of the chunks that a query sees, and a
/// pale one for those of its own bucket.
LinePlot plot_of(const std::vector<LshRecallRow>& rows, const LshRecallOptions& o,
                 LshVectors vectors, double LshRecall::*part, const std::string& what) {
  LinePlot plot{.title = fmt::format("{} that LSH attention sees: {} vectors, {} tokens; pale: of "
                                     "the own bucket only",
                                     what, name_of_value(vectors), o.length),
                .x_label = "rounds of hashes",
                .y_label = "share"};
  plot.log_x = true;
  for (size_t i = 0; i < o.chunks.size(); ++i) {
    for (const bool same_bucket : {false, true}) {
      Series s{.name = same_bucket ? "" : fmt::format("chunks of {}", o.chunks[i]),
               .faint = same_bucket,
               .markers = !same_bucket,
               .colour = static_cast<int>(i)};
      for (const LshRecallRow& r : rows) {
        const bool mine = r.vectors == vectors && r.chunk == o.chunks[i];
        if (!mine || r.same_bucket != same_bucket) continue;
        s.x.push_back(static_cast<double>(r.rounds));
        s.y.push_back(r.recall.*part);
      }
      plot.series.push_back(std::move(s));
    }
  }
  return plot;
}

void print_lsh_row(const LshRecallRow& r) {
  say_progress(fmt::format("{:<10} {:>6} {:>7} {:>8} {:<8} {:>8.4f} {:>8.4f} {:>8.4f} {:>8.4f}",
                           name_of_value(r.vectors), r.chunk, r.rounds, r.buckets,
                           r.same_bucket ? "bucket" : "chunks", r.recall.keys, r.recall.mass,
                           r.recall.largest, r.recall.top));
}

}  // namespace

int study_lsh(int argc, const char* const* argv) {
  const Flag own[] = {
      study_out,
      study_format,
      {"--chunks", "chunks", "sizes of chunks; 16,32,64,128 where none are given"},
      {"--rounds", "rounds", "numbers of rounds of hashes; 1,2,4,8"},
      {"--length", "length", "tokens; 1024, at most 16384: it compares with all pairs"},
      {"--width", "width", "of a head; 64"},
      {"--heads", "heads", "independent draws, over which figures are means; 4"},
      {"--clusters", "clusters", "of clustered vectors; 32"},
      {"--spread", "spread",
       "share of the standard deviation that a clustered vector has of its own, 0 to 1; 0.3"},
      {"--scale", "scale",
       "standard deviation of the entries; logits of random vectors have it; 1"},
      {"--top", "top", "how many keys of the largest weights are looked for; 16"},
      {"--causal", "causal", "queries attend to earlier keys only", true},
      {"--seed", "seed", "seed of vectors and hashes; 1"}};
  CommandLine line = read_own_flags(
      argc, argv, own,
      "longspan study lsh --out DIR: which share of the softmax over all keys falls on those that "
      "a "
      "query sees with LSH attention, by rounds of hashes and chunk size, on random and on "
      "clustered vectors: lsh.csv and pictures.");
  LshStudyOptions o;
  set_fields(o, line.settings);
  check_ranges(o, line.settings);
  require_values(o.recall.chunks, "--chunks", 1, 1 << 20);
  require_values(o.recall.rounds, "--rounds", 1, 1024);
  o.recall.gen = Generator{o.seed};
  StudyFolder out(line);
  out.open();
  say_progress(fmt::format("{:<10} {:>6} {:>7} {:>8} {:<8} {:>8} {:>8} {:>8} {:>8}", "vectors",
                           "chunk", "rounds", "buckets", "keys of", "seen", "mass", "largest",
                           fmt::format("top {}", o.recall.top)));
  const std::vector<LshRecallRow> rows = study_lsh_recall(o.recall, print_lsh_row);
  out.write("lsh.csv", csv_of(rows, o.recall));
  for (const LshVectors vectors : o.recall.vectors) {
    const std::string name(name_of_value(vectors));
    out.draw("mass_" + name,
             plot_of(rows, o.recall, vectors, &LshRecall::mass, "The softmax's mass"));
    out.draw("top_" + name, plot_of(rows, o.recall, vectors, &LshRecall::top,
                                    fmt::format("The {} largest keys", o.recall.top)));
  }
  out.say_files();
  return 0;
}

}  // namespace longspan
