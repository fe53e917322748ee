#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "autograd/node.h"

namespace longspan::autograd {

/// Selects the results of expensive ops (matmul, attention) that a checkpoint scope saves, so that
/// a recomputation reuses them. A result after which the scope saves nothing more is never saved.
enum class Results : uint8_t {
  none,
  inner,  ///< all except the last result of each branch of a residual block
  all
};

/// While it lives, checkpoint scopes of this thread store a checksum of every tensor that their ops
/// save in the forward pass, and each recomputation, whenever it happens, is compared with it. Use
/// it for layers that may not be deterministic, whose gradients would be silently wrong. Reads
/// every saved tensor on the host.
class CheckReplays {
 public:
  CheckReplays();
  ~CheckReplays();
  CheckReplays(const CheckReplays&) = delete;
  CheckReplays& operator=(const CheckReplays&) = delete;

  static bool on();

 private:
  bool outer_;
};

/// A segment of a forward pass that saves what its recomputation needs in place of what its ops
/// save. Ops record as usual, but a save inside the scope gets a numbered slot. The first backward
/// that reads a slot recomputes the segment with the same arguments; its saves, in the same order,
/// fill the slots that are still needed, and it stops after the last of them. Gradients still flow
/// through the nodes of the forward pass, so every sum keeps its order. Scopes nest: a save of an
/// inner scope during an outer recomputation is a slot again. Derive from it and define replay().
class CheckpointScope : public SaveSlots, public std::enable_shared_from_this<CheckpointScope> {
 public:
  explicit CheckpointScope(Results kept = Results::none) : kept_(kept) {}
  CheckpointScope(const CheckpointScope&) = delete;
  CheckpointScope& operator=(const CheckpointScope&) = delete;

  /// Returns the innermost checkpoint scope that this thread runs; null if there is none.
  static CheckpointScope* current();

  /// While it lives, saves of this thread go to the scope.
  class Guard {
   public:
    explicit Guard(CheckpointScope* scope);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    SaveSlots* outer_;
  };

  /// Saves a tensor of `op` and returns its slot. While replaying, fills the next slot and returns
  /// -1.
  int64_t keep(std::string_view op, const Tensor& tensor) override;
  /// Returns the tensor of a slot; recomputes the segment if it is empty. Throws GradientError if
  /// the recomputation saves something else than the forward pass: another op, shape or dtype, and
  /// with CheckReplays other values.
  const Tensor& get(int64_t slot, std::string_view op) override;
  /// Marks the slot as no longer needed.
  void drop(int64_t slot) override;
  std::shared_ptr<SaveSlots> shared() override { return shared_from_this(); }

  /// Calls of an expensive op in a checkpoint scope. offer(), before it computes: a recomputation
  /// that needs nothing beyond `saves` takes them and stops. recall() returns the op's result of
  /// the forward pass, undefined if it was not saved. remember(), after it has computed, saves the
  /// result; `saves` are the tensors that the op will save.
  void offer(std::string_view op, std::span<const Tensor> saves);
  Tensor recall(std::string_view op);
  void remember(std::string_view op, const Tensor& result, std::span<const Tensor> saves);
  /// Marks that a branch of a residual block ends here in the current scope.
  static void end_branch();

 protected:
  /// Recomputes the segment, recording, with the arguments of the forward pass.
  virtual void replay() = 0;
  /// Drops the results after the last save: no recomputation reaches them.
  void forget_last();

 private:
  struct Slot {
    std::string_view op;
    Shape shape;
    DType dtype;
    uint64_t version;  // of the storage when it was saved
    bool wanted;
    std::optional<uint64_t> checksum;  // of the forward pass, if CheckReplays is on
    Tensor tensor;                     // defined once a recomputation has filled it
  };

  struct Result {
    std::string_view op;
    SavedTensor tensor;
    size_t slots;  // number of slots after its op has saved
  };

  void fill();

  const Results kept_;
  std::vector<Slot> slots_;
  std::vector<Result> results_;
  bool replaying_ = false;
  int64_t next_ = 0, last_ = 0;  // while replaying: the next slot, and the last one needed
  size_t next_result_ = 0;       // while replaying
};

}  // namespace longspan::autograd
