#include "train/step_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <tuple>

#include "autograd/engine.h"
#include "core/error.h"
#include "nn/layers.h"

namespace longspan {
namespace {

int64_t total(const Usage& usage, const Usage& base) {
  return usage.total() - usage[Category::cache] - (base.total() - base[Category::cache]);
}

/// The largest sum of a phase, and the split then where it is the largest so far.
int64_t phase_peak(Device device, const Usage& base, StepMemory& m) {
  const Usage usage = memory_tracker(device).peak();
  const int64_t bytes = total(usage, base);
  if (bytes > m.peak()) {
    m.at_peak = usage;
    for (size_t i = 0; i < usage.bytes.size(); ++i) m.at_peak.bytes[i] -= base.bytes[i];
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

/// Bytes of optimiser states that are not on the device: its step count.
int64_t states_elsewhere(const Optimizer& optimizer, Device device) {
  int64_t bytes = 0;
  for (const NamedTensor& s : optimizer.state()) {
    if (s.tensor.device() != device) bytes += memory::block_bytes(s.tensor.nbytes());
  }
  return bytes;
}

}  // namespace

int64_t StepMemory::peak() const { return std::max({forward_peak, backward_peak, update_peak}); }

StepMemory measure_step(Device device, Optimizer& optimizer, const std::function<Tensor()>& loss,
                        double clip, const Usage& base, MemoryTrace* trace) {
  MemoryTracker& tracker = memory_tracker(device);
  StepMemory m;
  const Usage before = tracker.live();
  m.parameter = before[Category::parameter] - base[Category::parameter];
  tracker.reset_peak();
  {
    MacCounter macs;
    const Tensor y = loss();
    m.saved = tracker.live()[Category::saved] - before[Category::saved];
    if (trace != nullptr) m.terms = saved_terms(*trace);
    m.macs = macs.total();
    m.forward_peak = phase_peak(device, base, m);
    backward(y);
    m.again = macs.total() - m.macs;
    m.backward_peak = phase_peak(device, base, m);
  }
  m.gradient = tracker.live()[Category::gradient] - base[Category::gradient];
  if (clip > 0) clip_gradients(optimizer, clip);
  optimizer.step(0);
  m.update_peak = phase_peak(device, base, m);
  const int64_t elsewhere = states_elsewhere(optimizer, device);
  m.optimizer = tracker.live()[Category::optimizer] - base[Category::optimizer] + elsewhere;
  for (int64_t* peak : {&m.forward_peak, &m.backward_peak, &m.update_peak}) *peak += elsewhere;
  m.at_peak[Category::optimizer] += elsewhere;
  return m;
}

std::vector<SavedTerm> saved_terms(const MemoryTrace& trace) {
  using Key = std::tuple<std::string, std::string, std::string, DType, int64_t>;
  std::map<Key, SavedTerm> terms;
  for (const MemoryTrace::Block& b : trace.blocks()) {
    if (!b.live || b.category != Category::saved) continue;
    const std::string part = without_numbers(b.scope);
    SavedTerm& term = terms[{part, b.op, to_string(b.shape), b.dtype, b.bytes}];
    if (term.count++ == 0) term = {part, b.op, b.shape, b.dtype, 1, b.bytes};
  }
  std::vector<SavedTerm> list;
  for (const auto& [key, term] : terms) list.push_back(term);
  std::stable_sort(list.begin(), list.end(), [](const SavedTerm& a, const SavedTerm& b) {
    return a.count * a.bytes > b.count * b.bytes;
  });
  return list;
}

std::string formula(const SavedTerm& term, int64_t batch, int64_t length, const Letters& letters,
                    DType element) {
  std::string text = term.dtype == element ? "u" : std::to_string(size_of(term.dtype));
  const auto put = [&text](const std::string& factor) { text += " " + factor; };
  const auto letter_of = [&](int64_t size) {
    for (const auto& [number, letter] : letters) {
      if (number == size) return letter;
    }
    return std::string();
  };
  bool batched = false, rows = false;  // whether B and L are among the factors already
  std::vector<std::string> others;
  for (int i = 0; i < term.shape.rank(); ++i) {
    const int64_t size = term.shape[i];
    const bool last = i + 1 == term.shape.rank() && term.shape.rank() > 1;
    if (i == 0 && size == batch * length) {
      batched = rows = true;
    } else if (i == 0 && size == batch) {
      batched = true;
    } else if (!rows && !last && size == length) {
      rows = true;
    } else if (!rows && size == length && letter_of(size).empty()) {
      rows = true;
    } else if (size != 1) {
      const std::string letter = letter_of(size);
      others.push_back(letter.empty() ? std::to_string(size) : letter);
    }
  }
  if (batched && rows) {
    put("T");
  } else if (batched) {
    put("B");
  } else if (rows) {
    put("L");
  }
  for (const std::string& factor : others) put(factor);
  return text;
}

std::string bytes_text(int64_t bytes) {
  const auto size = static_cast<double>(bytes);
  if (bytes < 1 << 10) return fmt::format("{} B", bytes);
  if (bytes < 1 << 20) return fmt::format("{:.1f} KiB", size / (1 << 10));
  if (bytes < 1 << 30) return fmt::format("{:.1f} MiB", size / (1 << 20));
  return fmt::format("{:.2f} GiB", size / (1 << 30));
}

int64_t parse_bytes(std::string_view text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  std::string unit;
  for (const char* c = read.ptr; c != end; ++c) {
    if (*c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  }
  constexpr std::pair<std::string_view, double> units[] = {{"", 1},
                                                           {"b", 1},
                                                           {"k", 1 << 10},
                                                           {"kib", 1 << 10},
                                                           {"m", 1 << 20},
                                                           {"mib", 1 << 20},
                                                           {"g", 1 << 30},
                                                           {"gib", 1 << 30},
                                                           {"t", double(int64_t{1} << 40)},
                                                           {"tib", double(int64_t{1} << 40)}};
  for (const auto& [name, factor] : units) {
    if (read.ec == std::errc() && unit == name && number * factor >= 1 && number * factor < 9e18) {
      return static_cast<int64_t>(number * factor);
    }
  }
  fail<ValueError>("bytes", "\"{}\" is no size; expected one such as 4GiB, 512MiB or 65536", text);
}

}  // namespace longspan
