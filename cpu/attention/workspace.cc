// The attention kernels of the meta device: they allocate exactly the workspace of the CPU kernels.
// They find its size by splitting a call into tasks as the CPU does, in time proportional to the
// size of the layout. The size is cached for equal calls, so the layers of a model pay once.

#include <map>
#include <mutex>
#include <vector>

#include "cpu/attention/plan.h"
#include "cpu/register.h"

namespace longspan::cpu {
namespace {

/// Everything on which the workspace of a call depends.
class CallKey {
 public:
  explicit CallKey(const AttentionProblem& in) {
    add(num_threads());
    const auto add_shape = [this](const ConstView& x) { add(x); };
    kernels::AttentionOperands<ConstView>::visit_tensors(add_shape, in.inputs);
    AttentionProblem::visit_masks(add_shape, in);
    const auto add_table = [this](const ConstView& x) {
      add(x);
      add_values(x);
    };
    kernels::AttentionLayoutView::visit_tensors(add_table, in.layout);
    const kernels::AttentionNumbers& n = in.numbers;
    for (const int64_t x : {n.q_start[0], n.q_start[1], n.left, n.right, n.ids}) add(x);
    add(n.dropout.p > 0 ? 1 : 0);
  }

  void add(int64_t n) { words_.push_back(n); }
  void add(const ConstView& x) {
    add(x ? static_cast<int64_t>(x.dtype) : -1);
    for (int i = 0; i < x.rank(); ++i) add(x.dim(i));
  }

  friend bool operator<(const CallKey& a, const CallKey& b) { return a.words_ < b.words_; }

 private:
  /// Adds a hash of the elements, which are in host memory.
  void add_values(const ConstView& x) {
    uint64_t hash = 0xcbf29ce484222325;
    for (int64_t i = 0; x && i < x.numel(); ++i) {
      hash = (hash ^ static_cast<uint32_t>(x.as<int32_t>()[i])) * 0x100000001b3;
    }
    add(static_cast<int64_t>(hash));
  }

  std::vector<int64_t> words_;
};

/// The meta device has no lengths to read: the workspace is computed for all rows and keys.
AttentionProblem without_lengths(const AttentionProblem& in) {
  AttentionProblem all = in;
  all.q_valid = {};
  for (auto& masks : all.masks) masks = masks.without_lengths();
  return all;
}

/// Allocates the workspace of a call, by running `call` if there was no equal call before.
template <class Call>
void take_workspace(const CallKey& key, Call call) {
  static std::mutex mutex;
  static std::map<CallKey, int64_t> known;
  const std::lock_guard lock(mutex);
  constexpr size_t most_known = 256;
  if (const auto found = known.find(key); found != known.end()) {
    const Scratch workspace(found->second, meta_device);
    return;
  }
  WorkspaceUsage::current() = {};
  call();
  if (known.size() >= most_known) known.clear();
  known[key] = WorkspaceUsage::current().most;
}

void forward(const AttentionProblem& given, View out, View lse) {
  const AttentionProblem in = without_lengths(given);
  CallKey key(in);
  key.add(0);
  take_workspace(key, [&] {
    (in.inputs.q.dtype == DType::f64 ? block_attention_forward_f64 : block_attention_forward_f32)(
        in, out, lse);
  });
}

void backward(const AttentionProblem& given, ConstView out, ConstView lse, ConstView dout,
              ConstView dlse, const AttentionGradients& grads) {
  const AttentionProblem in = without_lengths(given);
  CallKey key(in);
  key.add(1);
  AttentionGradients::visit_tensors([&key](const View& x) { key.add(x); }, grads);
  take_workspace(key, [&] {
    (in.inputs.q.dtype == DType::f64 ? block_attention_backward_f64 : block_attention_backward_f32)(
        in, out, lse, dout, dlse, grads);
  });
}

}  // namespace

WorkspaceUsage& WorkspaceUsage::current() {
  thread_local WorkspaceUsage workspace;
  return workspace;
}

void register_attention_workspace() {
  kernels::block_attention_forward.set(DeviceKind::meta, forward);
  kernels::block_attention_backward.set(DeviceKind::meta, backward);
}

}  // namespace longspan::cpu
