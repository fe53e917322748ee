#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/lsh/hash.cc"
#include <hwy/foreach_target.h>
// after foreach_target
#include <hwy/highway.h>

#include "core/kernels/lsh_maths.h"
#include "core/parallel.h"
#include "cpu/attention/tile-inl.h"
#include "cpu/lsh/lsh.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

// Hashes some tokens of one head, in all rounds. Tokens are the lanes of a vector, so argmax takes
// one comparison for each projection.
template <class T>
class HashTask {
 public:
  static constexpr int64_t kTokens = 256;

  HashTask(const LshHashCall& call, Slab<T>& slab)
      : call_(call),
        width_(call.q.dim(3)),
        projections_(call.rotation.dim(4)),
        padded_(round_up(projections_, kRest)),
        over_width_{{0, 0, width_}},
        columns_(slab.take(kTokens * width_)),
        rows_(slab.take(N * width_)),
        rotation_(slab.take(width_ * padded_)),
        products_(slab.take(padded_ * N)) {}

  void run(int64_t b, int64_t h, int64_t first, int64_t count) {
    const ConstView& r = call_.rotation;
    const RowSource<T> q = head_rows<T>(call_.q, b, h, nullptr);
    for (int64_t j = 0; j < count; j += N) {
      pack_columns(q, first + j, std::min(N, count - j), rows_, columns_ + j * width_);
    }
    const int64_t sample = r.dim(0) == 1 ? 0 : b, head = r.dim(1) == 1 ? 0 : h;
    const int64_t rounds = r.dim(2), length = call_.q.dim(2);
    for (int64_t round = 0; round < rounds; ++round) {
      const int64_t at = (sample * r.dim(1) + head) * rounds + round;
      read_rotation(r.as<T>() + at * width_ * projections_);
      int32_t* const ids =
          call_.ids.as<int32_t>() + ((b * call_.q.dim(1) + h) * rounds + round) * length + first;
      for (int64_t j = 0; j < count; j += N) {
        product<2, 1, T>(projections_, rotation_, padded_, columns_ + j * width_, over_width_,
                         products_, N, false);
        write(ids + j, std::min(N, count - j));
      }
    }
  }

 private:
  static constexpr int64_t N = kPanel<T>;
  static constexpr int64_t V = kLanes<T>;

  void read_rotation(const T* from) {
    for (int64_t c = 0; c < width_; ++c) {
      std::copy_n(from + c * projections_, projections_, rotation_ + c * padded_);
      std::fill(rotation_ + c * padded_ + projections_, rotation_ + (c + 1) * padded_, T{0});
    }
  }

  // kernels::lsh_bucket() of N tokens, `count` of which exist.
  void write(int32_t* ids, int64_t count) const {
    const Tag<T> d;
    alignas(64) T found[N];
    const int64_t half = call_.first / 2;
    const auto write_factor = [&](int64_t from, int64_t n, auto store) {
      for (int64_t v = 0; v < N; v += V) hn::Store(argmax(from, n, v), d, found + v);
      for (int64_t j = 0; j < count; ++j) store(ids[j], static_cast<int32_t>(found[j]));
    };
    write_factor(0, half, [](int32_t& id, int32_t one) { id = one; });
    if (call_.second == 1) return;
    // The sum may be too large for an exact f32.
    const auto first = static_cast<int32_t>(call_.first);
    write_factor(half, call_.second / 2, [first](int32_t& id, int32_t two) { id += first * two; });
  }

  // Returns the index of the largest of (p, -p) of projections from .. from + n, by lane.
  Vec<T> argmax(int64_t from, int64_t n, int64_t v) const {
    const Tag<T> d;
    const T* const p = products_ + from * N + v;
    Vec<T> high = hn::Load(d, p), low = high, at_high = hn::Zero(d), at_low = hn::Zero(d);
    for (int64_t k = 1; k < n; ++k) {
      const Vec<T> x = hn::Load(d, p + k * N), index = hn::Set(d, static_cast<T>(k));
      at_high = hn::IfThenElse(hn::Gt(x, high), index, at_high);
      at_low = hn::IfThenElse(hn::Lt(x, low), index, at_low);
      high = hn::IfThenElse(hn::Gt(x, high), x, high);
      low = hn::IfThenElse(hn::Lt(x, low), x, low);
    }
    const Vec<T> opposite = hn::Add(at_low, hn::Set(d, static_cast<T>(n)));
    return hn::IfThenElse(hn::Gt(hn::Neg(low), high), opposite, at_high);
  }

  const LshHashCall& call_;
  const int64_t width_, projections_, padded_;
  const std::vector<InnerRange> over_width_;
  T* const columns_;   // tokens: [panels][width][NR]
  T* const rows_;      // rows on their way into columns_
  T* const rotation_;  // of a round: [width][padded]
  T* const products_;  // [padded][NR]
};

template <class T>
void hash(const LshHashCall& call) {
  constexpr int64_t kTokens = HashTask<T>::kTokens;
  const int64_t heads = call.q.dim(1), length = call.q.dim(2), blocks = ceil_div(length, kTokens);
  Slab<T> size(nullptr);
  { HashTask<T>(call, size); }
  const Buffer<T> memory(size.used() * num_threads(), call.q.device);
  if (call.q.device == meta_device) return;  // only allocates the workspace
  parallel_for(call.q.dim(0) * heads * blocks, [&](int64_t task) {
    Slab<T> slab(memory.data() + size.used() * worker_index());
    const int64_t bh = task / blocks, first = task % blocks * kTokens;
    HashTask<T>(call, slab).run(bh / heads, bh % heads, first, std::min(kTokens, length - first));
  });
}

void hash_f32(const LshHashCall& call) { hash<float>(call); }
void hash_f64(const LshHashCall& call) { hash<double>(call); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace longspan::cpu {

HWY_EXPORT(hash_f32);
HWY_EXPORT(hash_f64);

void lsh_hash(const LshHashCall& call) {
  if (call.q.dtype == DType::f64) {
    HWY_DYNAMIC_DISPATCH(hash_f64)(call);
  } else {
    HWY_DYNAMIC_DISPATCH(hash_f32)(call);
  }
}

}  // namespace longspan::cpu
#endif
