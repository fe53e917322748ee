#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/ranks/communicator.h"

namespace longspan {

/// Has the processes of one host run on processors of their own, where they may run on the same
/// ones; before any thread starts. Returns a line for people, "2 processes on 1 host, 4 threads
/// each", with what to tell mpirun if that is not what there is.
std::string share_processors(Communicator& ranks);

/// Has each process of a host use a GPU of its own, the one of its place among those of
/// CUDA_VISIBLE_DEVICES or of all, unless it was given one; before anything asks for a device.
void share_devices(Communicator& ranks);

/// Runs `start` in all processes, and returns once it has succeeded in all. Throws ValueError in
/// the first process with what was wrong, once if all say the same, and else with the ranks that
/// said it; the others throw Silent.
void start_together(Communicator& ranks, const std::function<void()>& start);

/// Thrown in a process that has nothing to say: another one says it.
class Silent : public Error {
 public:
  Silent() : Error("") {}
};

/// What processes compare: names, and values as text.
using Facts = std::vector<std::pair<std::string, std::string>>;

/// Throws ValueError that names the facts that differ, and in which ranks.
void require_equal(Communicator& ranks, const Facts& facts);

/// Ends the run, of whose processes one has failed: those that fail too leave the message to the
/// first.
[[noreturn]] void end_together(Communicator& ranks, const std::string& message);

}  // namespace longspan
