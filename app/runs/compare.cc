// longspan compare: runs beside each other, as a table and as curves.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>

#include "app/commands.h"
#include "app/runs/figures.h"
#include "core/error.h"
#include "train/step_memory.h"

namespace longspan {
namespace {

std::string figure(double value, int digits) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, digits) : "-";
}

void print_table(const std::vector<RunFigures>& runs, const std::vector<std::string>& names) {
  size_t wide = 4;
  for (const std::string& name : names) wide = std::max(wide, name.size());
  std::puts(
      fmt::format("{:<{}} {:>12} {:>9} {:>13} {:>10} {:>9} {:>9} {:>9} {:>10} {:>11} {:>10}  {}",
                  "run", wide, "parameters", "steps", "tokens", "seconds", "train", "valid", "best",
                  "perplexity", "tokens/s", "peak", "unit")
          .c_str());
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunFigures& r = runs[i];
    std::puts(
        fmt::format(
            "{:<{}} {:>12} {:>9} {:>13} {:>10.1f} {:>9} {:>9} {:>9} {:>10} {:>11.0f} {:>10}  {}{}",
            names[i], wide, r.parameters, r.steps, r.tokens, r.seconds, figure(r.train, 4),
            figure(r.valid, 4), figure(r.best, 4), figure(r.perplexity(), 3), r.speed,
            bytes_text(r.peak), r.unit.name, r.ended ? "" : ", not at its end")
            .c_str());
  }
  const auto differing = differing_keys(runs);
  if (differing.empty()) return;
  std::puts("\nkeys that differ");
  for (const auto& [name, values] : differing) {
    std::string line = fmt::format("  {:<28}", name);
    for (size_t i = 0; i < values.size(); ++i) line += fmt::format(" {:>16}", values[i]);
    std::puts(line.c_str());
  }
}

/// Returns a field of CSV.
std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string all = "\"";
  for (const char c : text) all += c == '"' ? std::string("\"\"") : std::string(1, c);
  return all + "\"";
}

void print_csv(const std::vector<RunFigures>& runs, const std::vector<std::string>& names) {
  const auto differing = differing_keys(runs);
  std::string text =
      "run,model,parameters,steps,tokens,seconds,unit,train_bpb,valid_bpb,best_bpb,best_step,"
      "perplexity,tokens_per_second,peak_bytes,ended";
  for (const auto& [name, values] : differing) text += "," + name;
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunFigures& r = runs[i];
    text +=
        fmt::format("\n{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}", quoted(names[i]), r.model,
                    r.parameters, r.steps, r.tokens, r.seconds, quoted(r.unit.name), r.train,
                    r.valid, r.best, r.best_step, r.perplexity(), r.speed, r.peak, r.ended ? 1 : 0);
    for (const auto& [name, values] : differing) text += "," + quoted(values[i]);
  }
  std::puts(text.c_str());
}

}  // namespace

int compare_command(int argc, const char* const* argv) {
  const Flag own[] = {
      {"--over", "", "what curves are drawn over: steps, tokens, seconds or macs (multiply-adds)"},
      {"--out", "", "a picture of the curves: FILE.png, FILE.svg or FILE.pdf"},
      {"--csv", "", "comma-separated values in place of the table", true}};
  const CommandLine line = read_own_flags(
      argc, argv, own,
      "longspan compare RUN RUN...: the figures of run folders beside each other, the keys in "
      "which "
      "they differ, and their curves. Losses are bits per unit; perplexity is that of the last "
      "validation, per target.");
  require(line.settings.empty(), "compare", "takes run folders and flags, no settings");
  require(!line.others.empty(), "compare",
          "got no run folder; expected longspan compare RUN RUN...");
  const std::string* const over = line.value("--over");
  const Axis axis = over != nullptr ? axis_of(*over) : Axis::steps;
  std::vector<RunFigures> runs;
  for (const std::string& folder : line.others) runs.push_back(figures_of(folder));
  const std::vector<std::string> names = short_names(line.others);
  if (line.value("--csv") != nullptr) {
    print_csv(runs, names);
  } else {
    print_table(runs, names);
  }
  const std::string* const out = line.value("--out");
  if (out != nullptr) write_own_picture(*out, curves_of(runs, names, axis));
  require(over == nullptr || out != nullptr, "--over",
          "is for the curves, and none are drawn; expected --out FILE.png");
  return 0;
}

}  // namespace longspan
