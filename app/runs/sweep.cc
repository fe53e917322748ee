// longspan sweep: runs of all combinations of some values, and which is best.
#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "app/commands.h"
#include "app/make_config.h"
#include "app/runs/figures.h"
#include "app/runs/launch.h"
#include "core/error.h"
#include "core/parallel.h"
#include "data/io/files.h"
#include "data/io/json.h"
#include "train/state.h"

namespace longspan {
namespace {

/// A key that runs differ in, and its values.
struct Dimension {
  std::string key;
  std::vector<std::string> values;
};

/// What a sweep runs; stored in sweep.json.
struct Plan {
  std::vector<std::string> common;    // arguments of all runs
  std::vector<Dimension> dimensions;  // the seed last
  double first = 1;                   // share of the steps that all runs take
  std::string folder;                 // where it was started, from which paths go
};

/// A run: a value of each dimension.
struct Trial {
  std::string name, folder;
  std::vector<std::string> values;
  int64_t steps = 0;        // of its configuration; 0: by time alone
  std::string failed = {};  // why; empty: it has not
  bool dropped = false;     // by successive halving
};

std::string last_part(const std::string& key) { return key.substr(key.rfind('.') + 1); }

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find(',', begin);
    parts.push_back(text.substr(begin, end - begin));
  }
  return parts;
}

/// Whether a configuration takes these settings.
bool fits(const Settings& settings) {
  try {
    make_config(settings);
    return true;
  } catch (const ValueError&) {
    return false;
  }
}

/// Splits values with commas, unless the key takes them as they are: a list, or a text.
std::vector<Dimension> dimensions_of(Settings& settings) {
  std::vector<Dimension> all;
  for (size_t i = 0; i < settings.size(); ++i) {
    Setting& s = settings[i];
    if (!s.text || s.value.string().find(',') == std::string::npos) continue;
    std::vector<std::string> values = split(s.value.string());
    Settings own;  // the model, and the others' first values
    for (size_t j = 0; j < settings.size(); ++j) {
      Setting other = settings[j];
      const bool comma =
          j != i && other.text && other.value.string().find(',') != std::string::npos;
      if (comma && other.key != "model.name") continue;
      if (comma) other.value = Json(split(other.value.string())[0]);
      own.push_back(other);
    }
    if (fits(own)) continue;
    require(
        std::none_of(all.begin(), all.end(), [&](const Dimension& d) { return d.key == s.key; }),
        s.origin, "{} has several values twice", s.key);
    all.push_back({s.key, values});
    s.value = Json(values[0]);
  }
  return all;
}

std::vector<Trial> trials_of(const Plan& plan, const std::string& out) {
  std::vector<Trial> all{{}};
  for (const Dimension& d : plan.dimensions) {
    std::vector<Trial> more;
    for (const Trial& before : all) {
      for (const std::string& value : d.values) {
        Trial t = before;
        t.values.push_back(value);
        std::string part = last_part(d.key) + "=" + value;
        std::replace(part.begin(), part.end(), '/', '_');
        t.name += (t.name.empty() ? "" : " ") + part;
        more.push_back(std::move(t));
      }
    }
    all = std::move(more);
  }
  std::set<std::string> names;
  for (Trial& t : all) {
    constexpr size_t most = 240;  // file systems take 255 bytes, and logs have an ending
    require(
        t.name.size() <= most, "sweep",
        "the name of a run has {} bytes, and at most {} make a file name: \"{}\"; expected fewer "
        "options with several values, or shorter values",
        t.name.size(), most, t.name);
    require(names.insert(t.name).second, "sweep",
            "two runs would be called \"{}\"; expected values that differ", t.name);
    t.folder = out + "/" + t.name;
  }
  return all;
}

Json json_of(const Plan& plan) {
  Json::Array dimensions;
  for (const Dimension& d : plan.dimensions) {
    dimensions.push_back(
        Members{{"key", d.key}, {"values", Json::Array(d.values.begin(), d.values.end())}});
  }
  return Members{{"arguments", Json::Array(plan.common.begin(), plan.common.end())},
                 {"dimensions", std::move(dimensions)},
                 {"first", plan.first},
                 {"folder", plan.folder}};
}

Plan plan_of(const Json& json) {
  Plan plan;
  for (const Json& word : json["arguments"].array()) plan.common.push_back(word.string());
  for (const Json& d : json["dimensions"].array()) {
    plan.dimensions.push_back({d["key"].string(), {}});
    for (const Json& value : d["values"].array()) {
      plan.dimensions.back().values.push_back(value.string());
    }
  }
  plan.first = json["first"].number();
  plan.folder = json["folder"].string();
  return plan;
}

volatile std::sig_atomic_t asked_to_stop = 0;  // how often
void ask_to_stop(int) { asked_to_stop = asked_to_stop + 1; }

std::optional<RunFigures> read_figures(const Trial& trial);

/// Runs trials as processes of this program, some at a time.
class Runner {
 public:
  /// `processors`: those of this process before it pinned its threads.
  Runner(const Plan& plan, std::string out, int64_t jobs, int64_t all, std::vector<int> processors)
      : plan_(plan),
        out_(std::move(out)),
        jobs_(jobs),
        all_(all),
        processors_(std::move(processors)),
        free_(static_cast<size_t>(jobs), true) {
    make_folders(out_ + "/logs", "sweep");
    struct sigaction action {};
    action.sa_handler = ask_to_stop;
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
  }

  /// Has a trial train up to a step; 0: to its end. Waits while all places are taken.
  void start(Trial& trial, int64_t until) {
    while (running_.size() >= static_cast<size_t>(jobs_) && !asked_to_stop) wait_for_one();
    if (asked_to_stop) return;
    const bool goes_on = !newest_checkpoint_of(trial.folder).empty();
    std::vector<std::string> words = {"train", "--out", trial.folder};
    if (goes_on) {
      words.emplace_back("--resume");
    } else {
      remove_all(trial.folder);  // what a kill has left of a beginning
      words.insert(words.end(), plan_.common.begin(), plan_.common.end());
      for (size_t i = 0; i < plan_.dimensions.size(); ++i) {
        words.insert(words.end(), {"--set", plan_.dimensions[i].key + "=" + trial.values[i]});
      }
    }
    if (until > 0) words.insert(words.end(), {"--until", std::to_string(until)});
    launch(trial, words);
  }

  void finish() {
    while (!running_.empty()) wait_for_one();
  }

 private:
  struct Running {
    Trial* trial;
    size_t place;
    std::chrono::steady_clock::time_point begin;
  };

  static std::string newest_checkpoint_of(const std::string& folder) {
    return std::filesystem::exists(folder) ? newest_checkpoint(folder) : "";
  }

  void launch(Trial& trial, std::vector<std::string> words) {
    const auto place =
        static_cast<size_t>(std::find(free_.begin(), free_.end(), true) - free_.begin());
    free_[place] = false;
    // Those that run side by side get processors of their own.
    const std::vector<int>& own = processors_;
    const size_t begin = place * own.size() / static_cast<size_t>(jobs_),
                 end = (place + 1) * own.size() / static_cast<size_t>(jobs_);
    std::vector<int> part(own.begin() + static_cast<std::ptrdiff_t>(begin),
                          own.begin() + static_cast<std::ptrdiff_t>(end));
    if (part.empty()) part.push_back(own[place % own.size()]);
    const pid_t pid = longspan::launch({.arguments = std::move(words),
                                        .log = log_of(trial),
                                        .folder = plan_.folder,
                                        .processors = std::move(part)},
                                       "sweep");
    running_[pid] = {&trial, place, std::chrono::steady_clock::now()};
  }

  void wait_for_one() {
    int status = 0;
    pid_t pid = 0;
    while ((pid = waitpid(-1, &status, WNOHANG)) <= 0) {
      require(pid == 0 || errno == EINTR, "sweep", "waiting for a run failed: {}", error_text());
      for (; told_ < asked_to_stop; ++told_) {  // a second signal leaves out validations
        for (const auto& [running, of] : running_) kill(running, SIGTERM);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    const auto found = running_.find(pid);
    if (found == running_.end()) return;
    const Running ended = found->second;
    running_.erase(found);
    free_[ended.place] = true;
    Trial& trial = *ended.trial;
    ++done_;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - ended.begin;
    std::string said;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      trial.failed = WIFEXITED(status) ? last_line_of(log_of(trial))
                                       : fmt::format("signal {}", WTERMSIG(status));
      if (!asked_to_stop) said = "failed: " + trial.failed;
    } else {
      const std::optional<RunFigures> f = read_figures(trial);
      said = f ? fmt::format("step {}, {:.4f} bits per {}", f->steps, f->valid, f->unit.name)
               : std::string("no figures");
    }
    if (asked_to_stop) said = "stopped";
    std::puts(fmt::format("[{}/{}] {}: {}, {:.1f} s", done_, all_, trial.name, said, took.count())
                  .c_str());
    std::fflush(stdout);
  }

  std::string log_of(const Trial& trial) const {
    return fmt::format("{}/logs/{}.txt", out_, trial.name);
  }

  const Plan& plan_;
  std::string out_;
  int64_t jobs_, all_, done_ = 0;
  std::vector<int> processors_;
  std::vector<bool> free_;
  std::map<pid_t, Running> running_;
  int told_ = 0;  // how often the runs were told to stop
};

/// Returns the figures of a trial; nothing if it has none, or they are damaged.
std::optional<RunFigures> read_figures(const Trial& trial) {
  try {
    return figures_of(trial.folder);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Whether a run has reached a step; 0: its end.
bool has_reached(const Trial& trial, int64_t step) {
  const std::optional<RunFigures> f = read_figures(trial);
  if (!f || !std::filesystem::exists(trial.folder + "/summary.json")) return false;
  return f->ended || (step > 0 && f->steps >= step);
}

/// Runs that differ in their seed alone.
struct Group {
  std::string name;
  std::vector<std::string> values;  // without the seed
  std::vector<Trial*> trials;
  double mean = 0, deviation = 0;  // of the validations; NaN: one has failed
  std::string unit = {};           // that they are counted per
  int64_t steps = 0;
};

/// Returns the step at which a trial of successive halving waits; 0: its end.
int64_t step_at(const Trial& trial, double share) {
  if (share >= 1) return 0;
  return std::max<int64_t>(1, std::llround(share * static_cast<double>(trial.steps)));
}

/// Returns the last validation up to a step; 0: the last of all. NaN: there is none.
double validation_at(const RunFigures& f, int64_t step) {
  if (step == 0) return f.valid;
  double valid = std::nan("");
  for (const RunFigures::Point& p : f.validations) {
    if (p.step <= step) valid = p.bits;
  }
  return valid;
}

/// Returns the groups with their figures at a share of the steps.
std::vector<Group> groups_of(const Plan& plan, std::vector<Trial>& trials, double share) {
  const bool seeds = !plan.dimensions.empty() && plan.dimensions.back().key == "seed";
  std::vector<Group> groups;
  for (Trial& t : trials) {
    std::vector<std::string> values = t.values;
    if (seeds) values.pop_back();
    auto at = std::find_if(groups.begin(), groups.end(),
                           [&](const Group& g) { return g.values == values; });
    if (at == groups.end()) {
      Group g{.name = {}, .values = values, .trials = {}};
      for (size_t i = 0; i < values.size(); ++i) {
        g.name += (i == 0 ? "" : " ") + last_part(plan.dimensions[i].key) + "=" + values[i];
      }
      if (g.name.empty()) g.name = "all seeds";
      groups.push_back(std::move(g));
      at = std::prev(groups.end());
    }
    at->trials.push_back(&t);
  }
  for (Group& g : groups) {
    double sum = 0, squares = 0;
    for (const Trial* t : g.trials) {
      double valid = std::nan("");
      if (const std::optional<RunFigures> f = read_figures(*t); f && t->failed.empty()) {
        valid = validation_at(*f, step_at(*t, share));
        g.steps = f->steps;
        g.unit = f->unit.name;
      }
      sum += valid;
      squares += valid * valid;
    }
    const auto n = static_cast<double>(g.trials.size());
    g.mean = sum / n;
    g.deviation = n > 1 ? std::sqrt(std::max(0.0, (squares - n * g.mean * g.mean) / (n - 1))) : 0;
  }
  return groups;
}

/// Returns the groups from best to worst, with `halved` those first that have come farther; those
/// without a figure last.
std::vector<const Group*> ordered(const std::vector<Group>& groups, bool halved) {
  std::vector<const Group*> order;
  for (const Group& g : groups) order.push_back(&g);
  std::stable_sort(order.begin(), order.end(), [&](const Group* a, const Group* b) {
    if (std::isnan(a->mean) || std::isnan(b->mean))
      return !std::isnan(a->mean) && std::isnan(b->mean);
    return halved && a->steps != b->steps ? a->steps > b->steps : a->mean < b->mean;
  });
  return order;
}

/// Draws the validations over the values of the first dimension that are numbers, a curve for each
/// combination of the others.
void draw_values(const Plan& plan, const std::vector<Group>& groups,
                 const std::vector<std::string>& paths, const std::string& unit) {
  for (size_t d = 0; d < plan.dimensions.size(); ++d) {
    const Dimension& dimension = plan.dimensions[d];
    if (dimension.key == "seed") continue;
    std::vector<double> values;
    for (const std::string& text : dimension.values) {
      char* end = nullptr;
      values.push_back(std::strtod(text.c_str(), &end));
      if (*end != '\0') values.clear();
    }
    if (values.size() != dimension.values.size() || values.size() < 2) continue;
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    LinePlot plot{.title = "Validation at the end of the runs",
                  .x_label = dimension.key,
                  .y_label = "bits per " + unit,
                  .log_x = *low > 0 && *high / *low >= 8};
    for (const Group& g : groups) {
      if (std::isnan(g.mean)) continue;
      std::string name;
      for (size_t i = 0; i < g.values.size(); ++i) {
        if (i != d)
          name += (name.empty() ? "" : " ") + last_part(plan.dimensions[i].key) + "=" + g.values[i];
      }
      auto s = std::find_if(plot.series.begin(), plot.series.end(),
                            [&](const Series& other) { return other.name == name; });
      if (s == plot.series.end()) {
        plot.series.push_back(
            {.name = name, .markers = true, .colour = static_cast<int>(plot.series.size())});
        s = std::prev(plot.series.end());
      }
      s->x.push_back(std::strtod(g.values[d].c_str(), nullptr));
      s->y.push_back(g.mean);
    }
    if (plot.series.empty()) return;
    for (const std::string& path : paths) write_own_picture(path, plot);
    return;
  }
}

/// Gives the runs of a combination one colour and one name; those beyond the best eight are pale.
void colour_by_rank(LinePlot& plot, const std::vector<std::string>& labels,
                    const std::vector<const Group*>& order) {
  constexpr size_t most = 8;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    bool named = false;
    for (const Trial* t : order[rank]->trials) {
      const auto at = std::find(labels.begin(), labels.end(), t->name);
      if (at == labels.end()) continue;
      Series& s = plot.series[static_cast<size_t>(at - labels.begin())];
      s.faint = rank >= most;
      s.markers = s.markers && !s.faint;
      s.colour = static_cast<int>(std::min(rank, most));
      s.name = named || s.faint ? "" : order[rank]->name;
      if (s.name.empty() && !named && !s.faint) s.name = t->name;
      named = true;
    }
  }
  // The legend goes from the best on.
  std::stable_sort(plot.series.begin(), plot.series.end(),
                   [](const Series& a, const Series& b) { return a.colour < b.colour; });
}

/// Whether all groups that have a figure count bits per the same unit.
bool alike(const std::vector<Group>& groups) {
  std::string unit;
  for (const Group& g : groups) {
    if (g.unit.empty()) continue;
    if (unit.empty()) unit = g.unit;
    if (g.unit != unit) return false;
  }
  return true;
}

void print_groups(const std::vector<const Group*>& order, const std::string& unit,
                  bool comparable) {
  size_t wide = 11;
  for (const Group* g : order) wide = std::max(wide, g->name.size());
  std::puts(fmt::format("\n  {:<{}} {:>5} {:>8} {:>12} {:>10}", "combination", wide, "runs",
                        "steps", "bits/" + unit, "deviation")
                .c_str());
  for (const Group* g : order) {
    const bool best = comparable && g == order[0] && std::isfinite(g->mean);
    const bool spreads = g->trials.size() > 1 && std::isfinite(g->mean);
    std::puts(fmt::format("{} {:<{}} {:>5} {:>8} {:>12} {:>10}", best ? "*" : " ", g->name, wide,
                          g->trials.size(), g->steps,
                          std::isfinite(g->mean) ? fmt::format("{:.4f}", g->mean) : "-",
                          spreads ? fmt::format("{:.4f}", g->deviation) : "-")
                  .c_str());
  }
  if (!comparable) {
    std::puts("  these runs count bits per different units, so that none is best");
  } else if (!order.empty() && !std::isfinite(order[0]->mean)) {
    std::puts("  no run has a validation: --split gives some of the data to it");
  }
}

/// Returns the configuration of a trial.
RunConfig config_of(const Plan& plan, const Trial& trial) {
  Settings settings;
  for (size_t i = 0; i + 1 < plan.common.size(); i += 2) {
    if (plan.common[i] == "--config") {
      for (Setting& s : read_toml(plan.common[i + 1])) settings.push_back(std::move(s));
    } else {
      settings.push_back(parse_setting(plan.common[i + 1], "--set"));
    }
  }
  for (size_t i = 0; i < plan.dimensions.size(); ++i) {
    settings.push_back({plan.dimensions[i].key, Json(trial.values[i]), "--set", true});
  }
  return make_config(settings);
}

void report(const Plan& plan, std::vector<Trial>& trials, const std::string& out) {
  const std::vector<Group> groups = groups_of(plan, trials, 1);
  const std::vector<const Group*> order = ordered(groups, plan.first < 1);
  std::vector<RunFigures> figures;
  std::vector<std::string> labels;
  for (const Trial& t : trials) {
    std::optional<RunFigures> f = read_figures(t);
    if (!t.failed.empty() || !f) continue;
    figures.push_back(std::move(*f));
    labels.push_back(t.name);
  }
  const bool comparable = alike(groups);
  const std::string unit = figures.empty() || !comparable ? "unit" : figures[0].unit.name;
  print_groups(order, unit, comparable);
  std::string csv;
  for (const Dimension& d : plan.dimensions) {
    if (d.key != "seed") csv += d.key + ",";
  }
  csv += "runs,steps,mean,deviation\n";
  for (const Group* g : order) {
    for (const std::string& value : g->values) csv += value + ",";
    csv += fmt::format("{},{},{},{}\n", g->trials.size(), g->steps, g->mean, g->deviation);
  }
  replace_file(out + "/sweep.csv", csv, "sweep");
  if (figures.empty() || !comparable) return;
  LinePlot curves = curves_of(figures, labels, Axis::steps);
  colour_by_rank(curves, labels, order);
  const PictureFormats formats = config_of(plan, trials[0]).pictures;
  for (const std::string& path : formats.paths(out + "/curves")) write_own_picture(path, curves);
  draw_values(plan, groups, formats.paths(out + "/values"), unit);
}

struct SweepCommandOptions {
  int64_t seeds = 1, jobs = 1;
  double first = 1;
  void visit(auto& v) {
    v("seeds", seeds, range::between(1, 1000))("jobs", jobs, range::between(1, 256));
    v("first", first, range::between(0.001, 1));
  }
};

Plan new_plan(CommandLine line, const SweepCommandOptions& o, int argc, const char* const* argv) {
  Plan plan{.common = {},
            .dimensions = dimensions_of(line.settings),
            .first = o.first,
            .folder = std::filesystem::current_path().string()};
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    constexpr std::string_view flag = "--config";
    const bool joined = word.starts_with(flag) && word.substr(flag.size()).starts_with('=');
    if (word != flag && !joined) continue;
    const std::string path(joined ? word.substr(flag.size() + 1) : argv[i + 1]);
    plan.common = {"--config", std::filesystem::absolute(path).string()};
  }
  for (const Setting& s : line.settings) {
    const bool swept = std::any_of(plan.dimensions.begin(), plan.dimensions.end(),
                                   [&](const Dimension& d) { return d.key == s.key; });
    if (s.text && !swept)
      plan.common.insert(plan.common.end(), {"--set", s.key + "=" + s.value.string()});
  }
  require(o.seeds == 1 || std::none_of(plan.dimensions.begin(), plan.dimensions.end(),
                                       [](const Dimension& d) { return d.key == "seed"; }),
          "--seeds", "--seed has several values already; expected one of the two");
  if (o.seeds > 1) {
    Dimension seeds{"seed", {}};
    const RunConfig config = make_config(line.settings);
    for (int64_t i = 0; i < o.seeds; ++i) {
      seeds.values.push_back(std::to_string(config.seed + static_cast<uint64_t>(i)));
    }
    plan.dimensions.push_back(std::move(seeds));
  }
  std::stable_partition(plan.dimensions.begin(), plan.dimensions.end(),
                        [](const Dimension& d) { return d.key != "seed"; });
  require(
      !plan.dimensions.empty(), "sweep",
      "nothing has several values; expected commas between them, as --lr 3e-4,1e-3, or --seeds N");
  // What no run would take is said before any begins.
  for (const Trial& t : trials_of(plan, "")) {
    Settings settings = line.settings;
    for (size_t i = 0; i < plan.dimensions.size(); ++i) {
      settings.push_back({plan.dimensions[i].key, Json(t.values[i]), "--set", true});
    }
    const RunConfig config = make_config(settings);
    require(plan.first == 1 || config.steps > 0, "--first", "is a share of --steps, which are 0");
    require_data(config);
  }
  return plan;
}

/// Copies the file of --config into the folder of the sweep, whose runs read it there, whatever
/// becomes of it meanwhile.
void keep_config(Plan& plan, const std::string& out) {
  if (plan.common.empty() || plan.common[0] != "--config") return;
  const std::string own = out + "/config.toml";
  replace_file(own, read_file(plan.common[1], "--config"), "sweep");
  plan.common[1] = own;
}

/// Waits until the runs of a sweep that was killed have ended: they do at once, and hold their
/// folders until then.
void wait_for_folders(const std::vector<Trial>& trials) {
  constexpr auto most = std::chrono::seconds(10);
  const auto begin = std::chrono::steady_clock::now();
  for (const Trial& t : trials) {
    while (std::filesystem::exists(t.folder)) {
      try {
        const FolderLock free(t.folder, "sweep");
        break;
      } catch (const IoError&) {
        if (std::chrono::steady_clock::now() - begin > most) throw;
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    }
  }
}

/// Runs all trials up to a share of the steps, then the better half of the combinations up to twice
/// as many, until some reach the end.
void run_all(const Plan& plan, std::vector<Trial>& trials, const std::string& out, int64_t jobs,
             const std::vector<int>& processors) {
  double share = plan.first;
  for (bool last = false; !last && asked_to_stop == 0; share = std::min(1.0, 2 * share)) {
    last = share >= 1;
    std::vector<Trial*> due;
    int64_t left = 0;
    for (Trial& t : trials) {
      if (!t.dropped) ++left;
      if (!t.dropped && t.failed.empty() && !has_reached(t, step_at(t, share))) due.push_back(&t);
    }
    if (plan.first < 1) {
      std::puts(fmt::format("{} run{} up to {}", left, left == 1 ? "" : "s",
                            last ? "the end" : fmt::format("{:g} % of the steps", 100 * share))
                    .c_str());
    }
    Runner runner(plan, out, jobs, std::ssize(due), processors);
    for (Trial* t : due) runner.start(*t, step_at(*t, share));
    runner.finish();
    if (last || asked_to_stop != 0) break;
    std::vector<Group> groups = groups_of(plan, trials, share);
    std::erase_if(groups, [](const Group& g) { return g.trials[0]->dropped; });
    const std::vector<const Group*> order = ordered(groups, false);
    require(alike(groups), "--first",
            "the runs count bits per different units, and none is better");
    require(!order.empty() && std::isfinite(order[0]->mean), "--first",
            "no run has a validation by which to go on; expected --split with a part for it");
    for (size_t i = (order.size() + 1) / 2; i < order.size(); ++i) {
      for (Trial* t : order[i]->trials) t->dropped = true;
    }
  }
}

}  // namespace

int sweep_command(int argc, const char* const* argv) {
  const std::vector<int> processors = allowed_processors();
  const Flag own[] = {
      {"--out", "", "the folder of the sweep, with a run folder for each combination"},
      {"--resume", "", "go on with the sweep in --out: its runs, from their checkpoints", true},
      {"--seeds", "sweep.seeds", "runs of each combination, with seeds that follow --seed"},
      {"--jobs", "sweep.jobs", "runs side by side, which share the processors"},
      {"--first", "sweep.first",
       "a share of the steps that all runs take; the better half goes on to twice as many, and so "
       "on"}};
  CommandLine line = read_command_line(
      argc, argv, own,
      "longspan sweep --out DIR --model NAME --lr 3e-4,1e-3 ...: trains with all combinations of "
      "options that have several values, with commas between them, and says which validates best. "
      "Other options are those of longspan train.");
  SweepCommandOptions o;
  const Settings typed = taken(line, "sweep.");
  set_fields(o, typed);
  check_ranges(o, typed);
  const std::string* const given = line.value("--out");
  require(given != nullptr, "sweep", "no folder given; expected --out DIR");
  std::string out = std::filesystem::absolute(*given).lexically_normal().string();
  while (out.size() > 1 && out.ends_with('/')) out.pop_back();
  const std::string file = out + "/sweep.json";
  Plan plan;
  if (line.value("--resume") != nullptr) {
    require<IoError>(std::filesystem::exists(file), "--resume", "{} is no sweep", out);
    require(line.settings.empty(), "--resume",
            "goes on with the options that the sweep has; leave out {}",
            line.settings.empty()   ? ""
            : line.settings[0].text ? line.settings[0].origin
                                    : "--config");
    for (const Setting& s : typed) {
      require(s.key == "jobs", "--resume", "goes on as the sweep began; leave out {}", s.origin);
    }
    plan = plan_of(parse_json(read_file(file, "sweep")));
  } else {
    require<IoError>(!std::filesystem::exists(out) || std::filesystem::is_empty(out), "--out",
                     "{} is there already; go on with it with --resume, or choose another folder",
                     out);
    plan = new_plan(line, o, argc, argv);
    trials_of(plan, out);  // throws on names that are no file names
    make_folders(out, "sweep");
    keep_config(plan, out);
    replace_file(file, to_string(json_of(plan)) + "\n", "sweep");
  }
  std::vector<Trial> trials = trials_of(plan, out);
  for (Trial& t : trials) t.steps = config_of(plan, t).steps;
  wait_for_folders(trials);
  run_all(plan, trials, out, o.jobs, processors);
  report(plan, trials, out);
  if (asked_to_stop != 0) std::puts("stopped; go on with --resume");
  const bool failed =
      std::any_of(trials.begin(), trials.end(), [](const Trial& t) { return !t.failed.empty(); });
  return failed || asked_to_stop != 0 ? 1 : 0;
}

}  // namespace longspan
