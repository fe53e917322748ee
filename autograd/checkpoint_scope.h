#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "autograd/node.h"

namespace longspan::autograd {

/// Which results of dear ops, products and attention, a frame keeps, so that a re-run takes them
/// and does not compute them again. The last of a part, after which nothing is saved, never is.
enum class Results : uint8_t {
  none,
  inner,  ///< all but the last of each branch of a residual block
  all
};

/// While it lives, frames of this thread note a checksum of all that the ops of their first runs
/// save, and re-runs, whenever they come, are held against it: for layers that may not do the same
/// again, whose gradients would be wrong without a word. Reads every saved tensor on the host.
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

/// A part of a forward pass that keeps what re-running it needs in place of what its ops save. Ops
/// record as usual, but a save inside the frame takes a numbered slot. The first backward that asks
/// for a slot runs the part again with the same arguments; its saves, in the same order, fill the
/// slots that are still wanted, and it ends after the last of them. Nodes, and so the order of
/// every sum, are those of the first run. Frames nest: a save of an inner frame during an outer
/// re-run is a slot again. Derive from it and define replay().
class CheckpointScope : public std::enable_shared_from_this<CheckpointScope> {
 public:
  explicit CheckpointScope(Results kept = Results::none) : kept_(kept) {}
  virtual ~CheckpointScope() = default;
  CheckpointScope(const CheckpointScope&) = delete;
  CheckpointScope& operator=(const CheckpointScope&) = delete;

  /// The innermost frame whose part this thread runs; null where there is none.
  static CheckpointScope* current();

  /// While it lives, saves of this thread go to the frame.
  class Guard {
   public:
    explicit Guard(CheckpointScope* frame);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    CheckpointScope* outer_;
  };

  /// A save of `op`: its slot, or -1 while replaying, when it fills the next one.
  int64_t keep(std::string_view op, const Tensor& tensor);
  /// What a slot holds; runs the part again where it is empty. Throws GradientError where the
  /// re-run saves something else than the first run did: another op, shape or dtype, and with
  /// CheckReplays other numbers.
  const Tensor& get(int64_t slot, std::string_view op);
  /// Nobody asks for the slot any more.
  void drop(int64_t slot);

  /// What a dear op does in a frame. Before it computes: a re-run that wants nothing beyond `saves`
  /// takes them and ends; recall() is the op's result of the first run, undefined where it is not
  /// kept. After it has computed: remember(), with what it will save.
  void offer(std::string_view op, std::span<const Tensor> saves);
  Tensor recall(std::string_view op);
  void remember(std::string_view op, const Tensor& result, std::span<const Tensor> saves);
  /// The part of the current frame that ends here is a branch of a residual block.
  static void end_branch();

 protected:
  /// Runs the part again, recording, with the arguments of the first run.
  virtual void replay() = 0;
  /// Nothing is saved after the results since the last save: no re-run comes to them.
  void forget_last();

 private:
  struct Slot {
    std::string_view op;
    Shape shape;
    DType dtype;
    uint64_t version;  // of the storage when it was saved
    bool wanted;
    std::optional<uint64_t> checksum;  // of the first run, where it is checked
    Tensor tensor;                     // defined once a re-run has filled it
  };

  struct Result {
    std::string_view op;
    SavedTensor tensor;
    size_t slots;  // that there are once its op has saved
  };

  void fill();

  const Results kept_;
  std::vector<Slot> slots_;
  std::vector<Result> results_;
  bool replaying_ = false;
  int64_t next_ = 0, last_ = 0;  // while replaying: the slot to come, and the last one wanted
  size_t next_result_ = 0;       // while replaying
};

}  // namespace longspan::autograd
