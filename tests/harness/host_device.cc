#include "tests/harness/host_device.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/best_fit.h"
#include "core/error.h"
#include "core/graph.h"
#include "core/kernels/block_attention.h"
#include "core/kernels/copy.h"
#include "core/kernels/elementwise.h"
#include "core/kernels/gradient.h"
#include "core/kernels/index.h"
#include "core/kernels/loss.h"
#include "core/kernels/lsh.h"
#include "core/kernels/matmul.h"
#include "core/kernels/norm.h"
#include "core/kernels/optim.h"
#include "core/kernels/pool.h"
#include "core/kernels/random.h"
#include "core/kernels/reduce.h"
#include "core/kernels/softmax.h"
#include "core/kernels/sort.h"
#include "core/memory.h"

namespace longspan::test {
namespace {

constexpr int64_t range_bytes = int64_t{4} << 30;

/// The device's memory, accessible only between open() and close().
class Range {
 public:
  Range() {
    void* start =
        mmap(nullptr, range_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
      std::perror("host device");
      std::abort();
    }
    begin_ = static_cast<char*>(start);
    blocks.open(begin_, range_bytes, range_bytes);
  }

  void open() {
    const std::lock_guard lock(mutex_);
    if (depth_++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  void close() {
    const std::lock_guard lock(mutex_);
    if (--depth_ == 0) protect(PROT_NONE);
  }
  bool holds(const void* data) const { return data >= begin_ && data < begin_ + range_bytes; }

  BestFit blocks;

 private:
  void protect(int access) {
    if (mprotect(begin_, range_bytes, access) != 0) {
      std::perror("host device");
      std::abort();
    }
  }
  char* begin_ = nullptr;
  std::mutex mutex_;
  int depth_ = 0;
};

Range& range() {
  static auto* instance = new Range;
  return *instance;
}

struct Open {
  Open() { range().open(); }
  ~Open() { range().close(); }
};

template <class V>
V view_on_cpu(V view) {
  if (view.data != nullptr && view.numel() > 0) {
    require<DeviceError>(view.device.kind == DeviceKind::cuda && range().holds(view.data), "host",
                         "a kernel of the device was given a tensor of {}", name_of(view.device));
  }
  view.device = {};
  return view;
}

/// Converts an argument for the CPU's kernel. Throws if it belongs to another device.
template <class T>
T on_cpu(T value) {
  if constexpr (std::is_same_v<T, View> || std::is_same_v<T, ConstView>) {
    return view_on_cpu(value);
  } else {
    return value;
  }
}

kernels::AttentionInputs attention_on_cpu(kernels::AttentionInputs in) {
  kernels::AttentionLayoutView& l = in.layout;
  for (kernels::AttentionSegment& s : in.segment) {
    for (ConstView* v : {&s.k, &s.v, &s.k_valid, &s.q_from, &s.q_to, &s.k_hidden, &s.q_class,
                         &s.k_class, &s.class_id}) {
      *v = view_on_cpu(*v);
    }
  }
  for (ConstView* v : {&in.q,
                       &in.q_valid,
                       &l.first_tile,
                       &l.tiles,
                       &l.row_start,
                       &l.runs,
                       &l.first_column,
                       &l.col_start,
                       &l.col_runs,
                       &l.layout_index,
                       &l.order_q,
                       &l.order_k,
                       &l.members,
                       &l.row_work.items,
                       &l.row_work.cuts,
                       &l.column_work.items,
                       &l.column_work.cuts,
                       &in.terms.relation_query,
                       &in.terms.relation_key,
                       &in.terms.relation_bias,
                       &in.terms.relation_value,
                       &in.terms.span}) {
    *v = view_on_cpu(*v);
  }
  return in;
}

kernels::AttentionGradients attention_on_cpu(kernels::AttentionGradients grads) {
  for (View* v :
       {&grads.q, &grads.k[0], &grads.v[0], &grads.k[1], &grads.v[1], &grads.relation_query,
        &grads.relation_key, &grads.relation_bias, &grads.relation_value, &grads.span}) {
    *v = view_on_cpu(*v);
  }
  return grads;
}

/// The calls of a recording, in order.
using Tape = std::vector<std::function<void()>>;
Tape* tape = nullptr;  // of the current recording

/// Runs a call of the device or, while recording, stores it for replays.
template <class F>
void submit(F call) {
  if (tape != nullptr) {
    tape->push_back(std::move(call));
    return;
  }
  const Open open;
  call();
}

/// Fills the device's slot of a kernel with the CPU's function.
template <auto& kernel, class Signature = std::remove_cvref_t<decltype(kernel)>>
struct Shadowed;
template <auto& kernel, class... Args>
struct Shadowed<kernel, Kernel<void(Args...)>> {
  static void run(Args... args) {
    submit([... on_host = on_cpu(args)] { kernel(Device{}, on_host...); });
  }
  static void enable() { kernel.set(DeviceKind::cuda, run); }
};

void attention_forward(const kernels::AttentionInputs& in, View out, View lse) {
  submit([in = attention_on_cpu(in), out = view_on_cpu(out), lse = view_on_cpu(lse)] {
    kernels::block_attention_forward(Device{}, in, out, lse);
  });
}

void attention_backward(const kernels::AttentionInputs& in, ConstView out, ConstView lse,
                        ConstView dout, ConstView dlse, const kernels::AttentionGradients& grads) {
  submit([in = attention_on_cpu(in), out = view_on_cpu(out), lse = view_on_cpu(lse),
          dout = view_on_cpu(dout), dlse = view_on_cpu(dlse), grads = attention_on_cpu(grads)] {
    kernels::block_attention_backward(Device{}, in, out, lse, dout, dlse, grads);
  });
}

kernels::LshInputs lsh_on_cpu(kernels::LshInputs in) {
  for (ConstView* v : {&in.q, &in.v, &in.ids, &in.order, &in.place}) *v = view_on_cpu(*v);
  return in;
}

void lsh_forward(const kernels::LshInputs& in, View out, View lse) {
  submit([in = lsh_on_cpu(in), out = view_on_cpu(out), lse = view_on_cpu(lse)] {
    kernels::lsh_attention_forward(Device{}, in, out, lse);
  });
}

void lsh_backward(const kernels::LshInputs& in, ConstView out, ConstView lse, ConstView dout,
                  ConstView dlse, View dq, View dv) {
  submit([in = lsh_on_cpu(in), out = view_on_cpu(out), lse = view_on_cpu(lse),
          dout = view_on_cpu(dout), dlse = view_on_cpu(dlse), dq = view_on_cpu(dq),
          dv = view_on_cpu(dv)] {
    kernels::lsh_attention_backward(Device{}, in, out, lse, dout, dlse, dq, dv);
  });
}

void enable_recordings() {
  begin_recording.set(DeviceKind::cuda, [] { tape = new Tape; });
  end_recording.set(DeviceKind::cuda,
                    [](void** recorded) { *recorded = std::exchange(tape, nullptr); });
  abandon_recording.set(DeviceKind::cuda, [] { delete std::exchange(tape, nullptr); });
  replay_recording.set(DeviceKind::cuda, [](void* recorded) {
    const Open open;
    for (const auto& call : *static_cast<Tape*>(recorded)) call();
  });
  drop_recording.set(DeviceKind::cuda, [](void* recorded) { delete static_cast<Tape*>(recorded); });
}

template <auto&... list>
void enable_all() {
  (Shadowed<list>::enable(), ...);
}

}  // namespace

void enable_host_device() {
  register_backends();
  range();
  memory::set_source(
      DeviceKind::cuda,
      {.allocate = [](int64_t bytes) -> void* { return range().blocks.allocate(bytes); },
       .release = [](void* at,
                     int64_t bytes) { range().blocks.release(static_cast<char*>(at), bytes); },
       .held_free = [] { return range().blocks.held_free(); },
       .set_limit =
           [](int64_t bytes) { range().blocks.set_limit(bytes > 0 ? bytes : range_bytes); }});
  count_devices.set(DeviceKind::cuda, [](int* count) { *count = 1; });
  enable_all<wait_for_device, copy_to_host, copy_from_host, copy_within, set_zero>();
  enable_recordings();
  kernels::block_attention_forward.set(DeviceKind::cuda, attention_forward);
  kernels::block_attention_backward.set(DeviceKind::cuda, attention_backward);
  kernels::lsh_attention_forward.set(DeviceKind::cuda, lsh_forward);
  kernels::lsh_attention_backward.set(DeviceKind::cuda, lsh_backward);
  using namespace kernels;
  enable_all<copy, fill, arange, unary_forward, unary_backward, unary_slope, binary, compare,
             kernels::select, gated_forward, gated_backward, accumulate, sum_to, all_finite>();
  enable_all<check_ids, gather_rows, scatter_add_rows, bincount, matmul, sum_rows, norm_forward,
             norm_backward, argsort, topk, invert_permutation, lsh_hash, kernels::lsh_sort>();
  enable_all<cross_entropy_scan, cross_entropy_weights, cross_entropy_weights_gradient,
             cross_entropy_finish, cross_entropy_gradient, cross_entropy_scale, cross_entropy_total,
             pair_loss, pair_loss_gradient, find_outside>();
  enable_all<sgd_update, adagrad_update, adam_update, adafactor_update, squared_sums,
             kernels::lamb_rate, kernels::adafactor_rate, mean_pool_forward, mean_pool_backward,
             max_pool_forward, max_pool_backward, depthwise_forward, depthwise_backward_x,
             depthwise_backward_w>();
  enable_all<kernels::dropout, uniform, normal, bernoulli, randint, orthonormalize, reduce_sum,
             reduce_extremum, reduce_extremum_backward, cumulative_sum, softmax_forward,
             softmax_backward, logsumexp_forward, logsumexp_backward>();
  for (const KernelBase* kernel : KernelBase::all()) {
    require(!kernel->has(DeviceKind::cpu) || kernel->has(DeviceKind::cuda), "host",
            "{} is not in the list of tests/harness/host_device.cc", kernel->name());
  }
}

}  // namespace longspan::test
