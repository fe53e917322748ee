#include "nn/after_step.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "autograd/mode.h"
#include "core/error.h"
#include "core/graph.h"
#include "core/kernels/copy.h"
#include "nn/module_list.h"
#include "ops/elementwise.h"

namespace longspan {
namespace {

constexpr const char* kAfterStep = "after_step";

}  // namespace

void add_statistics(std::vector<Statistics>& all, std::vector<Statistics> more) try {
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
} catch (const std::bad_alloc&) {
  fail_for_memory("statistics");
}

EndOfStep::EndOfStep(Module& model) {
  with_memory_for(kAfterStep, [&] {
    ModuleList list(model);
    for (auto& [name, module] : list.modules) {
      place_of_.emplace(module, calls_.size());
      calls_.push_back({module, std::move(name)});
    }
  });
}

void EndOfStep::prepare(int64_t step, Generator gen, std::vector<Statistics> statistics) {
  prepared_ = false;
  statistics_ = std::move(statistics);
  for (Call& call : calls_) call.end = {.step = step, .gen = gen.fork(call.name), .statistics = {}};
  size_t found = 0;
  for (const Statistics& s : statistics_) {
    const auto place = place_of_.find(s.of);
    if (place == place_of_.end()) continue;
    calls_[place->second].end.statistics = s.sums;
    ++found;
  }
  require(found == statistics_.size(), kAfterStep,
          "{} modules returned statistics, and {} of them are visited: a visit() leaves out a "
          "child",
          statistics_.size(), found);
  prepared_ = true;
}

void EndOfStep::run() {
  graph::refuse(kAfterStep, "it runs once after each update");
  require(std::exchange(prepared_, false), kAfterStep, "run() without prepare()");
  const NoGrad off;
  for (const Call& call : calls_) call.module->after_step(call.end);
  statistics_.clear();
}

void write_buffer(Tensor& buffer, const Tensor& value) {
  require_same_shape("write_buffer", {"buffer", buffer}, {"value", value});
  require_same_dtype("write_buffer", {"buffer", buffer}, {"value", value});
  require_same_device("write_buffer", {"buffer", buffer}, {"value", value});
  kernels::copy(buffer.device(), value.detach().view(), buffer.mut());
}

}  // namespace longspan
