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
  explicit CallKey(const AttentionInputs& in) {
    add(num_threads());
    add(in.q);
    for (int i = 0; i < in.segments; ++i) {
      const kernels::AttentionSegment& s = in.segment[i];
      for (const ConstView* x : {&s.k, &s.v, &s.q_from, &s.k_hidden, &s.q_class, &s.k_class})
        add(*x);
      add(s.q_start);
    }
    const kernels::AttentionLayoutView& l = in.layout;
    for (const ConstView* x : {&l.first_tile, &l.tiles, &l.row_start, &l.runs, &l.first_column,
                               &l.col_start, &l.col_runs, &l.layout_index, &l.members}) {
      add(*x);
      add_values(*x);
    }
    add(l.order_q);
    add(l.order_k);
    const kernels::AttentionTermsView& t = in.terms;
    for (const ConstView* x :
         {&t.relation_query, &t.relation_key, &t.relation_bias, &t.relation_value, &t.span}) {
      add(*x);
    }
    for (const int64_t n : {t.left, t.right, t.ids}) add(n);
    add(in.dropout.p > 0 ? 1 : 0);
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
AttentionInputs without_lengths(const AttentionInputs& in) {
  AttentionInputs all = in;
  all.q_valid = {};
  for (kernels::AttentionSegment& s : all.segment) s.k_valid = {};
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

void forward(const AttentionInputs& given, View out, View lse) {
  const AttentionInputs in = without_lengths(given);
  CallKey key(in);
  key.add(0);
  take_workspace(key, [&] {
    (in.q.dtype == DType::f64 ? block_attention_forward_f64 : block_attention_forward_f32)(in, out,
                                                                                           lse);
  });
}

void backward(const AttentionInputs& given, ConstView out, ConstView lse, ConstView dout,
              ConstView dlse, const AttentionGradients& grads) {
  const AttentionInputs in = without_lengths(given);
  CallKey key(in);
  key.add(1);
  for (const View* x : {&grads.q, &grads.k[0], &grads.relation_query, &grads.relation_key,
                        &grads.relation_bias, &grads.relation_value, &grads.span}) {
    key.add(*x);
  }
  take_workspace(key, [&] {
    (in.q.dtype == DType::f64 ? block_attention_backward_f64 : block_attention_backward_f32)(
        in, out, lse, dout, dlse, grads);
  });
}

}  // namespace

WorkspaceUsage& WorkspaceUsage::current() {
  thread_local WorkspaceUsage workspace;
  return workspace;
}

void register_attention_room() {
  kernels::block_attention_forward.set(DeviceKind::meta, forward);
  kernels::block_attention_backward.set(DeviceKind::meta, backward);
}

}  // namespace longspan::cpu
