#include "train/step_graph.h"

#include <algorithm>
#include <new>
#include <utility>

#include "autograd/node.h"
#include "core/error.h"
#include "core/memory.h"
#include "ops/copy.h"

namespace longspan {
namespace {

constexpr int kRecordings = 2;  // number of recordings that must agree

void copy_into(Tensor& to, const Tensor& from) {
  if (to.numel() == 0) return;
  copy_within(to.device(), to.mut().data, contiguous(from.detach()).view().data, to.nbytes());
}

}  // namespace

bool StepGraph::fits(const std::vector<Tensor>& inputs) const {
  return std::equal(inputs.begin(), inputs.end(), inputs_.begin(), inputs_.end(),
                    [](const Tensor& a, const Tensor& b) {
                      return a.shape() == b.shape() && a.dtype() == b.dtype();
                    });
}

std::vector<Tensor> StepGraph::gradients(const std::vector<Tensor>& inputs, Generator gen,
                                         const Body& body) try {
  for (const NamedTensor& p : optimizer_.parameters()) {
    require(!grad(p.tensor), "step graph", "\"{}\" has a gradient already: update() or clear it",
            p.name);
  }
  replayed_ = false;
  const bool first = !warm_;
  if (!refusal_.empty() || (!first && recordings_ > 0 && !fits(inputs))) return body(inputs, gen);
  if (first) {
    const int64_t before = memory_tracker(device_).live().total();
    std::vector<Tensor> results = body(inputs, gen);
    needed_ = std::max<int64_t>(0, memory_tracker(device_).peak().total() - before);
    warm_ = true;
    return results;
  }
  gen_ = gen;
  if (recordings_ < kRecordings) record(inputs, body);
  if (graph_ == nullptr) {
    optimizer_.clear_gradients();  // gradients of a failed recording are empty
    return body(inputs, gen);
  }
  for (size_t i = 0; i < inputs.size(); ++i) copy_into(inputs_[i], inputs[i]);
  graph_->replay();
  replayed_ = true;
  const TensorList parameters = optimizer_.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) set_grad(parameters[i].tensor, gradients_[i]);
  return results_;
} catch (const std::bad_alloc&) {
  fail_for_memory("step graph");
}

void StepGraph::record(const std::vector<Tensor>& inputs, const Body& body) {
  const uint64_t before = signature_;
  drop();
  try {
    for (const Tensor& x : inputs) {
      require<NotImplemented>(x.device() == device_, "step graph",
                              "an input is on {}; only what lies on {} is read anew by a replay",
                              name_of(x.device()), name_of(device_));
      inputs_.push_back(clone(x.detach()));
    }
    graph_ = Graph::record(
        device_, [&] { results_ = body(inputs_, live(gen_)); }, memory::Region::roomy(needed_));
    for (const NamedTensor& p : optimizer_.parameters()) gradients_.push_back(grad(p.tensor));
    signature_ = graph_->signature();
    if (++recordings_ > 1 && signature_ != before) {
      fail<NotImplemented>("step graph",
                           "two recordings of it differ: what it does depends on its data");
    }
  } catch (const DeviceError&) {  // another thread is recording: a later step may succeed
    drop();
    recordings_ = 0;
  } catch (const Error& e) {
    drop();
    refusal_ = e.what();
  } catch (const std::bad_alloc&) {  // a later step may find memory
    drop();
    recordings_ = 0;
    throw;
  }
}

void StepGraph::update(double lr) try {
  if (!replays() || !replayed_ || !update_refusal_.empty()) return optimizer_.step(lr);
  TensorList parameters = optimizer_.parameters();  // nothing may fail after the update
  Optimizer::Counted counted(optimizer_, lr);
  if (update_ == nullptr) {
    try {
      update_ = Graph::record(device_, [this] { optimizer_.update_all(); });
    } catch (const DeviceError&) {  // another thread is recording: a later update may succeed
    } catch (const Error& e) {
      update_refusal_ = e.what();
    }
  }
  if (update_ != nullptr) {
    update_->replay();
    for (NamedTensor& p : parameters) p.tensor.mut();  // marks the parameter as written
  } else {
    optimizer_.update_all();
  }
  counted.keep();
  optimizer_.clear_gradients();
} catch (const std::bad_alloc&) {
  fail_for_memory("step graph");
}

void StepGraph::forget() {
  drop();
  recordings_ = 0;
  refusal_.clear();
  update_refusal_.clear();
}

void StepGraph::drop() {
  update_.reset();
  results_.clear();
  gradients_.clear();
  inputs_.clear();
  graph_.reset();
}

int64_t StepGraph::bytes() const {
  return (graph_ != nullptr ? graph_->bytes() : 0) + (update_ != nullptr ? update_->bytes() : 0);
}

}  // namespace longspan
