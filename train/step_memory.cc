#include "train/step_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "core/deferred.h"
#include "core/error.h"
#include "core/graph.h"
#include "ops/cost.h"
#include "ops/patterns/layout_cache.h"
#include "train/gradient_fold.h"
#include "train/owned_parameters.h"

namespace longspan {
namespace {

int64_t total(const Usage& usage, const Usage& base) {
  return usage.total() - usage[Category::cache] - (base.total() - base[Category::cache]);
}

/// Returns the peak of a phase; if it is the largest so far, stores its split in m.at_peak.
int64_t phase_peak(Device device, const Usage& base, StepMemory& m) {
  const Usage usage = memory_tracker(device).peak();
  const int64_t bytes = total(usage, base);
  if (bytes > m.peak()) {
    m.at_peak = usage;
    for (size_t i = 0; i < usage.bytes.size(); ++i) m.at_peak.bytes[i] -= base.bytes[i];
    m.at_peak[Category::cache] = 0;
  }
  memory_tracker(device).reset_peak();
  return bytes;
}

/// "model.layers.3.attention" -> "model.layers.*.attention".
std::string without_numbers(const std::string& scope) {
  std::string part;
  for (size_t i = 0; i < scope.size(); ++i) {
    const bool begins = i > 0 && scope[i - 1] == '.';
    const bool digit = std::isdigit(static_cast<unsigned char>(scope[i])) != 0;
    if (!begins || !digit) {
      part += scope[i];
      continue;
    }
    while (i + 1 < scope.size() && scope[i + 1] != '.') ++i;
    part += '*';
  }
  return part;
}

/// Returns the tensors that are in Category::saved now, from a trace.
std::vector<SavedTerm> saved_terms(const MemoryTrace& trace) {
  std::vector<SavedTerm> terms;
  for (const MemoryTrace::Block& b : trace.blocks()) {
    if (!b.live || b.category != Category::saved) continue;
    terms.push_back({b.scope, b.op, b.shape, b.dtype, b.bytes, 1, ""});
  }
  return terms;
}

/// Formats a size that grows with the tokens: "T", "L", "2 L", "L/4".
std::string rows_text(int64_t size, const TermNames& n) {
  const int64_t all = n.batch * n.length;
  if (size == n.length) return "L";
  if (size % all == 0) return size == all ? "T" : fmt::format("{} T", size / all);
  if (all % size == 0 && n.length % size != 0) return fmt::format("T/{}", all / size);
  if (size % n.length == 0) return fmt::format("{} L", size / n.length);
  if (n.length % size == 0) return fmt::format("L/{}", n.length / size);
  return std::to_string(size);
}

/// Returns the bytes of a term as a product; `longer` is its shape in a longer step.
std::string formula(const SavedTerm& term, const Shape& longer, const TermNames& names) {
  std::vector<std::string> tokens, others;
  bool batched = false;
  for (int i = 0; i < term.shape.rank(); ++i) {
    const int64_t size = term.shape[i];
    const bool grows = longer.rank() == term.shape.rank() && longer[i] != size;
    if (size == 1) continue;
    if (grows) {
      tokens.push_back(rows_text(size, names));
    } else if (i == 0 && size == names.batch) {
      batched = true;
    } else {
      const auto fits = [&](const auto& l) { return l.first == size; };
      const auto at = std::find_if(names.letters.begin(), names.letters.end(), fits);
      others.push_back(at == names.letters.end() ? std::to_string(size) : at->second);
    }
  }
  if (batched || names.batch == 1) {  // B L is T
    const auto at = std::find(tokens.begin(), tokens.end(), "L");
    if (at != tokens.end()) {
      *at = "T";
    } else if (batched) {
      tokens.insert(tokens.begin(), "B");
    }
  }
  std::string text = term.dtype == names.element ? "u" : std::to_string(size_of(term.dtype));
  for (const std::string& factor : tokens) text += " " + factor;
  for (const std::string& factor : others) text += " " + factor;
  return text;
}

/// While it lives, a phase allocates from a region, if there is one.
class Within {
 public:
  explicit Within(std::optional<memory::Region>& region) : region_(region) {
    if (region_) region_->enter();
  }
  ~Within() {
    if (region_) region_->leave();
  }
  Within(const Within&) = delete;
  Within& operator=(const Within&) = delete;

 private:
  std::optional<memory::Region>& region_;
};

/// The memory regions that the two recordings of a step reserve.
struct Regions {
  std::optional<memory::Region> gradients, update;
  int64_t room = 0;  // bytes that the region of gradients begins with

  /// Like StepGraph: a step that is not recorded tells how much memory the first recording needs.
  Regions(Device device, Optimizer& optimizer, const std::function<Tensor()>& loss,
          MeasureOptions options) {
    if (!options.graph) return;
    options.base = memory_tracker(device).live();
    options.graph = options.macs = false;
    options.trace = nullptr;
    const StepMemory m = measure_step(device, optimizer, loss, options);
    room = memory::Region::roomy(std::max(m.forward_peak, m.backward_peak) +
                                 deferred::outcome_bytes());
    gradients.emplace(device, room);
    update.emplace(device, 0);
  }
};

/// Bytes of optimiser states that are not on the device: its step count.
int64_t states_elsewhere(const Optimizer& optimizer, Device device) {
  int64_t bytes = 0;
  for (const NamedTensor& s : optimizer.state()) {
    if (s.tensor.device() != device) bytes += memory::block_bytes(s.tensor.nbytes());
  }
  return bytes;
}

}  // namespace

int64_t StepMemory::peak() const {
  return std::max({forward_peak, backward_peak, update_peak, evaluation_peak, picture_peak});
}

void StepMemory::hold(Category category, int64_t bytes) {
  for (int64_t* peak : {&forward_peak, &backward_peak, &update_peak}) *peak += bytes;
  at_peak[category] += bytes;
}

int64_t rehearsed_passes(int64_t passes, bool several) {
  constexpr int64_t enough = 16;  // rounds of two or more batches: three groups of a fold
  return several ? std::min(passes, enough) : GradientFold::rehearsal(passes);
}

StepMemory measure_step(Device device, Optimizer& optimizer, const std::function<Tensor()>& loss,
                        const MeasureOptions& options) {
  const Usage& base = options.base;
  MemoryTracker& tracker = memory_tracker(device);
  StepMemory m;
  int64_t batches = 0;  // bytes of held batches, without the current pass's batch
  std::optional<graph::Rehearsal> rehearsal;
  if (options.graph) rehearsal.emplace();
  Regions regions(device, optimizer, loss, options);
  if (rehearsal) rehearsal->restart();
  const Usage before = tracker.live();
  m.parameter = before[Category::parameter] - base[Category::parameter];
  count_asked_layouts();
  tracker.reset_peak();
  OwnedParameters* const owned = options.owned;
  const int64_t passes = rehearsed_passes(options.passes, owned != nullptr);
  if (owned != nullptr) owned->begin(passes * owned->groups());
  std::optional<GradientFold> fold;
  for (int64_t pass = 0; pass < passes; ++pass) {
    const Within phase(regions.gradients);
    if (!fold && owned == nullptr) {
      fold.emplace(optimizer.parameters(), passes, GradientFold::rehearsed_group);
    }
    std::optional<MacCount> macs;
    if (options.macs) macs.emplace();
    const Tensor y = loss();
    m.saved = tracker.live()[Category::saved] - before[Category::saved];
    const int64_t batch = tracker.live()[Category::data] - before[Category::data];
    if (options.graph) batches = (2 * options.passes - 1) * batch;
    if (options.trace != nullptr) m.terms = saved_terms(*options.trace);
    if (macs) m.macs = macs->total();
    m.forward_peak = std::max(m.forward_peak, phase_peak(device, base, m));
    if (fold) {
      fold->backward(y);
    } else {
      owned->backward(y);
    }
    if (macs) m.again = macs->total() - m.macs;
    m.backward_peak = std::max(m.backward_peak, phase_peak(device, base, m));
    if (options.after_pass) options.after_pass();
  }
  fold.reset();
  m.gradient = tracker.live()[Category::gradient] - base[Category::gradient];
  if (options.clip > 0) clip_gradients(optimizer, options.clip);
  if (regions.gradients) {
    // Whether gaps between blocks make a region grow depends on the order of all requests, and some
    // of a backend's are its own: a prediction counts a growth by an eighth or by the largest
    // block, whichever is more, in any case.
    const int64_t growth = std::max(regions.room / 8, regions.gradients->largest_block());
    const int64_t grown = device == meta_device ? regions.room + growth : 0;
    m.hold(Category::graph, std::max<int64_t>(0, grown - regions.gradients->bytes()));
    regions.gradients->trim();
  }
  {
    const Within phase(regions.update);
    optimizer.step(0);
    if (owned != nullptr) owned->spread();
  }
  if (options.after_update) options.after_update();
  m.update_peak = phase_peak(device, base, m);
  const int64_t elsewhere = states_elsewhere(optimizer, device);
  m.optimizer = tracker.live()[Category::optimizer] - base[Category::optimizer] + elsewhere;
  m.hold(Category::optimizer, elsewhere);
  m.hold(Category::data, batches);
  m.layouts = layout_cache_state().asked;
  m.hold(Category::cache, m.layouts);
  if (rehearsal) {
    // Of more passes than were measured, each adds as many constants as the others.
    const int64_t constants = rehearsal->bytes() / passes * options.passes;
    m.hold(Category::workspace, std::max(rehearsal->bytes(), constants));
  }
  for (std::optional<memory::Region>* region : {&regions.gradients, &regions.update}) {
    if (!*region) continue;
    (*region)->trim();
    m.graph += (*region)->bytes();
  }
  return m;
}

int64_t measure_peak(Device device, const Usage& base, const std::function<void()>& work) {
  count_asked_layouts();
  memory_tracker(device).reset_peak();
  work();
  return total(memory_tracker(device).peak(), base) + layout_cache_state().asked;
}

std::vector<SavedTerm> collect_terms(const std::vector<SavedTerm>& terms, const TermNames& names) {
  const bool paired = names.longer != nullptr && names.longer->size() == terms.size();
  std::map<std::tuple<std::string, std::string, std::string, int64_t>, size_t> known;
  std::vector<SavedTerm> list;
  for (size_t i = 0; i < terms.size(); ++i) {
    SavedTerm term = terms[i];
    term.part = without_numbers(term.part);
    term.formula = formula(term, paired ? (*names.longer)[i].shape : term.shape, names);
    const auto [at, added] =
        known.try_emplace({term.part, term.op, term.formula, term.bytes}, list.size());
    if (added) {
      list.push_back(term);
    } else {
      ++list[at->second].count;
    }
  }
  std::stable_sort(list.begin(), list.end(), [](const SavedTerm& a, const SavedTerm& b) {
    return a.count * a.bytes > b.count * b.bytes;
  });
  return list;
}

namespace {

/// Takes the last factor off a formula with letters if it is a number, and returns it; else 1.
int64_t take_number(std::string& formula) {
  const size_t at = formula.rfind(' ');
  int64_t number = 1;
  if (formula[0] != 'u' || at == std::string::npos) return number;
  const char* const end = formula.data() + formula.size();
  const auto [rest, error] = std::from_chars(formula.data() + at + 1, end, number);
  if (error != std::errc() || rest != end) return 1;
  formula.resize(at);
  return number;
}

}  // namespace

std::string formula_of(const std::vector<SavedTerm>& collected, int64_t layers) {
  std::vector<std::pair<std::string, int64_t>> each, once;
  for (const SavedTerm& term : collected) {
    const bool layered = term.part.find("layers.*") != std::string::npos && layers > 0;
    auto& sums = layered ? each : once;
    std::string text = term.formula;
    const int64_t times = term.count * take_number(text);
    const auto same = [&](const auto& s) { return s.first == text; };
    auto at = std::find_if(sums.begin(), sums.end(), same);
    if (at == sums.end()) at = sums.insert(sums.end(), {text, 0});
    at->second += times;
  }
  // Terms that are not in every layer go outside the bracket.
  for (auto& [text, count] : each) {
    const int64_t rest = count % layers;
    count /= layers;
    if (rest > 0) once.push_back({text, rest});
  }
  const auto sum_of = [](const auto& sums) {
    std::string text;
    for (const auto& [formula, count] : sums) {
      if (count == 0) continue;
      text += text.empty() ? "" : " + ";
      const bool letter = formula[0] == 'u';  // else a number, which no other number may precede
      const std::string factor = letter ? formula : "(" + formula + ")";
      text += count == 1 ? formula : fmt::format("{} {}", count, factor);
    }
    return text;
  };
  const std::string inner = sum_of(each), outer = sum_of(once);
  if (inner.empty()) return outer;
  return fmt::format("N ({}){}{}", inner, outer.empty() ? "" : " + ", outer);
}

int64_t largest_fitting(const std::function<int64_t(int64_t size)>& peak, int64_t first,
                        int64_t unit, int64_t limit, int64_t budget) {
  require(unit >= 1, "largest_fitting", "the unit is {}; expected 1 or more", unit);
  limit -= limit % unit;
  if (limit < unit) return 0;
  int64_t low = 0, low_bytes = 0, high = -1, high_bytes = 0;
  int64_t x = std::clamp(first / unit * unit, unit, limit);
  for (int tries = 0; tries < 40 && low < limit && low + unit != high; ++tries) {
    const int64_t bytes = peak(x);
    if (bytes < 0) return low;
    if (bytes <= budget) {
      const double slope = static_cast<double>(bytes - low_bytes) / static_cast<double>(x - low);
      const int64_t before = low;
      low = x;
      low_bytes = bytes;
      if (high < 0) {
        const double more = before > 0 && slope > 0 ? static_cast<double>(budget - bytes) / slope
                                                    : static_cast<double>(x);
        x = std::min(limit,
                     x + std::max(unit, static_cast<int64_t>(std::min(more, 1e15)) / unit * unit));
        continue;
      }
    } else {
      high = x;
      high_bytes = bytes;
    }
    if (low + unit >= high) break;
    const double share = low > 0 ? static_cast<double>(budget - low_bytes) /
                                       static_cast<double>(high_bytes - low_bytes)
                                 : 0.5;
    const int64_t guess = low + static_cast<int64_t>(share * static_cast<double>(high - low));
    x = std::clamp(guess / unit * unit, low + unit, high - unit);
  }
  return low;
}

std::string bytes_text(int64_t bytes) {
  const auto size = static_cast<double>(bytes);
  if (bytes < 1 << 10) return fmt::format("{} B", bytes);
  if (bytes < 1 << 20) return fmt::format("{:.1f} KiB", size / (1 << 10));
  if (bytes < 1 << 30) return fmt::format("{:.1f} MiB", size / (1 << 20));
  return fmt::format("{:.2f} GiB", size / (1 << 30));
}

namespace {

/// Parses a size in text form; nullopt if it is not one.
std::optional<int64_t> bytes_of(std::string_view text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  std::string unit;
  for (const char* c = read.ptr; c != end; ++c) {
    if (*c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  }
  constexpr double tebi = double(int64_t{1} << 40);
  constexpr std::pair<std::string_view, double> units[] = {
      {"", 1},        {"b", 1},         {"k", 1 << 10}, {"kib", 1 << 10}, {"kb", 1e3},
      {"m", 1 << 20}, {"mib", 1 << 20}, {"mb", 1e6},    {"g", 1 << 30},   {"gib", 1 << 30},
      {"gb", 1e9},    {"t", tebi},      {"tib", tebi},  {"tb", 1e12}};
  for (const auto& [name, factor] : units) {
    if (read.ec == std::errc() && unit == name && number * factor >= 1 && number * factor < 9e18) {
      return static_cast<int64_t>(number * factor);
    }
  }
  return std::nullopt;
}

}  // namespace

int64_t parse_bytes(std::string_view text, std::string_view what) {
  const std::optional<int64_t> bytes = bytes_of(text);
  require(bytes.has_value(), what, "\"{}\" is no size; expected {}", text, ByteSize::expected);
  return *bytes;
}

bool ByteSize::valid(std::string_view text) { return text == "0" || bytes_of(text).has_value(); }

void ByteSize::set(std::string_view text) { bytes = text == "0" ? 0 : parse_bytes(text); }

std::string ByteSize::text() const {
  constexpr std::string_view units[] = {"", "KiB", "MiB", "GiB", "TiB"};
  int64_t count = bytes;
  size_t unit = 0;
  while (count > 0 && count % 1024 == 0 && unit + 1 < std::size(units)) {
    count /= 1024;
    ++unit;
  }
  return fmt::format("{}{}", count, units[unit]);
}

}  // namespace longspan
