// longspan study budget: the longest sequences and the deepest models that budgets of memory allow.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "app/step.h"
#include "app/studies/study.h"
#include "core/error.h"

namespace longspan {
namespace {

struct BudgetStudyOptions {
  std::string budgets, strategies{usual_strategies};
  void visit(auto& v) { v("budgets", budgets)("strategies", strategies); }
};

/// What fits in a budget with a strategy.
struct Fitting {
  std::string strategy;
  StepShape shape;
  int64_t budget = 0;
  Largest largest;
};

/// Returns the budgets of a study that names none: five, each twice the one before, from the power
/// of two that holds a step of the configuration as it is.
std::vector<int64_t> usual_budgets(const StepPlanner& planner) {
  const int64_t peak = planner.step(planner.own()).peak() + process_bytes(planner.config());
  int64_t first = 1 << 20;
  while (first < peak) first *= 2;
  return {first, 2 * first, 4 * first, 8 * first, 16 * first};
}

std::vector<int64_t> budgets_of(const std::string& text) {
  std::vector<int64_t> budgets;
  for (const std::string& word : words_of(text)) budgets.push_back(parse_bytes(word, "--budgets"));
  require(!budgets.empty(), "--budgets", "got none; expected some, as 1GiB,4GiB");
  for (const int64_t n : budgets) {
    require(n > 0, "--budgets", "got {}; expected more than 0 bytes", n);
  }
  std::sort(budgets.begin(), budgets.end());
  return budgets;
}

std::string csv_of(const std::vector<Fitting>& rows, const StepPlanner& planner) {
  CsvTable table(
      "budget,strategy,memory,chunks,batch,layers,longest,longest_tried,length,deepest,"
      "deepest_tried");
  const int64_t longest = longest_tried(planner);
  for (const Fitting& r : rows) {
    table.add(r.budget, r.strategy, r.shape.memory, r.shape.chunks, r.shape.batch, r.shape.layers,
              r.largest.length, longest, r.shape.length, r.largest.layers, most_layers);
  }
  return table.text();
}

LinePlot plot_of(const std::vector<Fitting>& rows, const std::vector<std::string>& strategies,
                 int64_t Largest::*part, const std::string& title, const std::string& label) {
  LinePlot plot{.title = title, .x_label = "budget, MiB", .y_label = label};
  plot.log_x = plot.log_y = true;
  for (size_t i = 0; i < strategies.size(); ++i) {
    Series s{.name = strategies[i], .markers = true, .colour = static_cast<int>(i)};
    for (const Fitting& r : rows) {
      if (r.strategy != strategies[i]) continue;
      s.x.push_back(static_cast<double>(r.budget) / (1 << 20));
      s.y.push_back(static_cast<double>(r.largest.*part));
    }
    add_curve(plot, std::move(s));
  }
  return plot;
}

/// Returns what a title says of curves that end at the largest size that is tried.
std::string tried(const std::vector<Fitting>& rows, int64_t Largest::*part, int64_t limit) {
  const bool reached = std::any_of(rows.begin(), rows.end(),
                                   [&](const Fitting& r) { return r.largest.*part >= limit; });
  return reached ? fmt::format(" (no more than {} are tried)", limit) : "";
}

std::string count_text(int64_t n, int64_t limit) {
  return n == 0 ? "-" : fmt::format("{}{}", n >= limit ? ">= " : "", n);
}

/// Finds what fits, and prints a row for each strategy and budget.
std::vector<Fitting> search(const StepPlanner& planner, const std::vector<std::string>& strategies,
                            const std::vector<int64_t>& budgets) {
  std::vector<Fitting> rows;
  const int64_t longest = longest_tried(planner);
  for (const std::string& strategy : strategies) {
    const StepShape shape = shape_with(planner.own(), strategy, planner.config());
    std::string reason;
    if (!planner.predict(shape, &reason, false)) {
      say_progress(fmt::format("{:<20} {}", strategy, reason.substr(0, reason.find('\n'))));
      continue;
    }
    for (const int64_t budget : budgets) {
      rows.push_back({strategy, shape, budget, largest_within(planner, shape, budget)});
      const Largest& most = rows.back().largest;
      say_progress(fmt::format("{:<20} {:>11} {:>11} {:>9}", strategy, bytes_text(budget),
                               count_text(most.length, longest),
                               count_text(most.layers, most_layers)));
    }
  }
  return rows;
}

}  // namespace

int study_budget(int argc, const char* const* argv) {
  const Flag own[] = {
      study_out,
      study_format,
      {"--budgets", "study.budgets",
       "bytes, as 1GiB,4GiB; without them five, from the power of two that holds a step on"},
      {"--strategies", "study.strategies", "those of --memory, or these with +chunks"}};
  CommandLine line = read_command_line(
      argc, argv, own,
      "longspan study budget --model NAME --out DIR: the longest sequence of the model and the "
      "deepest model of its length that train within each budget, with each strategy, from "
      "predictions alone: budget.csv and two pictures.",
      2);
  BudgetStudyOptions o;
  set_fields(o, taken(line, "study."));
  const std::vector<std::string> strategies = strategies_of(o.strategies);
  StudyFolder out(line);
  std::vector<int64_t> budgets;
  if (!o.budgets.empty()) budgets = budgets_of(o.budgets);
  RunConfig config = planned_config(line);
  const StepPlanner planner(config);
  if (budgets.empty()) budgets = usual_budgets(planner);
  out.open();

  say_progress(
      fmt::format("{:<20} {:>11} {:>11} {:>9}", "strategy", "budget", "longest", "deepest"));
  const std::vector<Fitting> rows = search(planner, strategies, budgets);
  require(!rows.empty(), "study", "no strategy builds this model");
  const StepShape& shape = planner.own();
  out.write("budget.csv", csv_of(rows, planner));
  const std::string longest =
      fmt::format("The longest sequences that train, {} layers, batch {}{}", shape.layers,
                  shape.batch, tried(rows, &Largest::length, longest_tried(planner)));
  const std::string deepest =
      fmt::format("The deepest models that train, {} tokens x {}{}", shape.length, shape.batch,
                  tried(rows, &Largest::layers, most_layers));
  out.draw("longest", plot_of(rows, strategies, &Largest::length, longest, "tokens"));
  out.draw("deepest", plot_of(rows, strategies, &Largest::layers, deepest, "layers"));
  out.say_files();
  return 0;
}

}  // namespace longspan
