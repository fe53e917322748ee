// longspan memory: predicts the memory of training steps before anything runs.

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "app/commands.h"
#include "app/step.h"
#include "core/error.h"
#include "train/log.h"

namespace longspan {
namespace {

struct MemoryCommandOptions {
  ByteSize budget;
  bool json = false, terms = false;
  std::string ranks = "1";
  void visit(auto& v) { v("budget", budget)("json", json)("terms", terms)("ranks", ranks); }
};

/// Sets the processes of a run, and with "4,2" how many of them compute a sequence together.
void set_ranks(RunConfig& config, const std::string& text) {
  int64_t ranks = 0, together = config.ranks.sequence;
  const char* const end = text.data() + text.size();
  auto [at, error] = std::from_chars(text.data(), end, ranks);
  if (error == std::errc{} && at != end && *at == ',') {
    const auto rest = std::from_chars(at + 1, end, together);
    at = rest.ptr;
    error = rest.ec;
  }
  require(error == std::errc{} && at == end && ranks >= 1 && together >= 1, "--ranks",
          "got \"{}\"; expected a number of processes, or with those of a sequence, as 4,2", text);
  config.processes = ranks;
  config.ranks.sequence = together;
}

/// What rows have besides the steps of their strategies.
struct Around {
  int64_t process = 0, budget = 0;  ///< bytes; budget 0: none is given
  int64_t streams = 0;              ///< bytes that streams keep

  bool fits(const StepMemory& m) const { return m.peak() + process <= budget; }
};

Members members_of(const Strategy& s, const Largest& most, const Around& around) {
  const int64_t process = around.process;
  Members row{{"memory", s.shape.memory},
              {"chunks", s.shape.chunks},
              {"layers", s.shape.layers},
              {"length", s.shape.length},
              {"batch", s.shape.batch}};
  if (!s.memory) {
    row.push_back({"refused", s.refused});
    return row;
  }
  const StepMemory& m = *s.memory;
  const std::pair<const char*, int64_t> bytes[] = {{"saved", m.saved},
                                                   {"peak", m.peak()},
                                                   {"parameter", m.parameter},
                                                   {"gradient", m.gradient},
                                                   {"optimizer", m.optimizer},
                                                   {"forward_peak", m.forward_peak},
                                                   {"backward_peak", m.backward_peak},
                                                   {"update_peak", m.update_peak},
                                                   {"evaluation_peak", m.evaluation_peak},
                                                   {"picture_peak", m.picture_peak},
                                                   {"sent_bytes", m.sent_bytes},
                                                   {"sent_messages", m.sent_messages},
                                                   {"layouts", m.layouts},
                                                   {"process", process},
                                                   {"total", m.peak() + process},
                                                   {"graph", m.graph},
                                                   {"streams", around.streams},
                                                   {"macs", m.macs},
                                                   {"macs_again", m.again}};
  for (const auto& [name, value] : bytes) row.push_back({name, value});
  if (around.budget > 0) row.push_back({"fits", around.fits(m)});
  if (most.length >= 0) row.push_back({"longest", most.length});
  if (most.layers >= 0) row.push_back({"deepest", most.layers});
  return row;
}

/// Returns the first line of a message, which does not name the op.
std::string reason(const std::string& message) { return message.substr(0, message.find('\n')); }

std::string count_text(int64_t n, int64_t limit) {
  if (n < 0) return "";
  return n == 0 ? "-" : fmt::format("{}{}", n >= limit ? ">= " : "", n);
}

/// Returns the letters that the papers use for the sizes of a configuration.
Letters letters_of(const Json& fields) {
  Letters letters;
  const auto add = [&](const char* name, const char* letter, int64_t factor = 1) {
    const Json* value = fields.find(name);
    if (value != nullptr && value->is_integer() && value->integer() > 1) {
      letters.push_back(
          {value->integer() * factor, factor == 1 ? letter : fmt::format("{}{}", factor, letter)});
    }
  };
  add("d_model", "D");
  add("d_ff", "F");
  add("d_ff", "F", 2);
  add("n_head", "H");
  const Json *heads = fields.find("n_head"), *all = fields.find("d_model");
  const Json* width = fields.find("d_head");
  if (width != nullptr && width->integer() > 0) {
    letters.push_back({width->integer(), "d"});
  } else if (heads != nullptr && all != nullptr) {
    letters.push_back({all->integer() / heads->integer(), "d"});
  }
  add("d_model", "D", 2);
  add("vocab", "V");
  add("d_embed", "De");
  add("window", "w");
  add("block", "b");
  return letters;
}

/// Compares the terms of a step with those at another length, to find the sizes that count tokens.
void print_terms(const StepPlanner& planner) {
  const RunConfig& c = planner.config();
  const auto terms_at = [&](int64_t length) {
    StepShape shape = planner.own();
    shape.length = length;
    return planner.step(shape, meta_device, [](const MemoryTrace&, const Usage&) {}).terms;
  };
  const int64_t length = planner.own().length, longest = planner.longest_possible();
  const std::vector<SavedTerm> other = terms_at(2 * length <= longest ? 2 * length : length / 2);
  const std::vector<SavedTerm> all = terms_at(length);
  const Json fields = to_json(*c.model);
  const TermNames names{planner.own().batch, length, element_of(fields), letters_of(fields),
                        &other};
  const std::vector<SavedTerm> terms = collect_terms(all, names);
  std::string text = fmt::format(
      "\nsaved with --memory {} = {}\nu: {} bytes of an element; T = B L\n", planner.own().memory,
      formula_of(terms, planner.own().layers), size_of(names.element));
  constexpr const char* line = "\n{:<44} {:<22} {:<14} {:>10} {:>6} {:>10}";
  text += fmt::format(line, "part", "kept by", "formula", "bytes", "times", "together");
  int64_t sum = 0;
  for (const SavedTerm& t : terms) {
    sum += t.count * t.bytes;
    text += fmt::format(line, t.part, t.op, t.formula, bytes_text(t.bytes), t.count,
                        bytes_text(t.count * t.bytes));
  }
  text += fmt::format(line, "all", "", "", "", "", bytes_text(sum));
  std::puts(text.c_str());
}

void print_table(const std::vector<Strategy>& all, const std::vector<Largest>& most,
                 const StepPlanner& planner, const Around& around) {
  const int64_t budget = around.budget;
  const StepShape& own = planner.own();
  const RunConfig& c = planner.config();
  std::puts(fmt::format("{}: {} layers, {} tokens x {}, {}", c.model_name, own.layers, own.length,
                        own.batch, name_of_value(c.optimizer.name))
                .c_str());
  std::string text = fmt::format("{:<22} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>8} {:>10}",
                                 "memory", "saved", "peak", "parameter", "gradient", "optimizer",
                                 "layouts", "again", "total");
  if (c.graph) text += fmt::format(" {:>10}", "graph");
  if (budget > 0) text += fmt::format(" {:>5} {:>10} {:>8}", "fits", "longest", "deepest");
  const int64_t longest = budget > 0 ? longest_tried(planner) : 0;
  const int64_t unit = std::min<int64_t>(64, own.length);  // lengths are tried in such steps
  for (size_t i = 0; i < all.size(); ++i) {
    const Strategy& s = all[i];
    if (!s.memory) {
      text += fmt::format("\n{:<22} {}", s.name(), reason(s.refused));
      continue;
    }
    const StepMemory& m = *s.memory;
    text +=
        fmt::format("\n{:<22} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>8.2f} {:>10}", s.name(),
                    bytes_text(m.saved), bytes_text(m.peak()), bytes_text(m.parameter),
                    bytes_text(m.gradient), bytes_text(m.optimizer), bytes_text(m.layouts),
                    m.extra_forward(), bytes_text(m.peak() + around.process));
    if (c.graph) text += fmt::format(" {:>10}", bytes_text(m.graph));
    if (budget > 0) {
      text += fmt::format(" {:>5} {:>10} {:>8}", around.fits(m) ? "yes" : "no",
                          count_text(most[i].length, longest / unit * unit),
                          count_text(most[i].layers, most_layers));
    }
  }
  std::puts(text.c_str());
  std::puts("again: multiply-accumulates that the backward pass runs again, in forward passes");
  if (around.process > 0) {
    std::puts(fmt::format("total: the peak, which has the layouts, and {} of the process itself",
                          bytes_text(around.process))
                  .c_str());
  }
  if (c.graph) {
    std::puts("graph: set apart for good where a device records the step; the peak has it");
  }
  std::puts(reversible_note(planner).c_str());
  if (const std::string remark = planner.remark(); !remark.empty()) std::puts(remark.c_str());
  if (around.streams > 0) {
    std::puts(fmt::format("streams keep {} from segment to segment, each of {} {}",
                          bytes_text(around.streams), c.batch, bytes_text(around.streams / c.batch))
                  .c_str());
  }
  if (budget > 0) {
    std::puts(fmt::format("longest and deepest: tokens and layers that train within {}",
                          bytes_text(budget))
                  .c_str());
  }
}

}  // namespace

int memory_command(int argc, const char* const* argv) {
  const Flag own[] = {
      {"--budget", "memory.budget", "bytes that a run may need, as 4GiB: adds what fits"},
      {"--ranks", "memory.ranks",
       "processes of the run, or 4,2 where 2 compute a sequence together: the memory of the "
       "fullest"},
      {"--terms", "memory.terms", "also what the forward pass keeps, as formulas", true},
      {"--json", "memory.json", "a JSON line for each strategy, in bytes", true}};
  CommandLine line = read_command_line(
      argc, argv, own,
      "longspan memory --model NAME [--length L] [--batch B] [--budget 4GiB]: what a training "
      "step will keep and need at its peak with each strategy of --memory, and what that costs; "
      "before anything is allocated.");
  MemoryCommandOptions o;
  const bool asked = last_setting(line.settings, "memory.budget") != nullptr;
  set_fields(o, taken(line, "memory."));
  const int64_t budget = o.budget.bytes;
  require(budget > 0 || !asked, "--budget",
          "got 0; expected the bytes that a run may need, as 4GiB");
  require(!o.json || !o.terms, "--terms", "prints a table, and --json lines; expected one of them");
  RunConfig config = planned_config(line);
  set_ranks(config, o.ranks);
  const StepPlanner planner(config);
  const std::vector<Strategy> all = strategies(planner);
  const auto fits = [](const Strategy& s) { return s.memory.has_value(); };
  require(std::any_of(all.begin(), all.end(), fits), "memory", "{}", all[0].refused);
  std::vector<Largest> most(all.size());
  const int64_t process = process_bytes(config);
  for (size_t i = 0; i < all.size() && budget > 0; ++i) {
    if (all[i].memory) most[i] = largest_within(planner, all[i].shape, budget);
  }
  const Around around{process, budget, planner.memory_of_streams()};
  if (o.json) {
    for (size_t i = 0; i < all.size(); ++i) {
      std::puts(to_string(Json(members_of(all[i], most[i], around))).c_str());
    }
    return 0;
  }
  print_table(all, most, planner, around);
  if (o.terms) print_terms(planner);
  return 0;
}

}  // namespace longspan
