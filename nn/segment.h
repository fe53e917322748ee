#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/named_tensor.h"
#include "core/tensor.h"

namespace longspan {

/// What one layer keeps from earlier segments, always without history. It is passed in as an
/// argument and returned as a result. Each model decides which members it uses. Shapes stay the
/// same from segment to segment, so that steps can be recorded and their memory predicted.
struct LayerMemory {
  Tensor states;  ///< [B, capacity, D]: inputs of the layer, the newest last
  Tensor begin;   ///< i64 [B]: the first row of `states` that exists in each sample, capacity if
                  ///< none does; undefined: all exist
  /// Of a memory whose older rows are compressed: i64 [B], the first row of `states` that is not,
  /// and what rows were used for, [B, capacity, 2] (f64 for f64, else f32).
  Tensor fine_begin, usage;
  /// Inputs of a segment that decoding has not completed, [B, n, D].
  Tensor open;
  /// Keys and values of decoding, [B, H, slots, d]: slots 0 to count - 1 hold positions first to
  /// first + count - 1. The remaining slots are free; a state may be continued only once, because
  /// continuations write into the same slots.
  Tensor keys, values;
  int64_t first = 0, count = 0;
  /// i64 [B, capacity]: the step of its stream, from 1 on, in which each row was made, of a layer
  /// that keeps others than the newest rows; with free rows, as if none were missing.
  Tensor births;
  /// [B, capacity] f32 (f64 for f64): steps that each row of `keys` lives. In decoding [B, slots],
  /// and rows in place of steps: a span loses one with each row that is deleted behind its own.
  Tensor spans;
  /// The state of linear attention in decoding: sums over all keys so far and their exponents,
  /// [B, H, F, dv + 1] and [B, H, F] (ops/attention/linear_attention.h).
  Tensor sums, top;
  /// Of decoding with routing heads, [B, Hr, k, w]: the positions in each group, i32, ascending,
  /// -1 in free places, and their scores. [B, Hr, 2 k, w] where keys are chosen apart: first the
  /// groups of queries.
  Tensor groups, group_scores;
  /// Projected relative positions of decoding, W_R R [H, n, d]: distances n - 1 to 0. All samples
  /// share them.
  Tensor distances;
  /// Keys and values of the encoder output, [B, H, S, d], computed once.
  Tensor context_keys, context_values;

  /// Whether this is what attention keeps in decoding; layers without memory return none of it.
  bool of_decoding() const { return keys || context_keys || sums; }

  /// Calls f(name, tensor) for every tensor whose rows belong to samples and that is defined, but
  /// not for those of the encoder's output, which `visit_context` names.
  template <class F>
  void visit(F&& f) {
    visit_defined(f, {{"states", &states},
                      {"begin", &begin},
                      {"fine_begin", &fine_begin},
                      {"usage", &usage},
                      {"open", &open},
                      {"births", &births},
                      {"keys", &keys},
                      {"values", &values},
                      {"spans", &spans},
                      {"sums", &sums},
                      {"top", &top},
                      {"groups", &groups},
                      {"group_scores", &group_scores}});
  }
  template <class F>
  void visit_context(F&& f) {
    visit_defined(f, {{"context_keys", &context_keys}, {"context_values", &context_values}});
  }

 private:
  template <class F>
  static void visit_defined(F& f, std::initializer_list<std::pair<const char*, Tensor*>> all) {
    for (const auto& [name, x] : all) {
      if (*x) f(name, *x);
    }
  }
};

/// Returns x, its bytes counted in Category::memory from now on.
Tensor in_memory(Tensor x);

/// Returns a memory of `capacity` rows, none of which exists yet.
///   states [batch, capacity, width] zeros, begin [batch], both in Category::memory
LayerMemory free_rows(int64_t batch, int64_t capacity, int64_t width, DType dtype, Device device);

/// Keeps the newest rows of layers that all begin alike: the keeper of Transformer-XL.
class NewestRows {
 public:
  explicit NewestRows(int64_t capacity) : capacity_(capacity) {}

  /// Returns the newest `capacity` rows of [old.states; x], without history, in Category::memory.
  /// If there are fewer, free rows come first, which are zero.
  ///   old  states and begin, or undefined
  ///   x    [B, L, D]
  LayerMemory keep(const LayerMemory& old, const Tensor& x);

 private:
  Tensor begin_after(const Tensor& begin, int64_t shift, const Tensor& x);

  int64_t capacity_, shift_ = 0;
  Tensor before_, after_;  // the begins of the layer before, which is often the same tensor
};

/// The memories of a model's layers, in their order.
struct SegmentMemory {
  std::vector<LayerMemory> layers;
  int64_t position = 0;  ///< tokens read so far in each stream
  /// Whether layers keep projected keys and values, as decoding does, instead of their inputs: for
  /// evaluation, where weights do not change.
  bool projected = false;
  /// Rows of zeros that exist when a stream begins, where there is a `begin`, and how many of them
  /// come after `fine_begin`.
  int64_t phantom = 0, phantom_fine = 0;

  /// LayerMemory::visit() of every layer, with names such as "layers.3.states".
  template <class F>
  void visit(F&& f) {
    for (size_t i = 0; i < layers.size(); ++i) {
      const std::string path = "layers." + std::to_string(i) + ".";
      layers[i].visit([&](const char* name, Tensor& x) { f(path + name, x); });
    }
  }
};

/// Returns the tensors of visit().
TensorList named_tensors(SegmentMemory memory);

/// Returns the memory with f(name, tensor) in place of each tensor of visit(). Where layers share a
/// tensor, f is called for the first of them alone, and they share what it returns.
SegmentMemory replaced(SegmentMemory memory,
                       const std::function<Tensor(const std::string& name, const Tensor& x)>& f);

/// Returns the steps of `births` before a stream begins, 1 - capacity to 0, [1, capacity].
Tensor first_births(int64_t capacity, Device device);

/// Returns the memory as it is before the first segment for the samples with reset[b] != 0, whose
/// streams begin anew: its states are zero, and only the phantom rows exist where there is a
/// `begin`. Throws ShapeError unless reset is [B], NotImplemented for a memory of evaluation
/// (SegmentMemory::projected).
SegmentMemory forget(const SegmentMemory& memory, const Tensor& reset);

/// Returns the memory whose row b is row rows[b] (i64 [B']) of this one; `context` selects the rows
/// of the context keys and values too.
SegmentMemory take_rows(const SegmentMemory& memory, const Tensor& rows, bool context);

}  // namespace longspan
