// LSH attention backward, for one SIMD target and one dtype of computation.

#if defined(LONGSPAN_CPU_LSH_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LONGSPAN_CPU_LSH_BACKWARD_INL_H_
#undef LONGSPAN_CPU_LSH_BACKWARD_INL_H_
#else
#define LONGSPAN_CPU_LSH_BACKWARD_INL_H_
#endif

#include <hwy/highway.h>

#include "cpu/lsh/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace longspan::cpu {
namespace HWY_NAMESPACE {
namespace {

/// The arguments of the backward pass.
struct LshGradientCall {
  const LshInputs& in;
  const ConstView &out, &lse, &dout, &dlse;
  const View &dq, &dv;
};

/// Gradient sums of one tensor over all rounds: in place, or in separate memory if the tensor's
/// dtype cannot hold them.
template <class T>
class LshGradient {
 public:
  LshGradient(const LshData<T>& data, const View& to, Slab<T>& slab)
      : sink_(head_sink<T>(to, data.batch, data.number, nullptr)),
        length_(data.head.length),
        own_(dtype_of<T> == to.dtype ? nullptr : slab.take(length_ * to.dim(3))) {}

  T* row(int64_t i) const { return own_ != nullptr ? own_ + i * sink_.width : sink_.direct(i); }
  // Returns all rows, through an order.
  RowSink<T> through(const int32_t* order) const {
    const int64_t stride = own_ != nullptr ? sink_.width : sink_.stride;
    return {reinterpret_cast<char*>(row(0)), dtype_of<T>, stride, sink_.width, order, false};
  }
  void clear() const {
    for (int64_t i = 0; i < length_; ++i) std::fill_n(row(i), sink_.width, T{0});
  }
  void write() const {
    if (own_ == nullptr) return;
    for (int64_t i = 0; i < length_; ++i) sink_.write(i, row(i));
  }

 private:
  const RowSink<T> sink_;
  const int64_t length_;
  T* const own_;
};

/// Processes all chunks of a head, round by round.
template <class T>
class LshBackward {
 public:
  LshBackward(const LshGradientCall& call, int64_t b, int64_t h, Slab<T>& slab)
      : data_(call.in, b, h, slab),
        call_(call),
        lse_(call.lse.as<T>() + (b * call.in.q.dim(1) + h) * data_.head.length),
        delta_(slab.take(data_.head.length)),
        dq_(data_, call.dq, slab),
        dv_(data_, call.dv, slab),
        keys_(data_, true, kBlock, slab),
        over_width_(over_panels<T>(data_.width, kTileRows * N)),
        over_value_width_(over_panels<T>(data_.value_width, kTileRows * N)),
        q_rows_(slab.take(keys_.width_panels * kTileRows * N)),
        out_rows_(slab.take(keys_.value_panels * kTileRows * N)),
        tile_sums_(slab.take(keys_.width_panels * kTileRows * N)),
        key_sums_(slab.take(keys_.width_panels * keys_.entries * keys_.padded * N)),
        value_sums_(slab.take(keys_.value_panels * keys_.entries * keys_.padded * N)),
        scores_(slab.take((kTileRows + kRest) * kScoreStride)),
        dscores_(slab.take((kTileRows + kRest) * kScoreStride)) {}

  void run() {
    data_.prepare(0, data_.head.length);
    for (int64_t round = 0; round < data_.head.rounds; ++round) data_.sort_chunks(round);
    dq_.clear();
    dv_.clear();
    for (int64_t n = 0; n < keys_.entries; ++n) clear_sums(n);
    for (int64_t round = 0; round < data_.head.rounds; ++round) {
      const int32_t* const order = data_.order(round);
      q_ = head_rows<T>(call_.in.q, data_.batch, data_.number, order);
      dout_ = head_rows<T>(call_.dout, data_.batch, data_.number, order);
      out_ = head_rows<T>(call_.out, data_.batch, data_.number, order);
      for (int64_t chunk = 0; chunk < data_.head.chunks(); ++chunk) attend({round, chunk});
    }
    keys_.leave_all([this](int64_t entry) { leave(entry); });
    dq_.write();
    dv_.write();
  }

 private:
  static constexpr int64_t N = kPanel<T>;
  static constexpr int64_t V = kLanes<T>;
  struct Range {
    int64_t from, to;
  };

  int64_t token(int64_t r) const { return data_.order(chunk_.round)[begin_ + tile_ + r]; }
  int64_t stride() const { return keys_.entries * keys_.padded; }  // rows of a panel of keys

  // delta_i = dO_i . out_i - dlse_i of the rows of the tile. The first round computes all of them.
  void find_delta() {
    const T* const dlse =
        call_.dlse ? call_.dlse.as<T>() +
                         (data_.batch * call_.in.q.dim(1) + data_.number) * data_.head.length
                   : nullptr;
    alignas(64) T temporary[2][kMaxWidth];
    const Tag<T> d;
    for (int64_t r = 0; r < rows_; ++r) {
      const T* const x = dout_.row(begin_ + tile_ + r, temporary[0]);
      const T* const y = out_.row(begin_ + tile_ + r, temporary[1]);
      Vec<T> sums = hn::Zero(d);
      int64_t c = 0;
      for (; c + V <= data_.value_width; c += V) {
        sums = hn::MulAdd(hn::LoadU(d, x + c), hn::LoadU(d, y + c), sums);
      }
      T sum = hn::GetLane(hn::SumOfLanes(d, sums));
      for (; c < data_.value_width; ++c) sum += x[c] * y[c];
      const int64_t i = token(r);
      delta_[i] = dlse != nullptr ? sum - dlse[i] : sum;
    }
  }

  void clear_sums(int64_t entry) {
    const int64_t from = entry * keys_.padded * N, n = keys_.padded * N;
    for (int64_t p = 0; p < keys_.width_panels; ++p)
      std::fill_n(key_sums_ + p * stride() * N + from, n, T{0});
    for (int64_t p = 0; p < keys_.value_panels; ++p)
      std::fill_n(value_sums_ + p * stride() * N + from, n, T{0});
  }

  void attend(LshChunk chunk) {
    chunk_ = chunk;
    begin_ = chunk.chunk * data_.in.rule.chunk;
    keys_.enter(chunk, [this](int64_t entry) { leave(entry); });
    const int64_t all = data_.head.chunk_end(chunk.chunk) - begin_;
    LshSight<T> sight(data_, chunk);
    for (tile_ = 0; tile_ < all; tile_ += kTileRows) {
      rows_ = std::min(kTileRows, all - tile_);
      padded_ = round_up(rows_, kRest);
      const auto scale = static_cast<T>(data_.in.rule.scale * kLog2E);
      finite_rows_ = pack_rows(q_, begin_ + tile_, rows_, padded_, scale, q_rows_, kTileRows);
      finite_rows_ = pack_rows(dout_, begin_ + tile_, rows_, padded_, T{1}, out_rows_, kTileRows) &&
                     finite_rows_;
      if (chunk.round == 0) find_delta();
      std::fill_n(tile_sums_, keys_.width_panels * kTileRows * N, T{0});
      prefetch_next(tile_ + rows_ == all);
      for (int64_t n = 0; n < keys_.blocks_count(); ++n) visit(keys_.block(n), sight);
      add_queries();
    }
  }

  // Prefetches, while products run, the rows that receive sums of this chunk and the rows that the
  // next chunk adds.
  void prefetch_next(bool last) {
    prefetcher_.clear();
    if (!last) return;
    const int64_t length = data_.head.length, chunk = data_.in.rule.chunk;
    const int64_t end = data_.head.chunk_end(chunk_.chunk), next = std::min(end + chunk, length);
    const int64_t keys = data_.in.rule.after * chunk;
    const RowSource<T> v = head_rows<T>(call_.in.v, data_.batch, data_.number, q_.order);
    prefetcher_.add(dq_.through(q_.order), begin_, end);
    prefetcher_.add(dv_.through(q_.order), begin_, end);
    prefetcher_.add(q_, std::min(end + keys, length), std::min(next + keys, length));
    prefetcher_.add(v, std::min(end + keys, length), std::min(next + keys, length));
    prefetcher_.add(dout_, end, next);
    if (chunk_.round == 0) prefetcher_.add(out_, end, next);
    prefetcher_.spread(ceil_div(rows_, kGroup) *
                       (ceil_div(data_.head.window(), N) + keys_.width_panels));
  }

  // Processes one score tile.
  void visit(std::span<LshPiece> pieces, LshSight<T>& sight) {
    ranges_.resize(pieces.size() * kMaxGroups);
    for (int64_t first = 0; first < rows_; first += kGroup) {
      const int64_t count = std::min(kGroup, rows_ - first);
      for (LshPiece& p : pieces) {
        keys_.narrow(p, chunk_, tile_ + first, tile_ + first + count);
        ranges_[static_cast<size_t>(&p - pieces.data()) * kMaxGroups + first / kGroup] = {p.from,
                                                                                          p.to};
        if (!p.empty()) multiply(first, p);
      }
      for (int64_t i = first; i < first + count; ++i) weigh(i, pieces, sight);
      for (int64_t i = first + count; i < round_up(first + count, kRest); ++i) {
        for (const LshPiece& p : pieces) clear_columns(i, p, 0, ceil_div(p.count, V));
      }
      multiply_keys(first, pieces);
    }
    for (size_t n = 0; n < pieces.size(); ++n) {
      multiply_queries(pieces[n], std::span(ranges_).subspan(n * kMaxGroups));
    }
  }

  // S = scale log2(e) Q K^T and dP = dO V^T of a group of rows.
  void multiply(int64_t first, const LshPiece& p) {
    const int64_t rows = std::min(kGroup, padded_ - first);
    for (int64_t j = p.from / N * N; j < p.to; j += N) {
      const int64_t key = p.entry * keys_.padded + p.first + j;
      const int64_t at = first * kScoreStride + p.column + j;
      const auto both = [&](auto vectors) {
        constexpr int kVectors = decltype(vectors)::value;
        product<kVectors, N, T>(rows, q_rows_ + first * N, 1, keys_.key_columns + key * data_.width,
                                over_width_, scores_ + at, kScoreStride, false);
        product<kVectors, N, T>(rows, out_rows_ + first * N, 1,
                                keys_.value_columns + key * data_.value_width, over_value_width_,
                                dscores_ + at, kScoreStride, false);
      };
      if (p.to - j > V) {
        both(std::integral_constant<int, 2>());
      } else {
        both(std::integral_constant<int, 1>());
      }
      prefetcher_.step();
    }
  }

  void clear_columns(int64_t i, const LshPiece& p, int64_t from, int64_t to) {
    const int64_t at = i * kScoreStride + p.column;
    std::fill(scores_ + at + from * V, scores_ + at + to * V, T{0});
    std::fill(dscores_ + at + from * V, dscores_ + at + to * V, T{0});
  }

  T self_probability(const LshSight<T>& sight, T log_sum) const {
    if (!sight.self_counts() && !data_.by_pair()) return T{0};
    if (data_.head.alone(log_sum)) return 1 / static_cast<T>(data_.head.self_weight(sight.query));
    const T above = static_cast<T>(data_.in.rule.self) - log_sum;
    return above < T{-800} ? T{0} : std::exp(above);  // most tokens see other tokens
  }

  // Computes P and dS of row i of the tile.
  void weigh(int64_t i, std::span<const LshPiece> pieces, LshSight<T>& sight) {
    const Tag<T> d;
    sight.note_row(token(i));
    const int64_t query = sight.query;
    const T log_sum = lse_[query];
    const Vec<T> base = hn::Set(d, log_sum * static_cast<T>(kLog2E));
    const Vec<T> delta = hn::Set(d, delta_[query]);
    const Vec<T> own_p = hn::Set(d, self_probability(sight, log_sum));
    alignas(64) T weights[kScoreStride], factors[kScoreStride];
    for (const LshPiece& p : pieces) {
      clear_columns(i, p, 0, p.empty() ? ceil_div(p.count, V) : p.vector<T>());
      if (p.empty()) continue;
      clear_columns(i, p, p.vector_end<T>(), ceil_div(p.count, V));
      T* const s = scores_ + i * kScoreStride + p.column;
      T* const ds = dscores_ + i * kScoreStride + p.column;
      if (data_.by_pair()) sight.weigh(keys_, p, weights);
      for (int64_t v = p.vector<T>(); v < p.vector_end<T>(); ++v) {
        Vec<T> x = exp2(d, hn::Sub(hn::Load(d, s + v * V), base));
        const auto own = sight.itself(keys_, p, v);
        if (data_.by_pair()) {
          const Vec<T> w = hn::Load(d, weights + v * V);
          x = hn::Mul(hn::IfThenElse(own, own_p, x), w);
          x = hn::IfThenElseZero(hn::Gt(w, hn::Zero(d)), x);
        } else {
          x = hn::IfThenElseZero(sight.others(keys_, p, v), x);
          if (sight.self_counts()) x = hn::IfThenElse(own, own_p, x);
        }
        hn::Store(x, d, s + v * V);
      }
      const bool drops = data_.keep.active();
      if (drops) sight.drop(keys_, p, s, factors);
      for (int64_t v = p.vector<T>(); v < p.vector_end<T>(); ++v) {
        const Vec<T> x = hn::Load(d, s + v * V);
        Vec<T> dp = hn::Load(d, ds + v * V);
        if (drops) {
          const Vec<T> keep = hn::Load(d, factors + v * V);
          dp = hn::Mul(dp, keep);
          hn::Store(hn::Mul(x, keep), d, s + v * V);
        }
        // The self logit is a constant, and scores of hidden pairs may hold any value.
        const auto counts = hn::AndNot(sight.itself(keys_, p, v), hn::Ne(x, hn::Zero(d)));
        hn::Store(hn::IfThenElseZero(counts, hn::Mul(x, hn::Sub(dp, delta))), d, ds + v * V);
      }
    }
  }

  // dQ += dS K of a group of rows.
  void multiply_keys(int64_t first, std::span<const LshPiece> pieces) {
    over_keys_.clear();
    for (const LshPiece& p : pieces) {
      if (p.empty()) continue;
      if (!keys_.finite(p.entry)) {
        multiply_key_ranges(first);
        multiply_keys_seen(first, p);
        continue;
      }
      over_keys_.push_back(
          {p.column + p.from, (p.entry * keys_.padded + p.first + p.from) * N, p.to - p.from});
    }
    multiply_key_ranges(first);
  }
  void multiply_key_ranges(int64_t first) {
    if (over_keys_.empty()) return;
    for (int64_t p = 0; p < keys_.width_panels; ++p) {
      product<2, kScoreStride, T>(std::min(kGroup, padded_ - first),
                                  dscores_ + first * kScoreStride, 1,
                                  keys_.key_rows + p * stride() * N, over_keys_,
                                  tile_sums_ + (p * kTileRows + first) * N, N, true);
      prefetcher_.step();
    }
    over_keys_.clear();
  }
  HWY_NOINLINE void multiply_keys_seen(int64_t first, const LshPiece& piece) {
    const int64_t key = piece.entry * keys_.padded + piece.first + piece.from;
    const T* const ds = dscores_ + first * kScoreStride + piece.column + piece.from;
    for (int64_t p = 0; p < keys_.width_panels; ++p) {
      product_of_seen(std::min(kGroup, rows_ - first), ds, kScoreStride, 1,
                      keys_.key_rows + (p * stride() + key) * N, piece.to - piece.from,
                      tile_sums_ + (p * kTileRows + first) * N, N,
                      [ds](int64_t r, int64_t k) { return ds[r * kScoreStride + k] != T{0}; });
    }
  }

  // dV += P^T dO and dK += dS^T Q of the keys of a piece, over the groups of rows that may see some
  // of them.
  void multiply_queries(const LshPiece& p, std::span<const Range> groups) {
    int64_t begin = p.count, end = 0;
    for (int64_t g = 0; g * kGroup < rows_; ++g) {
      const Range& seen = groups[static_cast<size_t>(g)];
      if (seen.from >= seen.to) continue;
      begin = std::min(begin, seen.from);
      end = std::max(end, seen.to);
    }
    for (int64_t j = begin / kRest * kRest; j < end; j += kGroup) {
      const int64_t m = std::min(kGroup, end - j);
      int64_t from = rows_, to = 0;
      for (int64_t g = 0; g * kGroup < rows_; ++g) {
        const Range& seen = groups[static_cast<size_t>(g)];
        if (seen.from >= seen.to || seen.from >= j + m || seen.to <= j) continue;
        from = std::min(from, g * kGroup);
        to = std::min(rows_, (g + 1) * kGroup);
      }
      if (from >= to) continue;
      const int64_t at = from * kScoreStride + p.column + j;
      const int64_t key = p.entry * keys_.padded + p.first + j;
      const InnerRange rows{0, from * N, to - from};
      multiply_rows(scores_ + at, m, out_rows_, keys_.value_panels, rows, value_sums_ + key * N);
      multiply_rows(dscores_ + at, m, q_rows_, keys_.width_panels, rows, key_sums_ + key * N);
    }
  }
  void multiply_rows(const T* a, int64_t keys, const T* rows, int64_t panels, InnerRange over,
                     T* to) {
    const InnerRange all[] = {over};
    for (int64_t p = 0; p < panels; ++p) {
      const T* const panel = rows + p * kTileRows * N;
      if (finite_rows_) {
        product<2, 1, T>(keys, a, kScoreStride, panel, all, to + p * stride() * N, N, true);
        continue;
      }
      product_of_seen(keys, a, 1, kScoreStride, panel + over.b, over.count, to + p * stride() * N,
                      N, [a](int64_t k, int64_t r) { return a[r * kScoreStride + k] != T{0}; });
    }
  }

  // Adds dq of the rows of the tile as queries.
  void add_queries() {
    const auto scale = static_cast<T>(data_.in.rule.scale);
    for (int64_t r = 0; r < rows_; ++r) {
      add_row(tile_sums_, kTileRows, r, scale, data_.width, dq_.row(token(r)));
    }
  }
  // to += factor * row r of panels.
  static HWY_INLINE void add_row(const T* panels, int64_t panel_rows, int64_t r, T factor,
                                 int64_t width, T* to) {
    const Tag<T> d;
    const Vec<T> f = hn::Set(d, factor);
    for (int64_t c = 0; c < width; c += V) {
      const T* const from = panels + (c / N * panel_rows + r) * N + c % N;
      if (c + V <= width) {
        hn::StoreU(hn::MulAdd(f, hn::Load(d, from), hn::LoadU(d, to + c)), d, to + c);
        continue;
      }
      for (int64_t n = 0; n < width - c; ++n) to[c + n] += factor * from[n];
    }
  }

  // Adds the sums of a chunk of keys to their tokens: dq_j += (dk - k (k . dk)) / rho, where k has
  // unit length except for epsilon.
  void leave(int64_t entry) {
    const Tag<T> d;
    const LshChunk c = keys_.chunk(entry);
    const int64_t begin = c.chunk * data_.in.rule.chunk;
    const int64_t keys = data_.head.chunk_end(c.chunk) - begin;
    for (int64_t j = 0; j < keys; ++j) {
      const int64_t i = data_.order(c.round)[begin + j], row = entry * keys_.padded + j;
      add_row(value_sums_, stride(), row, T{1}, data_.value_width, dv_.row(i));
      Vec<T> sums = hn::Zero(d);
      for (int64_t p = 0; p < keys_.width_panels; ++p) {
        const int64_t at = (p * stride() + row) * N;
        for (int64_t n = 0; n < N; n += V) {
          sums = hn::MulAdd(hn::Load(d, keys_.key_rows + at + n), hn::Load(d, key_sums_ + at + n),
                            sums);
        }
      }
      const T along = hn::GetLane(hn::SumOfLanes(d, sums));
      const T factor = keys_.inverse[row] * static_cast<T>(kLn2);  // q_rows_ includes log2(e)
      T* const to = dq_.row(i);
      add_row(key_sums_, stride(), row, factor, data_.width, to);
      add_row(keys_.key_rows, stride(), row, -factor * along, data_.width, to);
    }
    clear_sums(entry);
  }

  LshData<T> data_;
  const LshGradientCall& call_;
  const T* const lse_;
  T* const delta_;
  const LshGradient<T> dq_, dv_;
  LshKeys<T> keys_;
  const std::vector<InnerRange> over_width_, over_value_width_;
  T* const q_rows_;      // of a tile, scaled: [panels][kTileRows][NR]
  T* const out_rows_;    // dO of a tile
  T* const tile_sums_;   // its dQ
  T* const key_sums_;    // dK of the window: [panels][entries * padded][NR]
  T* const value_sums_;  // dV
  T* const scores_;      // S, then P
  T* const dscores_;     // dP, then dS
  RowSource<T> q_, dout_, out_;
  Prefetcher prefetcher_;
  std::vector<InnerRange> over_keys_;
  std::vector<Range> ranges_;  // keys of each piece that each group of rows may see
  LshChunk chunk_{};
  int64_t begin_ = 0, tile_ = 0, rows_ = 0, padded_ = 0;
  bool finite_rows_ = true;
};

/// One thread owns each head, so that the order of sums is fixed.
template <class T>
void lsh_backward(const LshGradientCall& call) {
  const int64_t heads = call.in.q.dim(1), all = call.in.q.dim(0) * heads;
  Slab<T> count(nullptr);
  { LshBackward<T>(call, 0, 0, count); }
  const bool each_its_own = all <= num_threads();  // any thread may then run any head
  const Buffer<T> memory(count.used() * (each_its_own ? all : num_threads()), call.in.q.device);
  if (call.in.q.device == meta_device) return;  // only allocates the workspace
  parallel_for(all, [&](int64_t bh) {
    Slab<T> slab(memory.data() + count.used() * (each_its_own ? bh : worker_index()));
    LshBackward<T>(call, bh / heads, bh % heads, slab).run();
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace longspan::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
