#include "core/kernels/linear_attention.h"

#include "core/memory.h"
#include "cuda/launch.h"
#include "cuda/linear_attention/backward.cuh"
#include "cuda/linear_attention/forward.cuh"
#include "cuda/register.h"

namespace longspan::cuda {
namespace {

using kernels::LinearAttentionGradients;
using kernels::LinearAttentionGradientsOut;
using kernels::LinearAttentionInputs;
using kernels::LinearAttentionResultsOf;

/// The passes over the segments of all heads.
enum class LinearPass { sum_keys, attend, query_gradients, sum_queries, key_gradients };

constexpr bool is_of_keys(LinearPass pass) {
  return pass == LinearPass::sum_keys || pass == LinearPass::key_gradients;
}
constexpr bool is_of_forward(LinearPass pass) {
  return pass == LinearPass::sum_keys || pass == LinearPass::attend;
}

/// Blocks on a multiprocessor, each with workspace of its own: two where their registers suffice.
template <class A>
constexpr int resident_blocks(LinearPass pass) {
  const bool gradients = pass == LinearPass::query_gradients || pass == LinearPass::key_gradients;
  return sizeof(A) == 8 || gradients ? 1 : 2;
}

/// Each block processes one segment after another, except segment `unused` of each head. `states`
/// has one state for each segment or, if `state_of_head`, for each head.
template <class A, LinearPass pass>
__global__ void __launch_bounds__(linear_threads, resident_blocks<A>(pass))
    linear_attention_kernel(const __grid_constant__ LinearArguments<A> x, LinearStates<A> states,
                            bool state_of_head, int64_t unused, A* workspace) {
  const int64_t segments = is_of_keys(pass) ? x.key_segments.count : x.query_segments.count;
  std::conditional_t<is_of_forward(pass), LinearForward<A>, LinearBackward<A>> block(x, workspace);
  for (int64_t i = blockIdx.x; i < x.batch * x.heads * segments; i += gridDim.x) {
    if (i % segments == unused) continue;
    const int64_t at = state_of_head ? i / segments : i;
    const LinearStates<A> state{states.sums + at * int64_t{x.features} * x.columns(),
                                states.top + at * x.features};
    block.start(i / segments);
    if constexpr (pass == LinearPass::sum_keys) {
      block.sum_keys(i % segments, state);
    } else if constexpr (pass == LinearPass::attend) {
      block.attend(i % segments, state);
    } else if constexpr (pass == LinearPass::query_gradients) {
      block.find_query_gradients(i % segments, state);
    } else if constexpr (pass == LinearPass::sum_queries) {
      block.sum_queries(i % segments, state);
    } else {
      block.find_key_gradients(i % segments, state);
    }
    __syncthreads();
  }
}

/// Replaces the sums of each segment by `start` plus the sums of all earlier segments (later ones
/// if `backward`), and writes the total.
template <class A>
struct LinearScan {
  LinearStates<A> states;
  const A* part_top;           // of the segments; states.top gets the results
  const A *start, *start_top;  // of each head; nullptr: no start
  A start_sign;                // of start_top
  A none;                      // top of nothing
  LinearStates<A> total;       // of each head; without sums if not required
  A* total_in_units;           // the total in units of 2^unit_top, or nullptr
  const A* unit_top;
  int64_t heads, segments, features, columns;
  bool backward;

  __device__ void scan(int64_t e) const {
    const int64_t c = e % columns, slot = e / columns, head = slot / features, r = slot % features;
    A run = start == nullptr ? A(0) : start[e];
    A top = start == nullptr ? none : start_sign * start_top[slot];
    const bool all = total.sums != nullptr || total_in_units != nullptr;
    for (int64_t n = 0; n < segments; ++n) {
      const int64_t at = (head * segments + (backward ? segments - 1 - n : n)) * features + r;
      A& sum = states.sums[at * columns + c];
      const bool used = all || n + 1 < segments;
      const A part = used ? sum : A(0), of_part = used ? part_top[at] : top;
      sum = run;
      if (c == 0) states.top[at] = top;
      const A high = of_part > top ? of_part : top;
      run = run * between(top, high) + part * between(of_part, high);
      top = high;
    }
    if (total_in_units != nullptr) total_in_units[e] = run * between(unit_top[slot], -top);
    if (total.sums == nullptr) return;
    total.sums[e] = run;
    if (c == 0) total.top[slot] = top;
  }
  /// 2^(a - b).
  __device__ static A between(A a, A b) { return a == b ? A(1) : power_of_two(a - b); }
};

template <class A>
__global__ void __launch_bounds__(linear_threads)
    linear_attention_scan_kernel(const __grid_constant__ LinearScan<A> x) {
  const int64_t count = x.heads * x.features * x.columns;
  const int64_t step = int64_t{gridDim.x} * linear_threads;
  for (int64_t e = int64_t{blockIdx.x} * linear_threads + threadIdx.x; e < count; e += step) {
    x.scan(e);
  }
}

template <class A>
LinearArguments<A> arguments_of(const LinearAttentionInputs& in) {
  LinearArguments<A> x;
  const auto& numbers = in.numbers;
  x.map = numbers.features;
  x.causal = numbers.causal;
  x.exponential = kernels::is_exponential(x.map);
  x.oscillating = kernels::is_oscillating(x.map);
  x.halves = static_cast<int>(kernels::feature_halves(x.map));
  x.norm_sign = kernels::norm_sign(x.map);
  x.batch = in.q.dim(0), x.heads = in.q.dim(1), x.queries = in.q.dim(2), x.keys = in.k.dim(2);
  x.width = static_cast<int>(in.q.dim(3)), x.value_width = static_cast<int>(in.v.dim(3));
  x.m = in.projection ? static_cast<int>(in.projection.dim(1)) : x.width;
  x.features = x.halves * x.m;
  constexpr double log2e = 1.4426950408889634074;
  x.scale = static_cast<A>(numbers.scale);
  x.unit = static_cast<A>(numbers.scale * (x.exponential ? log2e : 1));
  x.norm_factor = static_cast<A>(x.norm_sign * log2e / 2 * numbers.scale * numbers.scale);
  if (!x.exponential && in.projection) {
    const double count = static_cast<double>(x.m);
    x.amplitude =
        static_cast<A>(x.map == FeatureMap::phase ? std::sqrt(2 / count) : 1 / std::sqrt(count));
  }
  x.epsilon = static_cast<A>(numbers.epsilon);
  x.floor = static_cast<A>(numbers.floor);
  x.q = LinearRows<A>::of(in.q);
  x.k = LinearRows<A>::of(in.k);
  x.v = LinearRows<A>::of(in.v);
  x.projection = in.projection.as<A>();
  x.phase = in.phase.as<A>();
  if (in.projection && in.projection.dim(0) > 1) x.projection_head = int64_t{x.m} * x.width;
  if (in.phase && in.phase.dim(0) > 1) x.phase_head = x.m;
  x.k_valid = in.k_valid.as<int64_t>();
  x.k_hidden = in.k_hidden.as<uint8_t>();
  if (in.k_hidden && in.k_hidden.dim(0) > 1) x.hidden_sample = x.keys;
  x.has_start = static_cast<bool>(in.sums);
  x.start_top = in.top.as<A>();
  x.query_segments = Segments::of(x.queries);
  x.key_segments = Segments::of(x.keys);
  return x;
}

/// States of the segments of all heads, and the sum of each head.
template <class A>
class SegmentStates {
 public:
  SegmentStates(int64_t heads, int64_t segments, int64_t features, int64_t columns, Device device)
      : heads_(heads),
        segments_(segments),
        features_(features),
        columns_(columns),
        memory_(std::max<int64_t>(heads * features * (segments * (columns + 2) + columns + 1), 1) *
                    static_cast<int64_t>(sizeof(A)),
                device) {}

  LinearStates<A> parts() const { return {memory_.as<A>(), memory_.as<A>() + sums()}; }
  LinearStates<A> scanned() const { return {memory_.as<A>(), parts().top + tops()}; }
  LinearStates<A> total() const {
    A* const at = scanned().top + tops();
    return {at, at + heads_ * features_ * columns_};
  }

  /// Sums up the parts in place. `x` has start and total.
  void scan(const char* name, LinearScan<A> x) const {
    x.states = scanned();
    x.part_top = parts().top;
    x.heads = heads_, x.segments = segments_, x.features = features_, x.columns = columns_;
    launch(name, linear_attention_scan_kernel<A>,
           dim3(blocks_for(heads_ * features_ * columns_, linear_threads)), linear_threads, 0, x);
  }

 private:
  int64_t sums() const { return heads_ * segments_ * features_ * columns_; }
  int64_t tops() const { return heads_ * segments_ * features_; }

  int64_t heads_, segments_, features_, columns_;
  Scratch memory_;
};

/// Launches a pass over the segments of all heads, but for the segment `unused`.
template <LinearPass pass, class A>
void launch_pass(const char* name, const LinearArguments<A>& x, LinearStates<A> states,
                 bool state_of_head, int64_t unused = -1) {
  constexpr bool gradients = !is_of_forward(pass);
  const int64_t segments = is_of_keys(pass) ? x.key_segments.count : x.query_segments.count;
  const unsigned blocks = blocks_for(x.batch * x.heads * segments, 1, resident_blocks<A>(pass));
  if (blocks == 0) return;
  const Scratch workspace(int64_t{blocks} * LinearWorkspace<A>::elements(x.features, gradients) *
                              static_cast<int64_t>(sizeof(A)),
                          Device{DeviceKind::cuda, 0});
  launch(name, linear_attention_kernel<A, pass>, dim3(blocks), linear_threads,
         LinearShared<A>::bytes(gradients), x, states, state_of_head, unused, workspace.as<A>());
}

/// Sums the keys of each segment and scans: states hold the keys before each segment, `total` all,
/// if it has memory.
template <class A>
void sum_all_keys(const char* name, const LinearArguments<A>& x, const LinearAttentionInputs& in,
                  const SegmentStates<A>& states, LinearStates<A> total) {
  const int64_t unused = total.sums == nullptr ? x.key_segments.count - 1 : -1;
  launch_pass<LinearPass::sum_keys>(name, x, states.parts(), false, unused);
  LinearScan<A> scan{};
  scan.start = in.sums.as<A>();
  scan.start_top = in.top.as<A>();
  scan.start_sign = 1;
  scan.none = x.exponential || x.oscillating ? static_cast<A>(kernels::kNoKeys) : A(0);
  scan.total = total;
  states.scan(name, scan);
}

template <class A>
void forward_of(const LinearAttentionInputs& in, const LinearAttentionResultsOf<View>& to) {
  constexpr const char* name = "linear_attention_forward";
  LinearArguments<A> x = arguments_of<A>(in);
  x.out = LinearRows<A>::of(to.out);
  x.normalizer = to.normalizer.as<A>();
  x.reference = to.reference.as<A>();
  const SegmentStates<A> states(x.batch * x.heads, x.key_segments.count, x.features, x.columns(),
                                in.q.device);
  LinearStates<A> total;
  if (!x.causal) total = states.total();
  if (to.sums) total = {to.sums.as<A>(), to.top.as<A>()};
  sum_all_keys(name, x, in, states, total);
  launch_pass<LinearPass::attend>(name, x, x.causal ? states.scanned() : total, !x.causal);
}

template <class A>
void backward_of(const LinearAttentionInputs& in,
                 const LinearAttentionResultsOf<ConstView>& results,
                 const LinearAttentionGradientsOut& given, const LinearAttentionGradients& to) {
  constexpr const char* name = "linear_attention_backward";
  LinearArguments<A> x = arguments_of<A>(in);
  x.dout = LinearRows<A>::of(given.out);
  x.dq = LinearRows<A>::of(to.q);
  x.dk = LinearRows<A>::of(to.k);
  x.dv = LinearRows<A>::of(to.v);
  x.normalizer = const_cast<A*>(results.normalizer.as<A>());  // the backward pass only reads them
  x.reference = const_cast<A*>(results.reference.as<A>());
  x.means = to.means.as<A>();
  const int64_t heads = x.batch * x.heads;
  {
    const SegmentStates<A> states(heads, x.key_segments.count, x.features, x.columns(),
                                  in.q.device);
    const LinearStates<A> total = x.causal ? LinearStates<A>{} : states.total();
    sum_all_keys(name, x, in, states, total);
    launch_pass<LinearPass::query_gradients>(name, x, x.causal ? states.scanned() : total,
                                             !x.causal);
  }
  const SegmentStates<A> states(heads, x.query_segments.count, x.features, x.columns(),
                                in.q.device);
  LinearScan<A> scan{};
  scan.start = given.sums.as<A>();
  scan.start_top = results.top.as<A>();
  scan.start_sign = -1;
  scan.none = x.exponential || x.oscillating ? static_cast<A>(kernels::kNoKeys) : A(0);
  scan.backward = true;
  if (!x.causal) scan.total = states.total();
  scan.total_in_units = to.sums.as<A>();
  scan.unit_top = in.top.as<A>();
  launch_pass<LinearPass::sum_queries>(name, x, states.parts(), false,
                                       x.causal && !to.sums ? 0 : -1);
  states.scan(name, scan);
  launch_pass<LinearPass::key_gradients>(name, x, x.causal ? states.scanned() : scan.total,
                                         !x.causal);
}

void forward(const LinearAttentionInputs& in, const LinearAttentionResultsOf<View>& to) {
  if (in.q.dtype == DType::f64) return forward_of<double>(in, to);
  forward_of<float>(in, to);
}
void backward(const LinearAttentionInputs& in, const LinearAttentionResultsOf<ConstView>& results,
              const LinearAttentionGradientsOut& given, const LinearAttentionGradients& to) {
  if (in.q.dtype == DType::f64) return backward_of<double>(in, results, given, to);
  backward_of<float>(in, results, given, to);
}

}  // namespace

void register_linear_attention() {
  kernels::linear_attention_forward.set(DeviceKind::cuda, forward);
  kernels::linear_attention_backward.set(DeviceKind::cuda, backward);
}

}  // namespace longspan::cuda
