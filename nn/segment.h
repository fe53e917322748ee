#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/generator.h"
#include "core/named_tensor.h"
#include "nn/layer_memory.h"

namespace longspan {

/// What a layer keeps of its own inputs. Where the layer of a block reads them, they have gone
/// through the norm before it, as x has.
struct InputRows {
  Tensor states = {};  ///< [B, capacity, D]: inputs of the layer, the newest last
  /// i64 [B]: the first row that exists in each sample, capacity if none does; undefined: all
  /// exist.
  Tensor begin = {};
  int64_t begin_of_stream = 0;  ///< `begin` before the first segment

  void visit(const StateVisitor& v) {
    v({"states", states});
    v({.name = "begin", .x = begin, .blank = static_cast<double>(begin_of_stream)});
  }
};

/// Returns a memory of `capacity` rows, none of which exists yet.
///   states [batch, capacity, width] zeros, begin [batch], both in Category::memory
InputRows free_rows(int64_t batch, int64_t capacity, int64_t width, DType dtype, Device device);

/// Keeps the newest rows of layers that all begin alike: the keeper of Transformer-XL.
class NewestRows {
 public:
  explicit NewestRows(int64_t capacity) : capacity_(capacity) {}

  /// Returns the newest `capacity` rows of [old.states; x], without history, in Category::memory.
  /// If there are fewer, free rows come first, which are zero.
  ///   old   states and begin, or undefined
  ///   x     [B, L, D]
  ///   pass  with Pass::split, x has this process's rows; the memory has those of all
  InputRows keep(const InputRows& old, const Tensor& x, const Pass& pass = {});

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
};

/// Returns the tensors whose rows belong to samples, with names such as "layers.3.states".
TensorList named_tensors(SegmentMemory memory);

/// Returns the memory with f(name, tensor) in place of each tensor of named_tensors(). For a tensor
/// that layers share, f is called once, and the layers share the result.
SegmentMemory replaced(SegmentMemory memory,
                       const std::function<Tensor(const std::string& name, const Tensor& x)>& f);

/// Returns the memory as it is before the first segment for the samples with reset[b] != 0, whose
/// streams begin anew: they hold what StateTensor::blank says. Throws ShapeError unless reset is
/// [B], NotImplemented for a memory of evaluation (SegmentMemory::projected).
SegmentMemory forget(const SegmentMemory& memory, const Tensor& reset);

/// Returns the memory whose row b is row rows[b] (i64 [B']) of this one; `source` selects the rows
/// of what belongs to an encoder's output too.
SegmentMemory take_rows(const SegmentMemory& memory, const Tensor& rows, bool source);

}  // namespace longspan
