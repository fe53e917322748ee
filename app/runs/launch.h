#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace longspan {

/// A process of this program.
struct Launch {
  std::vector<std::string> arguments;  ///< from the command on
  std::string log;                     ///< the file that its output is added to
  std::string folder;                  ///< where it starts
  std::vector<int> processors;         ///< that it may run on
};

/// Starts it. It ends with this process and does not get its Ctrl-C. Throws ValueError, with `op`,
/// if there is no process to be had.
pid_t launch(const Launch& what, const char* op);

/// Returns the last line of a log; empty if there is none.
std::string last_line_of(const std::string& log);

}  // namespace longspan
