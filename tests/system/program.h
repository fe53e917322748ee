#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace longspan::test {

/// How a program ended and what it said.
struct Outcome {
  int code = -1;    ///< exit status; -1 where a signal ended it
  int signal = 0;   ///< that signal, else 0
  std::string out;  ///< standard output
  std::string err;  ///< standard error
  double seconds = 0;
  /// The last line of standard output, without its end.
  std::string last_line() const;
};

/// What a program is started with.
struct Start {
  std::vector<std::string> arguments;
  std::vector<std::pair<std::string, std::string>> environment = {};  ///< added to ours
  int64_t file_limit = -1;    ///< most bytes that it may write to a file (RLIMIT_FSIZE)
  int64_t memory_limit = -1;  ///< most bytes of addresses (RLIMIT_AS)
  std::string folder = {};    ///< working folder; empty: ours
  std::string out = {};       ///< where standard output goes; empty: to Outcome::out
  bool with_device = false;   ///< whether there is a device (harness/host_device.h)
  bool closed = false;        ///< whether standard input and output are closed
};

/// A running `longspan`. Killed where it still runs at the end.
class Program {
 public:
  explicit Program(const Start& start);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void send(int signal) const;
  /// Whether it still runs.
  bool running();
  /// Waits for the end.
  Outcome wait();
  /// What it has written to standard output and standard error so far.
  std::string output() const;

 private:
  void collect(int status);

  pid_t pid_ = -1;
  bool ended_ = false;
  std::string out_path_, err_path_;
  double started_ = 0;
  Outcome outcome_;
};

/// Starts `longspan` and waits.
Outcome run(std::vector<std::string> arguments);
Outcome run(const Start& start);

/// A new folder that goes with its object.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string read(const std::string& path);
void write(const std::string& path, const std::string& text);
bool exists(const std::string& path);
/// Names in a folder, sorted, those that begin with a dot included; empty where there is none.
std::vector<std::string> names_in(const std::string& folder);
/// Every file below a folder with its content, sorted: to see that nothing has changed.
std::vector<std::pair<std::string, std::string>> contents(const std::string& folder);
/// Some kilobytes of text that a model can learn from; the same in every run.
std::string some_text(int64_t bytes);
/// Seconds on a clock that only goes forward.
double now();

}  // namespace longspan::test
