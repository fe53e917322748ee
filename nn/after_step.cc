#include "nn/after_step.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>

#include "autograd/mode.h"
#include "core/error.h"
#include "core/graph.h"
#include "core/kernels/copy.h"
#include "ops/elementwise.h"

namespace longspan {
namespace {

constexpr const char* kOp = "after_step";

/// Calls after_step() of each module that it meets for the first time.
class EndOfStep final : public Visitor {
 public:
  EndOfStep(int64_t step, Generator gen, const std::vector<Statistics>& statistics)
      : step_(step), gen_(gen), statistics_(statistics) {}

  void on_module(const std::string& name, Module& module) override {
    if (!ended_.insert(&module).second) return;
    StepEnd end{.step = step_, .gen = gen_.fork(name), .statistics = {}};
    for (const Statistics& s : statistics_) {
      if (s.of != &module) continue;
      end.statistics = s.sums;
      ++found_;
    }
    module.after_step(end);
  }
  size_t found() const { return found_; }

 private:
  void on_parameter(const std::string&, Tensor&) override {}

  int64_t step_;
  Generator gen_;
  const std::vector<Statistics>& statistics_;
  std::unordered_set<const Module*> ended_;
  size_t found_ = 0;
};

}  // namespace

void add_statistics(std::vector<Statistics>& all, std::vector<Statistics> more) {
  const NoGrad off;
  for (Statistics& s : more) {
    const auto same = [&](const Statistics& known) { return known.of == s.of; };
    const auto known = std::find_if(all.begin(), all.end(), same);
    if (known == all.end()) {
      for (Tensor& x : s.sums) x = x.detach();
      all.push_back(std::move(s));
      continue;
    }
    require(known->sums.size() == s.sums.size(), "statistics",
            "a module returned {} sums, and {} before; expected as many", s.sums.size(),
            known->sums.size());
    for (size_t i = 0; i < s.sums.size(); ++i) {
      require_same_shape("statistics", {"before", known->sums[i]}, {"now", s.sums[i]});
      known->sums[i] = add(known->sums[i], s.sums[i].detach());
    }
  }
}

void end_step(Module& model, int64_t step, Generator gen,
              const std::vector<Statistics>& statistics) {
  graph::refuse(kOp, "it runs once after each update");
  const NoGrad off;
  EndOfStep v(step, gen, statistics);
  v.on_module("", model);
  model.visit(v);
  require(
      v.found() == statistics.size(), kOp,
      "{} modules returned statistics, and {} of them are visited: a visit() leaves out a child",
      statistics.size(), v.found());
}

void write_buffer(Tensor& buffer, const Tensor& value) {
  require_same_shape("write_buffer", {"buffer", buffer}, {"value", value});
  require_same_dtype("write_buffer", {"buffer", buffer}, {"value", value});
  require_same_device("write_buffer", {"buffer", buffer}, {"value", value});
  kernels::copy(buffer.device(), value.detach().view(), buffer.mut());
}

}  // namespace longspan
