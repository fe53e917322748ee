#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace longspan {

/// What the rows of a tensor that a layer keeps belong to.
enum class StateKind : uint8_t {
  samples,  ///< to samples: beams select them, and a stream that begins anew clears them
  source,   ///< to samples of an encoder's output, which the beams of a sample have in common
  shared,   ///< to all samples alike
};

/// One tensor that a layer keeps.
struct StateTensor {
  const char* name;  ///< in checkpoints, behind the path of the layer
  Tensor& x;
  StateKind kind = StateKind::samples;
  double blank = 0;  ///< what it holds for a stream that begins
  /// Returns these values, broadcastable to x, where elements of a sample differ. Empty: all are
  /// `blank`.
  std::function<Tensor()> blanks = {};
};
using StateVisitor = std::function<void(const StateTensor&)>;

/// What a layer keeps of earlier tokens, always without history: at most one value of each type of
/// state. It is passed in as an argument and returned as a result. A type of state is a copyable
/// struct with `void visit(const StateVisitor&)`, which names each of its tensors once, defined or
/// not. The layer that keeps it defines it. Layers of one block keep different types. In training,
/// shapes stay the same from segment to segment, so that steps can be recorded and their memory
/// predicted. Copies are cheap and share their values.
class LayerMemory {
 public:
  LayerMemory() = default;
  template <class... State>
  static LayerMemory of(State... states) {
    LayerMemory m;
    (m.set(std::move(states)), ...);
    return m;
  }

  /// Returns the state of this type; one with nothing in it if the layer keeps none.
  template <class State>
  const State& get() const {
    static const State none{};
    const State* found = find<State>();
    return found != nullptr ? *found : none;
  }
  template <class State>
  bool has() const {
    return find<State>() != nullptr;
  }
  template <class State>
  void set(State state) {
    put(std::make_shared<Of<State>>(std::move(state)));
  }
  template <class State>
  void drop() {
    std::erase_if(states_,
                  [](const auto& s) { return dynamic_cast<const Of<State>*>(s.get()) != nullptr; });
  }
  bool empty() const { return states_.empty(); }

  /// Calls f for every tensor that is defined. f may replace it. Memories that keep the same types
  /// have one order.
  void visit(const StateVisitor& f);

 private:
  struct Any {
    virtual ~Any() = default;
    virtual std::shared_ptr<Any> copy() const = 0;
    virtual void visit(const StateVisitor& f) = 0;
  };
  template <class State>
  struct Of final : Any {
    explicit Of(State s) : state(std::move(s)) {}
    std::shared_ptr<Any> copy() const override { return std::make_shared<Of>(state); }
    void visit(const StateVisitor& f) override { state.visit(f); }
    State state;
  };
  template <class State>
  const State* find() const {
    for (const auto& s : states_) {
      if (const auto* own = dynamic_cast<const Of<State>*>(s.get())) return &own->state;
    }
    return nullptr;
  }
  void put(std::shared_ptr<const Any> state);

  std::vector<std::shared_ptr<const Any>> states_;  // by the names of their types
};

/// Returns x, its bytes counted in Category::memory from now on.
Tensor in_memory(Tensor x);

}  // namespace longspan
