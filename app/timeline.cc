#include "app/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include "core/memory.h"
#include "core/scope.h"

namespace longspan {
namespace {

constexpr size_t most_instants = 500;

/// What ran during some events of a trace.
struct Work {
  size_t end = 0;  // the events before this one, from the end of the work before on
  StepPart part = StepPart::forward;
  bool node = false;                            // whether a node of the backward pass ran
  std::string op = {}, inner = {}, scope = {};  // `inner`: an op that the function of a node ran
};

/// Notes which op causes the events of a device's trace, while there is one.
class StepWatch final : public Watch {
 public:
  explicit StepWatch(Device device) : device_(device), before_(Watch::set(this)) {}
  ~StepWatch() override { Watch::set(before_); }
  StepWatch(const StepWatch&) = delete;
  StepWatch& operator=(const StepWatch&) = delete;

  /// Returns all works in their order. Those after the last node are of the update.
  std::vector<Work> works() const {
    std::vector<Work> all = works_;
    for (auto work = all.rbegin(); work != all.rend() && !work->node; ++work) {
      if (work->part == StepPart::backward) work->part = StepPart::update;
    }
    return all;
  }

  void kernel_begins(std::string_view kernel) override { kernel_ = kernel; }
  void kernel_ends(std::span<const Operand> operands) override {
    const bool computes = !operands.empty();
    if (computes && nodes_.empty() && reached_ != StepPart::forward) note(kernel_);
  }
  void op_ends(std::string_view op, std::span<const int64_t>) override { note(op); }
  void node_begins(std::string_view op, const std::string& scope) override {
    note("");
    if (MemoryTrace::of(device_) != nullptr) reached_ = StepPart::backward;
    nodes_.emplace_back(op, scope);
  }
  void node_ends() override {
    note("");
    nodes_.pop_back();
  }
  void scope_begins() override {}
  void scope_ends() override {}
  void phase_begins(std::string_view) override {}
  void phase_ends() override {}

 private:
  /// Ascribes the events since the last work to an op, or, within a node, to the node.
  void note(std::string_view op) {
    const MemoryTrace* const trace = MemoryTrace::of(device_);
    if (trace == nullptr) return;
    const size_t end = trace->events().size();
    if (end == (works_.empty() ? 0 : works_.back().end)) return;
    Work work{.end = end, .part = reached_, .op = std::string(op), .scope = Scope::path()};
    if (!nodes_.empty()) {
      work.node = true;
      work.inner = std::exchange(work.op, nodes_.back().first);
      if (work.scope.empty()) work.scope = nodes_.back().second;
    }
    works_.push_back(std::move(work));
  }

  Device device_;
  Watch* before_;
  StepPart reached_ = StepPart::forward;
  std::string kernel_;
  std::vector<std::pair<std::string, std::string>> nodes_;  // ops and scopes, outermost first
  std::vector<Work> works_;
};

/// Returns "layer 3", "encoder layer 3", or the last name of a scope, such as "embed".
std::string layer_of(const std::string& scope, StepPart part) {
  constexpr std::string_view layers = "layers.";
  const size_t at = scope.find(layers);
  if (at != std::string::npos) {
    const size_t number = at + layers.size();
    const std::string layer = "layer " + scope.substr(number, scope.find('.', number) - number);
    if (scope.find("encoder.") < at) return "encoder " + layer;
    return scope.find("decoder.") < at ? "decoder " + layer : layer;
  }
  if (scope.empty()) return part == StepPart::update ? "update" : "outside of layers";
  return scope.substr(scope.rfind('.') + 1);  // all of it without a dot
}

std::string text_of(const Work& work) {
  std::string text = work.op.empty() ? "between ops" : work.op;
  if (work.node) text = "of " + text;
  if (!work.inner.empty() && work.inner != work.op) text += ": " + work.inner;
  return work.scope.empty() ? text : fmt::format("{} in {}", text, work.scope);
}

/// Follows the events of a trace.
class Reader {
 public:
  Reader(const MemoryTrace& trace, const std::vector<Work>& works, const Usage& before)
      : trace_(trace), works_(works), layers_of_(trace.blocks().size(), -1) {
    for (int c = 0; c < category_count; ++c) {
      const auto category = static_cast<Category>(c);
      if (category == Category::cache || before[category] == 0) continue;
      categories_[static_cast<size_t>(c)] = before[category];
      if (layers_.empty()) layer("before the step");
      layers_[0] += before[category];
    }
  }

  Timeline read(const std::string& title) {
    timeline_.title = title;
    const auto& events = trace_.events();
    int64_t sum = std::accumulate(categories_.begin(), categories_.end(), int64_t{0});
    int64_t most = -1, most_of_all = -1;
    size_t work = 0;
    for (size_t i = 0; i < events.size(); ++i) {
      while (work + 1 < works_.size() && works_[work].end <= i) ++work;
      const MemoryTrace::Event& e = events[i];
      if (e.category == Category::cache) continue;
      categories_[static_cast<size_t>(e.category)] += e.bytes;
      layers_[layer_of_block(e.block, work)] += e.bytes;
      sum += e.bytes;
      const size_t instant = i * std::min(most_instants, events.size()) / events.size();
      if (timeline_.instants.size() <= instant) {
        timeline_.instants.resize(instant + 1, now(work));
        most = -1;
      }
      if (sum <= most) continue;
      most = sum;
      timeline_.instants.back() = now(work);
      if (sum <= most_of_all) continue;
      most_of_all = sum;
      timeline_.peak = timeline_.instants.size() - 1;
    }
    keep_used_categories();
    return std::move(timeline_);
  }

 private:
  size_t layer(const std::string& name) {
    const auto [at, added] = index_.try_emplace(name, timeline_.layers.size());
    if (added) {
      timeline_.layers.push_back(name);
      layers_.push_back(0);
    }
    return at->second;
  }

  /// Returns the layer of a block: where it was allocated.
  size_t layer_of_block(size_t block, size_t work) {
    int64_t& known = layers_of_[block];
    if (known < 0) {
      const std::string& own = trace_.blocks()[block].scope;
      const Work none;
      const Work& at = works_.empty() ? none : works_[work];
      known = static_cast<int64_t>(layer(layer_of(own.empty() ? at.scope : own, at.part)));
    }
    return static_cast<size_t>(known);
  }

  Timeline::Instant now(size_t work) const {
    Timeline::Instant instant{.by_category = {categories_.begin(), categories_.end()},
                              .by_layer = layers_,
                              .op = "before any op"};
    if (works_.empty()) return instant;
    instant.part = works_[work].part;
    instant.op = text_of(works_[work]);
    return instant;
  }

  /// Leaves out categories without bytes, and gives all instants all layers.
  void keep_used_categories() {
    for (size_t c = category_count; c-- > 0;) {
      const bool used =
          std::any_of(timeline_.instants.begin(), timeline_.instants.end(),
                      [&](const Timeline::Instant& i) { return i.by_category[c] != 0; });
      if (used) {
        timeline_.categories.insert(timeline_.categories.begin(),
                                    std::string(name_of(static_cast<Category>(c))));
        continue;
      }
      for (Timeline::Instant& i : timeline_.instants) {
        i.by_category.erase(i.by_category.begin() + static_cast<std::ptrdiff_t>(c));
      }
    }
    for (Timeline::Instant& i : timeline_.instants) i.by_layer.resize(timeline_.layers.size(), 0);
  }

  const MemoryTrace& trace_;
  const std::vector<Work>& works_;
  Timeline timeline_;
  std::array<int64_t, category_count> categories_{};
  std::vector<int64_t> layers_, layers_of_;  // bytes of layers, and the layers of blocks
  std::map<std::string, size_t> index_;      // of layers, by name
};

}  // namespace

const char* name_of(StepPart part) {
  return part == StepPart::forward ? "forward" : part == StepPart::backward ? "backward" : "update";
}

int64_t Timeline::Instant::total() const {
  return std::accumulate(by_category.begin(), by_category.end(), int64_t{0});
}

size_t Timeline::begin_of(StepPart part) const {
  const auto first = std::find_if(instants.begin(), instants.end(),
                                  [&](const Instant& i) { return i.part == part; });
  return static_cast<size_t>(first - instants.begin());
}

Timeline timeline_of(const StepPlanner& planner, const StepShape& shape, Device device,
                     const std::string& title) {
  Timeline timeline;
  const StepWatch watch(device);
  planner.step(shape, device, [&](const MemoryTrace& trace, const Usage& before) {
    const std::vector<Work> works = watch.works();
    timeline = Reader(trace, works, before).read(title);
  });
  return timeline;
}

}  // namespace longspan
