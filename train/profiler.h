#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/memory.h"
#include "core/parallel.h"
#include "core/scope.h"
#include "ops/cost.h"

namespace longspan {

/// What a kernel call of a profile belongs to.
enum class Direction : uint8_t {
  forward,
  again,  ///< the forward pass that a memory policy runs again
  backward,
  other  ///< outside of ops: updates, data
};
std::string_view name_of(Direction direction);

/// How a thread spent its time, measured by a Profiler.
struct Profile {
  /// The kernels of an op in one direction, or all in one scope.
  struct Row {
    std::string name;  ///< the op, or outside of ops the kernel; or the scope: "layers.3.attention"
    Direction direction = Direction::forward;
    int64_t calls = 0;  ///< of kernels
    double seconds = 0;
    int64_t macs = 0;       ///< multiply-accumulates, where they are counted: products, attention
    int64_t bytes = 0;      ///< of all tensors that the kernels were given: read, written or both
    int64_t saved = 0;      ///< that the op has saved for its backward
    int64_t workspace = 0;  ///< the most that one of the kernels needed besides
  };
  struct PhaseRow {
    std::string name;
    int64_t calls = 0;
    double seconds = 0,
           in_kernels = 0;  ///< its time without inner phases, and the time of its kernels
  };
  struct Thread {
    double busy = 0, idle = 0;  ///< of the calling thread: idle while it waits for the others
  };

  double seconds = 0;            ///< from begin to end
  std::vector<Row> ops;          ///< the longest first
  std::vector<Row> layers;       ///< one for each scope, in order of appearance
  std::vector<PhaseRow> phases;  ///< in order of appearance
  std::vector<Thread> threads;
  double outside = 0;  ///< seconds outside of all phases and kernels

  /// Seconds in kernels.
  double in_kernels() const;
  /// Seconds in phases besides kernels: allocation, checks, the graph, and what models compute on
  /// the host.
  double between_kernels() const;
};

/// Returns the rows of `layers` with the numbers of layers left out: "layers.*.attention".
std::vector<Profile::Row> merged_layers(const std::vector<Profile::Row>& layers);

/// Returns tables for people. `peak`: multiply-accumulates per second of all threads at best, for
/// the shares; 0: unknown.
std::string to_string(const Profile& profile, double peak = 0);

/// Returns the table of ops, or of layers, as CSV.
std::string to_csv(const std::vector<Profile::Row>& rows);

/// Profiles this thread while it lives: every kernel call with the op, the layer (Scope), the phase
/// (Phase) and the direction it belongs to, what the other threads do meanwhile, and the device's
/// memory. Kernels of a device are waited for one by one, so that their times are their own. One at
/// a time; recorded steps (core/graph.h) do not run under it.
///   Profiler profiler;
///   { const Phase phase("forward"); loss = model.loss(...).loss; }
///   { const Phase phase("backward"); backward(loss); }
///   std::puts(to_string(profiler.profile()).c_str());
///   profiler.write_trace("trace.json");
class Profiler : private Watch {
 public:
  /// Throws ValueError if there is one already, or a MemoryTrace of the device.
  explicit Profiler(Device device = {});
  ~Profiler() override;
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Returns what there is so far; no phase may be open.
  Profile profile() const;
  /// Writes the slices in the Trace Event Format, which ui.perfetto.dev and chrome://tracing show:
  /// phases, layers, nodes of the backward pass and kernels of this thread, jobs of the others, and
  /// the bytes of each category as counters. Throws IoError.
  void write_trace(const std::string& path) const;

 private:
  enum class Kind : uint8_t { phase, scope, node, kernel };
  struct Slice {
    Kind kind;
    Direction direction = Direction::other;
    int name = 0, op = 0, scope = 0, phase = -1;
    int64_t begin = 0, end = 0;  // nanoseconds since the begin
    int64_t inner = 0;           // of kernels in a kernel, or phases in a phase
    int64_t macs = 0, bytes = 0, saved = 0, workspace = 0;
    std::array<int64_t, category_count> live{};  // after a kernel
  };
  void kernel_begins(std::string_view kernel) override;
  void kernel_ends(std::span<const Operand> operands) override;
  void op_ends(std::string_view op, std::span<const int64_t> sizes) override;
  void node_begins(std::string_view op, const std::string& scope) override;
  void node_ends() override;
  void scope_begins() override;
  void scope_ends() override;
  void phase_begins(std::string_view phase) override;
  void phase_ends() override;

  int64_t now() const;
  int number_of(std::string_view text);
  void begin(Kind kind, std::string_view name);
  Slice* end(Kind kind);
  /// Whether a memory policy runs a forward pass again.
  bool again() const;
  /// Gives kernels without an op their own names.
  void close_op();
  /// Follows the memory up to now. Returns the most bytes of workspace on the way.
  int64_t follow_memory();

  Device device_;
  int64_t start_;
  std::unique_ptr<WorkTimes> work_;
  std::unique_ptr<MemoryTrace> memory_;
  size_t events_ = 0;  // of the memory that have been followed
  std::array<int64_t, category_count> live_{};
  int64_t saved_ = 0;  // since the last end of an op
  std::vector<std::string> texts_;
  std::map<std::string, int, std::less<>> numbers_;
  std::vector<Slice> slices_;  // in order of their begins
  std::vector<size_t> open_;   // slices
  size_t first_of_op_ = 0;     // slices since the last end of an op
  struct RunningNode {
    int op, scope;
    bool replaying;  // at its begin
  };
  std::vector<RunningNode> nodes_;
  // Multiply-accumulates of attention in the forward passes of an op in a scope that wait for their
  // backward.
  std::map<std::pair<int, int>, std::vector<int64_t>> attention_of_;
  MacCount macs_;
  int64_t attention_ = 0;  // counted up to the last end of an op
  bool waiting_ = false;
};

}  // namespace longspan
