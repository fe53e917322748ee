#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/ranks/communicator.h"

namespace longspan {

/// Divides the processors of a host among its processes, where these may run on the same ones. Call
/// it before any thread starts. Returns a line for people, "2 processes on 1 host, 4 threads each",
/// with what to tell mpirun if that is not what there is.
std::string share_processors(Communicator& ranks);

/// Gives each process of a host its own GPU from CUDA_VISIBLE_DEVICES, or from all GPUs, unless it
/// was given just one. Call it before anything asks for a device.
void share_devices(Communicator& ranks);

/// Runs `start` in all processes, and returns once it has succeeded in all. Otherwise the first
/// process throws ValueError with all distinct errors, and their ranks unless all failed alike; the
/// others throw Silent.
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

/// Ends the run after this process has failed. Ranks other than 0 wait first, so that rank 0
/// reports an error of all.
[[noreturn]] void end_together(Communicator& ranks, const std::string& message);

}  // namespace longspan
