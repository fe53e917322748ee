// longspan summary: what each part of a model has and costs.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>

#include "app/commands.h"
#include "app/step.h"
#include "core/error.h"
#include "core/scope.h"
#include "ops/cost.h"
#include "train/profiler.h"
#include "train/step_memory.h"

namespace longspan {
namespace {

/// A part of a model: a scope, by name.
struct Part {
  std::string name;
  int64_t count = 1;       // of layers that are alike
  int64_t parameters = 0;  // of all of them
  int64_t macs = 0, saved = 0;
  Shape output;  // of its last op
};

/// Follows the forward pass of a step on the meta device.
class Follower : public Watch {
 public:
  Follower() : trace_(meta_device) { Watch::set(this); }
  ~Follower() override { Watch::set(nullptr); }
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  const std::vector<Part>& parts() const { return parts_; }

 private:
  void kernel_begins(std::string_view /*kernel*/) override {}
  void kernel_ends(std::span<const Operand> /*operands*/) override {}
  void node_begins(std::string_view /*op*/, const std::string& /*scope*/) override {}
  void node_ends() override {}
  void scope_begins() override {}
  void scope_ends() override {}
  void op_ends(std::string_view /*op*/, std::span<const int64_t> sizes) override {
    const int64_t macs = macs_.total() - before_;
    before_ = macs_.total();
    if (!forward_ || done_) return;
    Part& part = part_of(Scope::path());
    part.macs += macs;
    part.output = Shape(sizes);
  }
  void phase_begins(std::string_view phase) override {
    forward_ = phase == "forward";
    before_ = macs_.total();
  }
  void phase_ends() override {
    if (!forward_ || done_) return;
    for (const MemoryTrace::Block& block : trace_.blocks()) {
      if (block.live && block.category == Category::saved)
        part_of(block.scope).saved += block.bytes;
    }
    done_ = true;
  }
  Part& part_of(const std::string& scope) {
    const auto [at, fresh] = at_.try_emplace(scope, parts_.size());
    if (fresh) parts_.push_back({.name = scope, .output = {}});
    return parts_[at->second];
  }

  MemoryTrace trace_;
  MacCount macs_;
  int64_t before_ = 0;
  bool forward_ = false, done_ = false;
  std::vector<Part> parts_;
  std::map<std::string, size_t> at_;
};

/// Returns a name with "*" for the numbers in it.
std::string starred(const std::string& name) {
  std::string all;
  for (size_t i = 0; i <= name.size();) {
    const size_t end = std::min(name.find('.', i), name.size());
    const std::string word = name.substr(i, end - i);
    const bool number = !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
    all += (all.empty() ? "" : ".") + (number ? std::string("*") : word);
    i = end + 1;
  }
  return all;
}

/// Gives each parameter to the part whose name is its beginning, without the model's own name
/// before it; what belongs to none is a part by itself.
void add_parameters(std::vector<Part>& parts, const TensorList& parameters) {
  for (const NamedTensor& p : parameters) {
    Part* best = nullptr;
    size_t longest = 0;
    for (Part& part : parts) {
      const size_t dot = part.name.find('.');
      const std::string inner = dot == std::string::npos ? "" : part.name.substr(dot + 1) + ".";
      if (inner.empty() || !p.name.starts_with(inner) || inner.size() <= longest) continue;
      best = &part;
      longest = inner.size();
    }
    if (best == nullptr) {
      const std::string name = p.name.substr(0, p.name.rfind('.'));
      const auto known = std::find_if(parts.begin(), parts.end(),
                                      [&](const Part& part) { return part.name == name; });
      const auto at = static_cast<size_t>(known - parts.begin());
      if (known == parts.end()) parts.push_back({.name = name, .output = {}});
      best = &parts[at];
    }
    best->parameters += p.tensor.numel();
  }
}

std::vector<Part> merged(const std::vector<Part>& parts) {
  std::vector<Part> all;
  for (const Part& part : parts) {
    const std::string name = starred(part.name);
    const auto known =
        std::find_if(all.begin(), all.end(), [&](const Part& p) { return p.name == name; });
    if (known == all.end()) {
      all.push_back(part);
      all.back().name = name;
      continue;
    }
    ++known->count;
    known->parameters += part.parameters;
    known->macs += part.macs;
    known->saved += part.saved;
    known->output = part.output;
  }
  return all;
}

struct SummaryCommandOptions {
  bool all = false, json = false;
  void visit(auto& v) { v("all", all)("json", json); }
};

void print(const std::vector<Part>& parts) {
  Part sum;
  size_t wide = 4;
  for (const Part& p : parts) {
    sum.parameters += p.parameters;
    sum.macs += p.macs;
    sum.saved += p.saved;
    wide = std::max(wide, p.name.size());
  }
  const auto line = [&](const Part& p, const std::string& output) {
    std::puts(
        fmt::format("{:<{}} {:>5} {:>12} {:>12} {:>12}  {}", p.name, wide,
                    p.count > 1 ? std::to_string(p.count) : "", p.parameters,
                    p.macs > 0 ? fmt::format("{:.3f}", 1e-6 * static_cast<double>(p.macs)) : "-",
                    p.saved > 0 ? bytes_text(p.saved) : "-", output)
            .c_str());
  };
  std::puts(fmt::format("{:<{}} {:>5} {:>12} {:>12} {:>12}  {}", "part", wide, "times",
                        "parameters", "MMAC", "saved", "output")
                .c_str());
  for (const Part& p : parts) line(p, p.output.rank() > 0 ? to_string(p.output) : "");
  sum.name = "all";
  line(sum, "");
}

}  // namespace

int summary_command(int argc, const char* const* argv) {
  const Flag own[] = {{"--all", "summary.all", "each layer by itself", true},
                      {"--json", "summary.json", "a JSON line for each part", true}};
  CommandLine line = read_command_line(
      argc, argv, own,
      "longspan summary --model NAME [--length L] [--batch B]: the parts of a model with their "
      "parameters, the multiply-accumulates of a forward pass (in millions), what it saves for the "
      "backward pass, and the shape of what they return. Nothing is computed or allocated.");
  SummaryCommandOptions o;
  set_fields(o, taken(line, "summary."));
  RunConfig config = planned_config(line);
  const StepPlanner planner(config, false);
  const std::function<void()> step = planner.steps_on(meta_device);
  std::vector<Part> parts;
  {
    Follower follower;
    step();
    parts = follower.parts();
  }
  const auto model = config.model->build(Init{.meta = true});
  add_parameters(parts, named_parameters(*model));
  if (!o.all) parts = merged(parts);
  if (!o.json) {
    print(parts);
    return 0;
  }
  for (const Part& p : parts) {
    std::puts(to_string(Json(Members{{"name", p.name},
                                     {"times", p.count},
                                     {"parameters", p.parameters},
                                     {"macs", p.macs},
                                     {"saved", p.saved},
                                     {"output", Json::Array(p.output.begin(), p.output.end())}}))
                  .c_str());
  }
  return 0;
}

}  // namespace longspan
