#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/harness/scratch.h"

namespace longspan::test {

/// Arguments of a program.
using Words = std::vector<std::string>;

/// Holds the exit status and the output of a program.
struct Outcome {
  int code = -1;    ///< exit status; -1 if a signal ended the program
  int signal = 0;   ///< that signal, else 0
  std::string out;  ///< standard output
  std::string err;  ///< standard error
  double seconds = 0;
  /// Returns the last line of standard output, without its newline.
  std::string last_line() const;
};

/// Holds the arguments and limits of a program.
struct Start {
  std::vector<std::string> arguments;
  std::vector<std::pair<std::string, std::string>> environment = {};  ///< added to ours
  int64_t file_limit = -1;    ///< most bytes that it may write to a file (RLIMIT_FSIZE)
  int64_t memory_limit = -1;  ///< most bytes of address space (RLIMIT_AS)
  int64_t data_limit = -1;    ///< most bytes of private memory (RLIMIT_DATA)
  std::string folder = {};    ///< working folder; empty: that of the test
  std::string out = {};       ///< the file for standard output; empty: Outcome::out
  bool json = true;           ///< whether train and eval get --json
  bool with_device = false;   ///< whether there is a device (harness/host_device.h)
  bool closed = false;        ///< whether standard input and output are closed
  std::vector<std::string> launcher = {};  ///< what starts it: a program with arguments
};

/// A running `longspan`. The destructor kills it if it is still running.
class Program {
 public:
  explicit Program(const Start& start);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void send(int signal) const;
  /// Says whether the program is still running.
  bool running();
  /// Waits for the end of the program.
  Outcome wait();
  /// Returns the standard output and standard error so far.
  std::string output() const;

 private:
  void collect(int status);

  pid_t pid_ = -1;
  bool ended_ = false;
  std::string out_path_, err_path_;
  double started_ = 0;
  Outcome outcome_;
};

/// Returns `all` and then `more`.
Words joined(Words all, const Words& more);

/// Returns the arguments that train a decoder of a few thousand parameters on the bytes of a file,
/// with steps of less than a millisecond.
std::vector<std::string> small_training(const std::string& text, const std::string& out,
                                        const std::vector<std::string>& more);

/// Starts `longspan` and waits for its end.
Outcome run(std::vector<std::string> arguments);
Outcome run(const Start& start);

/// Expects that a run which goes on with another batch and accumulation reads each sample once: the
/// losses of its steps are, to the bit, those of a run that has always had them. `training` has the
/// arguments of a small run without dropout.
void expect_each_sample_once(const std::vector<std::string>& training, const std::string& folder);

std::string read(const std::string& path);
void write(const std::string& path, const std::string& text);
bool exists(const std::string& path);
/// Returns the sorted names in a folder, including those that begin with a dot; empty if there is
/// no such folder.
std::vector<std::string> names_in(const std::string& folder);
/// Returns every file below a folder with its content, sorted, to check that nothing has changed.
std::vector<std::pair<std::string, std::string>> contents(const std::string& folder);
/// Returns text that a model can learn from, of this many bytes. It is the same in every run.
std::string some_text(int64_t bytes);
/// Returns the seconds of a monotonic clock.
double now();

}  // namespace longspan::test
