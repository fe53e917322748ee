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

class OwnedParameters;

/// Tensors that the forward pass saves: `count` tensors of `bytes` each.
struct SavedTerm {
  std::string part;  ///< the scope that made it: "layers.3.attention"
  std::string op;    ///< the op that saved it first
  Shape shape;
  DType dtype = DType::f32;
  int64_t bytes = 0;  ///< per tensor, including allocator rounding
  int64_t count = 1;
  std::string formula;  ///< only in collected terms
};

/// The bytes of one training step on one device, and its extra computation.
struct StepMemory {
  int64_t parameter = 0, gradient = 0, optimizer = 0;
  int64_t saved = 0;  ///< at the end of the forward pass
  /// The largest sum of live bytes in each phase. Of Category::cache they have all layouts of
  /// attention that the step asks for, and no others: those are dropped where room is short.
  int64_t forward_peak = 0, backward_peak = 0, update_peak = 0;
  /// The same for what a run does between steps, if it was measured: validation and pictures.
  int64_t evaluation_peak = 0, picture_peak = 0;
  /// Of several processes: what one sends in a step, besides reports of some hundred bytes.
  int64_t sent_bytes = 0, sent_messages = 0;
  Usage at_peak;        ///< per category, at the moment of the largest peak
  int64_t layouts = 0;  ///< of attention: all that the step asks for
  /// Bytes that a recorded step reserves permanently, included in all peaks; 0: not recorded.
  int64_t graph = 0;
  /// Multiply-accumulates of the forward pass, and of recomputation in the backward pass.
  int64_t macs = 0, again = 0;
  std::vector<SavedTerm> terms;  ///< the terms of `saved` in trace order; only if a trace was given

  /// The largest of all.
  int64_t peak() const;
  /// Adds bytes that are held during the whole step.
  void hold(Category category, int64_t bytes);
  double extra_forward() const {
    return macs > 0 ? static_cast<double>(again) / static_cast<double>(macs) : 0;
  }
};

/// Options of measure_step.
struct MeasureOptions {
  double clip = 0;               ///< maximum gradient norm; 0: no clipping
  Usage base = {};               ///< memory that was live before the model was built
  MemoryTrace* trace = nullptr;  ///< for StepMemory::terms
  bool macs = true;              ///< whether to count them, which takes time for long sequences
  /// Forward and backward passes before the update, whose gradients GradientFold adds. At most
  /// rehearsed_passes() of them are run: further passes would need no more memory.
  int64_t passes = 1;
  /// With several processes: what this one owns, of which the optimizer has its part; each pass is
  /// a round of all.
  OwnedParameters* owned = nullptr;
  /// Called after each backward pass, to free what a run holds until then besides the loss.
  std::function<void()> after_pass = {};
  /// Called after the update: what a run does then, outside recordings (end_step()).
  std::function<void()> after_update = {};
  /// Whether to measure the step as StepGraph records it: forward and backward passes together, and
  /// the update, each have their own memory region, and the batches of all passes are held twice.
  /// Values that the host sends are left out: some KiB, and the constants of the step.
  bool graph = false;
};

/// Runs a training step (loss() forward, backward, clipping, and an update with learning rate 0)
/// and returns what it needed. Gradients that the parameters already have join this update. Peaks
/// are maxima over all `passes`; other figures belong to the last pass. On meta_device this is a
/// prediction, in which every op adds the closed-form sizes of what it allocates, saves and frees,
/// and nothing is computed or allocated; on other devices it is a measurement.
StepMemory measure_step(Device device, Optimizer& optimizer, const std::function<Tensor()>& loss,
                        const MeasureOptions& options = {});

/// Returns how many of so many passes measure_step() runs.
int64_t rehearsed_passes(int64_t passes, bool several);

/// Runs what a run does between steps, and returns the largest sum of live bytes on top of `base`,
/// counted as in StepMemory.
int64_t measure_peak(Device device, const Usage& base, const std::function<void()>& work);

/// Returns the largest multiple of `unit` up to `limit` for which peak(size), the predicted bytes,
/// stays within `budget`; 0 if there is none. peak() must not fall as sizes grow, and is best
/// nearly linear: each guess interpolates between two sizes that bracket the budget. It returns -1
/// for a size that cannot be built, which ends the search. `first` is the first guess.
int64_t largest_fitting(const std::function<int64_t(int64_t size)>& peak, int64_t first,
                        int64_t unit, int64_t limit, int64_t budget);

/// Letters for sizes, e.g. {{512, "D"}, {2048, "F"}}; the first match is used.
using Letters = std::vector<std::pair<int64_t, std::string>>;

/// What formulas need to know about a step. `longer` holds the terms of a step that differs only in
/// its length: sizes that differ there count tokens, the others belong to the model.
struct TermNames {
  int64_t batch = 0, length = 0;
  DType element = DType::f32;  ///< of activations; its size in bytes is called u
  Letters letters;
  const std::vector<SavedTerm>* longer = nullptr;
};

/// Merges equal terms of all layers into one, largest first, without the layer number
/// ("layers.*.attention") and with their bytes as a product: "u T D" for f32[B, L, D].
std::vector<SavedTerm> collect_terms(const std::vector<SavedTerm>& terms, const TermNames& names);
/// Returns the sum of all terms: "N (4 u T H d + 3 u T D) + u T D", for N layers.
std::string formula_of(const std::vector<SavedTerm>& collected, int64_t layers);

/// Formats bytes for people: "64 B", "1.5 KiB", "12.0 MiB", "3.25 GiB".
std::string bytes_text(int64_t bytes);
/// Parses "20MiB", "64K", "4GB" or a plain number. K, M, G, T and KiB, MiB, GiB, TiB are powers of
/// 1024; KB, MB, GB, TB powers of 1000; case does not matter. Throws ValueError on anything else,
/// naming `what`.
int64_t parse_bytes(std::string_view text, std::string_view what = "bytes");

/// A number of bytes that options and configurations write as parse_bytes() reads it, or as 0.
struct ByteSize {
  static constexpr std::string_view expected =
      "a size such as 20MiB, 64K, 4GB or 65536 (K and KiB are 1024 bytes, KB is 1000)";
  static bool valid(std::string_view text);
  /// Throws ValueError.
  void set(std::string_view text);
  /// Returns the exact text form: "20MiB", or a plain number.
  std::string text() const;

  int64_t bytes = 0;
};

}  // namespace longspan
