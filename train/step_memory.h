#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/memory.h"
#include "core/tensor.h"
#include "train/optimizer.h"

namespace longspan {

/// Something that the forward pass keeps: `count` tensors of `bytes` each.
struct SavedTerm {
  std::string part;  ///< the scope that made it: "layers.3.attention"
  std::string op;    ///< what first kept it
  Shape shape;
  DType dtype = DType::f32;
  int64_t bytes = 0;  ///< of one, as the arena counts them
  int64_t count = 1;
  std::string formula;  ///< in collected terms
};

/// The bytes of one training step on one device, and what they cost.
struct StepMemory {
  int64_t parameter = 0, gradient = 0, optimizer = 0;
  int64_t saved = 0;  ///< at the end of the forward pass
  /// The largest sum of all that is live but Category::cache, which is bounded apart: in each
  /// phase.
  int64_t forward_peak = 0, backward_peak = 0, update_peak = 0;
  Usage at_peak;  ///< the split at the instant of the largest
  /// What a recorded step has set apart for good, in all peaks; 0: it runs kernel by kernel.
  int64_t graph = 0;
  /// Multiply-accumulates of the forward pass, and those that backward runs again.
  int64_t macs = 0, again = 0;
  std::vector<SavedTerm>
      terms;  ///< of `saved`, the largest first; where it was measured by a trace

  int64_t peak() const;
  double extra_forward() const {
    return macs > 0 ? static_cast<double>(again) / static_cast<double>(macs) : 0;
  }
};

/// How a step is measured.
struct MeasureOptions {
  double clip = 0;               ///< of gradients, where it is above 0
  Usage base = {};               ///< what was live before the model was built
  MemoryTrace* trace = nullptr;  ///< for StepMemory::terms
  bool macs = true;  ///< whether to count them, which takes time where sequences are long
  /// Forward and backward passes before the update. At most three are taken: later ones find what
  /// the third does.
  int64_t passes = 1;
  /// Called after each backward pass: drops what a run holds beside the loss until then.
  std::function<void()> after_pass = {};
  /// Whether the step is one that StepGraph records: its forward and backward passes together, and
  /// its update, have memory of their own each, and it holds the batches of all passes, twice.
  /// Numbers that the host sends are left out: some KiB, and the constants of the step.
  bool graph = false;
};

/// Takes a training step: loss() forward, backward, clipping, and an update with the learning rate
/// 0; and says what it needed. Of `passes` the largest peaks count, and of what else differs
/// between them the last. On meta_device this is a prediction, in which every op adds up the closed
/// form of what it makes, keeps and frees, and nothing is computed or allocated; elsewhere it is
/// the measurement.
StepMemory measure_step(Device device, Optimizer& optimizer, const std::function<Tensor()>& loss,
                        const MeasureOptions& options = {});

/// Letters for sizes, e.g. {{512, "D"}, {2048, "F"}}; the first that fits is taken.
using Letters = std::vector<std::pair<int64_t, std::string>>;

/// What formulas need to know of a step. `longer` are the terms of one that differs in its length
/// alone: sizes that differ there are of tokens, the others of the model.
struct TermNames {
  int64_t batch = 0, length = 0;
  DType element = DType::f32;  ///< of activations; its bytes are called u
  Letters letters;
  const std::vector<SavedTerm>* longer = nullptr;
};

/// Equal terms of all layers as one, the largest first, with the number of a layer left out
/// ("layers.*.attention") and their bytes as a product: "u T D" for f32[B, L, D].
std::vector<SavedTerm> collect_terms(const std::vector<SavedTerm>& terms, const TermNames& names);
/// All of them as a sum: "N (4 u T H d + 3 u T D) + u T D", for N layers.
std::string formula_of(const std::vector<SavedTerm>& collected, int64_t layers);

/// "64 B", "1.5 KiB", "12.0 MiB", "3.25 GiB": for people.
std::string bytes_text(int64_t bytes);
/// Of "20MiB", "64K", "4GB" or a plain number. K, M, G, T and KiB, MiB, GiB, TiB are powers of
/// 1024; KB, MB, GB, TB powers of 1000; either case. Throws ValueError on anything else, naming
/// `what`.
int64_t parse_bytes(std::string_view text, std::string_view what = "bytes");

/// A number of bytes as options and configurations write it: as above, or 0.
struct ByteSize {
  static constexpr std::string_view expected =
      "a size such as 20MiB, 64K, 4GB or 65536 (K and KiB are 1024 bytes, KB is 1000)";
  static bool valid(std::string_view text);
  /// Throws ValueError.
  void set(std::string_view text);
  /// Exactly: "20MiB", or a plain number.
  std::string text() const;

  int64_t bytes = 0;
};

}  // namespace longspan
